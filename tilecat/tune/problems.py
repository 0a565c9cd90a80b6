"""What a tuner runs: a kernel's operands in a layout, the right result, the peer beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..bench import gemm
from ..gemm_parts import places_of
from ..kernels import KernelSpec, Shape
from ..runtime import deferred
from ..runtime.arrays import view


@dataclass(frozen=True)
class Ready:
    """One problem on the GPU.

    Args:
        args: of the kernel.
        check: the error of the output after a run; raises TileError if it is wrong.
        clear: fills the output with NaN.
        peers: functions measured beside, by name.
    """

    args: tuple[Any, ...]
    check: Callable[[], float]
    clear: Callable[[], None]
    peers: dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Tunable:
    """A kernel that can be tuned.

    Args:
        spec: the kernel and its space.
        layouts: of its operands.
        usual: those that are tuned if nobody says which.
        example: (layout, dtype) -> NumPy arguments as the compiler sees those on the GPU.
        ready: (torch, shape, layout, dtype) -> the problem.
        further: (arguments of either, parameters) -> what the kernel takes behind them.
    """

    spec: KernelSpec
    layouts: tuple[str, ...]
    usual: tuple[str, ...]
    example: Callable[[str, str], list[Any]]
    ready: Callable[[Any, Shape, str, str], Ready]
    further: Callable[[Sequence[Any], dict[str, Any]], tuple[Any, ...]] = lambda args, params: ()


_EXAMPLE = {"M": 256, "N": 256, "K": 256}  # rows that TMA can reach, as in every tuned problem


def _gemm_example(layout: str, dtype: str) -> list[Any]:
    args = gemm.SPEC.make(_EXAMPLE, dtype, np.random.default_rng(0))
    turned = [x.T if letter == "T" else x for x, letter in zip(args, layout, strict=False)]
    return [*turned, *args[len(turned) :]]


def _gemm_ready(torch: Any, shape: Shape, layout: str, dtype: str) -> Ready:
    a, b, c = gemm.operands(torch, shape, layout, dtype)
    d = torch.empty_like(c)
    expected = gemm.expected(a, b)
    return Ready(
        (a, b, c),
        check=lambda: gemm.error(c, expected, dtype),
        clear=lambda: gemm.poison(c),
        peers={"torch.mm": lambda: torch.mm(a, b, out=d)},
    )


def _gemm_places(args: Sequence[Any], params: dict[str, Any]) -> tuple[Any, ...]:
    """Places for partial sums, which candidates of a stream share."""
    a, b, c = args
    _, _, index = view(a).device.partition(":")
    sms = deferred.driver().device(int(index)).num_sms if index else 1
    return places_of((a, b, c), params, sms).arguments(a)


TUNABLES = {
    "matmul": Tunable(
        gemm.SPEC, ("NN", "NT", "TN", "TT"), gemm.LAYOUTS, _gemm_example, _gemm_ready, _gemm_places
    )
}  # fmt: skip
