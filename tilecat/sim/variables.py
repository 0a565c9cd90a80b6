"""Variables of a module in global and constant memory. PTX ISA 5.1.3, 5.1.4, 5.4.

They live beside the arguments in the machine's global memory, with their initial values, for one
launch. Constant variables cannot be written.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

import numpy as np

from tilecat.errors import MachineError
from tilecat.sim.memory import Access, load
from tilecat.sim.parse import TYPE_BYTES, Instruction, Module, Vec, integer
from tilecat.sim.program import refuse
from tilecat.sim.table import Row

if TYPE_CHECKING:
    from tilecat.sim.core import Machine
    from tilecat.sim.global_memory import GlobalMemory

_VARIABLE = re.compile(
    r"^\s*(?:\.(?:visible|weak)\s+)?\.(global|const)\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$]+)"
    r"\s*((?:\[\d+\])*)\s*(?:=\s*(\{[^}]*\}|[^;{]+))?;",
    re.M,
)


def _number(text: str, kind: str) -> bytes:
    """One initial value: an integer, or a float in hexadecimal or decimal."""
    bits = 8 * TYPE_BYTES[kind]
    if text[:2].lower() in ("0f", "0d"):
        return int(text[2:], 16).to_bytes(bits // 8, "little")
    if kind in ("f32", "f64"):
        return struct.pack("<f" if kind == "f32" else "<d", float(text))
    return (integer(text) & ((1 << bits) - 1)).to_bytes(bits // 8, "little")


def variables_of(module: Module) -> dict[str, np.ndarray]:
    """Bytes of every variable by name.

    Raises:
        MachineError: a type or initial value that is not understood.
    """
    found = {}
    for space, kind, name, extents, values in _VARIABLE.findall(module.preamble):
        if kind not in TYPE_BYTES:
            raise MachineError(f"parse: variable {name} of type .{kind} is not implemented")
        count = int(np.prod([int(n) for n in re.findall(r"\d+", extents)] or [1]))
        data = np.zeros(count * TYPE_BYTES[kind], np.uint8)
        items = [item.strip() for item in values.strip("{} \n").split(",") if item.strip()]
        try:
            initial = b"".join(_number(item, kind) for item in items)
        except ValueError as error:
            raise MachineError(f"parse: initial value of {name} not understood: {error}") from None
        data[: len(initial)] = np.frombuffer(initial, np.uint8)
        data.flags.writeable = space == "global"
        found[name] = data
    return found


def bind(machine: Machine, variables: dict[str, np.ndarray], memory: GlobalMemory) -> None:
    """Give the variables' names their addresses."""
    for name, data in variables.items():
        wide = np.full(machine.num_threads, memory.address_of(data), np.uint64)
        machine.symbols[name] = (wide.astype(np.uint32), wide)


def _decode(item: Instruction) -> Access:
    data, mem = item.args
    count = next((int(mod[1:]) for mod in item.mods if mod in ("v2", "v4")), 1)
    registers = tuple(data.items) if isinstance(data, Vec) else (data,)
    kind = item.mods[-1]
    if len(registers) != count or mem.extra or TYPE_BYTES[kind] * count > 16:
        raise refuse(item, f"{count} registers, of at most 16 bytes, are wanted")
    return Access("global", kind, TYPE_BYTES[kind], registers, mem, False)


_TYPES = "(" + ",".join(f".{kind}" for kind in sorted(TYPE_BYTES) if kind != "b128") + ")"
TABLE = (
    Row(f"ld.const{{.v2,.v4}}{_TYPES}", "dv m", load, "9.7.9.8", decode=_decode),
)  # fmt: skip
