"""Pairs of CTAs: one source's text assembles, and what no pair can multiply is refused before."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, f32, gl, st
from tilecat.dtypes import DType
from tilecat.errors import ArchError, LayoutError, ResourceError, ScopeError
from tilecat.kernels.gemm import matmul

from .test_tensor import FORMS, TARGETS, compiled, operands

PAIR: dict[str, Any] = {"cluster": 2, "pairs": True}


def is_quick(target: str, kind: str) -> bool:
    """Whether a case is one of the default tests: one text, whose targets differ little."""
    return target == "sm_107a" or (target, kind) in {("sm_100a", "i8"), ("sm_103a", "f16")}


CASES = [
    pytest.param(t, *f, marks=() if is_quick(t, f[1]) else pytest.mark.full, id=f"{f[0]}-{t}")
    for t in TARGETS
    for f in FORMS
]


@pytest.mark.parametrize(("target", "dtype", "kind", "machine"), CASES)
def test_products_of_each_type_assemble_without_spills(
    target: str, dtype: DType, kind: str, machine: str
):
    if kind == "i8" and target != "sm_100a":
        with pytest.raises(ArchError, match=rf"mma_AB: {target} has no tcgen05.mma kind::i8 s8 x"):
            compiled(target, dtype, **PAIR)
        return
    made = compiled(target, dtype, tile_n=128, **PAIR)
    assert made.resources.spill_bytes == 0
    assert f"tcgen05.mma.cta_group::2.kind::{kind} " in made.ptx
    assert "M=256 N=128" in made.ptx
    assert len(re.findall(rf"\b{machine}\.2CTA\b", made.sass)) == 4  # 128 bytes of K a step
    assert "UTCBAR.2CTA.MULTICAST" in made.sass


@pytest.mark.parametrize(
    "params",
    [{}, {"tile_m": 256, "tile_n": 128}, {"tile_n": 64}, {"persistent": "launch-control"}],
    ids=str,
)
def test_tiles_of_pairs_assemble_without_spills(params: dict[str, Any]):
    made = compiled("sm_107a", **params, **PAIR)
    assert made.resources.spill_bytes == 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("params", [{}, {"cluster": 2}], ids=str)
def test_launch_control_assembles_without_spills(target: str, params: dict[str, Any]):
    made = compiled(target, persistent="launch-control", **params)
    assert made.resources.spill_bytes == 0
    assert made.ptx.count("clusterlaunchcontrol.try_cancel") == 1
    assert made.ptx.count("multicast::cluster::all") == len(params)
    assert made.ptx.count("query_cancel.is_canceled") == 3  # producer, issuing warp, consumers


def test_each_cta_has_half_of_b_and_one_of_them_issues():
    text = matmul.compile(target="sm_107a", **PAIR).ptx
    assert "kind::f16 bf16 x bf16 -> f32, M=256 N=256" in text
    assert "cta_group::1" not in text
    assert "cta_group::2" not in matmul.compile(target="sm_107a").ptx
    assert text.count("tcgen05.commit.cta_group::2.") == text.count("multicast::cluster") == 2
    assert text.count("complete_tx::bytes.cta_group::2 ") == 4  # A in two tiles, B in two panels
    assert re.search(r"expect_tx\S* _, \[%at\d+\+\d+\], 65536;", text)  # 2 (16 + 16) KiB


def test_one_source_makes_one_text_for_three_targets():
    texts = [matmul.compile(target=target, **PAIR).ptx for target in TARGETS]
    assert len({re.sub(r"^\.(target|version).*\n", "", t, flags=re.M) for t in texts}) == 1


# ---- errors, before assembly


def test_hopper_has_no_pairs():
    with pytest.raises(ArchError, match="products of two CTAs, needs sm_100a") as error:
        matmul.compile(target="sm_90a", **PAIR)
    assert "cluster=2 with multicast" in str(error.value)


@pytest.mark.parametrize("cluster", [1, 4, (1, 2)], ids=str)
def test_a_pair_is_a_cluster_of_two_rows(cluster: Any):
    with pytest.raises(ResourceError, match="a pair is a cluster of 2 CTAs, one block row below"):
        matmul.compile(target="sm_100a", cluster=cluster, pairs=True)


@pytest.mark.parametrize(
    ("params", "kind", "text"),
    [
        ({"pairs": 1}, ResourceError, "pairs is False or True, got pairs=1"),
        ({"tile_m": 64}, LayoutError, "each CTA has 128 rows, those of two"),
        ({"tile_m": 192, "tile_n": 64}, LayoutError, "each CTA has 128 rows, those of two"),
        ({"tile_n": 16}, LayoutError, r"each CTA has one half of st\[bf16, 64, 16\]: cols must be"),
        ({"pingpong": True}, ArchError, "tc.lcf without pingpong has"),
    ],
    ids=str,
)
def test_tiles_that_no_pair_multiplies_are_refused(params: dict, kind: type, text: str):
    with pytest.raises(kind, match=text):
        matmul.compile(target="sm_100a", **{**PAIR, **params})


def test_a_tensor_that_tma_cannot_reach_is_refused():
    a, (_, b, c) = np.zeros((256, 255), bf16.numpy), operands(bf16)
    with pytest.raises(LayoutError, match="loaded by TMA, which cannot reach A") as error:
        matmul.compile(a, b[:-1], c, target="sm_100a", **PAIR)
    assert "hint: pairs=False" in str(error.value)


def kernel_of(multicast_a: Any = False, multicast_b: Any = "col", *, product: Any = None,
              sums: bool = True):  # fmt: skip
    """A kernel of pairs with a mistake."""

    @tc.kernel
    def example(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[f32, "M", "N"]):
        tasks = tc.grouped(tc.cdiv(A.rows, 128), tc.cdiv(B.cols, 128), cluster=2)
        pipe = tc.lcf(consumers=2, stages=2, tasks=tasks, steps=tc.cdiv(A.cols, 64),
                      cluster=2, pairs=True)  # fmt: skip
        a = pipe.input(st[bf16, 64, 64], count=2)
        b = pipe.input(st[bf16, 64, 128])
        c = pipe.output(st[f32, 64, 128])
        acc = pipe.accumulator(f32, 64, 128) if sums else None

        @pipe.load
        def _(task, k):
            for i in range(2):
                tc.load_async(a[i], A[task.row * 2 + i, k], multicast=multicast_a)
            tc.load_async(b, B[k, task.col], multicast=multicast_b)

        @pipe.compute
        def _(task, k):
            (product or plain)(acc, a[pipe.consumer], b)

        @pipe.finish
        def _(task):
            c.store(C[task.row * 2 + pipe.consumer, task.col], acc)

    return example


def plain(acc: Any, a: Any, b: Any) -> None:
    """The product as it should be."""
    tc.mma_AB(acc, a, b)


def squared(acc: Any, a: Any, b: Any) -> None:
    """A in the place of B too."""
    tc.mma_ABt(acc, a, a)


def swapped(acc: Any, a: Any, b: Any) -> None:
    """B in the place of A."""
    tc.mma_AB(acc, b, b)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"multicast_b": False}, LayoutError, "is loaded for both CTAs, and A for its own alone"),
        ({"multicast_a": True}, LayoutError, "is loaded for both CTAs, and A for its own alone"),
        ({"product": swapped}, LayoutError, "A is M x K, B is K x N"),
        ({"product": squared}, LayoutError, "a whole tile, and not A too"),
        ({"sums": False}, ScopeError, "pairs is of products with sums in tensor memory"),
    ],
    ids=["B apart", "A shared", "operands change places", "B twice", "sums in registers"],
)
def test_loads_and_products_that_disagree_are_refused(options: dict, kind: type, text: str):
    with pytest.raises(kind, match=text):
        kernel_of(**options).compile(target="sm_100a")
