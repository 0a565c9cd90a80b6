"""Register tiles are written before they are read."""

from __future__ import annotations

from ..errors import SyncError
from ..ir import Access, Kernel, Op, Value
from ..ops.elementwise import AllocRegisters
from ..ops.mma import Mma
from ..ops.views import storage

_READS = (Access.READ, Access.ASYNC_READ)


def check_initial(kernel: Kernel) -> None:
    """Every tile made by `tc.empty` has a write before its first read, in program order.

    Raises:
        SyncError: undefined registers are read, or accumulated into.
    """
    undefined: dict[int, set[int]] = {}  # by tile: its registers not yet written
    for op in kernel.body.walk():
        if isinstance(op, AllocRegisters):
            undefined[id(op.result)] = set(storage(op.result)[1])
            continue
        effects = op.effects()
        for effect in effects:
            if effect.access in _READS and _undefined(undefined, effect.value):
                _raise(op, effect.value, "is read")
        if isinstance(op, Mma) and op.accumulate is True and _undefined(undefined, op.acc):
            _raise(op, op.acc, "is added to")
        for effect in effects:
            if effect.access not in _READS and undefined:
                tile, registers = storage(effect.value)
                undefined.get(id(tile), set()).difference_update(registers)


def _undefined(undefined: dict[int, set[int]], value: Value) -> bool:
    """Whether some register of a value was never written."""
    if not undefined:
        return False
    tile, registers = storage(value)
    return not undefined.get(id(tile), set()).isdisjoint(registers)


def _raise(op: Op, value: Value, verb: str) -> None:
    name = f"{value.name}: {value.type}" if value.name else str(value.type)
    raise SyncError(
        f"{op.label}: {name} {verb} before anything was written to it",
        loc=op.loc,
        hint="make it with tc.zeros(...), or let its first mma have accumulate=False",
    )
