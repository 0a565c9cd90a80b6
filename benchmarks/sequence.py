"""Linear recurrences beside the copy rate of the same run and, where one runs, torch.

    python benchmarks/sequence.py OUT.json [ROUNDS] [NAME ...]

A row is a `Problem`: what is called, its fewest bytes, an exact result of a small problem of the
same kind, checked first, and functions to time beside. Add one to `PROBLEMS`; NAMEs choose rows by
the beginnings of their names. The share of the floor is the time that the bytes take at the copy
rate (1 GiB read and written by `Tensor.copy_`, in the same run) over the median.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import tilecat as tc
from tilecat.bench import METHOD, record
from tilecat.testing import do_bench, ratio

COPY_BYTES = 1 << 29
ROUNDS = 20
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Problem:
    """One row.

    Args:
        name: kernel and what it is given.
        extents: of `inputs`.
        inputs: extents -> arguments of `call`, on the GPU.
        call: what is timed.
        exact: arguments -> the first result, in float64, of the problem with `small` extents.
        small: extents of the problem that is checked.
        num_bytes: fewest bytes through device memory of the timed problem.
        peers: by name, what is timed beside, on the same arguments.
        limit: of the error's norm over the result's.
    """

    name: str
    extents: dict[str, int]
    inputs: Callable[..., tuple[Any, ...]]
    call: Callable[..., Any]
    exact: Callable[..., torch.Tensor]
    small: dict[str, int]
    num_bytes: int
    peers: dict[str, Callable[..., Any]] = field(default_factory=dict)
    limit: float = 3.6e-3


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=BF16)


# ---- linear attention and its gated forms


def attend(B: int, H: int, T: int, D: int) -> tuple[Any, ...]:
    return tuple(normal(B, T, H, D) for _ in range(3))


def gate(B: int, H: int, T: int, D: int) -> tuple[Any, ...]:
    return (*attend(B, H, T, D), -0.2 * torch.rand(B, T, H, device="cuda"))


def with_gradient(B: int, H: int, T: int, D: int) -> tuple[Any, ...]:
    return (normal(B, T, H, D), *gate(B, H, T, D))


def weights(g: torch.Tensor) -> torch.Tensor:
    """Decays between tokens, of gates batch x heads x length."""
    sums = g.double().cumsum(-1)
    return torch.tril(torch.exp((sums[..., :, None] - sums[..., None, :]).clamp(max=0)))


def exact_gated(q: Any, k: Any, v: Any, g: Any = None) -> torch.Tensor:
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    g = torch.zeros(q.shape[:3], device="cuda") if g is None else g.transpose(1, 2)
    out = ((q @ k.mT) * weights(g)) @ v * q.shape[-1] ** -0.5
    return out.transpose(1, 2)


def exact_gradient(do: Any, q: Any, k: Any, v: Any, g: Any) -> torch.Tensor:
    leaf = q.double().requires_grad_()
    exact_gated(leaf, k, v, g).backward(do.double())
    assert leaf.grad is not None
    return leaf.grad


def gradients(do: Any, *rest: Any) -> Any:
    return tc.simple_gla_backward(do, *rest)


def linear_problem(
    name: str, extents: dict[str, int], inputs: Any, call: Any, exact: Any, units: int, extra: int
) -> Problem:
    """A row of linear attention: `units` of D elements and `extra` bytes a token and head."""
    tokens = extents["B"] * extents["H"] * extents["T"]
    label = " ".join(f"{key}{value}" for key, value in extents.items())
    small = {"B": 2, "H": 4, "T": 1000, "D": extents["D"]}
    moved = tokens * (2 * units * extents["D"] + extra)
    return Problem(f"{name} {label}", extents, inputs, call, exact, small, moved)


PEERS = tuple({"B": 16, "H": 16, "T": t, "D": d} for d in (64, 128) for t in (1024, 4096, 8192))
LINEAR = (
    *(linear_problem("linear_attention", e, attend, tc.linear_attention, exact_gated, 4, 0)
      for e in (*PEERS, {"B": 1, "H": 96, "T": 8192, "D": 128},
                {"B": 4, "H": 64, "T": 4096, "D": 128}, {"B": 1, "H": 64, "T": 32768, "D": 128},
                {"B": 1, "H": 16, "T": 65536, "D": 128}, {"B": 2, "H": 16, "T": 16384, "D": 128},
                {"B": 1, "H": 8, "T": 32768, "D": 128})),
    *(linear_problem("simple_gla", e, gate, tc.simple_gla, exact_gated, 4, 4) for e in PEERS),
    *(linear_problem("simple_gla_backward", e, with_gradient, gradients, exact_gradient, 7, 8)
      for e in PEERS if e["T"] == 8192),
)  # fmt: skip


# ---- Mamba-2


def mamba(B: int, H: int, G: int, T: int, P: int, N: int) -> tuple[Any, ...]:
    x, b, c = normal(B, T, H, P), normal(B, T, G, N), normal(B, T, G, N)
    dt, heads = torch.randn(B, T, H, device="cuda") - 3, torch.randn(3, H, device="cuda")
    return x, dt, -torch.exp(heads[0]), b, c, heads[1], heads[2]


def ssd(x: Any, dt: Any, a: Any, b: Any, c: Any, skip: Any, bias: Any) -> Any:
    return tc.ssd(x, dt, a, b, c, D=skip, dt_bias=bias, dt_softplus=True)


def exact_mamba(x: Any, dt: Any, a: Any, b: Any, c: Any, skip: Any, bias: Any) -> torch.Tensor:
    heads = x.shape[2]
    x, b, c, dt = (y.double().transpose(1, 2) for y in (x, b, c, dt))
    b, c = (y.repeat_interleave(heads // y.shape[1], 1) for y in (b, c))
    steps = torch.nn.functional.softplus(dt + bias.double()[:, None])
    scores = (c @ b.mT) * weights(steps * a.double()[:, None]) * steps[..., None, :]
    return (scores @ x + skip.double()[:, None, None] * x).transpose(1, 2)


def mamba_problem(**extents: int) -> Problem:
    tokens, heads, groups = extents["B"] * extents["T"], extents["H"], extents["G"]
    label = " ".join(f"{key}{value}" for key, value in extents.items())
    small = {**extents, "B": 1, "T": 1000}
    moved = tokens * (heads * (4 * extents["P"] + 4) + 4 * groups * extents["N"])
    return Problem(f"ssd {label}", extents, mamba, ssd, exact_mamba, small, moved)


MAMBA = (
    *(mamba_problem(B=16, H=16, G=1, T=t, P=64, N=64) for t in (1024, 4096, 16384)),
    mamba_problem(B=8, H=80, G=1, T=2048, P=64, N=128),
    mamba_problem(B=1, H=128, G=1, T=8192, P=64, N=128),
    mamba_problem(B=1, H=128, G=8, T=32768, P=64, N=128),
)


# ---- the gated delta rule, with norms in the kernel, and Based


def delta_inputs(B: int, Hk: int, H: int, T: int) -> tuple[Any, ...]:
    g, beta = -0.1 * torch.rand(B, T, H, device="cuda"), torch.rand(B, T, H, device="cuda")
    return normal(B, T, Hk, 128), normal(B, T, Hk, 128), normal(B, T, H, 128), g, beta


def gated_delta(*given: Any) -> Any:
    return tc.gated_delta_rule(*given, use_qk_l2norm_in_kernel=True)


def exact_delta(q: Any, k: Any, v: Any, g: Any, beta: Any) -> torch.Tensor:
    """Token by token."""
    q, k, v, g, beta = (x.double().transpose(1, 2) for x in (q, k, v, g, beta))
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
    state, rows = v.new_zeros(*v.shape[:2], 128, 128), []
    for t in range(v.shape[2]):
        state = state * g[:, :, t, None, None].exp()
        new = v[:, :, t] - (k[:, :, t, None] @ state)[:, :, 0]
        state = state + k[:, :, t, :, None] * (beta[:, :, t, None] * new)[:, :, None]
        rows.append((q[:, :, t, None] @ state)[:, :, 0] * 128**-0.5)
    return torch.stack(rows, 1)


def delta_problem(**e: int) -> Problem:
    label = " ".join(f"{key}{value}" for key, value in e.items())
    moved = e["B"] * e["T"] * (512 * (e["Hk"] + e["H"]) + 8 * e["H"])
    small = {**e, "B": 1, "Hk": 2, "H": 4, "T": 1000}
    return Problem(f"gated_delta_rule {label}", e, delta_inputs, gated_delta, exact_delta, small,
                   moved, limit=6.3e-3)  # fmt: skip


def based_inputs(B: int, H: int, T: int) -> tuple[Any, ...]:
    return normal(B, H, T, 16), normal(B, H, T, 16), normal(B, H, T, 64)


def based(q: Any, k: Any, v: Any) -> Any:
    return tc.based(q, k, v, use_norm=False)


def exact_based(q: Any, k: Any, v: Any) -> torch.Tensor:
    s = q.double() @ k.double().mT / 4
    return torch.tril(1 + s + s * s / 2) @ v.double()


def based_problem(**e: int) -> Problem:
    label = " ".join(f"{key}{value}" for key, value in e.items())
    small = {"B": 2, "H": 3, "T": 1000}
    moved = 320 * e["B"] * e["H"] * e["T"]
    return Problem(f"based {label}", e, based_inputs, based, exact_based, small, moved)


DELTA = tuple(
    delta_problem(B=b, Hk=16, H=h, T=t)
    for b, h, t in ((1, 64, 8192), (1, 32, 8192), (4, 64, 8192), (1, 64, 2048))
)
def based_gradient_inputs(B: int, H: int, T: int) -> tuple[Any, ...]:
    return (normal(B, H, T, 64), *based_inputs(B, H, T))


def based_gradients(*given: Any) -> Any:
    return tc.based_backward(*given, use_norm=False)


def exact_based_gradient(do: Any, q: Any, k: Any, v: Any) -> torch.Tensor:
    leaf = q.double().requires_grad_()
    exact_based(leaf, k, v).backward(do.double())
    assert leaf.grad is not None
    return leaf.grad


def based_gradient_problem(**e: int) -> Problem:
    row = based_problem(**e)
    return Problem(
        row.name.replace("based", "based_backward"), e, based_gradient_inputs, based_gradients,
        exact_based_gradient, row.small, 512 * e["B"] * e["H"] * e["T"], limit=4e-3,
    )  # fmt: skip


LENGTHS = (1024, 4096, 16384)
BASED = (
    *(based_problem(B=16, H=16, T=t) for t in LENGTHS),
    *(based_gradient_problem(B=16, H=16, T=t) for t in LENGTHS),
)


# ---- Hedgehog


def hedgehog_inputs(B: int, H: int, T: int) -> tuple[Any, ...]:
    maps = tuple(normal(H, 128, 64) / 128**0.5 for _ in range(2))
    factors = tuple(0.2 + 0.8 * torch.rand(H, device="cuda") for _ in range(2))
    return *(normal(B, H, T, 128) for _ in range(3)), *maps, *factors


def exact_hedgehog(
    q: Any, k: Any, v: Any, qmap: Any, kmap: Any, alpha: Any, beta: Any
) -> torch.Tensor:  # fmt: skip
    q, k, v, qmap, kmap = (x.double() for x in (q, k, v, qmap, kmap))
    alpha, beta = (x.double()[:, None, None] for x in (alpha, beta))
    token = torch.arange(q.shape[2], device="cuda")
    far = token // 64 < (token // 64 - 1)[:, None]
    near = (token <= token[:, None]) & ~far
    s = (q @ k.mT * 128**-0.5).masked_fill(~near, float("-inf"))
    phi = [torch.cat([(x @ w).softmax(-1), (-x @ w).softmax(-1)], -1)
           for x, w in ((q, qmap), (k, kmap))]  # fmt: skip
    w = beta * (s - s.amax(-1, keepdim=True)).exp()
    w = w + alpha * (phi[0] @ phi[1].mT).masked_fill(~far, 0.0)
    return (w @ v) / (w.sum(-1, keepdim=True) + 1e-6)


def hedgehog_problem(**e: int) -> Problem:
    label = " ".join(f"{key}{value}" for key, value in e.items())
    small = {"B": 2, "H": 3, "T": 1000}
    moved = 1024 * e["B"] * e["H"] * e["T"]
    return Problem(f"hedgehog {label}", e, hedgehog_inputs, tc.hedgehog, exact_hedgehog, small,
                   moved)  # fmt: skip


HEDGEHOG = tuple(hedgehog_problem(B=16, H=16, T=t) for t in LENGTHS)
PROBLEMS: tuple[Problem, ...] = (*LINEAR, *MAMBA, *DELTA, *BASED, *HEDGEHOG)


def first(result: Any) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


def error_of(problem: Problem) -> float:
    """Norm of the error over that of the result, of the small problem."""
    torch.manual_seed(0)
    given = problem.inputs(**problem.small)
    exact = problem.exact(*given)
    got = first(problem.call(*given)).double()
    return float((got - exact).norm() / exact.norm())


def copy_rate(rounds: int) -> float:
    """Bytes a microsecond, read and written."""
    x, y = (torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    return float(2 * COPY_BYTES / do_bench(lambda: y.copy_(x), repeats=rounds).median_us)


def measure(problem: Problem, rate: float, rounds: int) -> dict[str, Any]:
    row: dict[str, Any] = {"label": problem.name, "extents": problem.extents}
    row["error"] = error_of(problem)
    if not row["error"] <= problem.limit:
        return {**row, "failed": f"error above {problem.limit}"}
    given = problem.inputs(**problem.extents)
    functions = {"tilecat": lambda: problem.call(*given)}
    functions |= {name: lambda f=f: f(*given) for name, f in problem.peers.items()}
    times = do_bench(list(functions.values()), repeats=rounds, budget_s=4.0)
    named = dict(zip(functions, times, strict=True))
    floor = problem.num_bytes / rate
    return {
        **row, "num_bytes": problem.num_bytes, "floor_us": round(floor, 2),
        "times_us": {name: taken.summary() for name, taken in named.items()},
        "share_of_floor": round(floor / named["tilecat"].median_us, 4),
        "ratio": {name: ratio(named[name], named["tilecat"]) for name in problem.peers},
    }  # fmt: skip


def main(target: str, rounds: int = ROUNDS, *names: str) -> None:
    """Measures each row and writes the results file."""
    path = record.path_for("", target, overwrite=False)
    facts, rate, rows = record.environment(torch), copy_rate(rounds), []
    print(f"copy: {rate / 1e6:.3f} TB/s", flush=True)
    for problem in PROBLEMS:
        if names and not problem.name.startswith(names):
            continue
        try:
            row = measure(problem, rate, rounds)
        except tc.TileError as error:
            row = {"label": problem.name, "failed": error.message}
        rows.append(row)
        shown = row.get("failed") or (
            f"{row['times_us']['tilecat']['median']:9.1f} us  {row['share_of_floor']:.3f} of the "
            f"copy rate, error {row['error']:.1e}"
        )
        peers = {name: round(taken["median"], 1) for name, taken in row.get("times_us", {}).items()}
        print(f"{problem.name:50} {shown} {peers if len(peers) > 1 else ''}", flush=True)
        results = {"environment": facts, "smi": record.smi(), "method": METHOD,
                   "copy_tb_s": rate / 1e6, "problems": rows}  # fmt: skip
        record.write(path, results)
        torch.cuda.empty_cache()
    print(f"results: {path}")


if __name__ == "__main__":
    main(sys.argv[1], int((sys.argv[2:3] or [str(ROUNDS)])[0]), *sys.argv[3:])
