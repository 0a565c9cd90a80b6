"""Architectures, as data."""

from __future__ import annotations

from ..errors import ArchError
from .hopper import HOPPER
from .spec import MMA_SYNC, WGMMA, Arch, Limit, MmaForm

ARCHS: tuple[Arch, ...] = (HOPPER,)
DEFAULT_TARGET = HOPPER.target

__all__ = [
    "ARCHS", "DEFAULT_TARGET", "MMA_SYNC", "WGMMA", "Arch", "Limit", "MmaForm", "arch_of",
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
