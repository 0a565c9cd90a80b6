"""cubin -> SASS: nvdisasm from its wheel, and what can be counted in its text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import Loc, ResourceError
from . import deferred

NVDISASM_PACKAGE = "nvidia-cuda-nvdisasm"
WITHOUT_NVDISASM = "without it kernels compile and run as before, only .sass is missing"
# -c: code alone; -g: the lines that .loc named.
_OPTIONS = ("-c", "-g")

_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<name>[A-Z]\w*)(?P<rest>.*)"
)
_LINE = re.compile(r'^\s*//## File "(?P<file>[^"]*)", line (?P<line>\d+)')
_SPILL_MARK = "SpillRefill"  # nvdisasm's remark on a load or store of a spilled register
_SPILL_NAMES = ("LDL", "STL")


@dataclass(frozen=True)
class SpillLine:
    """A user's line and the instructions in it that spill registers or fetch them back."""

    loc: Loc
    count: int


def disassemble(cubin: bytes) -> str:
    """The SASS of a cubin, with the user's lines as comments. Takes about half a second.

    Raises:
        ResourceError: nvdisasm is not installed, or refuses the bytes.
    """
    assembler = deferred.assembler()
    program = assembler.require("nvdisasm", package=NVDISASM_PACKAGE, without=WITHOUT_NVDISASM)
    status, text, errors = assembler.disassemble(program, cubin, _OPTIONS)
    if status != 0:
        raise ResourceError(
            f"disassemble: nvdisasm must read the cubin, got {errors.strip() or 'no message'} "
            f"({len(cubin)} bytes)"
        )
    return text


def counts(sass: str) -> dict[str, int]:
    """How often each instruction stands in a SASS text, by its name before the first dot.

    Example: `counts(sass)["HGMMA"]` is the number of warpgroup MMAs, `USETMAXREG` that of
    register reallocations, `LDL` and `STL` those of accesses to local memory. NOPs are padding and
    left out.
    """
    names = Counter(match["name"] for match in _instructions(sass))
    names.pop("NOP", None)
    return dict(names.most_common())


def spill_lines(sass: str) -> tuple[SpillLine, ...]:
    """The user's lines whose instructions spill, the worst first."""
    found: Counter[Loc] = Counter()
    loc = None
    for line in sass.splitlines():
        place = _LINE.match(line)
        if place:
            loc = Loc(place["file"], int(place["line"]))
            continue
        match = _INSTRUCTION.match(line)
        spills = match and match["name"] in _SPILL_NAMES and _SPILL_MARK in match["rest"]
        if spills and loc is not None:
            found[loc] += 1
    return tuple(SpillLine(loc, count) for loc, count in found.most_common())


def _instructions(sass: str) -> Iterator[re.Match[str]]:
    for line in sass.splitlines():
        match = _INSTRUCTION.match(line)
        if match:
            yield match
