"""The README cannot rot: its Python runs, and the kernels it shows are the kernels of the package.

A block below `<!-- source: FILE:NAME,... -->` ends with the source of those functions, word for
word; a `text` block holds what the Python block before it prints. Measurements are copied from the
files in `benchmarks/results` between `<!-- measured: ... -->` and `<!-- end -->`.
As a script: `--check` compares, `--write` copies the sources into the README.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from problem_tables import PARTS, every_problem, problems
from results_tables import HEADLINES, NOTHING, TITLES, tables

from tilecat.kernels import KERNELS

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
KERNEL_PAGES = (
    "linear-attention", "based", "hedgehog", "mamba-2", "delta-rule", "long-convolution", "rotary",
    "norms", "cross-entropy",
)  # fmt: skip
PAGES = tuple(
    ROOT / "docs" / f"{name}.md"
    for name in (
        "measurements", "gemm-in-nine-steps", "attention-in-seven-steps", "attention-comparison",
        "torch", *(f"kernels/{name}" for name in KERNEL_PAGES),
    )
)  # fmt: skip
MEASURED = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.S)
MARK = re.compile(r"<!-- source: (?P<file>\S+):(?P<name>[\w,]+) -->")


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


def source_of(file: str, names: str) -> str:
    """The source of functions, decorators included, without remarks to the formatter."""
    text = (ROOT / file).read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    found = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    shown = []
    for name in names.split(","):
        if name not in found:
            raise LookupError(f"README shows {name}, but {file} has no such function")
        node = found[name]
        first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
        shown.append("".join(lines[first - 1 : node.end_lineno]).replace("  # fmt: skip", ""))
    return "\n\n".join(shown)


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
    return MEASURED.sub(_measured, "".join(lines))


def _measured(found: re.Match[str]) -> str:
    name = found[2]
    if name in PARTS or name == "problems":
        shown = problems(name) if name in PARTS else every_problem()
    else:
        shown = tables(every_row=name == "all", only=name if name in TITLES else None)
    return f"{found[1]}\n{shown}\n{found[3]}"


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
    """Output without what differs from place to place: folders."""
    return output.replace(f"{ROOT}/", "").strip()


def test_readme_shows_the_kernels_as_they_are():
    text = README.read_text(encoding="utf-8")
    assert any(block.file for block in blocks(text)), "the README shows no kernel"
    assert updated(text) == text, "run: python tests/test_readme.py --write"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_show_the_results_files_and_the_sources_as_they_are(page):
    text = page.read_text(encoding="utf-8")
    assert MEASURED.search(text)
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


def results(date: str, factor: float) -> dict:
    """A results file as `tilecat bench` writes it, with two rows."""
    times = {name: {"median": 10.0, "p10": 9.0, "p90": 11.0} for name in ("tilecat", "torch.mm")}
    row = {"table": "gemm", "label": "4096^3 NN", "group": "peers", "times_us": times}
    row |= {
        "tflops": {"tilecat": 700.0, "torch.mm": 600.0},
        "ratio": {"torch.mm": {"median": factor}},
    }
    lost = {"table": "gemm", "label": "9^3 NN", "failed": "RuntimeError: no"}
    facts = {"device": "GPU 1", "date": date, "packages": {"torch": "2.11"}, "cudnn": 91900}
    return {"environment": facts, "rows": [row, lost]}


def test_tables_show_the_newest_results_and_what_is_missing(tmp_path):
    assert tables(tmp_path, every_row=True) == NOTHING
    for number, (date, factor) in enumerate((("2026-12-02", 1.25), ("2026-12-01", 3.0))):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(results(f"{date}T00:00:00", factor)))
    text = tables(tmp_path, every_row=True)
    assert "| 4096^3 NN | 700 ± 10% | 600 ± 10% | 1.25x |" in text
    assert "GPU 1, 2026-12-02, torch 2.11, cuDNN 91900; `0.json`" in text
    assert "1.25x torch.mm over 1 problems, the lowest 1.25x (4096^3 NN)" in text
    assert "Not measured: 9^3 NN: RuntimeError: no." in text
    assert "Not measured" not in tables(tmp_path, every_row=False)


def test_headlines_are_rows_that_the_benchmark_has():
    names = {shape.name for spec in KERNELS for shape in spec.shapes}
    for labels in HEADLINES.values():
        assert {label.removesuffix(" NN") for label in labels or ()} <= names


if __name__ == "__main__":
    for path in (README, *PAGES):
        before = path.read_text(encoding="utf-8")
        after = updated(before)
        if "--write" in sys.argv[1:]:
            path.write_text(after, encoding="utf-8")
        elif after != before:
            sys.exit(f"{path.name} is out of date; run: python tests/test_readme.py --write")
