"""The table of ops on the PTX machine: a reduced set, and with the mark `full` the rest."""

from __future__ import annotations

from collections import Counter

import pytest
from table import Case, arrays_of, check, run
from table_rows import CASES, QUICK_CASES


def simulated(kernel, *args: object) -> None:
    result = kernel.simulate(*args, grid=1)
    assert not result.reports, str(result)


@pytest.mark.parametrize(
    "case",
    [c if c in QUICK_CASES else pytest.param(c, marks=pytest.mark.full) for c in CASES],
    ids=str,
)
def test_case_on_the_machine_is_numpy(case: Case):
    arrays = arrays_of(case)
    check(case, run(case, arrays, simulated), arrays)


def test_cases_have_names_of_their_own(capsys: pytest.CaptureFixture[str]):
    assert len({str(case) for case in CASES}) == len(CASES)
    scopes = Counter(case.scope for case in CASES)
    rows = len({case.row.name for case in CASES})
    with capsys.disabled():
        print(f"\nops: {rows} rows, {len(CASES)} cases {dict(scopes)}, {len(QUICK_CASES)} quick")
    assert len(CASES) >= 3000
