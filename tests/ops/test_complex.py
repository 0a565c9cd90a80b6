"""Complex tiles against NumPy's complex128."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, f32, gl, rt, st, tf32
from tilecat.errors import LayoutError

TILE = rt[f32, 64, 32]


def parts(x: np.ndarray, dtype: tc.DType = f32) -> tuple[np.ndarray, ...]:
    return tuple(part.astype(np.float32).astype(dtype.numpy) for part in (x.real, x.imag))


def numbers(*shape: int, seed: int = 0, dtype: tc.DType = f32) -> np.ndarray:
    rng = np.random.default_rng(seed)
    re, im = (dtype.round(rng.standard_normal(shape).astype(np.float32)) for _ in range(2))
    return re.astype(np.float64) + 1j * im.astype(np.float64)


OPERATIONS: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("add", lambda x, y: x + y),
    ("sub", lambda x, y: x - y),
    ("mul", lambda x, y: x * y),
    ("div", lambda x, y: x / y),
    ("neg", lambda x, y: -x),
    ("conj", lambda x, y: x.conj() * y),
    ("exp", lambda x, y: x.exp() if isinstance(x, tc.ComplexTile) else np.exp(x)),
    ("accurate exp",
     lambda x, y: x.exp(accurate=True) if isinstance(x, tc.ComplexTile) else np.exp(x)),
    ("scalars", lambda x, y: 2.0 * x - 1.5 + (3.0 - y) / 2.0),
)


@pytest.mark.parametrize(("name", "body"), OPERATIONS, ids=[name for name, _ in OPERATIONS])
def test_complex_arithmetic_is_numpys(name: str, body: Callable[[Any, Any], Any]):
    @tc.kernel
    def arithmetic(
        A: gl[f32, "M", "N"], B: gl[f32, "M", "N"], C: gl[f32, "M", "N"], D: gl[f32, "M", "N"],
        X: gl[f32, "M", "N"], Y: gl[f32, "M", "N"],
    ):  # fmt: skip
        with tc.warpgroup():
            x = tc.complex_tile(tc.load(A[0, 0], TILE), tc.load(B[0, 0], TILE))
            y = tc.complex_tile(tc.load(C[0, 0], TILE), tc.load(D[0, 0], TILE))
            z = body(x, y)
            tc.store(X[0, 0], z.re)
            tc.store(Y[0, 0], z.im)

    x, y = numbers(64, 32, seed=1), numbers(64, 32, seed=2) + 3
    re, im = np.zeros((2, 64, 32), np.float32)
    y = parts(y)[0].astype(np.float64) + 1j * parts(y)[1].astype(np.float64)
    arithmetic(*parts(x), *parts(y), re, im, grid=1)
    np.testing.assert_allclose(re + 1j * im.astype(np.float64), body(x, y), atol=2e-6 * 32)


def product(
    a: np.ndarray, b: np.ndarray, products: int, *, warp: bool, shared_a: bool = False,
    conjugate: bool = False,
) -> np.ndarray:  # fmt: skip
    """`acc += a b^T` (a conjugated) from an accumulator of ones."""
    rows, scope = (16, 1) if warp else (64, 4)

    def body(A: Any, B: Any, C: Any, D: Any, X: Any, Y: Any) -> None:
        one = tc.full(rt[f32, rows, 32], 1.0)
        acc = tc.complex_tile(one, tc.full(rt[f32, rows, 32], 1.0))
        left = tc.complex_tile(*(tc.load(t[0, 0], rt[bf16, rows, 64]) for t in (A, B)))
        right = tc.complex_tile(*(tc.load(t[0, 0], rt[bf16, 64, 64]) for t in (C, D)))
        right = right.map(lambda t: t[:32]) if warp else _in_shared(right)
        left = _in_shared(left) if shared_a else left
        if not warp:
            right = right.map(lambda t: t[:32])
            tc.sync()
        left = left.conj() if conjugate else left
        tc.complex_mma(acc, left, right, form="ABt", products=products)
        tc.store(X[0, 0], acc.re)
        tc.store(Y[0, 0], acc.im)

    @tc.kernel
    def kernel(
        A: gl[bf16, "M", "K"], B: gl[bf16, "M", "K"], C: gl[bf16, "P", "K"],
        D: gl[bf16, "P", "K"], X: gl[f32, "M", "N"], Y: gl[f32, "M", "N"],
    ):  # fmt: skip
        with tc.warpgroup():
            if scope == 4:
                body(A, B, C, D, X, Y)
                return
            with tc.warps(), tc.when(tc.warp_id() == 0):
                body(A, B, C, D, X, Y)

    re, im = np.zeros((2, rows, 32), np.float32)
    kernel(*parts(a, bf16), *parts(b, bf16), re, im, grid=1)
    return re + 1j * im.astype(np.float64)


def _in_shared(tile: Any) -> Any:
    held = [tile.re, tile.im, tile.re + tile.im]
    made = [tc.shared(st[bf16, *tile.re.type.shape]) for _ in held]
    for target, source in zip(made, held, strict=True):
        tc.store(target, source)
    return tc.complex_tile(made[0], made[1], sum=made[2])


@pytest.mark.parametrize("products", [3, 4])
@pytest.mark.parametrize("place", ["warp", "registers", "shared"])
def test_complex_products_are_numpys(place: str, products: int):
    rows = 16 if place == "warp" else 64
    a, b = numbers(rows, 64, seed=1, dtype=bf16), numbers(64, 64, seed=2, dtype=bf16)
    got = product(a, b, products, warp=place == "warp", shared_a=place == "shared")
    wanted = (1 + 1j) + a @ b[:32].T
    # Three products round the sums of the operands to bf16.
    slack = 1e-5 if products == 4 else 2.0**-8 * 4
    assert abs(got - wanted).max() <= slack * (abs(a) @ abs(b[:32].T)).max()


@pytest.mark.parametrize("place", ["warp", "registers", "shared"])
def test_complex_products_conjugate(place: str):
    rows = 16 if place == "warp" else 64
    a, b = numbers(rows, 64, seed=3, dtype=bf16), numbers(64, 64, seed=4, dtype=bf16)
    got = product(a, b, 4, warp=place == "warp", shared_a=place == "shared", conjugate=True)
    np.testing.assert_allclose(got, (1 + 1j) + a.conj() @ b[:32].T, atol=1e-4)


def test_complex_layouts_move_both_parts():
    @tc.kernel
    def turns(A: gl[bf16, "M", "N"], B: gl[bf16, "M", "N"], X: gl[bf16, "N", "M"],
              Y: gl[bf16, "N", "M"]):  # fmt: skip
        with tc.warpgroup(), tc.warps(), tc.when(tc.warp_id() == 0):
            x = tc.complex_tile(*(tc.load(t[0, 0], rt[bf16, 16, 32]) for t in (A, B)))
            turned = x.map(tc.transpose).T.map(tc.swap_layout).T
            tc.store(X[0, 0], turned.re)
            tc.store(Y[0, 0], turned.im)

    a, out = parts(numbers(16, 32), bf16), np.zeros((2, 32, 16), bf16.numpy)
    turns(*a, *out, grid=1)
    for got, part in zip(out, a, strict=True):
        np.testing.assert_array_equal(got, part.T)


@pytest.mark.parametrize("warp", [False, True])
def test_interleaved_parts_are_a_complex_tile(warp: bool):
    rows = 16 if warp else 64

    @tc.kernel
    def squares(X: gl[f32, "M", "N"], Z: gl[f32, "M", "N"]):
        with tc.warpgroup():
            if warp:
                with tc.warps(), tc.when(tc.warp_id() == 0):
                    square(X, Z)
            else:
                square(X, Z)

    def square(X: Any, Z: Any) -> None:
        x, out = tc.load(X[0, 0], rt[f32, rows, 64]), tc.empty(rt[f32, rows, 64])
        z, made = tc.complex_pairs(x), tc.complex_pairs(out)
        product = z * z.conj() + z
        tc.copy(made.re, product.re)
        tc.copy(made.im, product.im)
        tc.store(Z[0, 0], out)

    x = numbers(rows, 32).astype(np.complex64)
    out = np.zeros((rows, 32), np.complex64)
    squares(x.view(np.float32), out.view(np.float32), grid=1)
    np.testing.assert_allclose(out, x * x.conj() + x, atol=1e-5)


@pytest.mark.parametrize("run", [4, 8])
def test_interleaved_parts_of_long_runs(run: int):
    @tc.kernel
    def turns(X: gl[f32, "M", 64], C: gl[f32, "M", 32], S: gl[f32, "M", 32], Z: gl[f32, "M", 64]):
        with tc.warpgroup(), tc.warps(), tc.when(tc.warp_id() == 0):
            half = rt[f32, 16, 32, "row", run // 2]
            angle = tc.complex_tile(tc.load(C[0, 0], half), tc.load(S[0, 0], half))
            x = tc.load(X[0, 0], rt[f32, 16, 64, "row", run])
            z = tc.complex_pairs(x)
            y = z * angle
            tc.copy(z.re, y.re)
            tc.copy(z.im, y.im)
            tc.store(Z[0, 0], x)

    x, angle = numbers(16, 32).astype(np.complex64), numbers(16, 32, seed=1).astype(np.complex64)
    out = np.zeros((16, 32), np.complex64)
    parts = np.ascontiguousarray(angle.real), np.ascontiguousarray(angle.imag)
    turns(x.view(np.float32), *parts, out.view(np.float32), grid=1)
    np.testing.assert_allclose(out, x * angle, atol=1e-4)


def test_interleaved_parts_are_operands_of_tf32():
    @tc.kernel
    def product(A: gl[f32, "M", "K2"], C: gl[f32, "N", "K2"], Z: gl[f32, "M", "N2"]):
        with tc.warpgroup(), tc.warps(), tc.when(tc.warp_id() == 0):
            a = tc.complex_pairs(tc.load(A[0, 0], rt[f32, 16, 64])).cast(tf32)
            b = tc.complex_pairs(tc.load(C[0, 0], rt[f32, 16, 64])).cast(tf32)
            acc = tc.complex_tile(tc.zeros(rt[f32, 16, 16]), tc.zeros(rt[f32, 16, 16]))
            tc.mma_ABt(acc, a, b)
            tc.store(Z[0, 0], acc.re)
            tc.store(Z[0, 1], acc.im)

    a, b = (numbers(16, 32, seed=s, dtype=tf32).astype(np.complex64) for s in (1, 2))
    out = np.zeros((16, 32), np.float32)
    product(a.view(np.float32), b.view(np.float32), out, grid=1)
    assert product.compile().ptx.count("shfl.sync") == 1, "that of tc.warp_id alone"
    np.testing.assert_allclose(out[:, :16] + 1j * out[:, 16:], a @ b.T, atol=1e-4)


def test_interleaved_parts_have_registers_of_their_own():
    @tc.kernel
    def wrong():
        with tc.warpgroup():
            tc.complex_pairs(tc.zeros(rt[bf16, 64, 64]))

    with pytest.raises(LayoutError, match="complex_pairs: wanted a 32-bit tile"):
        wrong.compile()


def test_complex_tiles_have_parts_of_one_type():
    @tc.kernel
    def wrong():
        with tc.warpgroup():
            tc.complex_tile(tc.zeros(TILE), tc.zeros(rt[f32, 64, 64]))

    with pytest.raises(LayoutError, match="the parts are tiles of one type"):
        wrong.compile()


def test_complex_accumulators_take_complex_operands():
    @tc.kernel
    def wrong():
        with tc.warpgroup():
            acc = tc.complex_tile(tc.zeros(TILE), tc.zeros(TILE))
            tc.mma_AB(acc, tc.zeros(rt[bf16, 64, 16]), tc.shared(st[bf16, 16, 32]))

    with pytest.raises(LayoutError, match="a complex accumulator takes complex operands"):
        wrong.compile()
