"""Products with scales: what assembles, and what is refused before."""

from __future__ import annotations

import re
from typing import Any

import pytest
from scaled_cases import CASES, TARGETS, ScaledCase, by_pipeline, call_arrays, operands

import tilecat as tc
from tilecat import bf16, e4m3, e5m2, f32, gl, sc, st, tt, u8
from tilecat.binding import default_specialization
from tilecat.dtypes import b4x16_p64, e8m0, u64
from tilecat.errors import ArchError, DTypeError, LayoutError, ResourceError, TileError
from tilecat.kernels.gemm_scaled import matmul_fp4

WIDE = [case for case in CASES if case.pipeline and case.n == 256]


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=() if c.target == TARGETS[i % 3] else pytest.mark.full, id=str(c))
     for i, c in enumerate(WIDE)],
)  # fmt: skip
def test_products_with_scales_assemble_without_spills(case: ScaledCase):
    made = by_pipeline(case).compile(*call_arrays(case, operands(case)), target=case.target)
    assert made.resources.spill_bytes == 0
    kind = {(u8, 16): "mxf4nvf4", (u8, 32): "mxf4"}.get((case.a, case.block), "mxf8f6f4")
    text = f"tcgen05.mma.cta_group::1.kind::{kind}.block_scale.block{case.block} "
    count = 2 if case.wide else 4  # 128 bytes of K a step
    assert made.ptx.count(text) == count
    machine = "UTCQMMA" if kind == "mxf8f6f4" else "UTCOMMA"
    assert len(re.findall(rf"\b{machine}\b", made.sass)) == count
    copies = 3 * case.depth // case.block // 4  # a chunk of A, two of B, for 4 scales of each row
    assert made.ptx.count("tcgen05.cp.") == len(re.findall(r"\bUTCCP\b", made.sass)) == copies
    assert ".version 8.8" in made.ptx or case.target == "sm_107a"


def test_rubins_controls_go_with_scales():
    """Two tiles of sums of 256 x 256 over one B: 512 columns, and 64 of scales."""
    made = matmul_fp4.compile(
        target="sm_107a", tile_m=256, stacked=2, stages=4, cluster=2, pairs=True, wide_k=True,
        collectors="b", early_a=True, exclusive=True, oversized=True,
    )  # fmt: skip
    assert made.kernel.facts["tensor_columns"] == 576 and made.resources.spill_bytes == 0
    kind = "tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.block16"
    for use in ("fill", "lastuse"):  # of each wide step, both tiles
        assert made.ptx.count(f"{kind}.collector::b::{use} ") == 2
    assert "M=256 N=256, wide K, scales ue4m3" in made.ptx
    assert len(re.findall(r"\bUTCOMMA\b", made.sass)) == 4
    assert len(re.findall(r"\bUTCCP\b", made.sass)) == 16


def traced(body: Any, target: str = "sm_100a") -> str:
    """The text of a kernel of one warpgroup around a body."""

    @tc.kernel
    def example(A: gl[u64, "M", "K"], B: gl[f32, "M", "K"]):
        body(A, B)

    spec = default_specialization(example.signature, {}, None)
    return example.specialize(spec, target).ptx


def issue(
    a: Any = st[e4m3, 128, 128], b: Any = st[e4m3, 128, 64, "col"], acc: Any = tt[f32, 128, 64],
    scales: Any = (sc[e8m0, 128, 4], sc[e8m0, 64, 4]), name: str = "mma_AB", **options: Any,
) -> Any:  # fmt: skip
    """A body in which one thread issues a product."""

    def body(*_: Any) -> None:
        left, right, sums = tc.shared(a), tc.shared(b), tc.tmem(acc)
        of_a, of_b = (tc.tmem(kind) for kind in scales)
        with tc.warpgroup():
            with tc.elected():
                given = {"scale_a": of_a, "scale_b": of_b, **options}
                getattr(tc, name)(sums, left, right, **given)
            tc.free_tmem()

    return body


FP4 = st[u8, 128, 128], st[u8, 128, 64, "col"]
NVFP4 = sc[tc.e4m3, 128, 16], sc[tc.e4m3, 64, 16]


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"a": FP4[0], "b": st[u8, 128, 64], "scales": NVFP4}, LayoutError,
         "e2m1 operands cannot be transposed: two .* lie along K, got B with N contiguous"),
        ({"a": st[u8, 128, 128, "col"], "b": FP4[1], "scales": NVFP4}, LayoutError,
         "e2m1 operands cannot be transposed.* got A with M contiguous"),
        ({"b": st[e4m3, 128, 64]}, LayoutError, "B of e4m3 has K contiguous"),
        ({"scales": (sc[e8m0, 128, 4], sc[e8m0, 128, 4])}, LayoutError,
         "B has 64 columns, each with its scales, got scales of 128"),
        ({"scales": (sc[e8m0, 128, 8], sc[e8m0, 64, 4])}, LayoutError,
         "K=128 of e4m3 has 4 blocks of 32 with scales in e8m0, got 8 of A"),
        ({"a": FP4[0], "b": FP4[1], "scales": (sc[e8m0, 128, 8], sc[e8m0, 64, 16])}, LayoutError,
         "K=256 of e2m1 has 8 blocks of 32 with scales in e8m0, got 16 of B"),
        ({"a": FP4[0], "b": FP4[1], "scales": (sc[e4m3, 128, 8], sc[e4m3, 64, 8])}, LayoutError,
         "K=256 of e2m1 has 16 blocks of 16 with scales in e4m3, got 8 of A"),
        ({"scales": (sc[e4m3, 128, 4], sc[e4m3, 64, 4])}, DTypeError,
         "scales of e4m3 x e4m3 are e8m0, got e4m3"),
        ({"scales": (sc[e8m0, 128, 4], sc[e4m3, 64, 4])}, DTypeError,
         "scales of A and B have one dtype, got e8m0 and e4m3"),
        ({"b": FP4[1]}, DTypeError, "4-bit elements beside 8-bit ones have gaps"),
        ({"a": st[bf16, 128, 64], "b": st[bf16, 64, 64, "col"]}, DTypeError,
         "products with scales are of e4m3 and e5m2, or of two e2m1 in each byte"),
        ({"a": st[tc.s8, 128, 128], "b": st[tc.s8, 128, 64, "col"], "acc": tt[tc.s32, 128, 64]},
         DTypeError, "products with scales are of e4m3 and e5m2.* got s8 x s8"),
        ({"acc": tt[tc.s32, 128, 64]}, DTypeError, "sums of scaled products are f32, got acc=s32"),
        ({"a": st[e4m3, 64, 128], "acc": tt[f32, 64, 64],
          "scales": (sc[e8m0, 64, 4], sc[e8m0, 64, 4])}, LayoutError,
         "M of a product with scales is 128, got M=64"),
        ({"b": st[e4m3, 128, 24, "col"], "acc": tt[f32, 128, 24],
          "scales": (sc[e8m0, 128, 4], sc[e8m0, 24, 4])}, LayoutError,
         "N of a tcgen05.mma with M=128 on e4m3 is 16 to 256 in steps of 16, got N=24"),
        ({"scale_b": None}, LayoutError, "both operands have scales .*scale_b=None"),
        ({"saturate": True}, TileError, "saturate is for s32"),
    ],
)  # fmt: skip
def test_a_product_that_no_instruction_makes_is_refused(given, kind, text):
    with pytest.raises(kind, match=text):
        traced(issue(**given))


@pytest.mark.parametrize("a", [e4m3, e5m2])
def test_scales_need_tensor_memory(a):
    def body(*_: Any) -> None:
        tile = tc.shared(st[a, 128, 128])
        with tc.warpgroup():
            sums = tc.zeros(tc.rt[f32, 64, 64])
            tc.mma_AB(sums, tile, tile, scale_a=1, scale_b=2)

    with pytest.raises(LayoutError, match="both operands have scales in tensor memory"):
        traced(body)

    @tc.kernel
    def example(A: gl[a, "M", "K"], S: gl[u64, "P", "Q"]):
        pipe = tc.lcf(consumers=2, stages=2, tasks=tc.row_major(1, 1), steps=1)
        left, right = pipe.input(st[a, 64, 128], count=2), pipe.input(st[a, 64, 128])
        scales = pipe.input(sc[e8m0, 128, 4])
        acc = pipe.accumulator(f32, 64, 64)

        @pipe.load
        def _(task, k):
            for i in range(2):
                tc.load_async(left[i], A[i, k])
            tc.load_async(right, A[0, k])
            tc.load_async(scales, S[0, k])

        @pipe.compute
        def _(task, k):
            tc.mma_ABt(acc, left[pipe.consumer], right, scale_a=scales, scale_b=scales)

        @pipe.finish
        def _(task):
            tc.relu(acc)

    with pytest.raises(ArchError, match="scale_a: needs tcgen05, which sm_90a does not have"):
        example.compile(target="sm_90a")
    with pytest.raises(LayoutError, match="B has 64 columns, each with its scales, got .* of 128"):
        example.compile(target="sm_100a")


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: sc[e8m0, 128, 6], LayoutError, "a multiple of 4, got blocks=6"),
        (lambda: sc[f32, 128, 4], DTypeError, "scales are e8m0, or e4m3 .NVFP4., got f32"),
        (lambda: sc[e8m0, 0, 4], LayoutError, "compile-time positive ints"),
        (lambda: sc[e8m0, 128], LayoutError, "wants sc"),
    ],
)
def test_types_of_scales_that_are_none_are_refused(make, kind, text):
    with pytest.raises(kind, match=text):
        make()


def load(source: str) -> Any:
    """A body that loads scales from an argument."""

    def body(A: Any, B: Any) -> None:
        scales, done = tc.shared(sc[e8m0, 128, 4]), tc.barrier()
        with tc.warpgroup(), tc.elected():
            done.expect(scales)
            tc.load_async(scales, {"f32": B[0, 0], "end": A[::-1, :][0, 0]}[source], done)

    return body


def test_scales_that_tma_cannot_reach_are_refused():
    with pytest.raises(LayoutError, match=r"TMA cannot reach A: an axis that runs backwards"):
        traced(load("end"))
    with pytest.raises(LayoutError, match=r"B holds f32, got a tile sc\[e8m0, 128, 4\]") as error:
        traced(load("f32"))
    assert "scale_words(packed)" in str(error.value)


def test_elements_with_gaps_come_by_tma_in_whole_boxes():
    def body(kind: Any, turned: bool) -> Any:
        @tc.kernel
        def example(A: gl[u8, "M", "K"]):
            tile, done = tc.shared(kind), tc.barrier()
            with tc.warpgroup(), tc.elected():
                done.expect(tile)
                tc.load_async(tile, (A[::-1, :] if turned else A)[0, 0], done)
                done.wait(0)

        return example.specialize(default_specialization(example.signature, {}, None), "sm_100a")

    text = body(st[b4x16_p64, 64, 128], False).ptx
    assert "expect_tx.shared::cta.b64 _, [%base+8192], 4096" in text  # the gaps are not counted
    with pytest.raises(LayoutError, match="gaps to 128 4-bit elements of a line at a time"):
        body(st[b4x16_p64, 64, 64], False)
    with pytest.raises(LayoutError, match="gaps from TMA|TMA cannot reach"):
        body(st[b4x16_p64, 64, 128], True)


def test_unaligned_scales_are_refused():
    case = next(c for c in CASES if c.pipeline)
    a, b, packed, scale_b, c = call_arrays(case, operands(case))
    wide = packed.repeat(2, 1)[:, 1:]  # 8 bytes further on
    with pytest.raises(LayoutError, match="scales lie packed, at a multiple of 16 bytes"):
        by_pipeline(case).compile(a, b, wide[:, : packed.shape[1]], scale_b, c, target=case.target)


def test_columns_of_scales_are_in_the_budget():
    def body(*_: Any) -> None:
        tc.tmem(tt[f32, 128, 256], 2)
        tc.tmem(sc[e8m0, 128, 4])

    with pytest.raises(ResourceError, match=r"512 columns, got 516"):
        traced(body)


def test_copies_of_other_scales_are_refused():
    def body(*_: Any) -> None:
        to, scales = tc.tmem(sc[e8m0, 128, 4]), tc.shared(sc[e8m0, 128, 8])
        with tc.warpgroup():
            with tc.elected():
                tc.copy_scales(to, scales)
            tc.free_tmem()

    with pytest.raises(LayoutError, match="copy_scales: both have one type"):
        traced(body)
    with pytest.raises(LayoutError, match="from scales in shared memory to scales in tensor"):
        traced(lambda *_: tc.copy_scales(tc.tmem(sc[e8m0, 128, 4]), tc.shared(st[u8, 64, 64])))
