"""Products with sums in tensor memory on the PTX machine; see tensor_cases."""

from __future__ import annotations

import numpy as np
import pytest
from tensor_cases import CASES, TARGETS, TensorCase, arrays, call_arrays, check, kernel_of

from tilecat.arch import arch_of

QUICK = 4  # every row that is no plain product, and each fourth of those


def is_quick(index: int, case: TensorCase) -> bool:
    plain = not case.pipeline and case.name == "mma_AB" and case.start is None
    return not plain or index % QUICK == 0


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if is_quick(index, case) else pytest.mark.full, id=str(case))
        for index, case in enumerate(CASES)
    ],
)
def test_product_in_tensor_memory_is_right(case: TensorCase):
    given = arrays(case)
    result = kernel_of(case).simulate(*call_arrays(case, given), target=case.target, grid=1)
    assert not result.reports, str(result.reports[0])
    check(case, given)


def test_every_form_with_tiles_has_a_case_at_every_n():
    for target in TARGETS:
        for form in arch_of(target).tensor_forms:
            mine = [c for c in CASES if c.target == target and c.form == form]
            if mine:
                assert {case.n for case in mine} >= set(form.columns(64))
                assert any(case.pipeline for case in mine)
    assert len({str(case) for case in CASES}) == len(CASES)


def test_a_wrong_product_in_tensor_memory_is_seen():
    case = next(case for case in CASES if case.form.a == "bf16")
    a, b, c = given = arrays(case)
    c[:] = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    check(case, given)
    c[-1, -1] += np.abs(a).astype(np.float64).sum() * 2.0**-12
    with pytest.raises(AssertionError):
        check(case, given)
