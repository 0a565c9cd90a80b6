"""docs/claims.md: words that it explains, and tests, commands and files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilecat.arch import ARCHS

ROOT = Path(__file__).resolve().parents[1]
LINES = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8").splitlines()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES if line[:1] == "|"]
TABLES = [[row for row in ROWS if len(row) == columns] for columns in (2, 6)]
WORDS = {row[0] for row in TABLES[0][2:]}
CLAIMS = TABLES[1][2:]
# What stands there instead of a word, or begins a cell that says more.
OTHERS = ("published constants", "not compared", "within 15 %", "beside four published figures")


def test_the_table_has_a_column_a_target():
    head = TABLES[1][0]
    assert all(arch.target in cell for arch, cell in zip(ARCHS, head[1:5], strict=True))
    assert len(CLAIMS) > 20


@pytest.mark.parametrize("row", CLAIMS, ids=lambda row: row[0])
def test_each_claim_has_words_that_are_explained_and_tests_that_exist(row: list[str]):
    for cell in row[1:5]:
        assert cell == "-" or cell.split(" ")[0].rstrip(":") in WORDS or cell.startswith(OTHERS)
    shown = re.findall(r"`([^`]+)`", row[5])
    assert shown, "a claim is shown by something"
    for place in shown:
        path, _, test = place.partition("::")
        assert (ROOT / path).is_file(), place
        assert not test or f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), place


def test_nothing_of_chips_that_nobody_has_is_measured():
    for row in CLAIMS:
        assert not any(cell.startswith("measured") for cell in row[2:5]), row[0]
