"""Every synchronisation instruction of a text, deleted in turn."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

# Opcode of each deletion -> what it is for. Longest opcode first.
SYNC = {
    "mbarrier.init": "makes an mbarrier",
    "mbarrier.arrive.expect_tx": "the producer announces the bytes of a stage",
    "mbarrier.arrive": "a consumer gives a stage back; threads have filled one",
    "mbarrier.try_wait": "waits for a phase, in its loop",
    "fence.mbarrier_init": "makes inits visible to the cluster and the async proxy",
    "fence.proxy.async": "makes writes by threads visible to the async proxy",
    "bar.sync": "threads wait for each other",
    "bar.arrive": "threads let others go on",
    "bar.warp.sync": "lanes of a warp wait for each other",
    "bar.red": "threads meet, and learn what one of them knows",
    "atom.release": "a CTA arrives at a counter, behind what it has stored",
    "fence.acq_rel": "what other CTAs have stored is before what follows",
    "wgmma.fence": "registers before wgmma.mma_async",
    "wgmma.commit_group": "closes a group of wgmma",
    "wgmma.wait_group": "waits for groups of wgmma",
    "cp.async.bulk.commit_group": "closes a group of bulk stores",
    "cp.async.bulk.wait_group.read": "waits until bulk stores have read shared memory",
    "cp.async.bulk.wait_group": "waits until bulk stores are done",
    "setmaxnreg.dec": "the producer gives registers back",
    "setmaxnreg.inc": "a consumer takes registers",
}
# Opcodes whose `.sync` says only that a warp executes them together: they move or compute data.
DATA = (
    "shfl.sync", "stmatrix.sync", "ldmatrix.sync", "wgmma.mma_async", "mma.sync", "movmatrix.sync",
)  # fmt: skip

_FAMILIES = {
    "mbarrier", "bar", "barrier", "fence", "membar", "setmaxnreg", "griddepcontrol", "nanosleep",
    "atom", "red", "clusterlaunchcontrol",
}  # fmt: skip
_WORDS = re.compile(r"(^|_)(sync|arrive|wait|commit|fence|acquire|release)(_|$)")
_INSTRUCTION = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)")
_LOOP_BRANCH = re.compile(r"^\s*@!%\w+ bra \$\w+;$")
_ROLE = re.compile(r"^\s*// ---- (\w+):")


@dataclass(frozen=True)
class Mutant:
    """One changed text.

    Args:
        group: row of the table it counts in: an opcode, or the kind of fault.
        name: unique among a subject's mutants.
        text: the changed PTX.
        shown: the instruction or the change, for a reader.
    """

    group: str
    name: str
    text: str
    shown: str


def opcode(line: str) -> str:
    """The opcode of a line of PTX, "" for labels, directives and comments."""
    found = _INSTRUCTION.match(line)
    return found[1] if found and not line.rstrip().endswith(":") else ""


def looks_like_sync(name: str) -> bool:
    """Whether an opcode's words are those of synchronisation."""
    words = name.replace("::", ".").split(".")
    return words[0] in _FAMILIES or any(_WORDS.search(word) for word in words)


def _starts(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def listed(name: str) -> str:
    """The entry of SYNC an opcode belongs to, or ""."""
    return next((key for key in sorted(SYNC, key=len, reverse=True) if _starts(name, key)), "")


def unlisted(text: str) -> list[str]:
    """Opcodes that look like synchronisation and stand in neither list."""
    names = {opcode(line) for line in text.splitlines()} - {""}
    known = {name for name in names if listed(name) or any(_starts(name, d) for d in DATA)}
    return sorted(name for name in names - known if looks_like_sync(name))


def roles(lines: list[str]) -> list[str]:
    """The role that executes each line: all (the common start), producer, consumer, ..."""
    role, found = "all", []
    for line in lines:
        mark = _ROLE.match(line)
        role = mark[1] if mark else role
        found.append(role)
    return found


def deletions(text: str) -> Iterator[Mutant]:
    """The text without one synchronisation instruction; a try_wait goes with its loop branch."""
    lines = text.splitlines()
    seen: Counter[tuple[str, str]] = Counter()
    for index, (line, role) in enumerate(zip(lines, roles(lines), strict=True)):
        group = listed(opcode(line))
        if not group:
            continue
        seen[role, group] += 1
        end = index + 1
        if group == "mbarrier.try_wait":
            assert _LOOP_BRANCH.match(lines[end]), f"a loop branch after {line}"
            end += 1
        without = [*lines[:index], *[""] * (end - index), *lines[end:]]
        name = f"{role}: {group} #{seen[role, group]}"
        yield Mutant(group, name, "\n".join(without), line.strip())
