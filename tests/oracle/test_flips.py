"""Each bit of the instruction descriptor flipped in the text: refused, or wrong numbers.

So every bit that another compiler sets or clears has a meaning in the machine, and its numbers
agree with that compiler's for no other value. What is silent is named, with the reason.
"""

from __future__ import annotations

import re

import pytest

from tilecat.errors import MachineError

from .runs import assert_matches, run_case
from .tensor_cases import TENSOR_CASES
from .test_oracle import OVERLOOKED, text_of

BY_NAME = {case.name: case for case in TENSOR_CASES}
_MMA = re.compile(r"(tcgen05\.mma[.\w:]* *\[[^]]*\], *[^,]*, *[^,]*, *)(%\w+)(,)")
# Kernel, bit: why nothing changes.
SILENT = {
    ("gemm_s8", 3): "saturation: no sum of 640 products of bytes leaves s32",
    ("nvfp4_wide", 12): "version of the sparsity format: CuTe sets it on Rubin, Triton does not",
}
FLIPPED = (
    "gemm_f16_64x128", "gemm_s8", "gemm_e4m3_64x128", "pair_e4m3_wide", "mxfp8_e5m2", "nvfp4_wide",
    "pair_nvfp4_k96",
)
FLIPPED_TOO = ("gemm_tf32", "gemm_e4m3_wide", "fp8_fp4", "mxfp8_wide", "mxfp4", "pair_bf16",
               "pair_mxfp8", "a_in_tensor_memory")  # fmt: skip


def flipped(text: str, mask: int) -> str:
    """The text with bits of every instruction descriptor inverted."""
    def line(match: re.Match) -> str:
        guard = re.match(r"\s*(@!?%\w+)?", match[0])[0]
        body = _MMA.sub(r"\1%flip\3", match[0][len(guard):])
        descriptor = _MMA.search(match[0])[2]
        return f"xor.b32 %flip, {descriptor}, {mask};\n{guard} {body}"

    found, count = re.subn(r"^.*tcgen05\.mma.*$", line, text, flags=re.M)
    assert count
    return re.sub(r"^\{$", "{\n.reg .b32 %flip;", found, count=1, flags=re.M)


def outcome(name: str, bit: int) -> str:
    """`refused`, `wrong` or `silent`."""
    case = BY_NAME[name]
    try:
        result, arrays, expected = run_case(case, 0, flipped(text_of(case), 1 << bit))
    except MachineError:
        return "refused"
    if {report.kind for report in result.reports} - OVERLOOKED:
        return "refused"
    try:
        for key, value in expected.items():
            assert_matches(arrays[key], value)
    except AssertionError:
        return "wrong"
    return "silent"


@pytest.mark.parametrize(
    "name", [*FLIPPED, *(pytest.param(name, marks=pytest.mark.full) for name in FLIPPED_TOO)]
)
def test_every_bit_of_the_instruction_descriptor_counts(name):
    found = {bit: outcome(name, bit) for bit in range(32)}
    silent = {bit for bit, what in found.items() if what == "silent"}
    assert silent == {bit for kernel, bit in SILENT if kernel == name}, found
    assert {"refused", "wrong"} <= set(found.values())


@pytest.mark.parametrize("name", [*FLIPPED, *FLIPPED_TOO])
def test_unflipped_text_is_right(name):
    """The flip's own lines change nothing."""
    case = BY_NAME[name]
    result, arrays, expected = run_case(case, 0, flipped(text_of(case), 0))
    assert not {report.kind for report in result.reports} - OVERLOOKED
    for key, value in expected.items():
        assert_matches(arrays[key], value)
