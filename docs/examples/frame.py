"""What an example is, and how it runs."""

from __future__ import annotations

import linecache
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tilecat as tc

DOCSTRING_EXAMPLE = re.compile(r"Example: `(.+?)`; after it `(.+?)`")


@dataclass(frozen=True)
class Example:
    """A few lines of a kernel, or a whole script.

    Args:
        names: the names it shows.
        code: the body, inside the frame of its family; a script if it has a kernel of its own.
        check: what holds after the call: NumPy expressions of the arrays.
    """

    names: tuple[str, ...]
    code: str
    check: str | tuple[str, ...] = ""

    def __str__(self) -> str:
        return "-".join(self.names[:3])


@dataclass(frozen=True)
class Family:
    """One page.

    Args:
        file: its name.
        title: its heading.
        intro: what holds for all of its names.
        names: in order; `Class.method` for methods of `objects`.
        examples: that show them.
        frame: the kernel around the examples; BODY stands for one.
        objects: classes by the name users know their objects by.
        notes: text for names that have no docstring of their own.
    """

    file: str
    title: str
    intro: str
    names: tuple[str, ...]
    examples: tuple[Example, ...]
    frame: str = ""
    objects: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


def from_docstrings(package: Any, names: Iterable[str]) -> tuple[Example, ...]:
    """Examples that stand in docstrings: Example: `CODE`; after it `CHECK`."""
    found = []
    for name in names:
        match = DOCSTRING_EXAMPLE.search(getattr(package, name).__doc__ or "")
        if match:
            found.append(Example((name,), match[1], match[2]))
    return tuple(found)


def arrays() -> dict[str, Any]:
    """The arrays of a frame, and its scalars: X, Y, Z 64 x 64 f32, n = 5, s = 0.5."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 64)).astype(np.float32)
    return {"X": x, "Y": np.zeros_like(x), "n": 5, "s": 0.5}


def script_of(example: Example, frame: str) -> str:
    """The whole text that runs."""
    code = example.code.strip("\n")
    if "@tc.kernel" in code or not frame or "BODY" not in frame:
        return code
    before, after = frame.strip("\n").split("BODY")
    indent = before.rpartition("\n")[2]
    return before + textwrap.indent(code, indent).lstrip() + after


def run(example: Example, frame: str) -> dict[str, Any]:
    """Runs an example on the PTX machine, checks what it says, and returns its names."""
    text = script_of(example, frame)
    file = f"<example {example}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "example", "np": np, "tc": tc}
    names |= {"bf": _rounded(tc.bf16), "fp8": _rounded(tc.e4m3)}
    names |= {name: getattr(tc, name) for name in tc.__all__ if name[0] != "_" and name in TYPES}
    exec(compile(text, file, "exec", dont_inherit=True), names)
    if "example" in names and text != example.code.strip("\n"):
        given = arrays()
        names |= given
        names["example"](*given.values(), grid=1)
    checks = example.check if isinstance(example.check, tuple) else (example.check,)
    for check in filter(None, checks):
        assert eval(check, names), f"{example}: {check} does not hold"
    return names


def _rounded(dtype: tc.DType) -> Any:
    """An array rounded to a dtype, as float64."""
    return lambda array: array.astype(dtype.numpy).astype(np.float64)


TYPES = {"gl", "inout", "rt", "rv", "sc", "st", "sv", "tt", *(
    name for name in tc.__all__ if isinstance(getattr(tc, name), tc.DType)
)}  # fmt: skip
