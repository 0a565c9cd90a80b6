"""Pairs of CTAs that multiply together: the text of Blackwell and Rubin on the PTX machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, f32, gl, st, tt
from tilecat.errors import ArchError, LayoutError, ResourceError, ScopeError
from tilecat.kernels import epilogues
from tilecat.kernels.gemm import matmul

from .test_tensor import TARGETS, TYPES, arrays, check, shapes_of

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


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, 5))]
)
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


# Rubin's controls, of two accumulators over one half of B.
STACKED = {"stacked": 2, "tile_m": 256}
CONTROLS = [
    ("e4m3", {"wide_k": True}),
    ("bf16", {"early_a": True}),
    ("bf16", {**STACKED, "collectors": "ab"}),
    ("e5m2", {**STACKED, "wide_k": True, "collectors": "b", "early_a": True, "oversized": True,
              "exclusive": True, "persistent": "launch-control"}),
]  # fmt: skip


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.full) for n in (0, 2, 3))])
@pytest.mark.parametrize(("name", "params"), CONTROLS, ids=str)
def test_pairs_go_with_rubins_controls(name: str, params: dict[str, Any], seed: int):
    a, b, c = arrays(600, 72, 272, TYPES[name])
    run("sm_107a", a, b, c, grid=None, seed=seed, tile_n=64, stages=2, **params)
    check(c, a, b, name)


@tc.kernel
def by_hand(A: gl[bf16, "M", "K"], B: gl[bf16, "N", "K"], C: gl[f32, "M", "N"], *, ctas=2):
    """C = A @ B.T of 256 x 96 by a pair, 64 of K: each CTA has 128 rows, and 48 columns of B."""
    rank = tc.cluster(ctas, pairs=True)
    a, b = tc.shared(st[bf16, 128, 64]), tc.shared(st[bf16, 48, 64])
    acc = tc.tmem(tt[f32, 128, 96])
    full, done = tc.barriers(1), tc.barrier()
    with tc.warpgroup(2) as number:
        with tc.when(tc.warp_id() == 0), tc.warps():
            with tc.when(rank == 0):
                full[0].expect(a, a, b, b)
            with tc.elected():
                tc.load_async(a, A[rank, 0], full[0].of_even)
                tc.load_async(b, B[rank, 0], full[0].of_even)
            with tc.when(rank == 0):
                full[0].wait(0)
                tc.mma_ABt(acc, a, b, accumulate=False)
                tc.mma_commit(done, multicast=(0, 1))
        done.wait(0)
        tc.store(C[rank * 2 + number, 0], tc.load(acc))
        tc.free_tmem(256)


@pytest.mark.parametrize("seed", range(3))
def test_by_hand_a_pair_multiplies(seed: int):
    a, b, c = arrays(256, 96, 64, TYPES["bf16"])
    for target in ("sm_100a", "sm_107a"):
        c[:] = np.nan
        result = by_hand.simulate(a, np.ascontiguousarray(b.T), c, target=target, grid=2, seed=seed)
        assert not result.reports, str(result.reports[0])
        check(c, a, b)
    assert "M=256 N=96" in by_hand.compile(target="sm_100a").ptx


def test_by_hand_what_is_no_pair_is_refused():
    with pytest.raises(ArchError, match="cluster: pairs=True: needs tcgen05, which sm_90a does"):
        by_hand.compile(target="sm_90a")
    with pytest.raises(ResourceError, match="a pair is a cluster of 2 CTAs, got size=4"):
        by_hand.compile(target="sm_100a", ctas=4)

    @tc.kernel
    def single(A: gl[bf16, "M", "K"]):
        tc.cluster(2)
        full = tc.barrier()
        with tc.warpgroup():
            tc.load_async(tc.shared(st[bf16, 64, 64]), A[0, 0], full.of_even)

    with pytest.raises(ScopeError, match="of_even: full is of a kernel whose CTAs are no pairs"):
        single.compile(target="sm_100a")


@pytest.mark.full
@pytest.mark.parametrize("shape", shapes_of(60), ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", [*TYPES, "s8"])
@pytest.mark.parametrize("target", TARGETS)
def test_sixty_shapes_of_each_type_by_pairs(target: str, name: str, shape: tuple):
    """On a persistent grid, or by launch control."""
    if name == "s8" and target in TARGETS[1:]:
        pytest.skip("kind::i8 is sm_100a's")
    m, n, k = shape
    tiles = {"tile_n": (64, 128, 96)[n % 3], "stages": 2 + k % 3, "tile_m": (128, 256)[m % 2]}
    options = {"grid": 2} if n % 2 else {"grid": None, "persistent": "launch-control"}
    if name == "s8":
        rng = np.random.default_rng(k)
        a = rng.integers(-128, 128, (m, k)).astype(np.int8)
        b = rng.integers(-128, 128, (n, k)).astype(np.int8).T
        c = np.full((m, n), 7, np.int32)
        run(target, a, b, c, seed=m % 100, **tiles, **options)
        assert (c == a.astype(np.int64) @ b.astype(np.int64)).all()
        return
    a, b, c = arrays(m, n, k, TYPES[name])
    run(target, a, b, c, seed=m % 100, **tiles, **options)
    check(c, a, b, name)


def test_operands_wider_than_a_swizzle_are_why_two_consumers_are_no_product():
    a, b, c = arrays(512, 256, 256, TYPES["bf16"])
    with pytest.raises(LayoutError) as error:
        matmul.compile(a, b, c, target="sm_100a", tile_n=64, tile_k=128, **PAIR)
    assert (
        "whose products do not go together: two tiles st[bf16, 64, 128] in a row are no tile of "
        "twice the rows, as they are with columns of one swizzle width, 128 bytes"
    ) in error.value.message
    assert error.value.hint == "columns of at most 64 elements, in more steps or several inputs"
