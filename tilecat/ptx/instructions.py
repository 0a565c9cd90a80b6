"""PTX instruction text, one function an instruction, each with its section of the PTX ISA (9.x).

Simple arithmetic, whose text is `op dst, sources;`, goes through `alu`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

WAIT_HINT_NS = 10_000_000  # suspend-time hint of a wait: 10 ms, as CUTLASS gives


def identifier(text: str) -> str:
    """A name PTX takes: ASCII letters, digits and underscores, a letter first (section 4.4)."""
    plain = re.sub(r"\W", "_", text, flags=re.ASCII).strip("_")
    return plain if plain[:1].isalpha() else f"n_{plain}"


def f32_literal(value: float) -> str:
    """A single-precision literal, `0f` and 8 hex digits (section 4.5.2); too large is infinite."""
    with np.errstate(over="ignore"):
        return f"0f{np.float32(value).view(np.uint32):08X}"


def vector(items: Sequence[str]) -> str:
    """A vector operand, `{a, b}`."""
    return "{" + ", ".join(items) + "}"


def alu(op: str, dst: str, *sources: object) -> str:
    """`op dst, sources;`: arithmetic, logic, moves and conversions (9.7)."""
    return f"{op} {', '.join((dst, *(str(s) for s in sources)))};"


def bra(label: str) -> str:
    """Branch (9.7.12.2)."""
    return f"bra {label};"


def ret() -> str:
    """Return from the entry (9.7.12.5)."""
    return "ret;"


def trap() -> str:
    """Abort the kernel (9.7.19.2)."""
    return "trap;"


def ld_param(kind: str, dst: str, name: str) -> str:
    """Load a parameter (9.7.9.8)."""
    return f"ld.param.{kind} {dst}, [{name}];"


def ld_global(kind: str, dst: str, address: str, *, first: bool = False) -> str:
    """Load from global memory (9.7.9.8); `first`: its line is the first to leave the caches."""
    return f"ld.global.{'cs.' * first}{kind} {dst}, [{address}];"


def st_global(kind: str, address: str, src: str, *, first: bool = False) -> str:
    """Store to global memory (9.7.9.11); `first`: its line is the first to leave the caches."""
    return f"st.global.{'cs.' * first}{kind} [{address}], {src};"


def ld_shared(kind: str, dst: str, address: str) -> str:
    """Load from shared memory (9.7.9.8)."""
    return f"ld.shared.{kind} {dst}, [{address}];"


def st_shared(kind: str, address: str, src: str) -> str:
    """Store to shared memory (9.7.9.11)."""
    return f"st.shared.{kind} [{address}], {src};"


def bar_sync(barrier: object, threads: object) -> str:
    """Named barrier: arrive and wait (9.7.13.1)."""
    return f"bar.sync {barrier}, {threads};"


def bar_arrive(barrier: object, threads: object) -> str:
    """Named barrier: arrive only (9.7.13.1)."""
    return f"bar.arrive {barrier}, {threads};"


def bar_any(dst: str, barrier: object, threads: object, src: str) -> str:
    """Named barrier of threads that learn whether a predicate holds in any (9.7.13.1)."""
    return f"bar.red.or.pred {dst}, {barrier}, {threads}, {src};"


def vote_any(dst: str, src: str) -> str:
    """Whether a predicate holds in any lane of the warp (9.7.13.9)."""
    return f"vote.sync.any.pred {dst}, {src}, 0xffffffff;"


def bar_warp_sync() -> str:
    """All lanes of the warp meet (9.7.13.2)."""
    return "bar.warp.sync 0xffffffff;"


def shfl_bfly(dst: str, src: str, lane_mask: int) -> str:
    """Exchange with the lane whose number differs in `lane_mask` (9.7.9.6)."""
    return f"shfl.sync.bfly.b32 {dst}, {src}, {lane_mask}, 31, -1;"


def shfl_idx(dst: str, src: str, lane: object) -> str:
    """The value of a lane: one for all (a number), or one each (a register) (9.7.9.6)."""
    return f"shfl.sync.idx.b32 {dst}, {src}, {lane}, 31, -1;"


def setmaxnreg(direction: str, registers: int) -> str:
    """Give back or take registers, per warpgroup (9.7.19.5); direction is inc or dec."""
    return f"setmaxnreg.{direction}.sync.aligned.u32 {registers};"


def mbarrier_init(address: str, count: int) -> str:
    """Initialise an mbarrier for `count` arrivals a phase (9.7.13.15.9)."""
    return f"mbarrier.init.shared::cta.b64 [{address}], {count};"


def fence_mbarrier_init() -> str:
    """Make mbarrier initialisation visible to the async proxy and the cluster (9.7.13.4)."""
    return "fence.mbarrier_init.release.cluster;"


def mbarrier_arrive(address: str) -> str:
    """Arrive once (9.7.13.15.13)."""
    return f"mbarrier.arrive.shared::cta.b64 _, [{address}];"


def mbarrier_arrive_expect_tx(address: str, num_bytes: object) -> str:
    """Arrive once and expect bytes from the async proxy (9.7.13.15.13)."""
    return f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{address}], {num_bytes};"


def mbarrier_try_wait_parity(done: str, address: str, parity: str, hint_ns: int) -> str:
    """Whether the phase of a parity has completed, suspending for a while (9.7.13.15.16)."""
    operands = f"{done}, [{address}], {parity}, {hint_ns}"
    return f"mbarrier.try_wait.parity.shared::cta.b64 {operands};"


def prefetch_tensormap(tensor_map: str) -> str:
    """Bring a tensor map into the descriptor cache (9.7.9.16)."""
    return f"prefetch.tensormap [{tensor_map}];"


def bulk_commit_group() -> str:
    """Close the thread's bulk group (9.7.9.25.5.1)."""
    return "cp.async.bulk.commit_group;"


def bulk_wait_group(pending: int, *, read: bool = False) -> str:
    """Wait for all but `pending` bulk groups; read: their sources are read (9.7.9.25.5.2)."""
    return f"cp.async.bulk.wait_group{'.read' if read else ''} {pending};"


def stmatrix(address: str, registers: Sequence[str], *, transpose: bool = False) -> str:
    """Store 8x8 matrices of 16-bit elements, one a register (9.7.14.5.16)."""
    trans = ".trans" if transpose else ""
    return (
        f"stmatrix.sync.aligned.m8n8.x{len(registers)}{trans}.shared.b16 "
        f"[{address}], {vector(registers)};"
    )


def ldmatrix(registers: Sequence[str], address: str, *, transpose: bool = False) -> str:
    """Load 8x8 matrices of 16-bit elements, one a register (9.7.14.5.15)."""
    trans = ".trans" if transpose else ""
    return (
        f"ldmatrix.sync.aligned.m8n8.x{len(registers)}{trans}.shared.b16 "
        f"{vector(registers)}, [{address}];"
    )


def wgmma_fence() -> str:
    """Order register accesses before wgmma (9.7.15.7.1)."""
    return "wgmma.fence.sync.aligned;"


def wgmma_commit_group() -> str:
    """Close the warpgroup's wgmma group (9.7.15.7.2)."""
    return "wgmma.commit_group.sync.aligned;"


def wgmma_wait_group(pending: int) -> str:
    """Wait until at most `pending` wgmma groups are left (9.7.15.7.3)."""
    return f"wgmma.wait_group.sync.aligned {pending};"


def wgmma(
    shape: str,
    types: str,
    dst: Sequence[str],
    a: str | Sequence[str],
    b_descriptor: str,
    accumulate: str,
    trailing: Sequence[int],
) -> str:
    """`D = A*B + D` by a warpgroup (9.7.15.5); a: descriptor, or A's registers.

    `trailing`: scale of A and B (1 or -1), then for 16-bit types the transpose bits of the
    operands that come from shared memory.
    """
    left = a if isinstance(a, str) else vector(a)
    tail = ", ".join(str(t) for t in trailing)
    return (
        f"wgmma.mma_async.sync.aligned.{shape}.{types} {vector(dst)}, "
        f"{left}, {b_descriptor}, {accumulate}{', ' if tail else ''}{tail};"
    )


def mma_sync(
    shape: str,
    types: str,
    dst: Sequence[str],
    a: Sequence[str],
    b: Sequence[str],
    c: Sequence[str],
) -> str:
    """`D = A*B + C` by a warp, A in rows, B in columns (9.7.14.5.14)."""
    operands = ", ".join(vector(x) for x in (dst, a, b, c))
    return f"mma.sync.aligned.{shape}.row.col.{types} {operands};"


def movmatrix(dst: str, src: str) -> str:
    """Transpose an 8x8 matrix of 16-bit elements, one register a lane (9.7.14.5.17)."""
    return f"movmatrix.sync.aligned.m8n8.trans.b16 {dst}, {src};"


def prmt(dst: str, low: str, high: str, selector: int) -> str:
    """Four of the eight bytes of two registers, one a nibble of the selector (9.7.9.7)."""
    return f"prmt.b32 {dst}, {low}, {high}, 0x{selector:04x};"
