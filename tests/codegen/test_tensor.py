"""One source on Blackwell and Rubin: its text assembles, and what cannot be is refused before."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, f32, gl, s8, s32, st, tt
from tilecat.arch import ARCHS, arch_of
from tilecat.dtypes import DType
from tilecat.errors import ArchError, LayoutError, ResourceError, ScopeError, TileError
from tilecat.kernels.gemm import matmul

TARGETS = [arch.target for arch in ARCHS if "tcgen05" in arch.features]
FORMS = [
    # element type, kind, machine instruction
    (tc.bf16, "f16", "UTCHMMA"),
    (tc.f16, "f16", "UTCHMMA"),
    (tc.f32, "tf32", "UTCHMMA"),
    (tc.e4m3, "f8f6f4", "UTCQMMA"),
    (tc.e5m2, "f8f6f4", "UTCQMMA"),
    (tc.s8, "i8", "UTCIMMA"),
]


def operands(dtype: DType, out: DType | None = None) -> list[Any]:
    """A in rows, B with K contiguous, C."""
    result = out or (tc.s32 if dtype == s8 else tc.f32)
    a, b = np.zeros((256, 256), dtype.numpy), np.zeros((256, 256), dtype.numpy).T
    return [a, b, np.zeros((256, 256), result.numpy)]


def compiled(target: str, dtype: DType = tc.bf16, **params: Any) -> Any:
    return matmul.compile(*operands(dtype), target=target, **params)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "kind", "machine"), FORMS, ids=lambda v: str(v))
def test_products_of_each_type_assemble_without_spills(
    target: str, dtype: DType, kind: str, machine: str
):
    if kind == "i8" and target != "sm_100a":
        with pytest.raises(ArchError, match=rf"mma_AB: {target} has no tcgen05.mma kind::i8 s8 x"):
            compiled(target, dtype)
        return
    made = compiled(target, dtype, tile_n=128)
    assert made.resources.spill_bytes == 0
    assert f"tcgen05.mma.cta_group::1.kind::{kind} " in made.ptx
    assert len(re.findall(rf"\b{machine}\b", made.sass)) == 4  # 128 bytes of K a step
    assert "LDTM" in made.sass and "UTCBAR" in made.sass


@pytest.mark.parametrize(
    ("params", "shape", "columns", "buffers"),
    [
        ({}, "M=128 N=256", 512, 2),
        ({"tile_m": 64}, "M=64 N=256", 512, 2),
        ({"tile_m": 64, "tile_n": 64}, "M=64 N=64", 128, 2),
        ({"tile_m": 192, "tile_n": 128}, "M=64 N=128", 512, 1),
        ({"tile_m": 256, "tile_n": 128, "stages": 3}, "M=128 N=128", 512, 2),
        ({"cluster": 2}, "M=128 N=256", 512, 2),
        ({"tile_n": 48}, "M=128 N=48", 128, 2),
    ],
)
def test_tiles_make_pairs_and_buffers_where_they_fit(params, shape, columns, buffers):
    made = compiled("sm_100a", **params)
    assert f"-> f32, {shape}" in made.ptx
    assert "cta_group::1.sync.aligned.shared::cta.b32 [%base+" in made.ptx
    facts = made.kernel.facts
    assert (facts["tensor_columns"], facts["accumulator_buffers"]) == (columns, buffers)
    assert len(re.findall("tcgen05.alloc", made.ptx)) == 1
    assert len(re.findall(rf"tcgen05.dealloc.*, {columns};", made.ptx)) == 1
    assert made.resources.spill_bytes == 0
    multicast = "multicast::cluster.b64" in made.ptx
    assert multicast == (params.get("cluster") == 2)


def test_one_source_makes_four_texts():
    texts = {arch.target: matmul.compile(target=arch.target).ptx for arch in ARCHS}
    assert "wgmma.mma_async" in texts["sm_90a"] and "tcgen05" not in texts["sm_90a"]
    for target in TARGETS:
        assert f".target {target}" in texts[target]
        assert f".version {arch_of(target).ptx_version}" in texts[target]
        assert "wgmma" not in texts[target]
    bodies = {re.sub(r"^\.(target|version).*\n", "", texts[t], flags=re.M) for t in TARGETS}
    assert len(bodies) == 1


# ---- errors, before assembly


def traced(body: Any, target: str = "sm_100a") -> str:
    """The text of a kernel of one warpgroup around a body, which allocates first."""

    @tc.kernel
    def example(A: gl[bf16, "M", "K"]):
        body(A)

    arch = arch_of(target)
    assert arch is not None
    from tilecat.binding import default_specialization

    spec = default_specialization(example.signature, {}, None)
    return example.specialize(spec, target).ptx


def test_columns_beyond_512_are_refused_at_their_line():
    def body(A: Any) -> None:
        tc.tmem(tt[f32, 128, 256])
        tc.tmem(tt[f32, 128, 264])

    with pytest.raises(ResourceError, match="on sm_100a has 512 columns, got 544") as error:
        traced(body)
    assert "tc.tmem(tt[f32, 128, 264])" in str(error.value)
    assert "exclusive" not in str(error.value)
    with pytest.raises(ResourceError, match="exclusive=True gives 576"):
        traced(body, "sm_107a")


def test_576_columns_need_exclusive_and_rubin():
    def body(A: Any, **options: Any) -> None:
        tc.tmem(tt[f32, 128, 192], 3, **options)
        with tc.warpgroup():
            tc.free_tmem()

    with pytest.raises(ResourceError, match="has 512 columns, got 576"):
        traced(body, "sm_107a")
    with pytest.raises(ArchError, match="needs exclusive_columns, which sm_100a does not have"):
        traced(lambda A: body(A, exclusive=True), "sm_100a")
    text = traced(lambda A: body(A, exclusive=True), "sm_107a")
    assert "tcgen05.alloc.exclusive.cta_group::1.sync.aligned.shared::cta.b32" in text
    assert "tcgen05.dealloc.exclusive.cta_group::1.sync.aligned.b32 %tmem, 576;" in text
    assert ".version 9.4" in text
    with pytest.raises(ResourceError, match="576 columns where it is exclusive, got 608"):
        traced(lambda A: tc.tmem(tt[f32, 128, 200], 3, exclusive=True), "sm_107a")


def test_accumulators_beyond_512_columns_are_refused():
    with pytest.raises(ResourceError, match=r"512 columns, got 768 \(acc=768\)"):
        compiled("sm_100a", tile_m=384, tile_n=256)


def test_shared_memory_beyond_227_kib_is_refused():
    with pytest.raises(ResourceError, match="on sm_100a is 232448 bytes, got 378008") as error:
        compiled("sm_100a", stages=7)
    assert "stages=4 is the largest ring that fits" in str(error.value)


def test_hopper_has_no_tensor_memory():
    with pytest.raises(ArchError, match="tmem: needs tcgen05, which sm_90a does not have"):
        traced(lambda A: tc.tmem(tt[f32, 64, 64]), "sm_90a")


def test_a_warpgroups_product_needs_wgmma():
    def body(A: Any) -> None:
        a = tc.shared(st[bf16, 64, 64])
        with tc.warpgroup():
            acc = tc.zeros(tc.rt[f32, 64, 64])
            tc.mma_AB(acc, a, a)

    with pytest.raises(ArchError, match="needs wgmma, which sm_100a does not have"):
        traced(body)


def issue(product: Any) -> Any:
    """A body in which one thread issues a product."""

    def body(A: Any) -> None:
        a, b = tc.shared(st[bf16, 128, 64]), tc.shared(st[bf16, 64, 64])
        acc = tc.tmem(tt[f32, 128, 64])
        with tc.warpgroup():
            with tc.elected():
                product(acc, a, b)
            tc.free_tmem()

    return body


@pytest.mark.parametrize(
    ("product", "kind", "text"),
    [
        (lambda acc, a, b: tc.mma_AB(acc[:, :24], a, b[:, :24]), LayoutError, "."),
        (lambda acc, a, b: tc.mma_AB(acc, b, b), LayoutError, "A is M x K, B is K x N"),
        (lambda acc, a, b: tc.mma_AB(acc, a, b, saturate=True), TileError, "saturate is for s32"),
        (lambda acc, a, b: tc.mma_commit(b), LayoutError, "arrives on an mbarrier"),
        (lambda acc, a, b: tc.mma_AB(acc, tc.empty(tc.rt[bf16, 128, 64]), b), LayoutError,
         "A of a tcgen05.mma lies in shared memory"),
        (lambda acc, a, b: acc[:64, :], LayoutError, "parts of .* have all its rows"),
        (lambda acc, a, b: tc.load(acc), ScopeError, "must be executed by a warpgroup"),
    ],
)  # fmt: skip
def test_a_product_that_no_instruction_makes_is_refused(product, kind, text):
    with pytest.raises(kind, match=text):
        traced(issue(product))


def test_rows_beyond_a_warps_reach_are_refused():
    def body(A: Any) -> None:
        acc = tc.tmem(tt[f32, 128, 64])
        with tc.warpgroup():
            tc.load(acc)

    with pytest.raises(LayoutError, match="a warpgroup moves 64 rows, 16 a warp"):
        traced(body)


def test_tiles_of_two_heights_are_refused():
    def body(A: Any) -> None:
        tall, flat = tc.tmem(tt[f32, 128, 64]), tc.tmem(tt[f32, 64, 64])
        with tc.warpgroup(2):
            tc.load(tall)
            tc.load(flat)

    with pytest.raises(LayoutError, match="of one height, got .* beside one of 128"):
        traced(body)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tt[tc.u32, 128, 64], "sums of f32, s32 or f16, or an A of .* got u32"),
        (lambda: tt[f32, 96, 64], "64 or 128 rows, got rows=96"),
        (lambda: tt[f32, 128, 60], "columns of f32 are a multiple of 8, got cols=60"),
        (lambda: tt[s32, 128], "wants tt"),
    ],
)
def test_types_that_tensor_memory_does_not_hold_are_refused(make, text: str):
    with pytest.raises(TileError, match=text):
        make()


def test_a_consume_hole_is_refused():
    @tc.kernel
    def example(A: gl[bf16, "M", "K"]):
        tasks = tc.row_major(1, 1)
        pipe = tc.lcf(consumers=1, stages=2, tasks=tasks, steps=1)
        a = pipe.input(st[bf16, 64, 64])
        pipe.accumulator(f32, 64, 64)

        @pipe.load
        def _(task, step):
            tc.load_async(a, A[0, 0])

        @pipe.consume
        def _(task, steps):
            pass

    with pytest.raises(ScopeError, match="issued by a warp of their own, step by step"):
        example.compile(target="sm_100a")


@pytest.mark.parametrize("pingpong", [True, "tasks"])
def test_consumers_that_take_turns_are_refused(pingpong: Any):
    @tc.kernel
    def example(A: gl[bf16, "M", "K"]):
        pipe = tc.lcf(
            consumers=2, stages=2, tasks=tc.row_major(1, 1), steps=1, pingpong=pingpong
        )  # fmt: skip
        pipe.accumulator(f32, 64, 64)

    with pytest.raises(ArchError, match="tc.lcf without pingpong has, got lcf with pingpong"):
        example.compile(target="sm_100a")


def test_f32_scales_of_blocks_are_refused_by_name():
    a, b = np.zeros((256, 256), tc.e4m3.numpy), np.zeros((256, 256), tc.e4m3.numpy).T
    c = np.zeros((256, 256), np.float32)
    of_a, of_b = np.zeros((2, 256), np.float32), np.zeros((2, 2), np.float32)
    with pytest.raises(ArchError, match="matmul: f32 scales of blocks, whose sums are") as error:
        matmul.compile(a, b, c, of_a, of_b, target="sm_100a", block_scales=True, tile_n=128)
    assert "tc.matmul_mxfp8" in str(error.value.hint)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_sums_that_nobody_reads_are_an_error(target: str):
    @tc.kernel
    def lost(A: gl[bf16, "M", "K"], B: gl[bf16, "N", "K"]):
        pipe = tc.lcf(consumers=1, stages=2, tasks=tc.row_major(1, 1), steps=1)
        a, b = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 64])
        acc = pipe.accumulator(f32, 64, 64)

        @pipe.load
        def _(task, step):
            tc.load_async(a, A[0, step])
            tc.load_async(b, B[0, step])

        @pipe.compute
        def _(task, step):
            tc.mma_ABt(acc, a, b)

    with pytest.raises(ScopeError, match="lcf: the hole `finish` is not filled") as error:
        lost.compile(target=target)
    assert "tc.lcf(consumers=1" in str(error.value)
