"""What ptxas printed, read back against the user's source: registers, spills, refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..codegen.module import PtxModule
from ..errors import ArchError, Loc, ResourceError, TileError
from . import shortfall

_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REFUSAL = re.compile(r"^ptxas (?P<file>.+), line (?P<line>\d+); (?:error|fatal)\s*: (?P<text>.*)$")
_FATAL = re.compile(r"^ptxas (?:error|fatal)\s*: (?P<text>.*)$")
# C75xx are remarks on wgmma and setmaxnreg. Not all say "Potential Performance Loss": C7517, a wait
# put in where a result is read too early, does not (ptxas 13.5).
_LOSS = re.compile(r"(?P<text>(?:\(C75\d\d\)|(?:\(C\d+\) )?Potential Performance Loss: ).*)$")
_AROUND = re.compile(r"around line (\d+)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)(?:\s+(\d+))?")
_ARCH_WORDS = ("not supported on .target", "requires .target", "cannot be compiled")
_SHOWN = 5  # refusals printed; the first is nearly always the cause of the rest


@dataclass(frozen=True)
class Usage:
    """Registers a thread and bytes of local memory a thread that spills take."""

    registers: int
    spill_bytes: int


@dataclass(frozen=True)
class Refusal:
    """One error of ptxas: line of the PTX text (from 1), or None, and its text."""

    line: int | None
    text: str


def usage(log: str) -> Usage:
    """Registers and spills from the lines that `ptxas -v` prints.

    Stores and loads are counted as ptxas does, in bytes a thread; the larger one is kept.
    """
    registers = [int(found) for found in _REGISTERS.findall(log)]
    spills = [max(int(stores), int(loads)) for stores, loads in _SPILLS.findall(log)]
    return Usage(max(registers, default=0), max(spills, default=0))


def losses(log: str) -> tuple[str, ...]:
    """The remarks by which ptxas says that it gave up wgmma's overlap or setmaxnreg (C75xx)."""
    found = (_LOSS.search(line) for line in log.splitlines())
    return tuple(dict.fromkeys(match["text"].strip() for match in found if match))


def refusals(log: str) -> tuple[Refusal, ...]:
    """The errors of a run that made no cubin, in ptxas's order."""
    return tuple(_refusals(log))


def _refusals(log: str) -> Iterator[Refusal]:
    for line in log.splitlines():
        placed = _REFUSAL.match(line)
        if placed:
            yield Refusal(int(placed["line"]), placed["text"].strip())
            continue
        bare = _FATAL.match(line)
        if bare and "aborted due to errors" not in line:
            yield Refusal(None, bare["text"].strip())


def source_loc(text: str, line: int) -> Loc | None:
    """The user's line that a line of PTX (from 1) was made from: of the `.loc` at or above it."""
    files = dict(_FILE.findall(text))
    for ptx_line in reversed(text.splitlines()[:line]):
        match = _LOC.match(ptx_line)
        if match and match[1] in files:
            # PTX counts columns from 1 (PTX ISA 11.5.2), Loc from 0.
            return Loc(files[match[1]], int(match[2]), max(int(match[3] or 0) - 1, 0))
    return None


def first_line_with(text: str, word: str) -> int | None:
    """Number (from 1) of the first line whose instruction starts with a word, or None."""
    pattern = re.compile(rf"^\s*(?:@!?%?\w+\s+)?{re.escape(word)}\b")
    for number, line in enumerate(text.splitlines(), start=1):
        if pattern.match(line):
            return number
    return None


def check(module: PtxModule, log: str, taken: Callable[[str], int]) -> None:
    """Refuse a cubin for which ptxas gave up overlap or register reallocation.

    Args:
        module: the kernel.
        log: what ptxas printed.
        taken: registers a thread that ptxas takes for a text, to tell which role is short of them.

    Raises:
        ResourceError: the log has one of `losses`.
    """
    for text in losses(log):
        error = _loss_error(module, text)
        if "insufficient register" in text:
            raise _shortfall_error(module, error, taken)
        raise error


def refusal_error(module: PtxModule, log: str, ptxas_version: str) -> TileError:
    """The error for a text that ptxas refused, at the user's line, with the PTX line shown."""
    found = refusals(log) or (Refusal(None, log.strip() or "no message"),)
    lines = module.text.splitlines()
    parts = [f"assemble: ptxas {ptxas_version} refused kernel {module.entry} for {module.target}"]
    for refusal in found[:_SHOWN]:
        parts.append(f"  {refusal.text}")
        if refusal.line is not None and refusal.line <= len(lines):
            parts.append(f"  PTX line {refusal.line}: {lines[refusal.line - 1].strip()}")
    if len(found) > _SHOWN:
        parts.append(f"  and {len(found) - _SHOWN} more")
    placed = next((refusal.line for refusal in found if refusal.line is not None), None)
    loc = source_loc(module.text, placed) if placed is not None else None
    kind, hint = _kind_of(found[0].text, module)
    return kind("\n".join(parts), loc=loc, hint=hint)


def spill_error(module: PtxModule, log: str, loc: Loc | None) -> ResourceError:
    """The error for registers that spill; at the line that spills most, or the kernel's first."""
    found = usage(log)
    first = re.search(r"^\s*\.loc\b", module.text, re.MULTILINE)
    if loc is None and first:
        loc = source_loc(module.text, module.text.count("\n", 0, first.end()) + 1)
    return ResourceError(
        f"assemble: registers must not spill to local memory, got kernel {module.entry} with "
        f"{found.spill_bytes} bytes a thread spilled at {found.registers} registers a thread "
        f"({module.threads} threads, min_blocks={module.min_blocks}, {module.target})",
        loc=loc,
        hint="use smaller tiles or more consumer warpgroups, or accept it: tc.allow_spills(bytes)",
    )


def _kind_of(text: str, module: PtxModule) -> tuple[type[TileError], str | None]:
    if any(words in text for words in _ARCH_WORDS):
        return ArchError, f"not on {module.target}: choose another target or op"
    if "Unsupported .version" in text or "PTX .version" in text:
        return ResourceError, "upgrade the assembler: pip install -U nvidia-cuda-nvcc"
    if "uses too much" in text:
        return ResourceError, "use smaller tiles or fewer stages"
    return TileError, None


def _loss_error(module: PtxModule, text: str) -> ResourceError:
    line = _loss_line(module, text)
    message = f"assemble: ptxas gave up performance in kernel {module.entry}: {text}"
    loc = None
    if line is not None:
        message += f"\n  PTX line {line}: {module.text.splitlines()[line - 1].strip()}"
        loc = source_loc(module.text, line)
    return ResourceError(message, loc=loc, hint=_loss_hint(text))


def _shortfall_error(
    module: PtxModule, error: ResourceError, taken: Callable[[str], int]
) -> ResourceError:
    """The error at the role that is short of registers, with how many it lacks."""
    found = shortfall.shortest(module.text, taken)
    if found is None:
        return error
    section, needs = found
    short = needs - section.budget
    lacks = f"{short} short" if short > 0 else "and more beside products under way"
    return ResourceError(
        f"{error.message.splitlines()[0]}\n  the {section.role} has {section.budget} registers a "
        f"thread, takes {needs} without a limit: {lacks}",
        loc=source_loc(module.text, section.line),
        hint="smaller tiles, more warpgroups with less each, or more registers for this role",
    )


def _loss_line(module: PtxModule, text: str) -> int | None:
    """The PTX line that a remark names, or the first with the instruction it names."""
    around = _AROUND.search(text)
    if around and int(around[1]) <= module.text.count("\n") + 1:
        return int(around[1])
    words = re.findall(r"'([a-z][\w.:]*)'|\b(wgmma(?:\.\w+)?|setmaxnreg)\b", text)
    names = [name for pair in words for name in pair if name and name != module.entry]
    lines = (first_line_with(module.text, name) for name in names)
    return next((line for line in lines if line is not None), None)


def _loss_hint(text: str) -> str:
    if "setmaxnreg" in text:
        return "the entry's register count must be known: give the kernel min_blocks"
    if "insufficient register" in text:
        return "use a smaller accumulator tile, or more consumer warpgroups"
    return "do not touch the accumulator between the mma and its wait"
