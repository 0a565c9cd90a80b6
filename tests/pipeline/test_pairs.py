"""Pairs of CTAs that multiply together: the text of Blackwell and Rubin on the PTX machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilecat.kernels import epilogues
from tilecat.kernels.gemm import matmul

from .test_tensor import TARGETS, TYPES, arrays, check

PAIR = {"cluster": 2, "pairs": True}


def run(target: str, *args: Any, grid: int = 4, seed: int = 0, **params: Any) -> None:
    result = matmul.simulate(*args, target=target, grid=grid, seed=seed, **PAIR, **params)
    assert not result.reports, str(result.reports[0])


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2, 3))])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", TYPES)
def test_product_of_each_type_is_right(target: str, name: str, seed: int):
    a, b, c = arrays(300, 136, 160, TYPES[name])
    run(target, a, b, c, tile_n=64, grid=2, seed=seed)
    check(c, a, b, name)


def test_product_of_integers_is_exact():
    rng = np.random.default_rng(1)
    a = rng.integers(-128, 128, (300, 160)).astype(np.int8)
    b = rng.integers(-128, 128, (264, 160)).astype(np.int8).T
    c = np.full((300, 264), 7, np.int32)
    run("sm_100a", a, b, c, tile_n=128)
    assert (c == a.astype(np.int64) @ b.astype(np.int64)).all()


SHAPES = [
    ((1, 8, 8), {}),
    ((256, 256, 64), {}),
    ((300, 136, 72), {"tile_n": 64}),  # an odd number of block rows
    ((520, 200, 200), {"tile_n": 96, "stages": 2}),
    ((520, 136, 136), {"tile_m": 256, "tile_n": 128, "stages": 3}),  # two products a step
    ((300, 136, 136), {"tile_n": 48, "tile_k": 32}),  # 64-byte swizzle
    ((300, 40, 136), {"stages": 1, "tile_n": 16}),
    ((300, 136, 136), {"tile_n": 64, "order": "snake", "persistent": False}),
]


@pytest.mark.parametrize(("shape", "params"), SHAPES, ids=str)
@pytest.mark.parametrize("target", ["sm_100a", pytest.param("sm_107a", marks=pytest.mark.full)])
def test_shapes_and_tiles_are_right(target: str, shape: tuple[int, int, int], params: dict):
    a, b, c = arrays(*shape, TYPES["bf16"])
    grid = None if "persistent" in params else 2
    run(target, a, b, c, grid=grid, seed=3, **params)
    check(c, a, b)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("orders", [("b_rows",), ("a_cols",), ("a_cols", "b_rows")], ids=str)
def test_either_axis_of_an_operand_may_be_contiguous(orders: tuple[str, ...], seed: int):
    a, b, c = arrays(296, 136, 136, TYPES["f16"], **dict.fromkeys(orders, True))
    run("sm_100a", a, b, c, grid=2, seed=seed, tile_n=128)
    check(c, a, b)


def test_two_products_share_a_step():
    rng = np.random.default_rng(5)
    a, b, c = arrays(300, 264, 136, TYPES["bf16"])
    other = rng.standard_normal((264, 136)).astype(np.float32).astype(TYPES["bf16"]).T
    steps = (epilogues.Step(lambda x, y, at: x - y, 0),)
    run("sm_100a", a, b, c, other, second=True, tile_n=64, epilogue=steps)
    want = a.astype(np.float64) @ (b.astype(np.float64) - other.astype(np.float64))
    np.testing.assert_allclose(c, want, atol=1e-3)
