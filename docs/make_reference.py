"""Writes `docs/reference/*.md`, the language reference, from docstrings and `docs/examples`.

    python docs/make_reference.py            # writes the pages
    python docs/make_reference.py --check    # exit code 1 if a page differs

A family is a page: its names, in order, and their examples, which are run as tests. An example is a
body inside the frame of its page, and what must hold after the call, in NumPy.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import tilecat as tc  # noqa: E402
from examples import FAMILIES, Example, Family  # noqa: E402

PAGES = HERE / "reference"
SECTIONS = ("Args", "Raises", "Attributes", "Yields", "Holes")


def value_of(name: str) -> Any:
    """The object behind a name: of the package, or `Class.method` of an object users hold."""
    owner, _, attribute = name.rpartition(".")
    if not owner:
        return getattr(tc, name)
    for family in FAMILIES:
        if owner in family.objects:
            return inspect.getattr_static(family.objects[owner], attribute)
    raise LookupError(f"no object {owner!r} among the families' objects")


def signature(name: str, value: Any) -> str:
    """`tc.load(source, kind=None)`, without annotations; or the name alone."""
    owner = name.rpartition(".")[0]
    shown = name if owner else f"tc.{name}"
    function = getattr(value, "__func__", value)
    if not inspect.isroutine(value) and not inspect.isclass(value):
        return shown
    try:
        found = inspect.signature(inspect.unwrap(function))
    except (TypeError, ValueError):
        return shown
    parameters = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in found.parameters.values()
        if p.name != "self"
    ]
    text = str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    return f"{shown}{text}"


def _flow(lines: list[str]) -> str:
    """Lines of one paragraph or one item as one line."""
    return " ".join(line.strip() for line in lines).strip()


def _items(lines: list[str]) -> list[str]:
    """`name: text` items of a section, continuation lines joined, as Markdown."""
    items: list[list[str]] = []
    base = min((len(x) - len(x.lstrip()) for x in lines if x.strip()), default=0)
    for line in filter(str.strip, lines):
        if len(line) - len(line.lstrip()) == base:
            items.append([line])
        else:
            items[-1].append(line)
    found = []
    for item in map(_flow, items):
        name, colon, text = item.partition(":")
        plain = re.fullmatch(r"[\w., ()]+", name)
        found.append(f"- `{name}`:{text}" if colon and plain else f"- {item}")
    return found


def markdown(doc: str) -> str:
    """A docstring as Markdown: sections as lists, indented blocks as code."""
    out: list[str] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(doc)):
        lines = block.splitlines()
        head = lines[0].rstrip(":")
        if lines[0].endswith(":") and head in SECTIONS:
            out.append("\n".join([f"**{head}**", "", *_items(lines[1:])]))
        elif all(line.startswith("    ") for line in lines):
            out.append("\n".join(["```python", *(line[4:] for line in lines), "```"]))
        elif lines[0].lstrip().startswith("|"):
            out.append("\n".join(lines))
        else:
            out.append(_prose(lines))
    return "\n\n".join(out)


def _prose(lines: list[str]) -> str:
    """A paragraph; a section heading or an indented block inside it starts a part of its own."""
    for number, line in enumerate(lines):
        if number and line.rstrip(":") in SECTIONS and line.endswith(":"):
            return f"{_prose(lines[:number])}\n\n{markdown(chr(10).join(lines[number:]))}"
    text = _flow(lines)
    return re.sub(r"\b(Scope|PTX|Example|Raises|Coordinates):", r"**\1:**", text)


def shown(example: Example) -> str:
    """An example as a code block."""
    lines = [*example.code.strip("\n").splitlines()]
    checks = example.check if isinstance(example.check, tuple) else (example.check,)
    lines += [f"# after the call: {check}" for check in checks if check]
    return "\n".join(["```python", *lines, "```"])


def entry(name: str, family: Family) -> str:
    """One name: signature, docstring, its examples."""
    value = value_of(name) if "." in name or hasattr(tc, name) else family.objects[name]
    doc = family.notes.get(name) or getattr(value, "__doc__", None) or ""
    parts = [f"## `{name if '.' in name else 'tc.' + name}`"]
    called = signature(name, value)
    if "(" in called:
        parts.append(f"```python\n{called}\n```")
    parts.append(markdown(doc))
    parts += [_example(item, name, family) for item in family.examples if name in item.names]
    return "\n\n".join(parts)


def _example(example: Example, name: str, family: Family) -> str:
    """An example; a whole kernel stands at the first of its names alone."""
    first = next(known for known in family.names if known in example.names)
    if name == first or "@tc.kernel" not in example.code:
        return shown(example)
    title = first if "." in first else f"tc.{first}"
    anchor = re.sub(r"[^\w-]", "", title.lower())
    return f"Example: at [`{title}`](#{anchor})."


def page(family: Family) -> str:
    """A family's page."""
    parts = [f"# {family.title}", family.intro.strip()]
    if family.frame:
        parts.append("An example that is no kernel of its own is the body of this one, called with "
                     "`grid=1` on the PTX machine:")  # fmt: skip
        parts.append(f"```python\n{family.frame.strip()}\n```")
    parts += [entry(name, family) for name in family.names]
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """The list of pages, and on which page each public name is."""
    lines = ["# Language reference", "", "Made from the docstrings by `docs/make_reference.py`; "
             "every example runs as a test.", ""]  # fmt: skip
    for family in FAMILIES:
        names = ", ".join(f"`{name}`" for name in family.names)
        lines.append(f"- [{family.title}]({family.file}.md): {names}")
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """File name to text of every page."""
    found = {"index.md": index()}
    for family in FAMILIES:
        found[f"{family.file}.md"] = page(family)
    return found


def stale() -> list[str]:
    """Pages that differ from what would be written, or that nothing writes."""
    wanted = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    return sorted(name for name in {*wanted, *there} if wanted.get(name) != there.get(name))


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them."""
    wrong = stale()
    if "--check" in arguments:
        print("\n".join(wrong))
        return bool(wrong)
    PAGES.mkdir(exist_ok=True)
    for name in wrong:
        if name in pages():
            (PAGES / name).write_text(pages()[name], encoding="utf-8")
        else:
            (PAGES / name).unlink()
    print(f"{len(pages())} pages, {len(wrong)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
