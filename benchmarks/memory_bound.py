"""Rotary, norms and cross-entropy beside torch and the copy rate of the same run.

    python benchmarks/memory_bound.py OUT.json [ROUNDS] [compiled] [NAME ...]

A row is a `Problem`: calls to time, the bytes that they move at least, and a result to check first.
NAMEs choose rows by the beginnings of their names; `compiled` times torch.compile too. Rates are
bytes over the median, L2 flushed before each call; beside each row `copy`, `Tensor.copy_` of as
many bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import tilecat as tc
import tilecat.torch  # noqa: F401  # the operators
from tilecat.bench import METHOD, record
from tilecat.kernels.norm import norm_forward
from tilecat.kernels.rotary import rotary
from tilecat.testing import do_bench, ratio

ROUNDS = 12
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Problem:
    """One row.

    Args:
        name: what is computed, of what size.
        num_bytes: fewest bytes through device memory.
        calls: by name: `tilecat` first, then others.
        error: relative error of a result of tilecat's.
    """

    name: str
    num_bytes: int
    calls: dict[str, Callable[[], Any]]
    error: Callable[[], float]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=BF16)


def relative(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.double() - exact).norm() / exact.norm())


def rotary_problem(heads_first: bool, tokens: int, interleaved: bool = False) -> Problem:
    """B16 H16 D128; a persistent grid beside the one in order."""
    shape = (16, 16, tokens, 128) if heads_first else (16, tokens, 16, 128)
    x, out = normal(*shape), torch.empty(shape, device="cuda", dtype=BF16)
    rows, turned = (v.transpose(1, 2) if heads_first else v for v in (x, out))
    angle = torch.arange(tokens, device="cuda")[:, None] / 1e4 ** (
        torch.arange(64, device="cuda") / 64)  # fmt: skip
    cos, sin = angle.cos(), angle.sin()
    wide = (v if heads_first else v[:, None] for v in (cos, sin))
    c, s = wide

    def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :64], x[..., 64:])

    def joined(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.stack((a, b), -1).flatten(-2) if interleaved else torch.cat((a, b), -1)

    def plain(x: torch.Tensor) -> torch.Tensor:
        a, b = (part.float() for part in halves(x))
        return joined(a * c - b * s, b * c + a * s).to(BF16)

    def persistent() -> None:
        none = rows[:, :, :0], turned[:, :, :0]
        rotary(cos, sin, rows, turned, *none, tokens, 0, R=64, D=128, cols=64, heads=4, warps=4,
               blocks=3, interleaved=interleaved)  # fmt: skip

    def error() -> float:
        got = tc.apply_rotary(rows[:1, :100], cos, sin, interleaved).transpose(1, 2)
        part = x[:1, :, :100] if heads_first else x[:1, :100].transpose(1, 2)
        a, b = (half.double() for half in halves(part))
        c, s = cos[:100].double(), sin[:100].double()
        return relative(got, joined(a * c - b * s, b * c + a * s))

    compiled = torch.compile(plain)
    layout = ("BHND" if heads_first else "BNHD") + " interleaved" * interleaved
    calls = {
        "tilecat": lambda: tc.apply_rotary(rows, cos, sin, interleaved, inplace=True),
        "out of place": lambda: tc.apply_rotary(rows, cos, sin, interleaved),
        "persistent": persistent, "torch.compile": lambda: compiled(x),
        "copy": lambda: out.copy_(x),
    }  # fmt: skip
    if heads_first:
        del calls["out of place"]  # the result is batch x length x heads
    return Problem(f"rotary {layout} N{tokens}", 4 * x.numel(), calls, error)


def norm_problem(rows: int, dim: int, p: float = 0.1) -> Problem:
    """Dropout, residual, layernorm: two arrays in, two out."""
    x, r, w, b = normal(rows, dim), normal(rows, dim), normal(dim), normal(dim)
    y, h = torch.empty_like(x), torch.empty_like(x)
    seed = torch.tensor([1, 2], dtype=torch.int32, device="cuda")
    named = ("weight", "bias", "residual", "sums", "seed")

    def ours() -> Any:
        return tc.layer_norm_fn(x, w, b, r, 1e-5, p, prenorm=True, seed=seed)

    def persistent() -> None:
        norm_forward(x, y, 1e-5, int(p * 2**32), 1 / (1 - p), w, b, r, h, seed, D=dim, given=named,
                     warps=4, blocks=3, ahead=1, hold=True)  # fmt: skip

    def error() -> float:
        got, added = tc.layer_norm_fn(x[:64], w, b, r[:64], 1e-5, prenorm=True)
        exact = F.layer_norm(x[:64].double() + r[:64].double(), (dim,), w.double(), b.double())
        return max(relative(got, exact), relative(added, x[:64].double() + r[:64].double()))

    def plain(x: Any, r: Any) -> Any:
        added = F.dropout(x, p) + r
        return F.layer_norm(added, (dim,), w, b, 1e-5), added

    compiled, wide, pair = torch.compile(plain), normal(2, rows, dim), normal(2, rows, dim)
    calls = {"tilecat": ours, "persistent": persistent, "torch.compile": lambda: compiled(x, r),
             "copy": lambda: pair.copy_(wide)}  # fmt: skip
    if dim > 1024:
        del calls["persistent"]
    return Problem(f"dropout residual layernorm {rows}x{dim}", 8 * x.numel(), calls, error)


def backward_problem(rows: int, dim: int) -> Problem:
    """Its gradients without dropout: three arrays in, one out."""
    x, dy, dh, w = normal(rows, dim), normal(rows, dim), normal(rows, dim), normal(dim)
    _, _, rstd, mean = torch.ops.tilecat.layer_norm(
        x, w, w, None, None, None, 1e-5, 0.0, "bf16", False, False, True)  # fmt: skip

    def ours() -> Any:
        return torch.ops.tilecat.layer_norm_backward(
            dy, x, w, None, dh, None, rstd, mean, 1e-5, 0.0, False, "bf16", "", "bf16")  # fmt: skip

    def error() -> float:
        leaf = x[:512].double().requires_grad_()
        out = F.layer_norm(leaf, (dim,), w.double(), w.double(), 1e-5)
        (out * dy[:512].double()).sum().backward()
        assert leaf.grad is not None
        return relative(ours()[0][:512], leaf.grad + dh[:512].double())

    big, room = normal(2, rows, dim), normal(2, rows, dim)
    return Problem(f"layernorm backward {rows}x{dim}", 8 * x.numel(),
                   {"tilecat": ours, "copy": lambda: room.copy_(big)}, error)  # fmt: skip


def loss_problem(rows: int, width: int) -> Problem:
    """Loss and gradient in one pass: logits in, gradients out."""
    x, room = normal(rows, width), torch.empty(rows, width, device="cuda", dtype=BF16)
    target = torch.randint(0, width, (rows,), device="cuda")

    def error() -> float:
        leaf = x[:8].double().requires_grad_()
        F.cross_entropy(leaf, target[:8], reduction="sum").backward()
        assert leaf.grad is not None
        return relative(tc.cross_entropy_grad(x[:8], target[:8], reduction="sum")[1], leaf.grad)

    return Problem(f"cross-entropy and gradient {rows}x{width}", 4 * x.numel(), {
        "tilecat": lambda: tc.cross_entropy_grad(room, target, reduction="sum", inplace=True),
        "tilecat, loss alone": lambda: tc.cross_entropy(x, target, reduction="sum"),
        "copy": lambda: room.copy_(x),
    }, error)  # fmt: skip


MAKERS: tuple[tuple[str, Callable[[], Problem]], ...] = (
    ("cross-entropy 128256", lambda: loss_problem(8192, 128256)),
    ("cross-entropy 151936", lambda: loss_problem(8192, 151936)),
    ("rotary 16384", lambda: rotary_problem(True, 16384)),
    ("rotary 1024", lambda: rotary_problem(True, 1024)),
    ("rotary 16384 BNHD", lambda: rotary_problem(False, 16384)),
    ("norm 1024", lambda: norm_problem(16 * 16384, 1024)),
    ("norm 1024 few", lambda: norm_problem(16 * 1024, 1024)),
    ("norm 8192", lambda: norm_problem(16384, 8192)),
    ("backward 1024", lambda: backward_problem(16 * 16384, 1024)),
    ("backward 8192", lambda: backward_problem(16384, 8192)),
    ("rotary 16384 BNHD interleaved", lambda: rotary_problem(False, 16384, True)),
)
LIMIT = 4e-3  # two roundings to bf16
COMPILED = "compiled"




def measure(problem: Problem, rounds: int, compiled: bool) -> dict[str, Any]:
    """Checks and times a problem."""
    error = problem.error()
    row: dict[str, Any] = {"label": problem.name, "num_bytes": problem.num_bytes, "error": error}
    if not error <= LIMIT:
        return {**row, "failed": f"error above {LIMIT}"}
    calls = {name: f for name, f in problem.calls.items() if compiled or name != "torch.compile"}
    times = dict(zip(calls, do_bench(list(calls.values()), repeats=rounds, budget_s=2.0),
                     strict=True))  # fmt: skip
    rates = {name: problem.num_bytes / taken.median_us / 1e6 for name, taken in times.items()}
    return {**row, "times_us": {name: taken.summary() for name, taken in times.items()},
            "tb_per_s": {name: round(rate, 4) for name, rate in rates.items()},
            "ratio": ratio(times["copy"], times["tilecat"])}  # fmt: skip


def main(target: str, rounds: int = ROUNDS, *names: str) -> None:
    """Measures each row and writes the results file."""
    path = record.path_for("", target, overwrite=False)
    facts, rows = record.environment(torch), []
    chosen = [name for name in names if name != COMPILED]
    for name, make in MAKERS:
        if chosen and not name.startswith(tuple(chosen)):
            continue
        torch.manual_seed(0)
        try:
            row = measure(make(), rounds, COMPILED in names)
        except tc.TileError as error:
            row = {"label": name, "failed": error.message}
        rows.append(row)
        shown = row.get("failed") or ", ".join(f"{k} {v:.3f}" for k, v in row["tb_per_s"].items())
        print(f"{row['label']:40} TB/s: {shown}", flush=True)
        record.write(path, {"environment": facts, "smi": record.smi(), "method": METHOD,
                            "problems": rows})  # fmt: skip
        torch.cuda.empty_cache()
    print(f"results: {path}")


if __name__ == "__main__":
    main(sys.argv[1], int((sys.argv[2:3] or [str(ROUNDS)])[0]), *sys.argv[3:])
