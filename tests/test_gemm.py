"""tc.matmul on the PTX machine: dtypes, batches, epilogues, scales; what it refuses."""

from __future__ import annotations

import gemm_cases
import gemm_random
import ml_dtypes
import numpy as np
import pytest
import reference
from failures import fails

import tilecat as tc
from tilecat import DTypeError, LayoutError
from tilecat.kernels.epilogues import Step
from tilecat.kernels.gemm import matmul as kernel

BF16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn
E = tc.epilogues


def normal(*shape: int, dtype=BF16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def close(actual: np.ndarray, chain: gemm_cases.Chain) -> None:
    reference.assert_close(actual, reference.Reference(chain.value, chain.error), actual.dtype)


@pytest.mark.parametrize("seed", range(16))
def test_random_calls(seed):
    given = gemm_random.problem(seed)
    given.check(given.on_cpu())


@pytest.mark.full
@pytest.mark.parametrize("seed", range(16, 300))
def test_more_random_calls(seed):
    given = gemm_random.problem(seed)
    given.check(given.on_cpu())


@pytest.mark.parametrize("seed", range(100, 104))
def test_random_calls_repeat_bit_for_bit(seed):
    given = gemm_random.problem(seed, 100)
    np.testing.assert_array_equal(given.on_cpu(), given.on_cpu())


@pytest.mark.parametrize("b_order", ["row", "col"])
@pytest.mark.parametrize("a_order", ["row", "col"])
@pytest.mark.parametrize("dtype", ["f32", "e4m3", "e5m2", "s8", "bf16"])
def test_every_transpose_of_every_dtype(dtype, a_order, b_order):
    rng = np.random.default_rng(1)
    a = gemm_cases.numbers(rng, (70, 136), dtype, a_order)
    b = gemm_cases.numbers(rng, (136, 80), dtype, b_order)
    out = tc.matmul(a, b)
    wanted = gemm_cases.product(a, b)
    if dtype == "s8":
        assert out.dtype == np.int32
        np.testing.assert_array_equal(out, wanted.value)
        return
    assert out.dtype == {"f32": np.float32}.get(dtype, BF16)
    close(out, wanted)


def test_kernel_refuses_8_bit_operands_with_k_apart():
    a, b, c = normal(64, 64, dtype=E4M3), normal(64, 64, dtype=E4M3), np.zeros((64, 64), BF16)
    fails(
        lambda: kernel(a, b, c),
        LayoutError,
        "matmul: e4m3 is multiplied with K contiguous in memory, got B: gl[e4m3, K, N] in row "
        "order",
        at="tc.require(",
        hint="x.T.contiguous().T",
    )


@pytest.mark.parametrize("tile", [(128, 256, 4), (128, 192, 4), (64, 256, 5)], ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "f32", "e4m3", "s8"])
def test_epilogues_of_wide_tiles_do_not_spill(dtype, tile):
    rng = np.random.default_rng(0)
    a, b = (gemm_cases.numbers(rng, (128, 256), dtype, "row") for _ in range(2))
    c, vector = np.zeros((128, 128), BF16), np.ones(128, np.float32)
    steps = (Step(E.row_scale, 1), Step(E.gelu), Step(E.bias, 1), Step(E.residual, 1))
    tile_m, tile_n, stages = tile
    if dtype == "s8" and tile_n == 256:
        pytest.skip("tc.matmul takes narrower tiles")
    compiled = kernel.compile(
        a, b.T, c, vector, vector, c.copy(), tile_m=tile_m, tile_n=tile_n, stages=stages,
        epilogue=steps,
    )  # fmt: skip
    assert compiled.resources.spill_bytes == 0


def test_equal_lambdas_compile_once():
    a, factors = normal(8, 16), (1.5, 1.5, 1.5, 2.5)
    before, found = kernel.compiles, []
    for factor in factors:
        found.append(tc.matmul(a, a.T, epilogue=lambda x, at, factor=factor: x * factor))
    assert kernel.compiles == before + 2
    for out, factor in zip(found, factors, strict=True):
        chain = gemm_cases.product(a, a.T)
        chain.times(factor)
        close(out, chain)


def test_dropout_keeps_its_share_and_repeats():
    a, b = normal(130, 64), normal(64, 200, seed=1)
    plain = tc.matmul(a, b, out_dtype="f32")
    first, again, other = (
        tc.matmul(a, b, out_dtype="f32", epilogue=(E.Dropout(0.25), seed)) for seed in (7, 7, 8)
    )
    kept = first != 0
    np.testing.assert_allclose(first[kept], plain[kept] / 0.75, rtol=1e-6)
    assert abs(kept.mean() - 0.75) < 0.02
    assert (first == again).all() and ((other != 0) != kept).mean() > 0.3


def test_beta_of_zero_does_not_read_out():
    a, out = normal(70, 64), np.full((70, 70), np.nan, BF16)
    close(tc.matmul(a, a.T, out, beta=0), gemm_cases.product(a, a.T))


def test_alpha_and_beta_may_be_arrays_of_one_element():
    a, out = normal(70, 64), normal(70, 70, seed=3)
    chain = gemm_cases.product(a, a.T)
    chain.times(0.5)
    chain.plus(2.0 * out.astype(np.float64))
    two = np.array([[2.0]], np.float32)
    close(tc.matmul(a, a.T, out, alpha=np.float32([0.5]), beta=two), chain)


def test_leading_axes_that_do_not_merge():
    a, b = normal(2, 1, 20, 64), normal(1, 3, 64, 40, seed=1)
    close(tc.matmul(a, b), gemm_cases.product(a, b))
    a, b = normal(2, 3, 4, 20, 64), normal(64, 40, seed=1)
    close(tc.matmul(a, b), gemm_cases.product(a, b))
    out = np.full((4, 3, 2, 20, 40), np.nan, BF16).transpose(2, 1, 0, 3, 4)
    close(tc.matmul(a, b, out), gemm_cases.product(a, b))


def test_a_broadcast_view_of_a_batch():
    a, b = np.broadcast_to(normal(20, 64), (3, 20, 64)), normal(3, 64, 40, seed=1)
    close(tc.matmul(a, b), gemm_cases.product(a, b))


A, B = normal(64, 128), normal(128, 80)
QUANTISED = A.astype(E4M3), B.astype(E4M3)
BAD = (
    ({"scale_a": np.ones(63, np.float32)}, LayoutError, "scale_a has one element, or one a row"),
    ({"scale_b": np.ones((80, 1), np.float32)}, LayoutError, "scale_b has one element, or one a"),
    ({"scale_a": np.ones(64, BF16)}, DTypeError, "scale_a is f32, got bf16"),
    ({"beta": 1.0}, LayoutError, "beta scales what out holds, got beta=1.0 and no out"),
    ({"alpha": np.ones(2, np.float32)}, LayoutError, "alpha is a number or an f32 array of one"),
    ({"out_dtype": "s8"}, DTypeError, "the output of bf16 is bf16, f16, f32, e4m3, e5m2"),
    ({"out_dtype": "f32", "out": normal(64, 80)}, DTypeError, "out_dtype that of out"),
    ({"out": normal(64, 79)}, LayoutError, r"out has the shape \(64, 80\) .* got \(64, 79\)"),
    ({"epilogue": 3}, LayoutError, r"a step of the epilogue is a function f\(x, at, \*args\)"),
    ({"epilogue": E.bias}, LayoutError, "missing a required argument: 'values'"),
    ({"epilogue": (E.bias, np.ones(79, np.float32))}, LayoutError, "as long as axis 1 of C"),
    ({"epilogue": (E.gate, normal(63, 80))}, LayoutError, "as long as axis 0 of C, got 63 and 64"),
    ({"epilogue": (E.bias, normal(3, 80))}, LayoutError, "behind at most those of the batch"),
    ({"epilogue": lambda x, at: 3}, LayoutError, "a step gives a register tile of 64 x 64, got 3"),
    ({"epilogue": (E.bias, np.ones(80, np.int8))}, DTypeError, "s8"),
)


@pytest.mark.parametrize(("options", "kind", "message"), BAD, ids=[x[2][:40] for x in BAD])
def test_matmul_refuses(options, kind, message):
    with pytest.raises(kind, match=message) as caught:
        tc.matmul(A, B, **options)
    assert caught.value.loc is not None


def test_matmul_refuses_batches_that_do_not_broadcast():
    with pytest.raises(LayoutError, match="leading axes broadcast: equal or 1"):
        tc.matmul(normal(2, 8, 16), normal(3, 16, 8))
    with pytest.raises(LayoutError, match="axis 0 of A is as long as axis 0 of C, or 1, got 2 and"):
        kernel(normal(2, 8, 16), normal(3, 16, 8), np.zeros((3, 8, 8), BF16))


def test_an_output_may_not_be_an_operand():
    square = normal(64, 64)
    for options in ({}, {"beta": 1.0}, {"epilogue": (E.residual, normal(64, 64))}):
        with pytest.raises(LayoutError, match="must share no memory with other arguments"):
            tc.matmul(square, normal(64, 64), square, **options)


# ---- two products, scales of blocks


@pytest.mark.parametrize(
    ("m", "n", "k"), [(200, 208, 300), (1, 16, 128), (130, 300, 1), (64, 400, 520)], ids=str
)
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_scales_of_blocks(batch, m, n, k):
    rng = np.random.default_rng(0)
    a = normal(*batch, m, k, dtype=E4M3)
    b = normal(*batch, k, n, dtype=E4M3, seed=1)
    blocks, wide = -(-k // 128), -(-n // 128)
    scale_a = rng.uniform(0.5, 2, (*batch, m, blocks)).astype(np.float32)
    scale_b = rng.uniform(0.5, 2, (*batch, blocks, wide)).astype(np.float32)
    out = np.full((*batch, m, n), np.nan, BF16)
    tc.matmul(a, b, out, scale_a=scale_a, scale_b=scale_b)
    close(out, gemm_cases.scaled_by_blocks(a, b, scale_a, scale_b))


@pytest.mark.parametrize(
    "params",
    [
        {"tile_m": 128, "tile_n": 256, "stages": 4},
        {"tile_m": 128, "tile_n": 256, "stages": 3, "cluster": 2},
        {"tile_m": 192, "tile_n": 128, "stages": 2},
        {"tile_m": 64, "tile_n": 64, "stages": 3},
    ],
    ids=str,
)
def test_scales_of_blocks_with_other_tiles(params):
    """More steps than stages, several tasks a CTA, edges along M, N and K."""
    m, n, k = 260, 330, 700
    rng = np.random.default_rng(0)
    a, b = normal(m, k, dtype=E4M3), normal(n, k, dtype=E4M3, seed=1).T
    scale_a = rng.uniform(0.5, 2, (6, m)).astype(np.float32)
    scale_b = rng.uniform(0.5, 2, (6, 3)).astype(np.float32)
    out = np.full((m, n), np.nan, BF16)
    kernel(a, b, out, scale_a, scale_b, block_scales=True, grid=2, **params)
    close(out, gemm_cases.scaled_by_blocks(a, b, scale_a.T, scale_b))


def test_tiles_that_cut_blocks_of_scales_are_refused():
    c, ones = np.zeros((128, 192), BF16), np.ones((1, 128), np.float32)
    a, b = normal(128, 128, dtype=E4M3), normal(192, 128, dtype=E4M3).T
    with pytest.raises(LayoutError, match=r"a tile one, half of one or several, .*tile_n=192"):
        kernel(a, b, c, ones, ones[:, :2], tile_n=192, block_scales=True)


def test_scales_of_blocks_come_in_pairs_and_with_fp8():
    blocks = np.ones((64, 2), np.float32)
    a, b = normal(64, 200, dtype=E4M3), normal(200, 300, dtype=E4M3)
    with pytest.raises(LayoutError, match=r"\(64, 2\) of a and \(2, 3\) of b, got"):
        tc.matmul(a, b, scale_a=blocks, scale_b=np.ones((2, 2), np.float32))
    with pytest.raises(DTypeError, match="scales of blocks are f32, of FP8 operands"):
        tc.matmul(normal(64, 200), normal(200, 300), scale_a=blocks,
                  scale_b=np.ones((2, 3), np.float32))  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k"), [(200, 136, 72), (1, 300, 90), (260, 64, 200)], ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
def test_gated_product(dtype, m, n, k):
    rng = np.random.default_rng(2)
    a = gemm_cases.numbers(rng, (m, k), dtype, "row")
    b, c = (gemm_cases.numbers(rng, (k, n), dtype, "row") for _ in range(2))
    out, bias = np.full((m, n), np.nan, BF16), np.ones(n, np.float32)
    tc.matmul(a, b, out, second=c, epilogue=(E.swiglu, (E.bias, bias)))
    wanted = gemm_cases.gated(a, b, c)
    wanted.plus(1.0)
    close(out, wanted)


SECOND = (
    ({"epilogue": ()}, "take an epilogue that makes one tile of two, got none"),
    ({"epilogue": E.gelu}, r"takes \(x, y, at\) and the arguments given with it, got 0 for gelu"),
    ({"alpha": 0.5}, "with second, factors belong to the epilogue"),
    ({"second": normal(128, 79)}, r"second has the shape and dtype of b, got \(128, 79\) of bf16"),
)


@pytest.mark.parametrize(("options", "message"), SECOND, ids=[x[1][:40] for x in SECOND])
def test_gated_product_refuses(options, message):
    with pytest.raises(LayoutError, match=message):
        tc.matmul(A, B, **{"second": B.copy(), "epilogue": E.swiglu, **options})


def test_wide_tiles_of_two_products_and_of_blocks_do_not_spill():
    c, ones = np.zeros((128, 128), BF16), np.ones((1, 128), np.float32)
    a, b = normal(128, 128, dtype=E4M3), normal(128, 128, dtype=E4M3).T
    for stages, tile_m, tile_n in ((5, 128, 128), (8, 64, 128), (4, 128, 256), (5, 64, 256)):
        options = {"tile_m": tile_m, "tile_n": tile_n, "block_scales": True}
        made = kernel.compile(a, b, c, ones, ones[:, :1], stages=stages, **options)
        assert made.resources.spill_bytes == 0
    made = kernel.compile(a, b, c, b, tile_n=128, second=True, epilogue=(Step(E.geglu),))
    assert made.resources.spill_bytes == 0
