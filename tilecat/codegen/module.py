"""What the generator hands on: a kernel as PTX text, its parameters and its address table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..addresses import AddressTable, DebugSite
from ..errors import ResourceError
from .count import Count, counted


@dataclass(frozen=True)
class TensorMapParam:
    """A 128-byte tensor map made from tensor argument `arg`.

    Args:
        name: the parameter's name in the PTX.
        arg: index of the kernel's argument.
        dims: its axes, innermost first.
        box: elements an axis of one transfer, in the order of `dims`.
        swizzle_bytes: 0, 32, 64 or 128.
        dtype: of its elements, where the array's is another: "b4x16_p64" of bytes of two.
        fetch_bytes: what a miss fetches into L2, at most: 128 or 256.
    """

    name: str
    arg: int
    dims: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int
    dtype: str = ""
    fetch_bytes: int = 256


@dataclass(frozen=True)
class PointerParam:
    """The global address of tensor argument `arg`, u64."""

    name: str
    arg: int
    kind: ClassVar[str] = "u64"


@dataclass(frozen=True)
class ExtentParam:
    """The extent of axis `dim` of tensor argument `arg`, u32, elements."""

    name: str
    arg: int
    dim: int
    kind: ClassVar[str] = "u32"


@dataclass(frozen=True)
class StrideParam:
    """The stride of axis `dim` of tensor argument `arg`, s64, elements."""

    name: str
    arg: int
    dim: int
    kind: ClassVar[str] = "s64"


@dataclass(frozen=True)
class ScalarParam:
    """A scalar argument of the kernel; dtype is its name (f32, s32, u32)."""

    name: str
    arg: int
    dtype: str

    @property
    def kind(self) -> str:
        """Its type in the entry."""
        return self.dtype


@dataclass(frozen=True)
class DebugParam:
    """The address of the buffer that prints and assertions write to, u64; made by the launch."""

    name: str
    kind: ClassVar[str] = "u64"


Param = TensorMapParam | PointerParam | ExtentParam | StrideParam | ScalarParam | DebugParam


@dataclass(frozen=True)
class PtxModule:
    """One kernel as PTX text, ready for ptxas or for the PTX machine.

    Args:
        text: the PTX.
        entry: name of its entry function.
        target: e.g. `sm_90a`.
        threads: threads a CTA.
        smem_bytes: dynamic shared memory of a launch, slack for 1024-byte alignment included.
        cluster: CTAs a cluster.
        min_blocks: CTAs an SM the registers are budgeted for.
        params: the entry's parameters, in order.
        table: names for addresses.
        dependent: it waits for the kernels before it on the stream, and may start before they end.
        sites: what its prints, assertions and limited waits are, by number.
        tasks: clusters of its grid, one a task; None for as many as the device holds.
        every_task: whether no other grid will do: a cluster of the grid is what a task is.
        spill_bytes: of a thread that ptxas may keep in local memory.
    """

    text: str
    entry: str
    target: str
    threads: int
    smem_bytes: int
    cluster: int
    min_blocks: int
    params: tuple[Param, ...]
    table: AddressTable
    dependent: bool = False
    sites: tuple[DebugSite, ...] = ()
    tasks: Count | None = None
    every_task: bool = False
    spill_bytes: int = 0

    def check_grid(self, given: int | tuple[int, ...], args: Sequence[Any]) -> None:
        """Refuses a grid of which tasks would be missing.

        Args:
            given: CTAs.
            args: of the launch.

        Raises:
            ResourceError: a cluster a task is wanted.
        """
        if not self.every_task or self.tasks is None:
            return
        wanted = counted(self.tasks, args) * self.cluster
        extents = given if isinstance(given, tuple) else (given,)
        if math.prod(extents) != wanted or extents[0] != wanted:
            raise ResourceError(
                f"launch {self.entry}: of cluster launch control the grid has a cluster for each "
                f"task, got grid={given!r} for {wanted} CTAs",
                hint="leave out grid",
            )
