"""Register tiles in flight: nothing may touch an accumulator or A fragment before `mma_wait`."""

from __future__ import annotations

from ..errors import SyncError
from ..ir import Access, Block, Kernel, Op, Value
from ..ops.control import OneThread, Range, RoleSection, When, WhileLess
from ..ops.mma import Mma, MmaWait
from ..ops.views import overlap, storage

_Pending = tuple[Mma, ...]


def check_hazards(kernel: Kernel) -> None:
    """Follows the mma groups under way through loops and branches.

    Raises:
        SyncError: a register tile is read or written while an mma uses it, or an mma is still
            under way where the role ends.
    """
    for op in kernel.body.walk():
        if isinstance(op, RoleSection):
            left = _walk(op.body, ())
            if left:
                raise SyncError(
                    f"{left[-1].name}: is still under way where the {op.name} ends",
                    loc=left[-1].loc,
                    hint="end with tc.mma_wait()",
                )


def _walk(block: Block, pending: _Pending) -> _Pending:
    for op in block.ops:
        if isinstance(op, Mma):
            _check_touch(op, pending)
            pending = (*pending, op)
        elif isinstance(op, MmaWait):
            pending = pending[len(pending) - op.pending :] if op.pending else ()
        elif isinstance(op, Range | WhileLess):
            once = _walk(op.body, pending)
            twice = _walk(op.body, once)  # what one iteration leaves meets the next
            pending = max((pending, once, twice), key=len)
        elif isinstance(op, When):
            paths = [_walk(op.body, pending)]
            paths.append(_walk(op.orelse, pending) if op.orelse else pending)
            pending = max(paths, key=len)
        elif isinstance(op, OneThread):
            pending = _walk(op.body, pending)
        else:
            _check_touch(op, pending)
    return pending


def _same(acc: Value, other: Value) -> bool:
    """Whether two accumulators are the same registers, seen alike."""
    return acc is other or (storage(acc) == storage(other) and acc.type == other.type)


def _check_touch(op: Op, pending: _Pending) -> None:
    """An mma may follow another on the same accumulator, in order; anything else must wait."""
    for effect in op.effects():
        if effect.proxy == "async":
            continue
        for mma in pending:
            writes = effect.access in (Access.WRITE, Access.ASYNC_WRITE)
            reads_a = writes and overlap(effect.value, mma.a)
            if not (reads_a or overlap(effect.value, mma.acc)):
                continue
            if isinstance(op, Mma) and effect.value is op.acc and _same(op.acc, mma.acc):
                continue
            verb = "written" if writes else "read"
            name = effect.value.name or str(effect.value.type)
            raise SyncError(
                f"{op.label}: {name} is {verb} while {mma.name} is still using it",
                loc=op.loc,
                hint=f"call tc.mma_wait() after the {mma.name} at {mma.loc}",
            )
