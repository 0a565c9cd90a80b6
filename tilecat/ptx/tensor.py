"""Instructions of tensor memory and tcgen05.mma, one function each, with their section (9.x).

`ctas` is 1, or 2 in a kernel whose CTAs multiply in pairs: `.cta_group`, one for all of a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from .instructions import vector


def alloc(slot: str, columns: int, *, ctas: int, exclusive: bool = False) -> str:
    """A warp allocates columns; their address goes to shared memory (9.7.16.7.1)."""
    only = ".exclusive" if exclusive else ""
    return (
        f"tcgen05.alloc{only}.cta_group::{ctas}.sync.aligned.shared::cta.b32 [{slot}], {columns};"
    )


def relinquish(*, ctas: int) -> str:
    """A warp gives up allocating more, for the CTAs that wait to (9.7.16.7.1)."""
    return f"tcgen05.relinquish_alloc_permit.cta_group::{ctas}.sync.aligned;"


def dealloc(address: str, columns: int, *, ctas: int, exclusive: bool = False) -> str:
    """A warp frees what was allocated (9.7.16.7.1)."""
    only = ".exclusive" if exclusive else ""
    return f"tcgen05.dealloc{only}.cta_group::{ctas}.sync.aligned.b32 {address}, {columns};"


def load(
    shape: str, repeat: int, registers: Sequence[str], address: str, *, packed: bool = False,
    split: int | None = None,
) -> str:  # fmt: skip
    """A warp loads lanes of its quarter; asynchronous (9.7.16.8.1).

    Packed: a register gets the low 16 bits of two columns. Split, of 16x32bx2: columns from what
    lanes 0 to 15 load to what the others do.
    """
    how = f"{shape}.x{repeat}{'.pack::16b' * packed}"
    apart = "" if split is None else f", {split}"
    return f"tcgen05.ld.sync.aligned.{how}.b32 {vector(registers)}, [{address}]{apart};"


def load_reduced(
    shape: str, repeat: int, registers: Sequence[str], result: str, address: str, how: str,
    *, split: int | None = None,
) -> str:  # fmt: skip
    """The same, with the least or greatest of a thread's registers (9.7.16.8.3)."""
    apart = "" if split is None else f", {split}"
    return (
        f"tcgen05.ld.red.sync.aligned.{shape}.x{repeat}.{how} {vector(registers)}, {result}, "
        f"[{address}]{apart};"
    )


def store(
    shape: str, repeat: int, address: str, registers: Sequence[str], *, packed: bool = False,
    split: int | None = None,
) -> str:  # fmt: skip
    """A warp stores to lanes of its quarter; asynchronous (9.7.16.8.4). Packed, split: as above."""
    how = f"{shape}.x{repeat}{'.unpack::16b' * packed}"
    apart = "" if split is None else f", {split}"
    return f"tcgen05.st.sync.aligned.{how}.b32 [{address}]{apart}, {vector(registers)};"


def wait_loads() -> str:
    """Until the thread's loads are in its registers (9.7.16.8.5)."""
    return "tcgen05.wait::ld.sync.aligned;"


def wait_stores() -> str:
    """Until the thread's stores are done (9.7.16.8.5)."""
    return "tcgen05.wait::st.sync.aligned;"


def fence_before() -> str:
    """Orders this thread's tcgen05 instructions before a synchronisation (9.7.16.11)."""
    return "tcgen05.fence::before_thread_sync;"


def fence_after() -> str:
    """Orders this thread's tcgen05 instructions behind a synchronisation (9.7.16.11)."""
    return "tcgen05.fence::after_thread_sync;"


def mma(
    kind: str, sums: str, a: str, b: str, what: str, accumulate: str, *, ctas: int
) -> str:  # fmt: skip
    """`D = A*B + D`, issued by one thread; a and b are descriptors (9.7.16.10.9.1).

    Behind the kind may stand collectors, A's before B's.
    """
    return f"tcgen05.mma.cta_group::{ctas}.kind::{kind} [{sums}], {a}, {b}, {what}, {accumulate};"


def mma_scaled(
    kind: str, sums: str, a: str, b: str, what: str, scales: tuple[str, str], accumulate: str,
    *, ctas: int,
) -> str:  # fmt: skip
    """The same with scales in tensor memory: the kind goes on `.block_scale.block16` or 32."""
    return (
        f"tcgen05.mma.cta_group::{ctas}.kind::{kind} [{sums}], {a}, {b}, "
        f"{what}, [{scales[0]}], [{scales[1]}], {accumulate};"
    )


def copy_scales(target: str, source: str, *, ctas: int) -> str:
    """512 bytes of shared memory to 4 columns, in each quarter of the lanes (9.7.16.9.2)."""
    return f"tcgen05.cp.cta_group::{ctas}.32x128b.warpx4 [{target}], {source};"


def commit(barrier: str, *, ctas: int, early_a: bool = False) -> str:
    """One arrival, when all the thread's tcgen05.mma so far are done (9.7.16.12.1).

    Early, when they have read A from shared memory (sm_107a).
    """
    return f"{_commit(ctas, early_a)}.b64 [{barrier}];"


def commit_multicast(barrier: str, ranks: str, *, ctas: int, early_a: bool = False) -> str:
    """The same, on the barriers of the CTAs of a 16-bit mask (9.7.16.12.1)."""
    return f"{_commit(ctas, early_a)}.multicast::cluster.b64 [{barrier}], {ranks};"


def _commit(ctas: int, early_a: bool) -> str:
    early = ".sync_restrict::shared::read::mma::a" if early_a else ""
    return f"tcgen05.commit.cta_group::{ctas}.mbarrier::arrive::one{early}.shared::cluster"
