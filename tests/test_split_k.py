"""split_k and stream_k of the GEMM on the PTX machine: sums, their order, flags left down."""

from __future__ import annotations

import gemm_cases
import numpy as np
import pytest
import reference
from failures import fails

import tilecat as tc
from tilecat import DTypeError, LayoutError, ScopeError
from tilecat.kernels.epilogues import Step
from tilecat.kernels.gemm import matmul as kernel

TILES = {"tile_m": 64, "tile_n": 64, "stages": 2}
PLACES = 64  # of partial sums: more than any case here has


class Split:
    """A product and what its parts share; sums begin as NaN, flags as zeros."""

    def __init__(self, dtype: str, batch: tuple[int, ...] = (), m: int = 70, n: int = 88,
                 k: int = 320, out: str = "f32"):  # fmt: skip
        rng = np.random.default_rng(0)
        self.a = gemm_cases.numbers(rng, (*batch, m, k), dtype, "row")
        self.b = gemm_cases.numbers(rng, (*batch, k, n), dtype, "col")
        whole = dtype == "s8"
        self.name = "s32" if whole else out
        self.sums = np.full((PLACES * 64, TILES["tile_n"]), -(1 << 30) if whole else np.nan,
                            np.int32 if whole else np.float32)  # fmt: skip
        self.flags = np.zeros(PLACES, np.int32)
        self.shape = (*batch, m, n)
        self.chain = gemm_cases.product(self.a, self.b)

    def run(self, parts: int = 1, *args, seed: int = 0, grid: int = 12, **params) -> np.ndarray:
        """One launch, with fewer CTAs than tasks or more."""
        out = gemm_cases.poisoned(self.shape, self.name)
        result = kernel.simulate(
            self.a, self.b, out, self.sums, self.flags, *args, split_k=parts, seed=seed,
            grid=grid, **{**TILES, **params},
        )  # fmt: skip
        assert not result.reports
        assert not self.flags.any(), "who ends a tile takes its flags down"
        return out

    def check(self, out: np.ndarray) -> None:
        """Against float64."""
        if out.dtype == np.int32:
            np.testing.assert_array_equal(out, self.chain.value)
            return
        wanted = reference.Reference(self.chain.value, self.chain.error)
        reference.assert_close(out, wanted, out.dtype)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "e4m3", "s8"])
def test_parts_add_up(dtype):
    split = Split(dtype)
    split.check(split.run(3))


@pytest.mark.parametrize("parts, grid", [(2, 8), (4, 6), (7, 5)])
def test_bits_are_equal_in_every_order_of_ctas(parts, grid):
    split = Split("bf16")  # 5 steps: with 7 parts some have none
    first = split.run(parts)
    split.check(first)
    for seed in (1, 2, 3, 6, 7):
        np.testing.assert_array_equal(split.run(parts, seed=seed, grid=grid), first)


def test_planes_clusters_and_two_consumers():
    split = Split("bf16", batch=(2,), m=140)
    split.check(split.run(2))
    split.check(split.run(2, cluster=2))
    split.check(split.run(2, tile_m=128))


def test_the_epilogue_takes_the_whole_sum():
    split, bias = Split("bf16", out="bf16"), np.linspace(-3, 3, 88, dtype=np.float32)
    out = split.run(3, bias, epilogue=(Step(tc.epilogues.bias, 1), Step(tc.epilogues.relu)))
    split.chain.value = np.maximum(split.chain.value + bias, 0)
    split.check(out)


# 2 x 2 tiles of 5 steps: no whole wave, whole waves alone, one tile left, nearly a wave left.
@pytest.mark.parametrize("parts, grid", [(2, 1), (9, 3), (3, 4), (2, 5), (9, 7), (3, 31)])
def test_the_last_wave_is_shared(parts, grid):
    split = Split("bf16")
    first = split.run(stream_k=parts, grid=grid)
    split.check(first)
    for seed in (1, 2):
        np.testing.assert_array_equal(split.run(stream_k=parts, seed=seed, grid=grid), first)


@pytest.mark.parametrize("dtype, k", [("f16", 320), ("f32", 7), ("e5m2", 0), ("s8", 520)])
def test_a_shared_wave_of_any_dtype_and_depth(dtype, k):
    split = Split(dtype, k=k, m=140)
    for grid in (5, 11):
        split.check(split.run(stream_k=4, grid=grid))


def test_a_shared_wave_of_planes_clusters_and_two_consumers():
    split = Split("bf16", batch=(3,), m=140)
    for params in ({}, {"cluster": 2}, {"tile_m": 128}, {"order": "snake"}):
        split.check(split.run(stream_k=3, grid=14, **params))


@pytest.mark.parametrize("target", ["sm_100a", "sm_107a"])
@pytest.mark.parametrize("params", [{"parts": 2}, {"stream_k": 3, "grid": 5}], ids=str)
def test_sums_in_tensor_memory(params, target):
    split = Split("bf16", m=200)
    split.check(split.run(**params, tile_m=128, target=target))


def test_the_epilogue_takes_the_whole_sum_of_a_shared_wave():
    split, bias = Split("bf16", out="bf16"), np.linspace(-3, 3, 88, dtype=np.float32)
    steps = (Step(tc.epilogues.bias, 1), Step(tc.epilogues.relu))
    out = split.run(1, bias, epilogue=steps, stream_k=3, grid=7)
    split.chain.value = np.maximum(split.chain.value + bias, 0)
    split.check(out)


@pytest.mark.parametrize("places, cols", [(1, 64), (3, 64), (5, 64), (8, 64), (64, 63), (0, 64)])
def test_fewer_places_make_fewer_parts_and_the_same_product(places, cols):
    split = Split("bf16", n=190)  # 2 x 3 tiles
    split.sums, split.flags = split.sums[: 64 * places, :cols], split.flags[:places]
    for params in ({"parts": 3}, {"stream_k": 3, "grid": 4}, {"stream_k": 3, "grid": 16}):
        split.check(split.run(**params))
        split.check(split.run(**params, tile_m=128))


def test_sums_and_flags_are_arrays_of_their_ranks_and_dtypes():
    split = Split("bf16")
    args = split.a, split.b, gemm_cases.poisoned(split.shape, "f32")
    with pytest.raises(LayoutError, match="with parts of K come sums, .* and flags, .*, got none"):
        kernel.simulate(*args, split_k=2, **TILES)
    with pytest.raises(LayoutError, match="with parts of K come sums"):
        kernel.simulate(*args, split.flags, split.sums, stream_k=2, **TILES)
    split.sums = np.zeros(split.sums.shape, np.int32)
    with pytest.raises(DTypeError, match="store: args0 holds s32, got"):
        split.run(2)
    split = Split("bf16")
    split.flags = split.flags.astype(np.float32)
    with pytest.raises(DTypeError, match="turn: counters are s32, got args1 of f32"):
        split.run(2)


def test_split_k_refuses_what_has_no_parts():
    split = Split("bf16")
    fails(lambda: split.run(2, split.b, second=True), LayoutError,
          "matmul: one plain product, on a persistent grid, has its K split, got split_k=2, "
          "stream_k=1",
          at="tc.require(")  # fmt: skip
    fails(lambda: split.run(2, stream_k=2), LayoutError,
          "matmul: split_k is of all tiles, stream_k of those of the last wave alone, got "
          "split_k=2, stream_k=2", at="tc.require(")  # fmt: skip
    with pytest.raises(LayoutError, match="split_k: parts is a compile-time int from 1 up, got"):
        split.run(0)
    with pytest.raises(ScopeError, match="split_k: tasks is an order of tasks, got 3"):
        tc.split_k(3, 2, 4)
    with pytest.raises(LayoutError, match="stream_k: parts is a compile-time int from 1 up, got"):
        split.run(stream_k=-2)
