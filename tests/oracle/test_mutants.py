"""Foreign kernels with one instruction deleted: the machine says what is missing."""

from __future__ import annotations

import re

import numpy as np
import pytest

from . import nvcc_cases, test_nvcc
from .cases import CASES
from .forms import TEXTS
from .runs import run_case, text_of

BY_NAME = {case.name: case for case in CASES}
# Case, instruction, which of its occurrences, kinds of report of which one must come.
MUTANTS = (
    ("gemm_bf16", r"fence\.proxy\.tensormap", 0, {"fence"}),
    ("gemm_bf16", r"fence\.proxy\.tensormap", 2, {"fence"}),
    ("gemm_bf16", r"tensormap\.cp_fenceproxy", 1, {"tensormap"}),
    ("gemm_bf16", r"tensormap\.replace\.tile\.box_dim", 0, {"tensormap"}),
    ("gemm_bf16", r"tensormap\.replace\.tile\.global_address", 2, {"tensormap"}),
    ("gemm_bf16", r"fence\.proxy\.async", 1, {"fence"}),
    ("gemm_bf16", r"wgmma\.wait_group\.sync\.aligned 1", 0, {"race", "wgmma"}),
    ("gemm_bf16", r"wgmma\.fence", 0, {"wgmma"}),
    ("attention", r"mbarrier\.inval", 0, {"mbarrier"}),
    ("attention", r"fence\.proxy\.async", 1, {"fence"}),
    ("gemm_specialized", r"mbarrier\.arrive\.shared", 0, {"deadlock"}),
    ("pointer_f16", r"cp\.async\.wait_group", 0, {"race", "uninitialised"}),
    ("pointer_f16", r"fence\.proxy\.async", 0, {"fence"}),
    ("mma_f16", r"cp\.async\.commit_group", 2, {"race", "uninitialised"}),
    ("softmax", r"bar\.sync", 0, {"race", "uninitialised"}),
    ("histogram", r"bar\.sync", 0, {"race"}),
    ("gemm_cluster", r"barrier\.cluster\.arrive", 0, {"barrier", "deadlock"}),
)

TENSOR_MUTANTS = (
    ("gemm_f16_64x128", r"tcgen05\.commit", 1, {"deadlock"}),
    ("gemm_f16_64x128", r"mbarrier\.arrive\.expect_tx", 2, {"deadlock"}),
    ("loads_16x64b", r"tcgen05\.wait::ld", 0, {"race"}),
    ("a_in_tensor_memory", r"tcgen05\.wait::st", 0, {"race"}),
    ("mxfp8", r"tcgen05\.wait::st", 1, {"race"}),
    ("attention", r"tcgen05\.wait::st", 2, {"race"}),
    ("copied", r"fence\.proxy\.async", 0, {"fence"}),
    ("copied", r"tcgen05\.cp", 3, {"uninitialised"}),
    ("unequal_scale_ids", r"tcgen05\.cp", 0, {"uninitialised"}),
    ("pair_bf16", r"barrier\.cluster\.arrive\.aligned", 1, {"barrier"}),
    ("pair_bf16", r"fence\.mbarrier_init", 0, {"race"}),
    ("pair_bf16", r"tcgen05\.commit", 0, {"deadlock"}),
    ("released_a", r"tcgen05\.commit\S*sync_restrict", 1, {"deadlock"}),
    ("negate_a", r"tcgen05\.fence", 0, {"tcgen05-fence"}),
    ("negate_a", r"fence\.proxy", 1, {"fence"}),
    ("exclusive_576", r"tcgen05\.dealloc", 0, {"exit"}),
    ("launch_control", r"fence\.proxy", 2, {"fence"}),
    ("launch_control", r"mbarrier\.arrive\.expect_tx", 1, {"deadlock"}),
    ("roles", r"mbarrier\.init", 3, {"mbarrier"}),
    ("gathered", r"cp\.async\.bulk\.wait_group", 2, {"exit"}),
)


def without(text: str, pattern: str, occurrence: int) -> str:
    """The text without one instruction."""
    lines = text.split("\n")
    instruction = re.compile(rf"^\s*(@!?%\w+\s+)?{pattern}")
    found = [number for number, line in enumerate(lines) if instruction.match(line)]
    del lines[found[occurrence]]
    return "\n".join(lines)


SUBJECTS = [
    (texts[name], *rest) for texts, mutants in ((BY_NAME, MUTANTS), (TEXTS, TENSOR_MUTANTS))
    for name, *rest in mutants
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "pattern", "occurrence", "kinds"), SUBJECTS,
    ids=[f"{case.name}-{pattern.replace(chr(92), '')}-{n}" for case, pattern, n, _ in SUBJECTS],
)  # fmt: skip
def test_deleted_instruction_is_reported(case, pattern, occurrence, kinds):
    result, _, _ = run_case(case, 0, without(text_of(case), pattern, occurrence))
    found = {report.kind for report in result.reports}
    assert found & kinds, f"{found}: {result}"


def test_early_release_covers_nothing_but_a():
    """CuTe's kernel with its plain commit made an early one: B and the sums are not released."""
    text = text_of(TEXTS["released_a"])
    plain, early = "arrive::one.shared", "arrive::one.sync_restrict::shared::read::mma::a.shared"
    assert plain in text and early in text
    result, _, _ = run_case(TEXTS["released_a"], 0, text.replace(plain, early))
    assert {report.kind for report in result.reports} >= {"race"}


@pytest.mark.parametrize("occurrence", [0, 1])
def test_missing_fence_between_ctas_is_reported(occurrence):
    text = (test_nvcc.FOLDER / "ticket_sum.ptx").read_text()
    launch = nvcc_cases.ticket_sum(np.random.default_rng(0))
    mutant = without(text, r"membar\.gl", occurrence)
    result = test_nvcc.run_kernel("ticket_sum", launch, 0, mutant)
    assert {report.kind for report in result.reports} == {"global-race"}


@pytest.mark.parametrize("operation", ["cas", "exch"])
def test_relaxed_lock_is_reported(operation):
    text = text_of(BY_NAME["spin_lock"])
    mutant, count = re.subn(rf"acq_rel((?:\.gpu)?\.{operation})", r"relaxed\1", text)
    assert count == 1
    result, _, _ = run_case(BY_NAME["spin_lock"], 0, mutant)
    assert {report.kind for report in result.reports} == {"global-race"}
