"""Pages whose Python runs, block after block, and prints what they say.

As a script, `python tests/test_docs_pages.py --write` puts what the blocks print into the pages.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import shlex
import sys
from pathlib import Path

import click
import pytest

from tilecat.cli import main

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = ("guide.md", "memory-model.md", "templates.md")
# Lines that begin with `tilecat` in blocks of sh, in one line each; `kernel.ptx` is the reader's.
SHELL = re.compile(r"^```sh\n(.*?)^```", re.S | re.M)
COMMANDS = sorted({
    line
    for page in (DOCS.parent / "README.md", *DOCS.glob("*.md"))
    for block in SHELL.findall(page.read_text(encoding="utf-8"))
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("tilecat ") and "--help" not in line
})  # fmt: skip
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.S | re.M)


def printed(page: Path) -> list[tuple[re.Match[str], str]]:
    """Each Python block, and what it prints; errors name the page's own lines."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "page"}
    found = []
    for block in BLOCK.finditer(text):
        source = "\n" * text[: block.start(1)].count("\n") + block[1]
        linecache.cache[str(page)] = (len(source), None, source.splitlines(True), str(page))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(source, str(page), "exec", dont_inherit=True), names)
        found.append((block, plain(out.getvalue())))
    return found


def plain(output: str) -> str:
    """Output without folders, lines of the page, and lines of the PTX, which move."""
    short = re.sub(r"(\.md):\d+", r"\1", output.replace(f"{DOCS.parent}/", ""))
    return re.sub(r"PTX line \d+", "PTX line N", short)


@pytest.mark.parametrize("name", PAGES)
def test_blocks_print_what_the_page_says(name: str):
    found = printed(DOCS / name)
    assert len(found) > 5
    for block, output in found:
        assert output == (block[2] or ""), f"{name}: {block[1][:200]}"


def test_the_index_has_every_page():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    found = (*DOCS.glob("*.md"), *DOCS.glob("design/*.md"), *DOCS.glob("kernels/*.md"))
    pages = {page.relative_to(DOCS).as_posix() for page in found} - {"index.md"}
    assert {page for page in pages if f"({page})" not in index} == set()


def test_links_lead_to_files_that_exist():
    for page in (*DOCS.parent.glob("*.md"), *DOCS.rglob("*.md")):
        for place in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert "://" in place or (page.parent / place).exists(), f"{page.name}: {place}"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[:40])
def test_commands_have_arguments_that_the_command_line_takes(command: str, monkeypatch):
    monkeypatch.chdir(DOCS.parent)
    _, *words = shlex.split(command, comments=True)
    name, called, rest = main.resolve_command(click.Context(main), words)
    called.make_context(name, rest, parent=click.Context(main))


def test_lines_of_the_added_op_are_still_there():
    page = (DOCS / "design" / "adding-an-op.md").read_text(encoding="utf-8")
    diff = re.search(r"^```diff\n(.*?)^```", page, re.S | re.M)[1]
    files = re.split(r"^\+\+\+ b/(.*)\n", diff, flags=re.M)
    added = 0
    for name, text in zip(files[1::2], files[2::2], strict=True):
        source = (DOCS.parent / name).read_text(encoding="utf-8").splitlines()
        lines = [x[1:] for x in text.splitlines() if x[:1] == "+" and '"softplus", "soft' not in x]
        assert [line for line in lines if line not in source] == []
        added += len(lines)
    assert added == 18 and len(files[1::2]) == 3


def written(page: Path) -> str:
    """The page with every text block as its Python block prints it."""
    text = page.read_text(encoding="utf-8")
    for block, output in reversed(printed(page)):
        if block[2] is not None:
            text = text[: block.start(2)] + output + text[block.end(2) :]
    return text


if __name__ == "__main__" and "--write" in sys.argv[1:]:
    for page in PAGES:
        (DOCS / page).write_text(written(DOCS / page), encoding="utf-8")
