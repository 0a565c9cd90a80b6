"""docs/torch.md: its Python runs, block after block, and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

PAGE = Path(__file__).resolve().parents[1] / "docs" / "torch.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.S | re.M)


def test_the_page_runs():
    text, names = PAGE.read_text(encoding="utf-8"), {"__name__": "page"}
    found = list(BLOCK.finditer(text))
    assert len(found) >= 4
    for block in found:
        source = "\n" * text[: block.start(1)].count("\n") + block[1]
        linecache.cache[str(PAGE)] = (len(source), None, source.splitlines(True), str(PAGE))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(source, str(PAGE), "exec", dont_inherit=True), names)
        assert out.getvalue() == (block[2] or "")
