"""Architectures, as data."""

from __future__ import annotations

from ..errors import ArchError
from .blackwell import BLACKWELL, BLACKWELL_ULTRA
from .hopper import HOPPER
from .rubin import RUBIN
from .spec import MMA_SYNC, TCGEN05, WGMMA, Arch, Limit, MmaForm, TensorForm, TensorShape

ARCHS: tuple[Arch, ...] = (HOPPER, BLACKWELL, BLACKWELL_ULTRA, RUBIN)
DEFAULT_TARGET = HOPPER.target

__all__ = [
    "ARCHS", "DEFAULT_TARGET", "MMA_SYNC", "TCGEN05", "WGMMA", "Arch", "Limit", "MmaForm",
    "TensorForm", "TensorShape", "arch_of", "arch_of_device",
]  # fmt: skip


def arch_of(target: str) -> Arch:
    """The architecture of a ptxas target.

    Raises:
        ArchError: a target tilecat does not compile for.
    """
    for arch in ARCHS:
        if arch.target == target:
            return arch
    raise ArchError(
        f"target: tilecat compiles for {', '.join(a.target for a in ARCHS)}, got {target!r}"
    )


def arch_of_device(capability: tuple[int, int], name: str) -> Arch:
    """The architecture of a GPU, by its compute capability.

    Args:
        capability: e.g. (9, 0).
        name: of the GPU, for the error.

    Raises:
        ArchError: a GPU that tilecat does not compile for.
    """
    for arch in ARCHS:
        if arch.capability == capability:
            return arch
    known = ", ".join(f"{a.capability[0]}.{a.capability[1]} ({a.target})" for a in ARCHS)
    raise ArchError(
        f"cuda: tilecat compiles for GPUs of compute capability {known}, got "
        f"{capability[0]}.{capability[1]} ({name})",
        hint="arrays in CPU memory: the PTX machine runs the kernel",
    )
