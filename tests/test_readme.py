"""The README cannot rot: its Python runs, and the kernels it shows are the kernels of the package.

A block below `<!-- source: FILE:FUNCTION -->` ends with that function's source, word for word; a
`text` block holds what the Python block before it prints.
As a script: `--check` compares, `--write` copies the sources into the README.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
MARK = re.compile(r"<!-- source: (?P<file>\S+):(?P<name>\w+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language and words, first line of its text, text, and its source."""

    info: str
    line: int
    text: str
    file: str | None = None
    name: str | None = None


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a Markdown text."""
    found: list[Block] = []
    lines = text.splitlines(keepends=True)
    opened, mark = None, None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            if opened is None and line.strip():
                mark = MARK.fullmatch(line.strip())
            continue
        if opened is None:
            opened = number
            continue
        info = lines[opened][3:].strip()
        where = mark.groupdict() if mark else {}
        body = "".join(lines[opened + 1 : number])
        found.append(Block(info=info, line=opened + 2, text=body, **where))
        opened, mark = None, None
    return found


def source_of(file: str, name: str) -> str:
    """A function's source, decorators included, without remarks to the formatter."""
    text = (ROOT / file).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            shown = "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])
            return shown.replace("  # fmt: skip", "")
    raise LookupError(f"README shows {name}, but {file} has no such function")


def updated(text: str) -> str:
    """The text with every sourced block's function replaced by its source as it is now."""
    lines = text.splitlines(keepends=True)
    for block in reversed(blocks(text)):
        if block.file is None:
            continue
        head = re.match(r"((?!@|def ).*\n)*", block.text).group()
        count = len(block.text.splitlines())
        new = head + source_of(block.file, block.name)
        lines[block.line - 1 : block.line - 1 + count] = new.splitlines(keepends=True)
    return "".join(lines)


def run(block: Block, names: dict) -> None:
    """Execute a block; errors name the README's own lines."""
    code = compile("\n" * (block.line - 1) + block.text, str(README), "exec", dont_inherit=True)
    exec(code, names)


def steps(text: str, *words: str) -> list[tuple[Block, str | None]]:
    """Python blocks whose further words are among `words` (`gpu` needs one), and their output."""
    found: list[tuple[Block, str | None]] = []
    for block in blocks(text):
        language, *rest = block.info.split() or [""]
        if language == "python" and set(rest) <= set(words):
            found.append((block, None))
        elif language == "text" and found:
            found[-1] = found[-1][0], block.text
    return found


def plain(output: str) -> str:
    """Output without what differs from place to place: folders and line numbers."""
    return re.sub(r"(README\.md):\d+", r"\1", output.replace(f"{ROOT}/", "")).strip()


def test_readme_shows_the_kernels_as_they_are():
    text = README.read_text(encoding="utf-8")
    assert any(block.file for block in blocks(text)), "the README shows no kernel"
    assert updated(text) == text, "run: python tests/test_readme.py --write"


def test_readme_python_prints_what_it_says(capsys):
    names: dict = {"__name__": "readme"}
    for block, output in steps(README.read_text(encoding="utf-8")):
        run(block, names)
        printed = plain(capsys.readouterr().out)
        assert printed == plain(output or ""), f"README.md:{block.line} prints\n{printed}"


@pytest.mark.gpu
def test_readme_python_runs_on_a_gpu():
    names: dict = {"__name__": "readme"}
    for block, _ in steps(README.read_text(encoding="utf-8"), "gpu"):
        run(block, names)


def test_updated_replaces_only_the_function(tmp_path, monkeypatch):
    (tmp_path / "k.py").write_text("x = 1\n\n@dec\ndef f():\n    return 2\n\ny = 3\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    old = "A\n\n<!-- source: k.py:f -->\n```python\nimport a\n\n@dec\ndef f():\n    pass\n```\nB\n"
    new = updated(old)
    assert new == old.replace("pass", "return 2")
    assert updated(new) == new


if __name__ == "__main__":
    before = README.read_text(encoding="utf-8")
    after = updated(before)
    if "--write" in sys.argv[1:]:
        README.write_text(after, encoding="utf-8")
    elif after != before:
        sys.exit("README.md shows an older kernel; run: python tests/test_readme.py --write")
