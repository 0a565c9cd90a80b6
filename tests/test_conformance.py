"""The CASES tables together: every op class has a case, the machine decodes all that is emitted."""

from __future__ import annotations

import conformance
import pytest

from tilecat.ops import ALL_OPS

MIN_FORMS = 3000  # forms of ops in all tables; it only rises


def test_every_op_has_a_case_and_the_machine_takes_its_text():
    families = list(conformance.coverage(short=True))
    total = conformance.together(families)
    assert conformance.missing(total) == []
    assert {op for op in total.ops} <= set(ALL_OPS)


@pytest.mark.full
def test_cases_of_all_tables(capsys):
    families = list(conformance.coverage())
    total = conformance.together(families)
    with capsys.disabled():
        print(f"\n{conformance.report(families, total)}")
    assert conformance.missing(total) == []
    assert len(total.forms) >= MIN_FORMS
