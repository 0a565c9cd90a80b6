"""The page on memory cannot rot: its Python runs, block after block."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "memory.md"


def test_blocks_run(capsys: pytest.CaptureFixture[str]):
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "page"}
    found = list(re.finditer(r"^```python\n(.*?)^```$", text, re.S | re.M))
    assert len(found) == 7
    for block in found:
        above = text[: block.start(1)].count("\n")
        source = "\n" * above + block[1]
        linecache.cache[str(PAGE)] = (len(source), None, source.splitlines(True), str(PAGE))
        exec(compile(source, str(PAGE), "exec"), names)
    assert "largest of each row: rv[f32, 64]" in capsys.readouterr().out
