"""Rings of which each CTA of a cluster fills a part, for all: stages are gathered from all CTAs.

The role that fills a stage in CTA r writes tiles r n to r n + n - 1 of it (n a CTA), and copies
them to the same stage of the others, whose `full` counts their bytes:

    CTA 0   score fills p[0], sends it | waits full: p[0] p[1]
    CTA 1   score fills p[1], sends it | waits full: p[0] p[1]

A stage is empty when the readers of every CTA have given it back: they arrive on the `empty` of
each, so who fills it again may write here and there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..builder import add, current
from ..errors import ResourceError, ScopeError
from ..language.clusters import cluster_rank
from ..language.control import when
from ..language.scalars import named, operand_of
from ..ops.cluster import CopyToPeer, PeerShared
from ..ops.sync import ArriveExpect
from .sharing import COL, ROW

if TYPE_CHECKING:
    from .ring import Ring
    from .role import Role
    from .slots import Slots


def gather(slots: Slots, role: Role) -> None:
    """Makes tiles of a ring those of which each CTA fills its own.

    Raises:
        ResourceError: no cluster of one row, or tiles that it does not divide.
        ScopeError: several warpgroups fill a stage.
    """
    kernel, loc = current().kernel, current().loc()
    size = kernel.cluster
    if size == 1 or kernel.facts.get("cluster_cols", 1) not in (1, size) or slots.count % size:
        raise ResourceError(
            f"pipe.ring: gather=True is of a cluster in one row or column, each of whose CTAs "
            f"fills as many tiles, got {size} CTAs in {kernel.facts.get('cluster_cols', 1)} "
            f"columns and count={slots.count}",
            loc=loc, hint="tc.roles(..., cluster=2), count=2",
        )  # fmt: skip
    if role.fillers != 1:
        raise ScopeError(
            f"pipe.ring: one warpgroup fills a stage that is gathered, got {role}",
            loc=loc, hint="turns=True: warpgroups take steps in turn",
        )  # fmt: skip
    slots.ring.gathered.append(slots)
    slots.ring.shared |= {ROW, COL}


def send(ring: Ring, role: Role) -> None:
    """One thread, behind all that have written: this CTA's tiles, to the others."""
    role.meet()
    size, rank = current().kernel.cluster, cluster_rank()
    stage, num_bytes = operand_of(ring.stage), 0
    for step in range(1, size):
        there = named((rank + step) % size, "there")
        for slots in ring.gathered:
            each = slots.count // size
            for number in range(each):
                tile = slots[rank * each + number].place().value
                peer = add(PeerShared(tile, operand_of(there))).result
                add(CopyToPeer(peer, tile, ring.full.result, stage, operand_of(there)))
                num_bytes += slots.kind.layout.num_bytes
    add(ArriveExpect(ring.full.result, stage, num_bytes=num_bytes))


def leave(ring: Ring, turn: Any, consumer: Any, following: Any) -> None:
    """At the end: waits until the stages are empty.

    The other CTAs copy from here and arrive here; this one must not leave before they have.
    """
    for _ in range(ring.depth):
        ring.look()
        if turn is None:
            ring.claim()
        else:
            with when(turn.get() == consumer):
                ring.claim()
            following()
        ring.look()
        ring.advance()
