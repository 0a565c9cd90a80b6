"""Loads and stores of tensor memory in every shape: where elements lie, on the PTX machine."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, f16, f32, gl, rt, st, tt
from tilecat.dtypes import DType
from tilecat.errors import ArchError, DTypeError, LayoutError, TileError
from tilecat.layouts import LinearMap, fragment_of, tensor_fragment, tensor_shape

SHAPES = ("16x64b", "16x128b", "16x256b", "16x32bx2")
# dtype of the registers, and whether the tile is sums (of f16: packed, two columns a register)
TILES = [(f32, True), (tc.s32, True), (f16, True), (bf16, False), (f16, False), (tc.e4m3, False)]


def through(dtype: DType, sums: bool, rows: int, cols: int, stored: Any, loaded: Any) -> Any:
    """Y = X, through tensor memory: stored by one shape, loaded by another."""
    kind = tt[dtype, rows, cols, "sums"] if sums and dtype == f16 else tt[dtype, rows, cols]

    @tc.kernel
    def kernel(X: gl[dtype, "M", "N"], Y: gl[dtype, "M", "N"]):
        tile = tc.tmem(kind)
        with tc.warpgroup():
            tc.store(tile, tc.load(X[0, 0], stored))
            tc.sync()
            tc.store(Y[0, 0], tc.load(tile, loaded))
            tc.free_tmem()

    return kernel


def numbers(dtype: DType, rows: int, cols: int) -> np.ndarray:
    rng = np.random.default_rng(cols)
    if dtype.is_float:
        return rng.standard_normal((rows, cols)).astype(np.float32).astype(dtype.numpy)
    return rng.integers(-1000, 1000, (rows, cols)).astype(dtype.numpy)


def same(kernel: Any, dtype: DType, rows: int, cols: int) -> None:
    x, y = numbers(dtype, rows, cols), np.zeros((rows, cols), dtype.numpy)
    result = kernel.simulate(x, y, target="sm_100a", grid=1)
    assert not result.reports, str(result.reports[0])
    assert (x.view(np.uint8) == y.view(np.uint8)).all()


@pytest.mark.parametrize(("dtype", "sums"), TILES, ids=str)
@pytest.mark.parametrize(("one", "other"), tuple(product(SHAPES, SHAPES)))
def test_what_one_shape_stores_another_loads(dtype: DType, sums: bool, one: str, other: str):
    cols = 96 if dtype.bits > 8 else 128
    kinds = (rt[dtype, 64, cols, one], rt[dtype, 64, cols, other])
    same(through(dtype, sums, 64, cols, *kinds), dtype, 64, cols)


@pytest.mark.parametrize(("dtype", "sums"), TILES, ids=str)
def test_a_row_a_thread_goes_through_tensor_memory(dtype: DType, sums: bool):
    kind = rt[dtype, 128, 96, "32x32b"]
    same(through(dtype, sums, 128, 96, kind, kind), dtype, 128, 96)


@pytest.mark.parametrize("shape", [*SHAPES, "32x32b"])
@pytest.mark.parametrize("dtype", [f32, bf16, tc.e4m3], ids=str)
def test_layouts_are_linear_maps_of_the_shapes_fragment(shape: str, dtype: DType):
    """PTX ISA 9.7.16.2.3.1: lane and column of each 32-bit register, by the figures."""
    rows = 128 if shape == "32x32b" else 64
    kind = rt[dtype, rows, 64, shape]
    layout, each = kind.layout, max(1, 32 // dtype.bits)
    assert tensor_shape(layout) in (shape, None) and layout.elements_per_thread == rows * 64 // 128
    bits = 7 + (layout.elements_per_thread - 1).bit_length()

    def place(x: int) -> int:
        row, col = layout.row_col(x & 127, x >> 7)
        return int(row) << 6 | int(col)

    assert LinearMap.of(place, bits, bits).is_injective
    words = 64 // each
    for thread in (0, 1, 2, 5, 17, 31, 38, 127):
        lane, first = thread % 32, thread // 32 * (rows // 4)
        for register in range(layout.registers_per_thread):
            row, word = {
                "32x32b": (lane, register),
                "16x64b": (lane // 4 + 8 * (lane & 1), 2 * register + (lane >> 1 & 1)),
                "16x128b": (lane // 4 + 8 * (register & 1), 4 * (register >> 1) + lane % 4),
                "16x256b": (
                    lane // 4 + 8 * (register >> 1 & 1),
                    8 * (register >> 2) + 2 * (lane % 4) + (register & 1),
                ),
                "16x32bx2": (lane % 16, register + (lane >> 4) * words // 2),
            }[shape]
            for part in range(each):
                held = layout.row_col(thread, register * each + part)
                assert held == (first + row, word * each + part)


def test_names_of_shapes_that_are_mmas_own_are_its_types():
    assert rt[f32, 64, 64, "16x256b"] == rt[f32, 64, 64]
    assert rt[bf16, 64, 64, "16x128b"] == rt[bf16, 64, 64]
    assert tensor_fragment("16x128b", tc.tf32, 64) == fragment_of(tc.tf32)
    assert str(rt[f32, 128, 64, "32x32b"]) == 'rt[f32, 128, 64, "32x32b"]'
    assert str(rt[bf16, 64, 64, "16x32bx2"]) == 'rt[bf16, 64, 64, "16x32bx2"]'
    assert rt[f32, 128, 64, "32x32b"].cast(bf16) == rt[bf16, 128, 64, "32x32b"]


def softmax(rows: int, shape: str, cols: int = 64) -> Any:
    """Rows of X scaled, their softmax, and its rows' sums; through tensor memory."""
    kind = rt[f32, rows, cols, shape]

    @tc.kernel
    def kernel(X: gl[f32, "M", "N"], Y: gl[f32, "M", "N"], S: gl[f32, "M"]):
        tile = tc.tmem(tt[f32, rows, cols])
        with tc.warpgroup():
            tc.store(tile, tc.load(X[0, 0], kind))
            tc.sync()
            x = tc.load(tile, kind)
            x = tc.exp(x - tc.row_max(x))
            total = tc.row_sum(x)
            tc.store(S[0], total)
            staged = tc.shared(st[f32, rows, cols])
            tc.store(staged, x / total)
            tc.sync()
            tc.store(Y[0, 0], tc.load(staged))
            tc.free_tmem()

    return kernel


@pytest.mark.parametrize(
    ("rows", "shape", "exchanges"),
    [(128, "32x32b", 0), (64, "16x64b", 1), (64, "16x32bx2", 1), (64, "16x256b", 4)],
)
def test_reductions_of_rows_exchange_between_the_lanes_of_a_row(
    rows: int, shape: str, exchanges: int
):
    kernel, rng = softmax(rows, shape), np.random.default_rng(1)
    x = rng.standard_normal((rows, 64)).astype(np.float32)
    y, s = np.full_like(x, np.nan), np.full(rows, np.nan, np.float32)
    result = kernel.simulate(x, y, s, target="sm_100a", grid=1)
    assert not result.reports, str(result.reports[0])
    want = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(s, want.sum(1), rtol=1e-5)
    np.testing.assert_allclose(y, want / want.sum(1, keepdims=True), rtol=1e-5)
    made = kernel.compile(x, y, s, target="sm_100a")
    assert made.resources.spill_bytes == 0
    assert made.ptx.count("shfl.sync.bfly") == 2 * exchanges


def attention(keys: int, dim: int) -> Any:
    """softmax(Q K^T / sqrt(dim)) V of 128 queries by one warpgroup: a query a thread."""

    @tc.kernel
    def kernel(
        Q: gl[bf16, "M", "D"], K: gl[bf16, "N", "D"], V: gl[bf16, "N", "D"], out: gl[f32, "M", "D"]
    ):
        q, k = tc.shared(st[bf16, 128, dim]), tc.shared(st[bf16, keys, dim])
        v = tc.shared(st[bf16, keys, dim])
        scores, sums = tc.tmem(tt[f32, 128, keys]), tc.tmem(tt[f32, 128, dim])
        p = tc.tmem(tt[bf16, 128, keys])
        loaded, scored, done = tc.barrier(), tc.barrier(), tc.barrier()
        with tc.warpgroup():
            with tc.when(tc.warp_id() == 0), tc.warps():
                loaded.expect(q, k, v)
                with tc.elected():
                    for tile, source in ((q, Q), (k, K), (v, V)):
                        tc.load_async(tile, source[0, 0], loaded)
                loaded.wait(0)
                tc.mma_ABt(scores, q, k, accumulate=False)
                tc.mma_commit(scored)
            scored.wait(0)
            x = tc.load(scores, rt[f32, 128, keys, "32x32b"]) * (dim**-0.5)
            x = tc.exp(x - tc.row_max(x))
            total = tc.row_sum(x)
            tc.store(p, tc.cast(x, bf16))
            tc.sync()
            with tc.when(tc.warp_id() == 0), tc.warps():
                tc.mma_AB(sums, p, v, accumulate=False)
                tc.mma_commit(done)
            done.wait(0)
            tc.store(out[0, 0], tc.load(sums, rt[f32, 128, dim, "32x32b"]) / total)
            tc.free_tmem()

    return kernel


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a", "sm_107a"])
def test_attention_with_a_query_a_thread_has_no_shuffles(target: str):
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((128, 64)).astype(np.float32).astype(bf16.numpy)
               for _ in range(3))  # fmt: skip
    out = np.full((128, 64), np.nan, np.float32)
    kernel = attention(128, 64)
    result = kernel.simulate(q, k, v, out, target=target, grid=1)
    assert not result.reports, str(result.reports[0])
    q64, k64, v64 = (x.astype(np.float64) for x in (q, k, v))
    weights = np.exp((q64 @ k64.T) / 8)
    want = weights @ v64 / weights.sum(1, keepdims=True)
    assert np.abs(out - want).max() < 2.0**-8 * np.abs(v64).max()  # P is rounded to bf16
    made = kernel.compile(q, k, v, out, target=target)
    assert made.resources.spill_bytes == 0 and "shfl.sync.bfly" not in made.ptx
    assert re.findall(r"tcgen05.st\S+", made.ptx) == ["tcgen05.st.sync.aligned.32x32b.x64.b32"]


# ---- loads that reduce

REDUCED = [
    ("load_row_max", {}, lambda x: np.fmax.reduce(x, 1)),
    ("load_row_min", {}, lambda x: np.fmin.reduce(x, 1)),
    ("load_row_max", {"absolute": True}, lambda x: np.fmax.reduce(abs(x), 1)),
    ("load_row_max", {"nan": True}, lambda x: x.max(1)),
]


def reduced(rows: int, shape: str, dtype: DType, name: str, options: dict, cols: int = 96) -> Any:
    kind = rt[dtype, rows, cols, shape]

    @tc.kernel
    def kernel(X: gl[dtype, "M", "N"], Y: gl[dtype, "M", "N"], S: gl[dtype, "M"]):
        tile = tc.tmem(tt[dtype, rows, cols])
        with tc.warpgroup():
            tc.store(tile, tc.load(X[0, 0], kind))
            tc.sync()
            x, found = getattr(tc, name)(tile, kind, **options)
            tc.store(Y[0, 0], x)
            tc.store(S[0], found)
            tc.free_tmem()

    return kernel


@pytest.mark.parametrize(("name", "options", "want"), REDUCED,
                         ids=[f"{name} {options}" for name, options, _ in REDUCED])  # fmt: skip
@pytest.mark.parametrize(("rows", "shape"), [(128, "32x32b"), (64, "16x32bx2")])
def test_loads_reduce_rows(rows: int, shape: str, name: str, options: dict, want: Any):
    x = numbers(f32, rows, 96)
    x[3, 40] = x[5, 90] = np.nan
    y, s = np.zeros_like(x), np.full(rows, np.nan, np.float32)
    kernel = reduced(rows, shape, f32, name, options)
    result = kernel.simulate(x, y, s, target="sm_103a", grid=1)
    assert not result.reports, str(result.reports[0])
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(s, want(x))
    for target in ("sm_103a", "sm_107a"):
        made = kernel.compile(x, y, s, target=target)
        assert made.resources.spill_bytes == 0 and "tcgen05.ld.red" in made.ptx


def test_loads_reduce_integers():
    x = numbers(tc.s32, 128, 96)
    y, s = np.zeros_like(x), np.zeros(128, np.int32)
    kernel = reduced(128, "32x32b", tc.s32, "load_row_min", {})
    result = kernel.simulate(x, y, s, target="sm_107a", grid=1)
    assert not result.reports, str(result.reports[0])
    assert (x == y).all() and (s == x.min(1)).all()


# ---- errors


def refused(body: Any, kind: type[TileError], text: str, target: str = "sm_103a") -> None:
    @tc.kernel
    def example(A: gl[bf16, "M", "K"]):
        tile, low = tc.tmem(tt[f32, 128, 64]), tc.tmem(tt[f32, 64, 64])
        with tc.warpgroup(2):
            body(tile, low)

    with pytest.raises(kind, match=re.escape(text)) as error:
        example.compile(target=target)
    assert "test_tensor_shapes.py" in str(error.value)


WIDE = rt[f32, 128, 64, "32x32b"]
ERRORS = [
    (lambda t, low: tc.load(low, WIDE), LayoutError,
     "load: 32x32b has a row in each of 128 lanes, of 64 rows 16 lie in a quarter"),
    (lambda t, low: tc.load(t, rt[f32, 128, 32, "32x32b"]), LayoutError, "shapes must agree"),
    (lambda t, low: tc.load(t, rt[tc.s32, 128, 64, "32x32b"]), DTypeError, "dtypes must agree"),
    (lambda t, low: tc.load(low, rt[f32, 64, 64, "col"]), LayoutError,
     "the fragment of sums goes to tt[f32, 64, 64]"),
    (lambda t, low: (tc.load(t), tc.load(t, WIDE)), LayoutError,
     "two together, or by 32x32b each alone"),
    (lambda t, low: tc.col_max(tc.load(t, WIDE)), LayoutError,
     'col_max: columns are reduced of tiles that lie as mma\'s do, got rt[f32, 128, 64, "32x32b"]'),
    (lambda t, low: tc.regroup(tc.load(t, WIDE)), LayoutError,
     "regroup: elements must stay in their warp"),
    (lambda t, low: tc.cumsum(tc.load(t, WIDE), "col"), LayoutError,
     "works on tiles that lie as mma's do"),
    (lambda t, low: tc.load(t, WIDE) + tc.zeros(rt[f32, 128, 64]), LayoutError,
     "shapes and layouts must agree"),
    (lambda t, low: tc.load(t, WIDE) + tc.zeros(tc.rv[f32, 128]), LayoutError,
     "the vector lies with tiles of another fragment"),
    (lambda t, low: tc.load_row_max(low, rt[f32, 64, 64]), LayoutError,
     "load_row_max: reduces what it loads by 32x32b or 16x32bx2, got rt[f32, 64, 64]"),
    (lambda t, low: tc.load(t, 3), LayoutError, "becomes a register tile, got 3"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "kind", "text"), ERRORS, ids=[e[2] for e in ERRORS])
def test_shapes_have_rules(body: Any, kind: type[TileError], text: str):
    refused(body, kind, text)


def test_loads_that_reduce_are_not_every_chips():
    text = "load_row_max: needs load_reduced, which sm_100a does not have"
    refused(lambda t, low: tc.load_row_max(t, WIDE), ArchError, text, "sm_100a")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: rt[f32, 64, 64, "32x32c"], "a shape of tensor memory: 32x32b, 16x64b"),
        (lambda: rt[f32, 72, 64, "32x32b"], "rows of a f32 tile of 32x32b are a multiple of 32"),
        (lambda: rt[bf16, 64, 24, "16x64b"], "columns of a bf16 tile of 16x64b are a multiple of"),
    ],
)
def test_types_of_shapes_have_rules(make: Any, text: str):
    with pytest.raises(LayoutError, match=re.escape(text)):
        make()
