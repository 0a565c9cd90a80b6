"""Shared memory and registers: what fits, and how much of a ring does."""

from __future__ import annotations

from dataclasses import dataclass

from ..arch import Arch
from ..errors import ResourceError
from ..ir import Block, Kernel, Value
from ..ops.control import RoleSection
from ..ops.memory import WARPGROUP_THREADS, AllocScratch, AllocShared
from ..ops.mma import Mma
from ..ops.sync import BARRIER_BYTES, AllocBarriers
from ..ops.tensor import SLOT_BYTES, AllocTensorMemory
from ..ops.views import storage
from ..tiles import RegTileType

SCRATCH_ALIGN = 16  # bytes, the widest plain access


@dataclass(frozen=True)
class SharedMap:
    """Where each allocation lies.

    Args:
        offsets: byte offset from the shared base, by `id` of the allocating op.
        used_bytes: bytes of all of them.
        launch_bytes: dynamic shared memory of a launch: used, and the slack to align the base.
    """

    offsets: dict[int, int]
    used_bytes: int
    launch_bytes: int


def shared_limit(kernel: Kernel, arch: Arch) -> int:
    """Bytes of shared memory a CTA of this kernel may have, as many of them as share an SM."""
    blocks = int(kernel.facts.get("blocks_per_sm", 1))
    reserved = arch.limit("shared_bytes_reserved")
    if kernel.facts.get("oversized"):
        return (arch.limit("shared_bytes_oversized") + reserved) // blocks - reserved
    most = arch.limit("shared_bytes_per_sm") // blocks - reserved
    return min(most, arch.limit("shared_bytes_per_cta"))


def place_shared(kernel: Kernel, arch: Arch) -> SharedMap:
    """Lays out tiles, widest alignment first, then barriers.

    Raises:
        ResourceError: it does not fit; for a ring, says the largest depth that does.
    """
    allocs = [op for op in kernel.body.walk() if isinstance(op, AllocShared)]
    allocs.sort(key=lambda op: -op.tile.layout.alignment)
    offsets: dict[int, int] = {}
    cursor = 0
    for op in allocs:
        align = op.tile.layout.alignment
        cursor = -(-cursor // align) * align
        offsets[id(op)] = cursor
        cursor += op.copies * op.stride_bytes
    cursor = -(-cursor // BARRIER_BYTES) * BARRIER_BYTES
    for barrier in kernel.body.walk():
        if isinstance(barrier, AllocBarriers):
            offsets[id(barrier)] = cursor
            cursor += barrier.count * BARRIER_BYTES
    for memory in kernel.body.walk():
        if isinstance(memory, AllocTensorMemory):
            offsets[id(memory)] = cursor
            cursor += SLOT_BYTES
    for scratch in kernel.body.walk():
        if isinstance(scratch, AllocScratch):
            cursor = -(-cursor // SCRATCH_ALIGN) * SCRATCH_ALIGN
            offsets[id(scratch)] = cursor
            cursor += scratch.num_bytes * -(-kernel.threads // WARPGROUP_THREADS)
    total = cursor + arch.limit("shared_base_align")
    limit = shared_limit(kernel, arch)
    if total > limit:
        blocks = kernel.facts.get("blocks_per_sm", 1)
        shared = f" where {blocks} share an SM" if blocks > 1 else ""
        raise ResourceError(
            f"{kernel.name}: shared memory of a CTA on {arch.target}{shared} is {limit} bytes, "
            f"got {total} bytes ({_breakdown(allocs)})",
            loc=allocs[0].loc if allocs else kernel.loc,
            hint=_largest_depth(kernel, allocs, total, limit) + _oversized(kernel, arch),
        )
    return SharedMap(offsets, cursor, total)


def _oversized(kernel: Kernel, arch: Arch) -> str:
    """That a pipeline may ask for more, where the chip has it."""
    if kernel.facts.get("oversized", True) or not arch.knows("shared_bytes_oversized"):
        return ""
    return f"; tc.lcf(..., oversized=True) gives {arch.limit('shared_bytes_oversized')}"


def _breakdown(allocs: list[AllocShared]) -> str:
    return ", ".join(f"{op.name}={op.copies * op.stride_bytes}" for op in allocs)


def _largest_depth(kernel: Kernel, allocs: list[AllocShared], total: int, limit: int) -> str:
    stages = kernel.facts.get("stages")
    stage_bytes = sum(op.per_stage * op.stride_bytes for op in allocs)
    if stages and stage_bytes:
        fits = (limit - (total - stages * stage_bytes)) // stage_bytes
        if fits >= 1:
            return f"stages={fits} is the largest ring that fits (a stage is {stage_bytes} bytes)"
        return f"not even one stage of {stage_bytes} bytes fits: use smaller tiles"
    return "use smaller tiles"


def check_registers(kernel: Kernel, arch: Arch) -> None:
    """Refuses roles whose live register tiles alone exceed their budget.

    An estimate from below: what one mma of a role has in registers, beside the accumulators that
    others add to. ptxas has the last word, and a spill there is an error too.

    Raises:
        ResourceError: with the tiles and the budget.
    """
    for op in kernel.body.ops:
        if not isinstance(op, RoleSection):
            continue
        tiles = _mma_tiles(op.body)
        need = sum(map(_registers, tiles))
        budget = op.registers or arch.limit("registers_per_thread")
        budget = min(budget, arch.limit("registers_per_thread"))
        if need > budget:
            listing = ", ".join(f"{v.name or 'tile'}: {v.type} = {v.type.registers}" for v in tiles)  # type: ignore[union-attr]
            raise ResourceError(
                f"{kernel.name}: a thread of the {op.name} has {budget} registers, "
                f"got {need} in the tiles of its mma alone ({listing})",
                loc=tiles[0].loc,
                hint="use a smaller tile_n, or more consumers with smaller tiles",
            )


def _mma_tiles(block: Block) -> list[Value]:
    """The tiles that live across the mma with the most registers."""
    ops = [op for op in block.walk() if isinstance(op, Mma)]
    kept = _tiles_of([op.acc for op in ops if op.accumulate is not False])
    sets = [{**kept, **_tiles_of(list(op.operands()))} for op in ops]
    most = max(sets, key=lambda tiles: sum(_registers(tile) for tile in tiles.values()), default={})
    return list(most.values())


def _tiles_of(values: list[Value]) -> dict[int, Value]:
    """Register tiles that own these values, by identity."""
    tiles = [storage(value)[0] for value in values if isinstance(value.type, RegTileType)]
    return {id(tile): tile for tile in tiles}


def _registers(tile: Value) -> int:
    """Registers of a thread."""
    assert isinstance(tile.type, RegTileType), "a tile's owner"
    return tile.type.registers
