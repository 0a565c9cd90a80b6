"""Register layouts of operands: orders, transposes, parts, permuted K, complex pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, e4m3, e5m2, f16, f32, gl, rt, s8, s32, st, tf32, u8
from tilecat.errors import LayoutError, SyncError
from tilecat.tiles import RegTileType

DTYPES = (f32, s32, bf16, f16, e4m3, e5m2, s8, u8)


def numbers(dtype: tc.DType, *shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if not dtype.is_float:
        return rng.integers(0, 100, shape).astype(dtype.numpy)
    return dtype.round(rng.standard_normal(shape)).astype(dtype.numpy)


def moved(
    x: np.ndarray, dtype: tc.DType, body: Callable[[Any], Any], shape: tuple[int, int],
    out: tuple[tc.DType, tuple[int, int]], *, warp: bool = True,
) -> np.ndarray:  # fmt: skip
    """What `body` makes of a register tile that holds x."""

    @tc.kernel
    def moves(X: gl[dtype, "M", "N"], Z: gl[out[0], "P", "Q"]):
        with tc.warpgroup():
            if not warp:
                tc.store(Z[0, 0], body(tc.load(X[0, 0], rt[dtype, *shape])))
                return
            with tc.warps(), tc.when(tc.warp_id() == 0):
                tc.store(Z[0, 0], body(tc.load(X[0, 0], rt[dtype, *shape])))

    result = np.zeros(out[1], out[0].numpy)
    moves(x, result, grid=1)
    return result


# ---- orders


@pytest.mark.parametrize("shape", [(16, 16), (32, 32), (16, 48), (64, 32), (32, 64)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_swap_layout_and_transpose_keep_every_element(dtype: tc.DType, shape: tuple[int, int]):
    if dtype.bits == 8 and (shape[0] % 32 or shape[1] % 32):
        pytest.skip("8-bit tiles have 32 columns a fragment")
    x = numbers(dtype, *shape)
    swapped = moved(x, dtype, tc.swap_layout, shape, (dtype, shape))
    np.testing.assert_array_equal(swapped, x)
    turned = moved(x, dtype, tc.transpose, shape, (dtype, shape[::-1]))
    np.testing.assert_array_equal(turned, x.T)
    back = moved(x, dtype, lambda t: tc.swap_layout(tc.swap_layout(t)), shape, (dtype, shape))
    np.testing.assert_array_equal(back, x)


def test_transpose_of_registers_is_free():
    x = numbers(bf16, 32, 16)
    np.testing.assert_array_equal(moved(x, bf16, lambda t: t.T, (32, 16), (bf16, (16, 32))), x.T)


@pytest.mark.parametrize(("dtype", "movmatrix", "shfl"), [(bf16, 4, 0), (f32, 0, 8)])
def test_swap_layout_of_16_bits_is_movmatrix_and_others_shuffle(dtype, movmatrix, shfl):
    @tc.kernel
    def swaps(X: gl[dtype, "M", "N"], Z: gl[dtype, "M", "N"]):
        with tc.warpgroup(), tc.warps():
            tc.store(Z[0, 0], tc.swap_layout(tc.load(X[0, 0], rt[dtype, 16, 16])))

    text = swaps.compile().ptx
    assert (text.count("movmatrix.sync"), text.count("shfl.sync")) == (movmatrix, shfl)


def test_swap_layout_refuses_what_would_cross_warps():
    @tc.kernel
    def wrong():
        with tc.warpgroup():
            tc.swap_layout(tc.zeros(rt[bf16, 64, 64]))

    with pytest.raises(LayoutError, match="swap_layout: elements must stay in their warp") as found:
        wrong.compile()
    assert 'hint: s = tc.shared(tc.st[...]); tc.store(s, x)' in str(found.value)


# ---- fragments of converted tiles


@pytest.mark.parametrize("cols", [32, 96])
@pytest.mark.parametrize("warp", [True, False])
@pytest.mark.parametrize(
    ("source", "target"),
    [(f32, e4m3), (bf16, e5m2), (f32, tf32), (s8, s32), (e4m3, bf16), (s32, u8)],
)
def test_regroup_keeps_every_element(source, target, warp: bool, cols: int):
    x, shape = numbers(source, 64, cols), (16 if warp else 64, cols)
    result = target if target is not tf32 else f32

    def body(tile: Any) -> Any:
        held = tc.regroup(tc.cast(tile, target))
        assert held.type == RegTileType(target, *shape, 1 if warp else 4)
        return held if result is target else tc.regroup(tc.cast(held, f32))

    got = moved(x[: shape[0]], source, body, shape, (result, shape), warp=warp)
    wanted = target.round(x[: shape[0]].astype(np.float64), saturate=True)
    # tf32 rounds ties away, which random numbers do not meet.
    np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(result.numpy).astype(float))


@pytest.mark.parametrize("target", [e4m3, s8, bf16], ids=str)
@pytest.mark.parametrize("source", [f32, bf16, s32], ids=str)
def test_converted_tiles_are_stored_from_the_fragment_they_kept(source, target):
    x = numbers(source, 64, 64)
    got = moved(
        x, source, lambda t: tc.cast(t, target), (64, 64), (target, (64, 64)), warp=False
    )
    wanted = target.round(x.astype(np.float64), saturate=True)
    np.testing.assert_array_equal(got.astype(np.float64), wanted)


def test_tf32_of_8_columns_is_regrouped():
    x = tf32.round(numbers(f32, 16, 8))
    got = moved(
        x, f32, lambda t: tc.regroup(tc.cast(tc.regroup(tc.cast(t, tf32)), f32)), (16, 8),
        (f32, (16, 8)),
    )  # fmt: skip
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize(
    ("source", "target"), [(f32, e4m3), (bf16, e4m3), (f32, tf32), (e4m3, bf16), (s8, s32)]
)
def test_permuted_k_is_the_documented_order(source, target):
    x, result = numbers(source, 16, 64), target if target is not tf32 else f32

    def body(tile: Any) -> Any:
        held = tc.permuted_k(tile, target)
        return held if result is target else tc.regroup(tc.cast(held, f32))

    got = moved(x, source, body, (16, 64), (result, (16, 64)))
    order = np.array(tc.k_order(source, target))
    columns = np.arange(64) // len(order) * len(order) + order[np.arange(64) % len(order)]
    wanted = target.round(x[:, columns].astype(np.float64), saturate=True)
    np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(result.numpy).astype(float))


def test_fp8_products_of_f32_tiles_permute_k_and_shuffle_nothing():
    @tc.kernel
    def product(A: gl[f32, "M", "K"], B: gl[f32, "N", "K"], D: gl[f32, "M", "N"]):
        with tc.warpgroup():
            a = tc.permuted_k(tc.load(A[0, 0], rt[f32, 64, 64]), e4m3)
            b = tc.shared(st[e4m3, 64, 64])
            tc.store(b, tc.permuted_k(tc.load(B[0, 0], rt[f32, 64, 64]), e4m3))
            tc.sync()
            acc = tc.zeros(rt[f32, 64, 64])
            tc.mma_ABt(acc, a, b)
            tc.mma_wait()
            tc.store(D[0, 0], acc)

    a, b = (e4m3.round(numbers(f32, 64, 64, seed=s)).astype(np.float32) for s in (1, 2))
    out = np.zeros((64, 64), np.float32)
    product(a, b, out, grid=1)
    np.testing.assert_allclose(out, a.astype(float) @ b.T.astype(float), atol=1e-4)
    assert "shfl" not in product.compile().ptx


# ---- accumulators as operands


@pytest.mark.parametrize(("sums", "dtype"), [(f32, bf16), (f32, f16), (f16, f16)])
def test_accumulator_is_the_next_a(sums: tc.DType, dtype: tc.DType):
    @tc.kernel
    def chain(A: gl[dtype, "M", "K"], B: gl[dtype, "K", "N"], D: gl[f32, "M", "N"]):
        with tc.warpgroup():
            b = tc.shared(st[dtype, 64, 64])
            tc.store(b, tc.load(B[0, 0], rt[dtype, 64, 64]))
            tc.sync()
            p = tc.zeros(rt[sums, 64, 64])
            tc.mma_AB(p, tc.load(A[0, 0], rt[dtype, 64, 64]), b)
            tc.mma_wait()
            acc = tc.zeros(rt[f32, 64, 64])
            tc.mma_AB(acc, tc.as_a(p, dtype), b)
            tc.mma_wait()
            tc.store(D[0, 0], acc)

    a, b = (numbers(dtype, 64, 64, seed=s) / 8 for s in (1, 2))
    out = np.zeros((64, 64), np.float32)
    a, b = a.astype(dtype.numpy), b.astype(dtype.numpy)
    chain(a, b, out, grid=1)
    p = dtype.round(a.astype(np.float64) @ b.astype(np.float64))
    slack = 2.0**-7 * (abs(p) @ abs(b.astype(np.float64))).max()
    np.testing.assert_allclose(out, p @ b.astype(np.float64), atol=slack)


def test_as_a_refuses_what_would_move():
    @tc.kernel
    def wrong():
        with tc.warpgroup():
            tc.as_a(tc.zeros(rt[f32, 64, 64]), e4m3)

    with pytest.raises(LayoutError, match="elements would change lanes") as found:
        wrong.compile()
    text = str(found.value)
    assert "tc.permuted_k(x, tc.e4m3)" in text and "tc.regroup" in text


# ---- parts


def test_parts_of_register_tiles_work_in_maps_and_casts():
    def body(tile: Any) -> Any:
        left, right = tile[:, :32], tile[:, 32:]
        left *= 2.0
        right += tc.row_max(left)
        tc.fill(tile[:, 8:16], 7.0)
        tile[:, 56:64] -= tc.cast(tc.cast(tile[:, 56:64], bf16), f32)
        return tile

    x = numbers(f32, 64, 64)
    got = moved(x, f32, body, (64, 64), (f32, (64, 64)), warp=False)
    wanted = x.copy()
    wanted[:, :32] *= 2
    wanted[:, 32:] += wanted[:, :32].max(1, keepdims=True)
    wanted[:, 8:16] = 7
    last = wanted[:, 56:64]
    wanted[:, 56:64] = last - bf16.round(last)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", [f32, bf16, e4m3], ids=str)
def test_rows_and_columns_of_register_tiles(dtype: tc.DType):
    x = numbers(dtype, 128, 96)
    got = moved(x, dtype, lambda t: t[64:, 32:64], (128, 96), (dtype, (64, 32)), warp=False)
    np.testing.assert_array_equal(got, x[64:, 32:64])
    got = moved(x[:48], dtype, lambda t: t[16:48, 32:][:, 32:].T, (48, 96), (dtype, (32, 32)))
    np.testing.assert_array_equal(got, x[16:48, 64:].T)


@pytest.mark.parametrize(
    "index", [np.s_[:, 4:12], np.s_[8:, :], np.s_[:, 0:7], np.s_[0], np.s_[:, ::2]], ids=str
)
def test_parts_inside_a_fragment_are_refused(index: Any):
    @tc.kernel
    def wrong():
        with tc.warpgroup():
            _ = tc.zeros(rt[f32, 128, 64])[index]

    with pytest.raises(LayoutError, match="slice: |register tile: "):
        wrong.compile()


def test_products_into_parts_are_in_flight_together():
    @tc.kernel
    def halves(A: gl[bf16, "M", "K"], B: gl[bf16, "N", "K"], D: gl[f32, "M", "N"]):
        with tc.warpgroup():
            a, b = tc.load(A[0, 0], rt[bf16, 64, 64]), tc.shared(st[bf16, 128, 64])
            tc.store(b, tc.load(B[0, 0], rt[bf16, 128, 64]))
            tc.sync()
            acc = tc.empty(rt[f32, 64, 128])
            for half in (0, 64):
                part = acc[:, half : half + 64]
                tc.mma_ABt(part, a, b[half : half + 64], accumulate=False)
            tc.mma_wait(1)
            acc[:, :64] *= 2.0
            tc.mma_wait()
            acc[:, 64:] = tc.exp2(acc[:, 64:] * 0.0)
            acc[:, 96:104] = 3.0
            tc.store(D[0, 0], acc)

    a, b = numbers(bf16, 64, 64, seed=1), numbers(bf16, 128, 64, seed=2)
    out = np.zeros((64, 128), np.float32)
    halves(a, b, out, grid=1)
    wanted = 2 * (a.astype(np.float64) @ b.astype(np.float64).T)
    wanted[:, 64:], wanted[:, 96:104] = 1, 3
    np.testing.assert_allclose(out, wanted, atol=1e-4)


@pytest.mark.parametrize("index", [np.s_[:, 16:48], np.s_[8:72, :], np.s_[:64, :]], ids=str)
def test_parts_of_shared_tiles_that_are_no_tiles_are_refused(index: Any):
    @tc.kernel
    def wrong():
        with tc.warpgroup():
            _ = tc.shared(st[bf16, 128, 128])[index]

    with pytest.raises(LayoutError, match="slice: a part of this shared tile") as found:
        wrong.compile()
    assert "hint: " in str(found.value)


@pytest.mark.parametrize("order", ["row", "col"])
def test_parts_of_shared_tiles_are_loaded_and_stored(order: str):
    @tc.kernel
    def parts(X: gl[bf16, "M", "N"], Z: gl[bf16, "M", "N"]):
        with tc.warpgroup():
            tile = tc.shared(st[bf16, 128, 128, order])
            tc.store(tile, tc.load(X[0, 0], rt[bf16, 128, 128]))
            tc.sync()
            part = tile[:, 64:] if order == "row" else tile[64:]
            x = tc.load(part.T if order == "col" else part)
            tc.sync()
            tc.store(part, x + x if order == "row" else (x + x)[:, :].T)
            tc.sync()
            tc.store(Z[0, 0], tc.load(tile))

    x = numbers(bf16, 128, 128)
    out, wanted = np.zeros_like(x), x.copy()
    parts(x, out, grid=1)
    if order == "row":
        wanted[:, 64:] *= 2
    else:
        wanted[64:] *= 2
    np.testing.assert_array_equal(out, wanted)

def test_a_part_of_an_accumulator_in_flight_is_not_touched():
    @tc.kernel
    def early(A: gl[bf16, "M", "K"]):
        with tc.warpgroup():
            a, b = tc.load(A[0, 0], rt[bf16, 64, 64]), tc.shared(st[bf16, 64, 64])
            acc = tc.zeros(rt[f32, 64, 128])
            tc.mma_AB(acc[:, :64], a, b)
            acc *= 2.0
            tc.mma_wait()

    with pytest.raises(SyncError, match="acc is read while mma_AB is still using it"):
        early.compile()


def test_half_written_tiles_are_not_read():
    @tc.kernel
    def half(Z: gl[f32, "M", "N"]):
        with tc.warpgroup():
            tile = tc.empty(rt[f32, 64, 64])
            tc.fill(tile[:, :32], 1.0)
            tc.store(Z[0, 0], tile)

    with pytest.raises(SyncError, match="before anything was written to it"):
        half.compile()
