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
    "TensorForm", "TensorShape", "arch_of",
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
