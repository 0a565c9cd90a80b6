"""The random products' own bookkeeping: what their checks see, and that all kinds are there."""

from __future__ import annotations

from itertools import product
from typing import Any

import gemm_random
import numpy as np
import pytest
import reference

from tilecat.kernels.gemm import matmul


def in_numpy(given: gemm_random.Problem) -> np.ndarray:
    """The memory of out where the result is the reference, rounded."""
    memory = given.out.base.copy()
    written = slice(None) if given.written is None else given.written
    out = given.out_in(memory)
    out[written] = given.expected.value[written].astype(out.dtype)
    return memory


@pytest.mark.parametrize("seed", range(40))
def test_checks_see_wrong_numbers_and_bytes_around_them(seed: int):
    given = gemm_random.problem(seed, 64)
    right = in_numpy(given)
    given.check(right)
    for wrong in (0, len(right) - 1, gemm_random.GUARD_BYTES - 1):
        memory = right.copy()
        memory[wrong] ^= 1
        with pytest.raises(AssertionError, match=rf"seed {seed}: .*\n.*beside the output"):
            given.check(memory)
    poisoned = right.copy()
    places = np.ones(given.out.shape, bool) if given.written is None else given.written
    at = tuple(np.argwhere(places)[-1])
    value = float(given.out_in(right)[at])
    given.out_in(poisoned)[at] = -value if abs(value) > 1 else 64
    with pytest.raises(AssertionError, match=f"seed {seed}: "):
        given.check(poisoned)


@pytest.mark.parametrize("params", gemm_random.GRIDS, ids=str)
def test_schedules_of_the_kernel_give_the_product(params: dict[str, Any]):
    a, b, c, *shared = gemm_random.product_in_parts(params)
    matmul(a, b, c, *shared, **{**gemm_random.TILES, **params})
    reference.assert_close(c, reference.matmul(a, b), c.dtype)
    assert not shared or not shared[-1].any()


# Rows of out that TMA reaches and that end beside 16 bytes: an H200 wrote behind them.
@pytest.mark.parametrize("seed", [79, 209, 267, 291])
def test_bytes_behind_the_rows_of_out_are_kept(seed: int):
    given = gemm_random.problem(seed, 100)
    given.check(given.on_cpu())


def test_500_problems_are_of_all_kinds():
    seen: dict[str, int] = {}
    for seed in range(500):
        given = gemm_random.problem(seed, 20)
        orders = "".join("NT"[x.strides[-1] != x.itemsize] for x in (given.a, given.b, given.out))
        kinds = [given.name, given.a.dtype.name, f"out {given.out.dtype}", orders]
        kinds += [key for key in given.options if key != "epilogue"]
        kinds += [f"{given.a.ndim} axes", f"{len(given.options.get('epilogue', ()))} steps"]
        for kind in kinds:
            seen[kind] = seen.get(kind, 0) + 1
    wanted = {"matmul", "grouped_matmul", "bfloat16", "float16", "float32", "int8"}
    wanted |= {"float8_e4m3fn", "float8_e5m2", "out bfloat16", "out float16", "out float32"}
    wanted |= {"out float8_e4m3fn", "out float8_e5m2", "out int32", "alpha", "beta", "scale_a"}
    wanted |= {"scale_b", "second", "ends", "counts", "2 axes", "3 axes", "4 axes"}
    wanted |= {f"{n} steps" for n in range(4)} | set(map("".join, product("NT", repeat=3)))
    assert {kind: seen.get(kind, 0) for kind in wanted if seen.get(kind, 0) < 5} == {}
