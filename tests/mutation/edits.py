"""Faults as changes of the text: a pattern in one role's code, and what stands there instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from .deletions import Mutant, roles

EVERY = None  # all places, not one
Replacement = str | Callable[[re.Match[str]], str]


@dataclass(frozen=True)
class Fault:
    """One wrong program.

    Args:
        group: row of the table it counts in.
        name: what is wrong.
        pattern: regular expression over lines of PTX (`^` starts a line).
        instead: replacement, as of `re.sub`; it must change the text.
        role: whose code: all (the common start), producer, consumer, or "" for any.
        nth: which of the places, negative from the last; EVERY for all of them.
    """

    group: str
    name: str
    pattern: str
    instead: Replacement
    role: str = ""
    nth: int | None = 0

    def apply(self, text: str) -> Mutant:
        """The changed text.

        Raises:
            AssertionError: the pattern is not there, or nothing changes.
        """
        start, end = span(text, self.role)
        found = [m for m in re.finditer(self.pattern, text, re.M) if start <= m.start() < end]
        assert found, f"{self.name}: `{self.pattern}` is not in the text"
        chosen = found if self.nth is EVERY else [found[self.nth]]
        changed, shown = text, ""
        for match in reversed(chosen):
            new = self.instead(match) if callable(self.instead) else match.expand(self.instead)
            changed = changed[: match.start()] + new + changed[match.end() :]
            shown = f"{_short(match[0])} -> {_short(new)}"
        assert changed != text, f"{self.name}: nothing changes"
        return Mutant(self.group, self.name, changed, shown)


@cache
def span(text: str, role: str) -> tuple[int, int]:
    """First and last character of a role's code; of all the text for ""."""
    lines = text.splitlines(keepends=True)
    sizes = [len(line) if not role or who == role else 0
             for line, who in zip(lines, roles(lines), strict=True)]  # fmt: skip
    first = next((at for at, size in enumerate(sizes) if size), 0)
    start = sum(len(line) for line in lines[:first])
    return start, start + sum(sizes)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 70 else flat[:40] + " .. " + flat[-26:]


def number(change: Callable[[int], int]) -> Callable[[re.Match[str]], str]:
    """Replacement that changes the decimal number in group 2: groups 1 and 3 stay."""

    def replace(match: re.Match[str]) -> str:
        tail = match[3] if match.re.groups > 2 else ""
        return f"{match[1]}{change(int(match[2]))}{tail}"

    return replace


def mutants(text: str, faults: tuple[Fault, ...]) -> Iterator[Mutant]:
    """Every fault in turn."""
    for fault in faults:
        yield fault.apply(text)
