"""Checks between trace and text: `check(kernel, arch)` returns the only thing codegen accepts."""

from __future__ import annotations

from dataclasses import dataclass

from ..arch import Arch
from ..ir import Kernel, Op
from .access import GlobalMove, TileAccess, global_moves, shared_accesses
from .aliases import check_aliases
from .barriers import check_barriers
from .hazards import check_hazards
from .initial import check_initial
from .resources import SharedMap, check_registers, place_shared

__all__ = [
    "CheckedKernel", "GlobalMove", "TileAccess", "check", "global_moves", "shared_accesses",
]  # fmt: skip


@dataclass(frozen=True)
class CheckedKernel:
    """A kernel that passed every check, with its shared memory laid out.

    Args:
        kernel: the IR.
        arch: the target.
        shared: offsets of the shared allocations.
    """

    kernel: Kernel
    arch: Arch
    shared: SharedMap

    def offset(self, op: Op) -> int:
        """Byte offset of an allocation from the shared base."""
        return self.shared.offsets[id(op)]


def check(kernel: Kernel, arch: Arch) -> CheckedKernel:
    """Checks resources, barriers and hazards.

    Raises:
        ResourceError: too much shared memory, too many registers or barriers.
        SyncError: a register tile touched while an mma is under way, a barrier nobody arrives on,
            a tile read before it is written, a tensor read and written that is not `inout`.
    """
    shared = place_shared(kernel, arch)
    check_registers(kernel, arch)
    check_barriers(kernel, arch)
    check_hazards(kernel)
    check_initial(kernel)
    check_aliases(kernel)
    return CheckedKernel(kernel, arch, shared)
