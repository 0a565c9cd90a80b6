"""A PTX module with one kernel: its header, parameters and body. PTX ISA chapters 4, 5 and 11."""

from __future__ import annotations

import re

from tilecat.errors import MachineError
from tilecat.sim.chips import Chip, chip_of
from tilecat.sim.parse import (
    TYPE_BYTES,
    Body,
    Module,
    Parameter,
    Symbol,
    scan,
    shared_array,
    split_operands,
)  # fmt: skip

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_ENTRY = re.compile(
    r"(?:\.visible\s+|\.weak\s+)?\.entry\s+([\w$]+)\s*(?:\((.*?)\))?([^{;]*)\{", re.S
)
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?"
    r"([\w$]+)\s*(?:\[(\d+)\])?$"
)
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)


def _parameters(text: str, line: int) -> tuple[Parameter, ...]:
    """The entry's parameter list, PTX ISA 5.1.6, 11.1.1; laid out at natural alignment."""
    offset, params = 0, []
    for item in split_operands(text or ""):
        match = _PARAM.match(" ".join(item.split()))
        if not match or match[2] not in TYPE_BYTES:
            raise MachineError(f"parse: line {line}: parameter not understood: {item}")
        size = TYPE_BYTES[match[2]] * int(match[4] or 1)
        align = int(match[1] or TYPE_BYTES[match[2]])
        offset = -(-offset // align) * align
        params.append(Parameter(match[3], offset, size, match[2]))
        offset += size
    return tuple(params)


def _resolve_labels(module: Module) -> None:
    """Replace scoped branch targets by the innermost label of that name."""
    for item in module.instructions:
        if item.op not in ("bra", "bra.uni") or not isinstance(item.args[-1], Symbol):
            continue
        *scopes, name = item.args[-1].name.split("\0")
        found = next((s + name for s in reversed([s for s in scopes if s])
                      if s + name in module.labels), name)  # fmt: skip
        if found not in module.labels:
            raise MachineError(f"parse: line {item.line}: no label {name}: {item.text}")
        item.target = module.labels[found]


def _line(text: str, at: int) -> int:
    return 1 + text.count("\n", 0, at)


def _chip(preamble: str) -> Chip:
    """`.version` and `.target`, PTX ISA 11.1.1, 11.1.2."""
    version = re.search(r"\.version\s+(\d+)\.(\d+)", preamble)
    target = re.search(r"\.target\s+([\w, ]+)", preamble)
    if version is None or target is None:
        raise MachineError("parse: a module begins with .version and .target")
    return chip_of(target[1].strip(), (int(version[1]), int(version[2])))


def parse_module(text: str, files: dict[int, str] | None = None) -> Module:
    """Parse a module with one kernel.

    Args:
        text: PTX.
        files: paths for `.file` indices the text does not declare.

    Raises:
        MachineError: syntax or directives the machine does not know.
    """
    clean = _COMMENT.sub(lambda m: "\n" * m[0].count("\n") or " ", text)
    entries = list(_ENTRY.finditer(clean))
    if len(entries) != 1:
        raise MachineError(f"parse: a module with one kernel is wanted, got {len(entries)}")
    entry = entries[0]
    line = _line(clean, entry.start())
    directives = {
        name: tuple(int(n) for n in re.findall(r"\d+", values))
        for name, values in re.findall(r"\.(\w+)((?:\s+\d+(?:\s*,\s*\d+)*)?)", entry[3])
    }
    for name in directives:
        if name not in ("maxntid", "reqntid", "minnctapersm", "maxnreg", "reqnctapercluster",
                        "explicitcluster", "maxclusterrank", "blocksareclusters"):  # fmt: skip
            raise MachineError(f"parse: line {line}: kernel directive .{name} not implemented")
    preamble = clean[: entry.start()]
    module = Module(entry[1], _chip(preamble), _parameters(entry[2], line), directives,
                    preamble=preamble)  # fmt: skip
    for match in re.finditer(r"^\s*((?:\.extern\s+)?\.shared\s[^;]*);", module.preamble, re.M):
        module.shared.append(shared_array(match[1], _line(clean, match.start(1))))
    known = dict(files or {})
    known.update({int(number): path for number, path in _FILE.findall(clean)})
    body = Body(module, known)
    scan(body, clean, entry.end())
    _resolve_labels(module)
    return module
