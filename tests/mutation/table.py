"""The table of all mutants: which rule found each.

`PYTHONPATH=tests python -m mutation.table` runs them all and writes the page of the documentation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import attention_faults, gemm_faults
from .deletions import SYNC, Mutant, deletions
from .edits import Fault, mutants
from .equivalents import EQUIVALENT, reason
from .subjects import SUBJECTS, Subject, verdict

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ptx-machine-mutations.md"
SEEDS = (0, 1, 2)
KINDS = (
    "deadlock", "limit", "race", "uninitialised", "fence", "mbarrier", "wgmma", "barrier", "start",
    "exit", "registers", "global-race", "bounds", "align", "refused", "wrong result",
)  # fmt: skip
_HEAD = """# What the PTX machine finds

Every synchronisation instruction of the generated kernels is deleted in turn (a `try_wait` with the
branch that loops on it), and other faults are put into their text. The machine runs each changed
text at seeds 0, 1 and 2, that is with asynchronous work done at once, as late as possible, and at
random. Each must be reported, or give wrong numbers, or stand in the list of equivalent changes
below. This page is what `tests/mutation` prints; a test compares.

A mutant counts in the column of every kind of report that it gets at one of the seeds, so a row may
add up to more than its mutants. *wrong result* counts those that nothing but the numbers shows.
"""


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant.

    Args:
        subject: its kernel.
        mutant: the changed text.
        seeds: kinds of the reports at each seed.
    """

    subject: Subject
    mutant: Mutant
    seeds: tuple[tuple[str, ...], ...]

    @property
    def kinds(self) -> set[str]:
        """Kinds at any seed; `wrong result` only where no seed has a report."""
        found = {kind for kinds in self.seeds for kind in kinds}
        return found - {"wrong result"} or found

    @property
    def fault(self) -> str:
        """What is wrong with the outcome itself, "" if nothing is."""
        listed = reason(self.subject.name, self.mutant.name)
        if listed and self.kinds:
            return f"{self} is listed as equivalent"
        return "" if listed or all(self.seeds) else f"{self} is not found"

    def __str__(self) -> str:
        """Kernel, mutant and what was found."""
        found = " / ".join(", ".join(kinds) or "nothing" for kinds in self.seeds)
        return f"{self.subject.name}: {self.mutant.name} ({self.mutant.shown}): {found}"


def faults_of(subject: Subject) -> tuple[Fault, ...]:
    """The faults that fit a kernel."""
    if subject.kernel == "attention":
        return attention_faults.ALL
    return gemm_faults.BY_THREADS if subject.strided else gemm_faults.BY_TMA


def mutants_of(subject: Subject) -> Iterator[Mutant]:
    """Deletions, then faults."""
    yield from deletions(subject.text)
    yield from mutants(subject.text, faults_of(subject))


def outcomes(
    subject: Subject, chosen: Iterable[Mutant], seeds: tuple[int, ...] = SEEDS
) -> Iterator[Outcome]:
    """Runs mutants."""
    for mutant in chosen:
        found = tuple(verdict(subject, mutant.text, seed) for seed in seeds)
        yield Outcome(subject, mutant, found)


def _row(group: str, some: list[Outcome], kinds: tuple[str, ...]) -> str:
    count = Counter(kind for one in some for kind in one.kinds)
    silent = sum(not one.kinds for one in some)
    cells = [len(some), *(count[kind] for kind in kinds), silent]
    return f"| {group} | " + " | ".join(str(cell or "") for cell in cells) + " |"


def _table(found: list[Outcome], first: str) -> list[str]:
    kinds = tuple(kind for kind in KINDS if any(kind in one.kinds for one in found))
    unknown = {kind for one in found for kind in one.kinds} - set(KINDS)
    assert not unknown, f"kinds without a column: {unknown}"
    groups = list(dict.fromkeys(one.mutant.group for one in found))
    lines = [f"| {first} | mutants | " + " | ".join(kinds) + " | equivalent |",
             "|---" * (len(kinds) + 3) + "|"]  # fmt: skip
    rows = [_row(group, [o for o in found if o.mutant.group == group], kinds) for group in groups]
    return [*lines, *rows, _row("**all**", found, kinds)]


def _problem(subject: Subject) -> str:
    sizes = " ".join(f"{name}={size}" for name, size in subject.extents)
    params = ", ".join(f"{name}={value}" for name, value in subject.params)
    return f"{sizes}; {params}"


def list_of_equivalents() -> str:
    """The written list, as the page has it."""
    lines = ["## Equivalent changes", ""]
    for entry in EQUIVALENT:
        names = ", ".join(f"`{name}`" for name in entry.names)
        subjects = ", ".join(entry.subjects)
        lines += [f"- {names} ({subjects}): {entry.reason}"]
    return "\n".join(lines) + "\n"


def page(found: list[Outcome]) -> str:
    """The page."""
    parts = [_HEAD]
    for kernel in dict.fromkeys(subject.kernel for subject in SUBJECTS):
        mine = [one for one in found if one.subject.kernel == kernel]
        deleted = [one for one in mine if one.mutant.group in SYNC]
        others = [one for one in mine if one.mutant.group not in SYNC]
        problems = [f"- {s.name}: {_problem(s)}" for s in SUBJECTS if s.kernel == kernel]
        parts += [f"## {kernel}\n", *problems, "", *_table(deleted, "deleted"), "",
                  *_table(others, "fault"), ""]  # fmt: skip
    return "\n".join(parts) + "\n" + list_of_equivalents()


def everything() -> list[Outcome]:
    """Every mutant of every kernel."""
    return [one for s in SUBJECTS for one in outcomes(s, mutants_of(s))]


if __name__ == "__main__":
    every = everything()
    for one in every:
        if one.fault:
            print("FAULT", one.fault)
    PAGE.write_text(page(every), encoding="utf-8")
    print(page(every))
