"""The CASES tables together: every op class has a case, the machine decodes all that is emitted."""

from __future__ import annotations

import conformance

from tilecat.ops import ALL_OPS

MIN_FORMS = 7000  # declared by the tables; it only rises


def test_every_op_has_a_case_and_the_machine_takes_its_text():
    families = list(conformance.coverage(short=True))
    total = conformance.together(families)
    assert conformance.missing(total) == []
    assert {op for op in total.ops} <= set(ALL_OPS)
    assert total.undeclared == []


def test_forms_of_all_tables(capsys):
    text, forms = conformance.declared()
    with capsys.disabled():
        print(f"\n{text}")
    assert forms >= MIN_FORMS
