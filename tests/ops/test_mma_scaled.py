"""Products with scales of blocks on the PTX machine; see scaled_cases."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
from mutation.test_tensor_deletions import EQUIVALENT, PLAIN, deletions
from scaled_cases import CASES, ScaledCase, by_pipeline, call_arrays, check, kernel_of, operands

from tilecat.arch import arch_of
from tilecat.codegen.module import PtxModule
from tilecat.errors import MachineError
from tilecat.runtime import machine
from tilecat.runtime.arrays import view

QUICK = 9  # each ninth


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if index % QUICK == 0 else pytest.mark.full, id=str(case))
        for index, case in enumerate(CASES)
    ],
)
def test_product_with_scales_is_right(case: ScaledCase):
    given = operands(case)
    arrays = call_arrays(case, given)
    result = kernel_of(case).simulate(*arrays, target=case.target, grid=1)
    assert not result.reports, str(result.reports[0])
    check(given, arrays[-1])


@pytest.mark.parametrize("target", ["sm_100a", pytest.param("sm_103a", marks=pytest.mark.full),
                                    "sm_107a"])  # fmt: skip
@pytest.mark.parametrize("index", [0, 4, 5], ids=["mxfp8", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("extents", [(1, 16, 128), (200, 264, 320), (257, 300, 544)], ids=str)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_pipelines_with_scales_take_any_extents(target, index, extents, seed):
    mine = [c for c in CASES if c.pipeline and c.target == target and c.n == 128 and not c.wide]
    case = mine[index]
    m, n, k = extents
    k = k // 32 * 64 if case.depth == 256 else k
    given = operands(case, (m, n, k), seed)
    arrays = call_arrays(case, given)
    result = by_pipeline(case).simulate(*arrays, target=target, grid=2, seed=seed)
    assert not result.reports, str(result.reports[0])
    check(given, arrays[-1])


def test_every_form_with_scales_has_a_case():
    for case in CASES:
        forms = [f for f in arch_of(case.target).tensor_forms if f.block == case.block]
        scale = {"e8m0": "ue8m0", "e4m3": "ue4m3"}[case.scale.name]
        assert any(f.scale == scale for f in forms)
    assert len({str(case) for case in CASES}) == len(CASES)


# ---- what is wrong is seen
NVFP4 = next(c for c in CASES if c.pipeline and c.n == 128 and c.scale.name == "e4m3")
MXFP8 = next(c for c in CASES if c.pipeline and c.n == 256 and c.a.name == "e4m3")
CONSTANT = r"(mov\.b32 %instruction\d*, )(0x[0-9a-f]+)(;  // kind::mx)"


def is_right(case: ScaledCase, text: str, seed: int = 0, rows: int = 128) -> bool:
    """Whether neither the machine's report nor the numbers of a text show that it is wrong."""
    given = operands(case, (rows, 2 * rows, 3 * case.depth))
    arrays = call_arrays(case, given)
    views = [view(x) for x in arrays]
    try:
        result = machine.launch(replace(module_of(case), text=text), views, grid=1, seed=seed)
        check(given, arrays[-1])
    except (MachineError, AssertionError):
        return False
    return not result.reports


@cache
def module_of(case: ScaledCase) -> PtxModule:
    arrays = call_arrays(case, operands(case, (128, 256, case.depth)))
    return by_pipeline(case).compile(*arrays, target=case.target).module


def flipped(text: str, which: int, bit: int) -> str:
    """One bit of one instruction descriptor."""
    found = list(re.finditer(CONSTANT, text))[which]
    return f"{text[: found.start(2)]}{int(found[2], 16) ^ 1 << bit:#x}{text[found.end(2) :]}"


SOME_BITS = (4, 5, 7, 10, 15, 17, 23, 27, 29, 30)  # ids of scales; types, N, kind of scales, M


@pytest.mark.parametrize("bit", [
    pytest.param(bit, marks=() if bit in SOME_BITS else pytest.mark.full) for bit in range(32)
])  # fmt: skip
@pytest.mark.parametrize(("case", "which"), [(MXFP8, 1), (NVFP4, 0)], ids=["mxfp8", "nvfp4"])
def test_a_flipped_bit_of_a_descriptor_is_seen(case: ScaledCase, which: int, bit: int):
    assert not is_right(case, flipped(module_of(case).text, which, bit))


@pytest.mark.full
@pytest.mark.parametrize("case", [MXFP8, NVFP4], ids=["mxfp8", "nvfp4"])
def test_each_synchronisation_that_is_deleted_is_found(case: ScaledCase):
    text = module_of(case).text
    assert all(is_right(case, text, seed, 264) for seed in range(3))
    missed = {
        mutant.name for mutant in deletions(text)
        if all(is_right(case, mutant.text, seed, 264) for seed in range(3))
    }  # fmt: skip
    # Of stores that follow each other, the group of the next one has that of the deleted one too.
    joined = {f"consumer: cp.async.bulk.commit_group #{number}" for number in (1, 2, 3)}
    assert missed <= set(EQUIVALENT[PLAIN]) | joined


@pytest.mark.parametrize(
    ("case", "pattern", "text"),
    [
        (MXFP8, r"(warpx4 \[%tmem\+)264", r"\g<1>268"),  # the second 128 columns of B
        (MXFP8, r"(%instruction2, \[%tmem\+)256", r"\g<1>260"),  # A with scales of B
        (MXFP8, r"(%instruction3)(, \[%tmem)", r"%instruction4\2"),  # scales of the step behind
        (NVFP4, r"(%instruction, \[%tmem\+)260", r"\g<1>256"),
        (NVFP4, r".*tcgen05\.cp.*\n", ""),
    ],
)
def test_scales_from_elsewhere_are_seen(case: ScaledCase, pattern: str, text: str):
    whole = module_of(case).text
    assert is_right(case, whole)
    changed, count = re.subn(pattern, text, whole, count=1)
    assert count == 1
    assert not is_right(case, changed)
