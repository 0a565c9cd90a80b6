"""mbarriers and named barriers: counts in range, and somebody on each side."""

from __future__ import annotations

from ..arch import Arch
from ..errors import ResourceError, SyncError
from ..ir import Kernel
from ..ops.copies import CopyArrive
from ..ops.launch_control import TakeAnswer
from ..ops.mma_tensor import Commit
from ..ops.sync import (
    MAX_ARRIVALS,
    AllocBarriers,
    Arrive,
    ArriveExpect,
    InitBarriers,
    NamedBarrier,
    TestBarrier,
    WaitBarrier,
)


def check_barriers(kernel: Kernel, arch: Arch) -> None:
    """Every mbarrier is initialised, arrived on and waited for; named barriers exist.

    Raises:
        SyncError: a barrier nobody initialises, arrives on, or waits for.
        ResourceError: a named barrier beyond the hardware's, or an arrive count out of range.
    """
    ops = list(kernel.body.walk())
    initialised = {id(v) for op in ops if isinstance(op, InitBarriers) for v in op.barriers}
    signals = Arrive | ArriveExpect | CopyArrive | Commit | TakeAnswer
    arrived = {id(op.barriers) for op in ops if isinstance(op, signals)}
    waited = {id(op.barriers) for op in ops if isinstance(op, WaitBarrier | TestBarrier)}
    for op in ops:
        if isinstance(op, AllocBarriers):
            _check_sides(op, initialised, arrived, waited)
        if isinstance(op, NamedBarrier) and isinstance(op.number, int):
            limit = arch.limit("named_barriers")
            if not 0 <= op.number < limit:
                raise ResourceError(
                    f"named barrier: {arch.target} has {limit} a CTA, got number={op.number}",
                    loc=op.loc,
                )


def _check_sides(
    op: AllocBarriers, initialised: set[int], arrived: set[int], waited: set[int]
) -> None:
    key = id(op.result)
    sides = ((initialised, "initialised"), (arrived, "arrived on"), (waited, "waited for"))
    for known, verb in sides:
        if key not in known:
            raise SyncError(f"mbarrier {op.name}: is never {verb}", loc=op.loc)
    if not 1 <= op.arrivals <= MAX_ARRIVALS:
        raise ResourceError(
            f"mbarrier {op.name}: arrivals a phase are 1 to {MAX_ARRIVALS}, got {op.arrivals}",
            loc=op.loc,
        )
