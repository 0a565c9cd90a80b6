"""Source locations and the errors users see: one form, one class a family of rules."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

_PACKAGE = Path(__file__).resolve().parent
_STANDARD_LIBRARY = Path(linecache.__file__).resolve().parent
# Kernels are written by users of the language, even when they ship with it.
_USER_PARTS = (_PACKAGE / "kernels",)
_NO_KERNELS = tuple(
    _PACKAGE / "kernels" / name
    for name in ("spec.py", "product_specs.py", "recurrence_specs.py", "row_specs.py")
)


@dataclass(frozen=True)
class Loc:
    """A place in a user's source.

    Args:
        file: path of the source file.
        line: line number, from 1.
        col: column of the call, from 0.
    """

    file: str
    line: int
    col: int = 0

    @property
    def text(self) -> str:
        """The source line, without its newline."""
        return linecache.getline(self.file, self.line).rstrip("\n")

    def __str__(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"


@cache
def is_user_file(path: str) -> bool:
    """Whether a source file is the user's: outside the package, or one of its kernels."""
    if path.startswith("<"):
        return not path.startswith(("<frozen", "<__array_function__"))
    resolved = Path(path)
    if resolved not in _NO_KERNELS and any(part in resolved.parents for part in _USER_PARTS):
        return True
    return _PACKAGE not in resolved.parents and resolved.parent != _STANDARD_LIBRARY


def _column(code: CodeType, lasti: int) -> int:
    for index, position in enumerate(code.co_positions()):
        if index * 2 == lasti:
            return position[2] or 0
    return 0


def is_user_frame(frame: FrameType) -> bool:
    """Whether a frame runs the user's code: neither methods of our dataclasses, nor torch."""
    path, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
    if module.startswith("torch."):  # its dispatcher stands between an operator and its caller
        return False
    if path.startswith("<"):
        if module.startswith("tilecat.") and not module.startswith("tilecat.kernels."):
            return False
    return is_user_file(path)


def user_frame(boundary: CodeType | None = None) -> FrameType | None:
    """The innermost frame on the stack whose file is the user's, up to a boundary."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_frame(frame):
        if frame.f_code is boundary:
            return None
        frame = frame.f_back
    return frame


# Who knows the line when a rule breaks: the innermost tracer, if any (pushed by the builder).
LOCATORS: list[Callable[[], Loc | None]] = []


def current_loc() -> Loc | None:
    """The line an error belongs to: the tracer's, else the caller's."""
    return LOCATORS[-1]() if LOCATORS else caller_loc()


def caller_loc(boundary: CodeType | None = None) -> Loc | None:
    """The user's line that is being executed, or None outside any.

    Args:
        boundary: code of a function whose callers do not count.
    """
    frame = user_frame(boundary)
    if frame is None:
        return None
    return loc_in(frame.f_code, frame.f_lineno, frame.f_lasti)


def loc_in(code: CodeType, line: int, lasti: int) -> Loc:
    """The place of an instruction: its file, its line, the column where its expression starts."""
    return Loc(code.co_filename, line, _column(code, lasti))


class TileError(Exception):
    """A rule of the language broken by a kernel or its caller.

    Prints as `Kind: op: rule, got name=value (type)`, the place, its line with a caret, a hint.

    Args:
        message: `op: rule in words, got name=value (type), ...`.
        loc: the user's line; None means the line now on the stack.
        hint: the nearest legal choice.
    """

    def __init__(self, message: str, *, loc: Loc | None = None, hint: str | None = None):
        self.message = message
        self.loc = loc if loc is not None else current_loc()
        self.hint = hint
        super().__init__(self._render())

    @property
    def kind(self) -> str:
        """The family of the rule: `Layout` for a LayoutError."""
        return type(self).__name__.removesuffix("Error")

    def _render(self) -> str:
        lines = [f"{self.kind}: {self.message}"]
        if self.loc is not None:
            lines.append(f"  --> {self.loc}")
            text = self.loc.text
            if text.strip():
                stripped = text.lstrip()
                shift = len(text) - len(stripped)
                lines.append(f"   | {stripped}")
                lines.append("   | " + " " * max(self.loc.col - shift, 0) + "^")
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class LayoutError(TileError):
    """A shape, layout or stride that an op or the hardware cannot take."""


class DTypeError(TileError):
    """An element type that an op cannot take."""


class ScopeError(TileError):
    """An op run by threads that may not run it, or control flow a trace cannot record."""


class SyncError(TileError):
    """Wrong synchronisation: race, deadlock, missing fence, value in flight."""


class ResourceError(TileError):
    """Too much of shared memory, registers, barriers or threads; or a missing tool or device."""


class ArchError(TileError):
    """A feature the chosen architecture lacks."""


class MachineError(TileError):
    """PTX that the PTX machine does not implement."""
