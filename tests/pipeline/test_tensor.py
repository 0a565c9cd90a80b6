"""Pipelines whose sums are in tensor memory: the text of Blackwell and Rubin on the PTX machine."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, f32, gl, st
from tilecat.arch import ARCHS
from tilecat.kernels import epilogues
from tilecat.kernels.gemm import matmul

TARGETS = [arch.target for arch in ARCHS if "tcgen05" in arch.features]
EVERY_TARGET = [arch.target for arch in ARCHS]
TYPES = {
    "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
# tf32 keeps 10 bits of each operand; sums are f32 in all.
RELATIVE = {"f32": 2.0**-10}


def arrays(m: int, n: int, k: int, dtype: Any, *, b_rows: bool = False, a_cols: bool = False):
    """A, B with K contiguous unless asked otherwise, and C full of NaN."""
    rng = np.random.default_rng(m + n + k)
    a = rng.standard_normal((m, k)).astype(np.float32).astype(dtype)
    b = rng.standard_normal((n, k)).astype(np.float32).astype(dtype).T
    a = np.asfortranarray(a) if a_cols else a
    b = np.ascontiguousarray(b) if b_rows else b
    return a, b, np.full((m, n), np.nan, np.float32)


def check(c: np.ndarray, a: np.ndarray, b: np.ndarray, name: str = "bf16") -> None:
    want = a.astype(np.float64) @ b.astype(np.float64)
    bound = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    relative = RELATIVE.get(name, 0.0) * 2 + (a.shape[1] + 1) * 2.0**-24
    assert (np.abs(c - want) <= relative * bound).all()


def run(target: str, *args: Any, grid: int = 2, seed: int = 0, **params: Any) -> None:
    result = matmul.simulate(*args, target=target, grid=grid, seed=seed, **params)
    assert not result.reports, str(result.reports[0])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", TYPES)
def test_product_of_each_type_is_right(target: str, name: str):
    a, b, c = arrays(200, 264, 160, TYPES[name])
    run(target, a, b, c, tile_n=128)
    check(c, a, b, name)


@pytest.mark.parametrize(("a_sign", "b_sign"), [(np.int8, np.int8)])
def test_product_of_integers_is_exact(a_sign: Any, b_sign: Any):
    rng = np.random.default_rng(1)
    a = rng.integers(-128, 128, (200, 160)).astype(a_sign)
    b = rng.integers(-128, 128, (264, 160)).astype(b_sign).T
    c = np.full((200, 264), 7, np.int32)
    run("sm_100a", a, b, c, tile_n=128)
    assert (c == a.astype(np.int64) @ b.astype(np.int64)).all()


SHAPES = [
    ((1, 8, 8), {}),
    ((128, 256, 64), {}),
    ((128, 256, 512), {"stages": 2}),
    ((300, 520, 72), {}),  # several tasks a CTA: both buffers, twice
    ((300, 520, 72), {"tile_m": 64, "tile_n": 64}),
    ((300, 264, 136), {"tile_m": 192, "tile_n": 128}),  # three consumers are no pairs
    ((520, 264, 136), {"tile_m": 256, "tile_n": 128, "stages": 3}),  # two pairs
    ((520, 264, 136), {"tile_n": 128, "cluster": 2}),
    ((200, 264, 136), {"tile_n": 48, "tile_k": 32}),  # 64-byte swizzle
    ((200, 264, 136), {"stages": 1}),
]


@pytest.mark.parametrize(("shape", "params"), SHAPES, ids=str)
@pytest.mark.parametrize("target", ["sm_100a", "sm_107a"])
def test_shapes_and_tiles_are_right(target: str, shape: tuple[int, int, int], params: dict):
    a, b, c = arrays(*shape, TYPES["bf16"])
    run(target, a, b, c, grid=params.get("cluster", 1), seed=3, **params)
    check(c, a, b)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("orders", [("b_rows",), ("a_cols",), ("a_cols", "b_rows")], ids=str)
def test_either_axis_of_an_operand_may_be_contiguous(orders: tuple[str, ...], seed: int):
    a, b, c = arrays(200, 264, 136, TYPES["f16"], **dict.fromkeys(orders, True))
    run("sm_100a", a, b, c, grid=1, seed=seed, tile_n=128)
    check(c, a, b)


def test_a_product_without_steps_is_zero():
    a, b, c = arrays(200, 264, 0, TYPES["bf16"])
    kernel = matmul.compile(target="sm_100a")
    assert "mov.f32 %acc_127, 0f00000000;" in kernel.ptx
    result = matmul.simulate(a, b, c, target="sm_100a", grid=1)
    assert not result.reports and (c == 0).all()


def test_two_products_share_a_step():
    rng = np.random.default_rng(5)
    a, b, c = arrays(200, 264, 136, TYPES["bf16"])
    other = rng.standard_normal((264, 136)).astype(np.float32).astype(TYPES["bf16"]).T
    steps = (epilogues.Step(lambda x, y, at: x - y, 0),)
    run("sm_100a", a, b, c, other, second=True, tile_n=64, epilogue=steps)
    want = a.astype(np.float64) @ (b.astype(np.float64) - other.astype(np.float64))
    np.testing.assert_allclose(c, want, atol=1e-3)


@pytest.mark.parametrize("target", ["sm_100a", "sm_107a"])
def test_epilogues_see_their_rows_and_columns(target: str):
    a, b, c = arrays(200, 264, 136, TYPES["bf16"])
    rng = np.random.default_rng(6)
    rows, cols = rng.standard_normal(200), rng.standard_normal(264)
    rows, cols = rows.astype(np.float32), cols.astype(np.float32)
    steps = (epilogues.Step(epilogues.row_scale, 1), epilogues.Step(epilogues.bias, 1))
    run(target, a, b, c, rows, cols, tile_n=128, epilogue=steps)
    want = (a.astype(np.float64) @ b.astype(np.float64)) * rows[:, None] + cols
    np.testing.assert_allclose(c, want, atol=1e-3)


def test_consumers_of_one_a_are_no_pairs():
    @tc.kernel
    def columns(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[f32, "M", "N"]):
        """Two consumers of one tile of A, each with columns of its own."""
        tasks = tc.row_major(tc.cdiv(A.rows, 64), tc.cdiv(B.cols, 128))
        pipe = tc.lcf(consumers=2, stages=2, tasks=tasks, steps=tc.cdiv(A.cols, 64))
        a = pipe.input(st[bf16, 64, 64])
        b = pipe.input(st[bf16, 64, 64, "col"], count=2)
        c = pipe.output(st[f32, 64, 64])
        acc = pipe.accumulator(f32, 64, 64)

        @pipe.load
        def _(task, k):
            tc.load_async(a, A[task.row, k])
            for i in range(2):
                tc.load_async(b[i], B[k, task.col * 2 + i])

        @pipe.compute
        def _(task, k):
            tc.mma_AB(acc, a, b[pipe.consumer])

        @pipe.finish
        def _(task):
            c.store(C[task.row, task.col * 2 + pipe.consumer], acc)

    a, b, c = arrays(200, 264, 136, TYPES["bf16"])
    for target in ("sm_90a", "sm_100a"):
        result = columns.simulate(a, b, c, target=target, grid=2)
        assert not result.reports, str(result.reports[0])
        check(c, a, b)
    text = columns.compile(a, b, c, target="sm_100a").ptx
    assert "M=64 N=64" in text and "bfi" not in text


def test_by_hand_one_thread_issues():
    @tc.kernel
    def product(A: gl[bf16, "M", "K"], B: gl[bf16, "N", "K"], C: gl[f32, "M", "P"]):
        a, b = tc.shared(st[bf16, 64, 64]), tc.shared(st[bf16, 64, 64])
        acc = tc.tmem(tc.tt[f32, 64, 128])
        loaded, done = tc.barrier(), tc.barrier()
        with tc.warpgroup():
            tc.store(acc[:, :64], tc.full(tc.rt[f32, 64, 64], 2.0))
            tc.sync()
            with tc.elected():
                loaded.expect(a, b)
                tc.load_async(a, A[0, 0], loaded)
                tc.load_async(b, B[0, 0], loaded)
                loaded.wait(0)
                tc.mma_ABt(acc[:, :64], a, b)
                tc.mma_ABt(acc[:, 64:], a, b, accumulate=False, negate_a=True)
                tc.mma_commit(done)
            done.wait(0)
            tc.store(C[0, 0], tc.load(acc[:, :64]))
            tc.store(C[0, 1], tc.load(acc[:, 64:]))
            tc.free_tmem()

    a, b, _ = arrays(64, 64, 64, TYPES["bf16"])
    b = np.ascontiguousarray(b.T)
    c = np.zeros((64, 128), np.float32)
    result = product.simulate(a, b, c, target="sm_100a", grid=1)
    assert not result.reports, str(result.reports[0])
    want = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(c, np.hstack([want + 2, -want]), atol=1e-4)


def test_sums_of_a_task_before_are_not_seen():
    """Both buffers hold NaN of a task before, which the first product of the next overwrites."""
    a, b, c = arrays(128 * 5, 128, 64, TYPES["bf16"])
    a[:256] = np.nan
    run("sm_100a", a, b, c, grid=1, tile_n=128)
    assert np.isnan(c[:256]).all()
    check(c[256:], a[256:], b)


def test_by_hand_two_warpgroups_share_128_rows():
    @tc.kernel
    def product(A: gl[bf16, "M", "K"], B: gl[bf16, "N", "K"], C: gl[f32, "M", "N"]):
        a, b = tc.shared(st[bf16, 128, 64]), tc.shared(st[bf16, 96, 64])
        acc = tc.tmem(tc.tt[f32, 128, 96])
        loaded, done = tc.barrier(), tc.barrier()
        with tc.warpgroup(2) as number:
            start = tc.zeros(tc.rt[f32, 64, 96]) + (number + 1).to(f32)
            tc.store(acc, start)
            tc.cta_sync()
            with tc.when(tc.warp_id() == 1), tc.warps():  # another than the first will do
                loaded.expect(a, b)
                with tc.elected():
                    tc.load_async(a, A[0, 0], loaded)
                    tc.load_async(b, B[0, 0], loaded)
                loaded.wait(0)
                tc.mma_ABt(acc, a, b)
                tc.mma_commit(done)
            done.wait(0)
            x = tc.load(acc)
            tc.sync()
            tc.store(C[number, 0], x)
            tc.free_tmem(256)

    a, b, _ = arrays(128, 96, 64, TYPES["bf16"])
    b = np.ascontiguousarray(b.T)
    c = np.zeros((128, 96), np.float32)
    result = product.simulate(a, b, c, target="sm_100a", grid=1)
    assert not result.reports, str(result.reports[0])
    want = a.astype(np.float64) @ b.astype(np.float64).T
    want += np.repeat([1.0, 2.0], 64)[:, None]
    np.testing.assert_allclose(c, want, atol=1e-4)
    assert "M=128 N=96" in product.compile(a, b, c, target="sm_100a").ptx


def shapes_of(count: int) -> list[tuple[int, int, int]]:
    """Random extents, K in whole 16-byte units of the narrowest type."""
    rng = np.random.default_rng(2026)
    sizes = rng.integers(1, (400, 400, 20), (count, 3)).tolist()
    return [(m, n, 16 * k) for m, n, k in sizes]


@pytest.mark.full
@pytest.mark.parametrize("shape", shapes_of(60), ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", [*TYPES, "s8"])
@pytest.mark.parametrize("target", EVERY_TARGET)
def test_sixty_shapes_of_each_type_on_each_target(target: str, name: str, shape: tuple):
    if name == "s8" and target in TARGETS[1:]:
        pytest.skip("kind::i8 is sm_100a's")
    m, n, k = shape
    n = -(-n // 8) * 8
    seed = hash(shape) % 100
    tiles = {"tile_m": (64, 128, 192)[m % 3], "tile_n": (64, 128, 96)[n % 3], "stages": 2 + k % 3}
    if name == "s8":
        rng = np.random.default_rng(k)
        a = rng.integers(-128, 128, (m, k)).astype(np.int8)
        b = rng.integers(-128, 128, (n, k)).astype(np.int8).T
        c = np.full((m, n), 7, np.int32)
        run(target, a, b, c, seed=seed, **tiles)
        assert (c == a.astype(np.int64) @ b.astype(np.int64)).all()
        return
    a, b, c = arrays(m, n, k, TYPES[name])
    run(target, a, b, c, seed=seed, **tiles)
    check(c, a, b, name)
