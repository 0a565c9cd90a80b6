"""Host time of a call: ours, torch's, Triton's, and the bare driver launch below all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from ..attention_call import attention
from ..kernels import epilogues
from ..kernels.gemm import matmul as kernel
from ..operators import matmul
from ..ready import MAX_CALLS
from ..runtime.arrays import view
from ..runtime.deferred import launch as launch_module
from ..testing import host_time
from .session import Session, Task

SIZE = 128  # M, N and K: the device is done before the host comes again


def host_tasks() -> list[Task]:
    """One row: microseconds a call of each function."""
    return [Task("host", f"bf16 {SIZE}^3", _host, 1.0)]


def _host(session: Session) -> dict[str, Any]:
    torch = session.torch
    options = {"device": "cuda", "dtype": torch.bfloat16}
    a, b, c = (torch.randn(SIZE, SIZE, **options) for _ in range(3))
    q, k, v = (torch.randn(1, 2, SIZE, 64, **options) for _ in range(3))
    vector = torch.randn(SIZE, device="cuda")
    parameter = torch.nn.Parameter(b, requires_grad=False)
    elsewhere = itertools.cycle(torch.empty(2 * MAX_CALLS, SIZE, SIZE, **options).unbind())
    calls: dict[str, Callable[[], Any]] = {
        "tilecat.matmul(a, b, out=c)": lambda: matmul(a, b, out=c),
        "tilecat.matmul(a, b)": lambda: matmul(a, b),
        "tilecat.matmul(a, parameter, out=c)": lambda: matmul(a, parameter, out=c),
        "tilecat.matmul(a, b, out=elsewhere)": lambda: matmul(a, b, out=next(elsewhere)),
        "tilecat.matmul(a, b, out=c, epilogue=((bias, v), gelu))": lambda: matmul(
            a, b, out=c, epilogue=((epilogues.bias, vector), epilogues.gelu)
        ),
        "kernel(a, b, c)": lambda: kernel(a, b, c, tile_m=64, tile_n=128, stages=8),
        "tilecat.attention(q, k, v)": lambda: attention(q, k, v),
        "torch.mm(a, b, out=c)": lambda: torch.mm(a, b, out=c),
        "torch.mm(a, b)": lambda: torch.mm(a, b),
        "torch SDPA(q, k, v)": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
        "launcher(views)": _launcher(a, b, c)[0],
        "bare driver launch": _launcher(a, b, c)[1],
        "three views": lambda: (view(a), view(b), view(c)),
        "torch's stream getter": lambda: torch._C._cuda_getCurrentRawStream(0),
    }
    missing = _add_triton(calls, a, c)
    for call in calls.values():
        call()
    times = host_time(list(calls.values()))
    return {"host_us": {name: round(us, 3) for name, us in zip(calls, times, strict=True)},
            **missing}  # fmt: skip


def _add_triton(calls: dict[str, Callable[[], Any]], a: Any, c: Any) -> dict[str, str]:
    try:
        from .triton_launch import copy
    except ImportError as error:
        return {"no triton": str(error)}
    calls["Triton kernel (2 tensors, 1 int)"] = lambda: copy(a, c)
    return {}


def _launcher(a: Any, b: Any, c: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A launch with its views at hand, and the driver call alone, with everything prepared."""
    from cuda.bindings import driver as cuda

    compiled = kernel.compile(a, b, c, tile_m=64, tile_n=128, stages=8)
    views = [view(x) for x in (a, b, c)]
    launcher = launch_module().Launcher(compiled.module, compiled.cubin)
    launcher(views)
    block = next(iter(launcher._blocks.values()))
    module, loaded, address = compiled.module, block.loaded, block.address
    stream = 0  # the legacy default stream, which is torch's current one here

    def bare() -> Any:
        return cuda.cuLaunchKernel(
            loaded.function,
            *loaded.grid,
            module.threads,
            1,
            1,
            module.smem_bytes,
            stream,
            address,
            0,
        )

    def with_views(launcher: Any = launcher, views: list[Any] = views) -> None:
        launcher(views)

    bare.keep = (launcher, block)  # type: ignore[attr-defined]
    return with_views, bare
