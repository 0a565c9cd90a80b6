"""Which forms another compiler's kernels have closed the loop for, and which the manual alone.

The table in `docs/machine-evidence.md` is written from here: `python -m oracle.forms` with
PYTHONPATH=tests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .cases import Case
from .cute_cases import CUTE_CASES
from .tensor_cases import TENSOR_CASES

PAGE = Path(__file__).parents[2] / "docs" / "machine-evidence.md"
TEXTS: dict[str, Case] = {case.name: case for case in TENSOR_CASES + CUTE_CASES}


@dataclass(frozen=True)
class Form:
    """A form and the texts that have it.

    Args:
        name: the form, for people.
        texts: names of cases.
        pattern: a regular expression that each of the texts matches.
        bits: (mask, value) of an instruction descriptor that each of the texts has.
    """

    name: str
    texts: str
    pattern: str = ""
    bits: tuple[int, int] | None = None


_MMA = r"tcgen05\.mma\.cta_group::"
_A, _B, _D = (0x7 << 7), (0x7 << 10), (0x3 << 4)

CLOSED = {
    "Products": (
        Form("kind::f16, bf16 with f32 sums",
             "gemm_bf16 gemm_bf16_odd gemm_cluster gemm_persistent",
             _MMA + r"1\.kind::f16", (_D | _A | _B, 0x490)),
        Form("kind::f16, f16 with f32 sums", "gemm_f16_64x128 gemm_f16_tab loads_32x32b",
             _MMA + r"1\.kind::f16", (_D | _A | _B, 0x010)),
        Form("f16 sums, one a column", "loads_32x32b_f16 loads_16x256b_f16", r"pack::16b",
             (_D | _A | _B, 0)),
        Form("kind::tf32", "gemm_tf32 gemm_tf32_tb gemm_tf32_tb_1 tf32_mn", r"kind::tf32",
             (_D | _A | _B, 0x910)),
        Form("kind::i8, s8", "gemm_s8", r"kind::i8", (_D | _A | _B, 0x4A0)),
        Form("kind::i8, u8", "gemm_u8", r"kind::i8", (_D | _A | _B, 0x020)),
        Form("kind::f8f6f4, e4m3", "gemm_e4m3 gemm_e4m3_64x128 gemm_e4m3_ta gemm_e4m3_tb",
             r"kind::f8f6f4", (_D | _A | _B, 0x010)),
        Form("kind::f8f6f4, e5m2 with e4m3", "gemm_e5m2_e4m3", r"kind::f8f6f4",
             (_D | _A | _B, 0x090)),
        Form("its wide K step of 64 bytes, bit 29", "gemm_e4m3_wide pair_e4m3_wide collector_a",
             r"kind::f8f6f4", (1 << 29, 1 << 29)),
        Form("64 rows: 16 lanes in every quarter", "gemm_f16_64x128 loads_16x32bx2",
             r"16x32bx2", (0x1F << 24, 4 << 24)),
        Form("columns from 16 to 256; 24", "gemm_bf16_n16 gemm_bf16_128x256 bf16_n24"),
        Form("negated A, negated B", "negate_a negate_b", _MMA),
        Form("lanes that keep their sums", "lanes_off", r"\], %rd\d+, %rd\d+, %r\d+, \{"),
        Form("A in tensor memory", "a_in_tensor_memory a_in_tensor_memory_e4m3 attention "
             "attention_causal attention_specialized", _MMA + r"1\.kind::f\w+ *\[[^]]*\], *\["),
        Form("early release of A on Rubin", "released_a", r"sync_restrict::shared::read::mma::a"),
        Form("collectors of A, of B", "collector_a gemm_bf16_256x128 exclusive_576",
             r"collector::[ab]::(fill|lastuse)"),
    ),
    "Operands in shared memory": (
        Form("K-major, swizzle of 128, 64, 32 bytes", "gemm_bf16 gemm_bf16_k32 gemm_bf16_k16"),
        Form("K-major without a swizzle", "no_swizzle"),
        Form("A MN-major, 2 bytes", "gemm_bf16_ta gemm_f16_tab", "", (1 << 15, 1 << 15)),
        Form("B MN-major, 2 bytes", "gemm_bf16_tb gemm_f16_tab pair_bf16_tb", "",
             (1 << 16, 1 << 16)),
        Form("MN-major with 64 bytes of swizzle", "gemm_bf16_tb_n32", "", (1 << 16, 1 << 16)),
        Form("MN-major, 1 byte", "gemm_e4m3_ta gemm_e4m3_tb"),
        Form("MN-major, 4 bytes, atoms of 32 bytes", "tf32_mn", "", (3 << 15, 3 << 15)),
        Form("4-bit elements with gaps, by TMA", "fp8_fp4 fp4_fp8_n64",
             r"elemtype\S+ \[[^]]*\], 0xe;"),
        Form("4-bit elements packed, kind::mxf8f6f4 at K = 64", "fp8_fp4_wide", "",
             (1 << 31, 1 << 31)),
    ),
    "Blocks of scales": (
        Form("kind::mxf8f6f4, one scale a row", "mxfp8 mxfp8_packed pair_mxfp8 unequal_scale_ids",
             r"kind::mxf8f6f4"),
        Form("kind::mxf8f6f4, two scales a row, K = 64", "mxfp8_wide mxfp8_e5m2 pair_mxfp8_wide "
             "exclusive_576", r"kind::mxf8f6f4", (1 << 31, 1 << 31)),
        Form("kind::mxf4, two and four scales", "mxfp4 mxfp4_wide pair_mxfp4", r"kind::mxf4\."),
        Form("kind::mxf4nvf4, block16: four and eight", "nvfp4 nvfp4_wide nvfp4_256x256 "
             "pair_nvfp4_wide exclusive_nvfp4", r"kind::mxf4nvf4\.block_scale\.block16"),
        Form("K = 96: three and six scales", "pair_mxfp4_k96 pair_nvfp4_k96", r"kind::mxf4",
             (1 << 31, 1 << 31)),
        Form("an index of scales of A unlike that of B", "unequal_scale_ids"),
        Form("the chunk of 128 rows x 4 blocks, cp 32x128b.warpx4", "mxfp8_packed nvfp4 "
             "pair_mxfp8 unequal_scale_ids", r"tcgen05\.cp\.\S*32x128b"),
        Form("scales stored by threads", "mxfp8 mxfp4 nvfp4_wide", r"tcgen05\.st"),
    ),
    "Pairs of CTAs": (
        Form("256 and 128 rows; columns halved", "pair_bf16 pair_bf16_n256 pair_bf16_m128 "
             "pair_bf16_tb", _MMA + r"2\.kind::f16"),
        Form("bytes and blocks of scales", "pair_e4m3_wide pair_mxfp8 pair_mxfp4 pair_nvfp4_wide",
             _MMA + "2"),
        Form("TMA that signals the even CTA's mbarrier", "pair_bf16",
             r"bulk\.tensor\.2d\.cta_group::2"),
        Form("commit to both CTAs", "pair_bf16 pair_mxfp8", r"commit\S*multicast::cluster"),
    ),
    "Tensor memory": (
        Form("ld of every shape", "loads_32x32b loads_16x64b loads_16x128b loads_16x256b "
             "loads_16x32bx2", r"tcgen05\.ld\.sync\.aligned\.(32x32b|16x(64|128|256)b|16x32bx2)"),
        Form("ld with .pack::16b", "loads_32x32b_f16 loads_16x256b_f16", r"ld\S*pack::16b"),
        Form("ld.red, max and min of magnitudes", "reduced", r"ld\.red\S*min\.abs"),
        Form("st 32x32b, 16x32bx2", "gemm_bf16 gemm_f16_64x128", r"tcgen05\.st"),
        Form("st of the other shapes", "started_16x64b started_16x128b started_16x256b",
             r"tcgen05\.st\S*16x(64|128|256)b"),
        Form("st with .unpack::16b", "started_32x32b_f16 started_16x128b_f16",
             r"tcgen05\.st\S*unpack::16b"),
        Form("cp 128x256b", "copied", r"tcgen05\.cp\S*128x256b"),
        Form("576 exclusive columns", "exclusive_576 exclusive_nvfp4 nvfp4_256x256",
             r"alloc\.exclusive\S* \[[^]]*\], 576"),
        Form("tcgen05.fence after a commit's wait", "negate_a collector_a",
             r"tcgen05\.fence::after_thread_sync"),
    ),
    "Transfers and schedules": (
        Form("TMA of odd sizes, clipped", "gemm_bf16_odd batched_tma gemm_host"),
        Form("tensor maps built by the kernel, by value", "gemm_bf16 gemm_host"),
        Form("three and five dimensions; reduction add", "batched_tma mxfp8_packed",
             r"bulk\.tensor\.[35]d"),
        Form("tile::gather4, tile::scatter4", "gathered", r"gather4[^§]*scatter4"),
        Form("multicast to parts of a cluster of four", "multicast", r"multicast::cluster"),
        Form("cluster launch control", "launch_control taken_over", r"try_cancel"),
        Form("roles by warp, setmaxnreg", "roles gemm_specialized attention_specialized",
             r"setmaxnreg"),
        Form("inits fenced before a relaxed arrive at the cluster's barrier", "pair_bf16",
             r"fence\.mbarrier_init[^§]*cluster\.arrive\.relaxed"),
        Form("f32x2, min and max of three", "attention attention_specialized gemm_int4",
             r"\.f32x2|max\.f32 (%\w+, ){3}%\w+;"),
        Form("redux.sync of f32", "softmax", r"redux\.sync\.(max|min)\.f32"),
        Form("redux.sync of integers", "reductions", r"redux\.sync\.\w+\.[bsu]32"),
        Form("f32 and f16 added", "layernorm", r"add\.rn\.f32\.f16"),
        Form("loads by threads: cp.async", "gemm_int4", r"cp\.async\.c[ag]"),
        Form("loads by threads: masked, through registers", "pointer_bf16_masked",
             r"st\.shared\.\w"),
    ),
}
# What no kernel of another compiler here has: the manual's word and our tests of it.
ALONE = (
    "kind::f8f6f4 and mxf8f6f4 with elements of 6 bits; e2m1 without scales; u8 with s8; "
    "saturation of i8",
    "kind::mxf4nvf4 with block32, or ue8m0 with block16",
    "MN-major operands without a swizzle; base offset; the absolute leading address (bit 52)",
    "A of 4 and 6 bits in tensor memory where bytes hold one element: refused, a figure only",
    "D scaled by a power of two; lanes kept off in a pair",
    "cp 128x128b and 64x128b",
    "ld.red of integers; ld.red 16x32bx2; .NaN",
    "collectors: use, discard after a fill, and what happens to an operand that changes",
    "masks of 32 CTAs; early release of A to several CTAs",
    "cluster launch control for a whole cluster (multicast)",
    "TMA: reductions other than add, packed 4-bit elements without gaps, L2 hints",
    "every rule of order: races, fences, what a wait completes. Texts that run clean show that the "
    "rules are not too strict; that they are strict enough is shown by deletions (tests/sim)",
    "order and precision of sums inside an instruction; tf32 operands are cut, not rounded",
)  # fmt: skip


def rows() -> list[str]:
    """Lines of the two tables."""
    out = ["| form | kernels (target) |", "|---|---|"]
    for group, forms in CLOSED.items():
        out.append(f"| **{group}** | |")
        for form in forms:
            names = [f"`{name}` ({TEXTS[name].target})" for name in form.texts.split()]
            out.append(f"| {form.name} | {', '.join(names)} |")
    return [*out, "", "| rests on the manual alone |", "|---|", *(f"| {line} |" for line in ALONE)]


def page() -> str:
    """The page with its tables anew."""
    text = PAGE.read_text()
    tables = "\n".join(rows())
    return re.sub(r"(?<=<!-- forms -->\n).*(?=\n<!-- end -->)", lambda _: tables, text, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(page())
