"""Every tile and scalar op alone, with its meaning in NumPy, for the PTX machine and the GPU.

A case's `body` gets the operands of `Operands` inside a kernel of one warpgroup and gives a
64 x 64 f32 tile; `reference` gets the same operands as float64 arrays and gives what it must hold.
The arrays have 50 rows and 41 columns, so that every load and store is masked; beyond them the
tile holds zeros, in NumPy too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

import tilecat as tc
from tilecat import bf16, f16, f32, gl, rt, rv, s32, st

ROWS, COLS = 50, 41
TILE = rt[f32, 64, 64]
N, S = 13, 1.75
EXACT = 0.0
ROUNDED = 2.0**-23  # one rounding
APPROX = 2.0**-20  # approximate instructions: 2 ulp and an argument's rounding


@dataclass(frozen=True)
class OpCase:
    """One op (or a few that need each other).

    Args:
        name: for the test's name.
        body: from operands in a kernel to a tile.
        reference: the same in NumPy, float64.
        tolerance: relative to the largest magnitude of the reference.
    """

    name: str
    body: Callable[[Any], Any]
    reference: Callable[[Any], Any]
    tolerance: float = EXACT

    def __str__(self) -> str:
        return self.name


def operands(seed: int = 0) -> SimpleNamespace:
    """Arrays X, Y (50 x 41), a row vector R (50) and a column vector C (41); positive Y."""
    rng = np.random.default_rng(seed)
    return SimpleNamespace(
        X=rng.standard_normal((ROWS, COLS)).astype(np.float32),
        Y=(rng.random((ROWS, COLS)) + 0.5).astype(np.float32),
        R=rng.standard_normal(ROWS).astype(np.float32),
        C=rng.standard_normal(COLS).astype(np.float32),
    )


def expected(case: OpCase, arrays: SimpleNamespace) -> np.ndarray:
    """The reference on operands padded with zeros to 64 x 64, cut to the output's extents."""
    x, y = (np.pad(a.astype(np.float64), ((0, 14), (0, 23))) for a in (arrays.X, arrays.Y))
    r, c = (np.pad(a.astype(np.float64), (0, n)) for a, n in ((arrays.R, 14), (arrays.C, 23)))
    with np.errstate(all="ignore"):
        value = case.reference(SimpleNamespace(x=x, y=y, r=r[:, None], c=c[None, :], n=N, s=S))
    return np.broadcast_to(value, (64, 64))[:ROWS, :COLS]


def kernel_of(case: OpCase) -> tc.KernelFunction:
    """A kernel of one warpgroup that runs a case."""

    def op_case(
        X: gl[f32, "M", "N"], Y: gl[f32, "M", "N"], R: gl[f32, "M"], C: gl[f32, "N"],
        Z: gl[f32, "M", "N"], n: s32, s: f32,
    ):  # fmt: skip
        with tc.warpgroup():
            x, y = tc.load(X[0, 0], TILE), tc.load(Y[0, 0], TILE)
            r, c = tc.load(R[0], rv[f32, 64]), tc.load(C[0], rv[f32, 64, "col"])
            tc.store(Z[0, 0], case.body(SimpleNamespace(x=x, y=y, r=r, c=c, n=n, s=s)))

    return tc.kernel(op_case)


def check(case: OpCase, actual: Any, arrays: SimpleNamespace) -> None:
    """Compares; NaN must stand where the reference has it."""
    wanted = expected(case, arrays)
    scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=case.tolerance * scale)


# ---- bodies of more than one expression


def number(value: Any) -> Any:
    """A tile filled with a scalar."""
    return tc.full(TILE, value.to(f32) if value.dtype != f32 else value)


def in_place(k: Any) -> Any:
    k.x *= 2.0
    k.x += k.y
    k.x -= k.r
    k.x /= 4.0
    return k.x


def copied(k: Any) -> Any:
    out = tc.empty(TILE)
    tc.copy(out, k.x)
    tc.fill(k.x, 3.0)
    return out


def masked(mask: Callable[..., None], limit: Any) -> Callable[[Any], Any]:
    def body(k: Any) -> Any:
        mask(k.x, limit(k), -7.0)
        return k.x

    return body


def vector(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The row vector that `reduce` gives, in every column."""
    return lambda k: tc.zeros(TILE) + reduce(k)


def through_shared(kind: Any) -> Callable[[Any], Any]:
    def body(k: Any) -> Any:
        tile = tc.shared(kind)
        tc.store(tile, tc.cast(k.x, kind.dtype))
        tc.sync()
        return tc.cast(tc.load(tile), f32)

    return body


def product(name: str, *, registers: bool = False, order: str = "row", twice: bool = False) -> Any:
    """x y or x y^T as bf16, by `tc.mma_AB` or `tc.mma_ABt`."""
    mma = getattr(tc, name)

    def body(k: Any) -> Any:
        a, b = tc.cast(k.x, bf16), tc.shared(st[bf16, 64, 64, order])
        tc.store(b, tc.cast(k.y, bf16))
        if not registers:
            a, fragment = tc.shared(st[bf16, 64, 64]), a
            tc.store(a, fragment)
        tc.sync()
        acc = tc.empty(TILE)
        mma(acc, a, b, accumulate=False)
        if twice:
            mma(acc, a, b)
        tc.mma_wait()
        return acc

    return body


def rounded(x: Any, dtype: Any = ml_dtypes.bfloat16) -> Any:
    return x.astype(np.float32).astype(dtype).astype(np.float64)


def summed(k: Any) -> Any:
    total = tc.var(0)
    for i in tc.range(2, k.n, 3):
        total += i
    return number(total)


def branched(k: Any) -> Any:
    with tc.when(k.n > 12):
        k.x *= 2.0
    with tc.otherwise():
        k.x *= 3.0
    with tc.when(k.n > 13):
        k.x *= 5.0
    with tc.otherwise():
        k.x += 1.0
    return k.x


def looped(k: Any) -> Any:
    for i in tc.range(3):
        k.x += k.y
        with tc.when(i > 0):
            k.x -= 1.0
    return k.x


def raw(text: str, *names: str, writes: tuple[int, ...] = (0,)) -> Callable[[Any], Any]:
    def body(k: Any) -> Any:
        tc.inline(text, *(getattr(k, name) for name in names), writes=writes)
        return k.x

    return body


def raw_shared(k: Any) -> Any:
    tile = tc.shared(st[f32, 64, 64])
    tc.store(tile, k.x)
    tc.sync()
    first = tc.var(0.0)
    tc.inline("ld.shared.f32 $0, [$1];", first, tile, writes=(0,))
    return number(first)


def chosen(k: Any) -> Any:
    return number(tc.select((k.n > 3) & ~(k.n > 20) | (k.s < 0.0), k.n % 5, 0))


def shifts(k: Any) -> Any:
    return number(((k.n << 3) >> 1 ^ 5 | 64) & 0x7F)


def unsigned(k: Any) -> Any:
    return number((k.n - 14).to(tc.u32) >> 28)


CASES = (
    OpCase("load and store", lambda k: k.x, lambda k: k.x),
    OpCase("copy", copied, lambda k: k.x),
    OpCase("fill", lambda k: tc.full(TILE, k.s), lambda k: np.full((64, 64), S)),
    OpCase("neg", lambda k: -k.x, lambda k: -k.x),
    OpCase("absolute", lambda k: tc.absolute(k.x), lambda k: abs(k.x)),
    OpCase("relu", lambda k: tc.relu(k.x), lambda k: np.maximum(k.x, 0)),
    OpCase("exp2", lambda k: tc.exp2(k.x), lambda k: 2**k.x, APPROX),
    OpCase("exp", lambda k: tc.exp(k.x), lambda k: np.exp(k.x), APPROX),
    OpCase("log2", lambda k: tc.log2(k.y + 1.0), lambda k: np.log2(k.y + 1), APPROX),
    OpCase("log", lambda k: tc.log(k.y + 1.0), lambda k: np.log(k.y + 1), APPROX),
    OpCase("rcp", lambda k: tc.rcp(k.y + 1.0), lambda k: 1 / (k.y + 1), APPROX),
    OpCase("sqrt", lambda k: tc.sqrt(k.y), lambda k: np.sqrt(k.y), APPROX),
    OpCase("rsqrt", lambda k: tc.rsqrt(k.y + 1.0), lambda k: (k.y + 1) ** -0.5, APPROX),
    OpCase("tanh", lambda k: tc.tanh(k.x), lambda k: np.tanh(k.x), 2.0**-10),
    OpCase("add", lambda k: k.x + k.y, lambda k: k.x + k.y, ROUNDED),
    OpCase("sub", lambda k: 1.0 - k.y, lambda k: 1 - k.y, ROUNDED),
    OpCase("mul", lambda k: k.x * k.y, lambda k: k.x * k.y, ROUNDED),
    OpCase("div", lambda k: k.x / (k.y + 1.0), lambda k: k.x / (k.y + 1), APPROX),
    OpCase("maximum", lambda k: tc.maximum(k.x, k.y), lambda k: np.maximum(k.x, k.y)),
    OpCase("minimum", lambda k: tc.minimum(k.x, 0.25), lambda k: np.minimum(k.x, 0.25)),
    OpCase("fma", lambda k: tc.fma(k.x, k.y, k.x), lambda k: k.x * k.y + k.x, ROUNDED),
    OpCase("in place", in_place, lambda k: (k.x * 2 + k.y - k.r) / 4, 2 * ROUNDED),
    OpCase("scalar broadcast", lambda k: k.x * k.s, lambda k: k.x * k.s, ROUNDED),
    OpCase("row broadcast", lambda k: k.x + k.r, lambda k: k.x + k.r, ROUNDED),
    OpCase("column broadcast", lambda k: k.x * k.c, lambda k: k.x * k.c, ROUNDED),
    OpCase("vector arithmetic", vector(lambda k: tc.exp2(k.r * 2.0 - k.s)),
           lambda k: 2 ** (k.r * 2 - k.s), APPROX),
    OpCase("mask_cols", masked(tc.mask_cols, lambda k: k.n),
           lambda k: np.where(np.arange(64) >= N, -7, k.x)),
    OpCase("mask_cols nothing", masked(tc.mask_cols, lambda k: 64), lambda k: k.x),
    OpCase("mask_cols all", masked(tc.mask_cols, lambda k: k.n - 20), lambda k: -7 + 0 * k.x),
    OpCase("mask_rows", masked(tc.mask_rows, lambda k: k.n),
           lambda k: np.where(np.arange(64)[:, None] >= N, -7, k.x)),
    OpCase("row_max", vector(lambda k: tc.row_max(k.x)), lambda k: k.x.max(1, keepdims=True)),
    OpCase("row_min", vector(lambda k: tc.row_min(k.x)), lambda k: k.x.min(1, keepdims=True)),
    OpCase("row_max initial", vector(lambda k: tc.row_max(k.x, k.r)),
           lambda k: np.maximum(k.x.max(1, keepdims=True), k.r)),
    OpCase("row_sum", vector(lambda k: tc.row_sum(k.x)), lambda k: k.x.sum(1, keepdims=True),
           APPROX),
    OpCase("row_sum partial",
           vector(lambda k: tc.total(tc.row_sum(k.y, tc.row_sum(k.x, partial=True), partial=True))),
           lambda k: (k.x + k.y).sum(1, keepdims=True), APPROX),
    OpCase("cast bf16", lambda k: tc.cast(tc.cast(k.x, bf16), f32), lambda k: rounded(k.x)),
    OpCase("cast f16", lambda k: tc.cast(tc.cast(k.x, f16), f32),
           lambda k: rounded(k.x, np.float16)),
    *(OpCase(f"shared {kind}", through_shared(kind), lambda k, d=kind.dtype: rounded(k.x, d.numpy))
      for kind in (st[bf16, 64, 64], st[bf16, 64, 64, "col"], st[f16, 64, 64],
                   st[f32, 64, 64], st[f32, 64, 64, "col"])),
    OpCase("mma_AB", product("mma_AB"), lambda k: rounded(k.x) @ rounded(k.y), APPROX),
    OpCase("mma_AB col", product("mma_AB", order="col"), lambda k: rounded(k.x) @ rounded(k.y),
           APPROX),
    OpCase("mma_AB registers", product("mma_AB", registers=True),
           lambda k: rounded(k.x) @ rounded(k.y), APPROX),
    OpCase("mma_ABt", product("mma_ABt"), lambda k: rounded(k.x) @ rounded(k.y).T, APPROX),
    OpCase("mma_ABt accumulates", product("mma_ABt", registers=True, twice=True),
           lambda k: 2 * rounded(k.x) @ rounded(k.y).T, APPROX),
    OpCase("inline tiles", raw("fma.rn.f32 $0, $0, $1, $2;", "x", "y", "s"),
           lambda k: k.x * k.y + S, ROUNDED),
    OpCase("inline vector", raw("neg.f32 $0, $0;", "r"), lambda k: k.x),
    OpCase("inline shared", raw_shared, lambda k: np.full((64, 64), k.x[0, 0])),
    OpCase("range", summed, lambda k: np.full((64, 64), sum(range(2, N, 3)))),
    OpCase("range of tiles", looped, lambda k: k.x + 3 * k.y - 2, 8 * ROUNDED),
    OpCase("when and otherwise", branched, lambda k: k.x * 2 + 1, ROUNDED),
    OpCase("select", chosen, lambda k: np.full((64, 64), N % 5)),
    OpCase("shifts", shifts, lambda k: np.full((64, 64), ((N << 3) >> 1 ^ 5 | 64) & 0x7F)),
    OpCase("unsigned", unsigned, lambda k: np.full((64, 64), 15)),
    OpCase("division truncates", lambda k: number((k.n - 20) // 2 * 100 + (k.n - 20) % 2),
           lambda k: np.full((64, 64), -3 * 100 - 1)),
    OpCase("cdiv", lambda k: number(tc.cdiv(k.n, 4)), lambda k: np.full((64, 64), 4)),
    OpCase("to", lambda k: number((k.s * 10.0).to(s32)), lambda k: np.full((64, 64), 17)),
    OpCase("scalar functions", lambda k: number(tc.exp2(k.s) + tc.log2(k.s) - tc.rcp(-k.s)),
           lambda k: np.full((64, 64), 2**S + np.log2(S) + 1 / S), APPROX),
)  # fmt: skip
