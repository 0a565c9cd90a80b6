"""The holes of a template: functions that the user fills in, and what they must look like."""

from __future__ import annotations

from collections.abc import Callable
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS
from types import FunctionType
from typing import Any

from ..builder import current
from ..errors import Loc, ScopeError

Hole = Callable[..., Any]
ANY_NUMBER = {  # holes of any number of arguments, and what those are
    "rows_compute": "the row and what load and start have returned",
    "rows_behind": "the row and what start has returned",
    "rows_finish": "what start has returned",
}
ARGUMENTS = {
    "setup": (), "begin": ("task",), "load": ("task", "step"), "load_ahead": ("task", "step"),
    "start": ("task",),
    "compute": ("task", "step"), "transform": ("task", "step"),
    "consume": ("task", "steps"), "finish": ("task",),
    "store": ("task", "step"), "finish_store": ("task",),
    "rows_start": (), "rows_load": ("row",), "rows_compute": (),
    "rows_behind": (), "rows_finish": (),
}  # fmt: skip


class Holes:
    """Functions by the name of the hole they fill.

    Args:
        template: for errors.
        owner: what has the holes, as users call it: `pipe`, or a role.
    """

    def __init__(self, template: str, owner: str):
        self.template = template
        self.owner = owner
        self.filled: dict[str, tuple[Hole, Loc | None]] = {}

    def __contains__(self, name: str) -> bool:
        """Whether a hole is filled."""
        return name in self.filled

    def fill(self, name: str, hole: Hole) -> Hole:
        """Fills a hole.

        Raises:
            ScopeError: not a plain function of the hole's arguments, or the hole is filled.
        """
        what = f"{self.owner}.{_shown(name)}"
        if not isinstance(hole, FunctionType):
            raise ScopeError(f"{what}: decorates a function, got {hole!r}")
        code = hole.__code__
        loc = Loc(code.co_filename, code.co_firstlineno)
        if code.co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR):
            raise ScopeError(f"{what}: a hole is a plain function, without yield", loc=loc)
        wanted = ", ".join(ARGUMENTS[name])
        got, count = code.co_argcount + code.co_kwonlyargcount, len(ARGUMENTS[name])
        if (got != count and name not in ANY_NUMBER) or code.co_kwonlyargcount:
            raise ScopeError(
                f"{what}: the hole takes {count} arguments ({wanted}), got {got}",
                loc=loc,
                hint=f"@{what} def _({wanted}):",
            )
        if name in self.filled:
            raise ScopeError(f"{what}: this hole is already filled", loc=loc)
        if {"compute", "consume"} <= {name, *self.filled}:
            raise ScopeError(
                f"{self.template}: fill compute (one step) or consume (a whole task)", loc=loc
            )
        self.filled[name] = (hole, loc)
        return hole

    def call(self, name: str, *args: Any) -> Any:
        """Traces a hole where it stands, and gives what it returns; None for one not filled.

        Raises:
            ScopeError: a hole for any number of arguments takes another number.
        """
        if name not in self.filled:
            return None
        hole, loc = self.filled[name]
        assert isinstance(hole, FunctionType), "checked in fill"
        takes = hole.__code__.co_argcount
        if takes != len(args) and not hole.__code__.co_flags & CO_VARARGS:
            raise ScopeError(
                f"{self.owner}.{_shown(name)}: gets {len(args)} arguments, {ANY_NUMBER[name]}, "
                f"got a hole of {takes}",
                loc=loc,
            )
        with current().located(loc):
            return hole(*args)

    def require(self, name: str, loc: Loc | None) -> None:
        """Refuses a template with a hole left open.

        Raises:
            ScopeError: it is.
        """
        if name not in self.filled:
            raise ScopeError(
                f"{self.template}: the hole `{_shown(name)}` is not filled", loc=loc,
                hint=f"@{self.owner}.{_shown(name)}",
            )  # fmt: skip


def _shown(name: str) -> str:
    """What users call a hole: those of the row template have a prefix here."""
    return name.removeprefix("rows_")
