"""Happens-before between CTAs through global memory. PTX ISA 8.7 to 8.9.

A CTA's time is its epoch; it ends at every release and fence. What a CTA knows is the last epoch
of every other CTA that it is ordered after. A release leaves the CTA's knowledge at an address, an
acquire takes what lies there; a relaxed atomic does the same together with the fence before the
write and the fence after the read. Threads of a CTA are not told apart, so that a missing barrier
inside a CTA is not seen here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Clock = dict[int, int]
_RELEASES, _ACQUIRES = ("release", "acq_rel"), ("acquire", "acq_rel")
_STRONG = ("relaxed", "release", "acquire", "acq_rel", "volatile")


def _merge(into: Clock, other: Clock) -> None:
    for cta, epoch in other.items():
        if into.get(cta, 0) < epoch:
            into[cta] = epoch


def is_strong(mods: tuple[str, ...]) -> bool:
    """Whether an access may meet another one on the same bytes without a race."""
    return any(mod in _STRONG for mod in mods)


@dataclass
class CtaState:
    """What one CTA knows, what its last fence published, what its next fence will learn."""

    epoch: int = 1
    known: Clock = field(default_factory=dict)
    published: Clock = field(default_factory=dict)
    seen: Clock = field(default_factory=dict)


class GlobalOrder:
    """Knowledge of every CTA of a launch, and what lies at addresses used to synchronise."""

    def __init__(self) -> None:
        self.ctas: dict[int, CtaState] = {}
        self.places: dict[int, Clock] = {}

    def of(self, cta: int) -> CtaState:
        """State of a CTA."""
        return self.ctas.setdefault(cta, CtaState())

    def synchronise(self, cta: int, addresses: np.ndarray, mods: tuple[str, ...]) -> None:
        """A strong access with these modifiers, other than a fence."""
        if "cta" in mods:
            return
        state = self.of(cta)
        releases = any(mod in _RELEASES for mod in mods)
        reads, writes = mods[0] != "st" and mods[0] != "red", mods[0] != "ld"
        publishes = {**state.known, cta: state.epoch} if releases else state.published
        for address in np.unique(addresses).tolist():
            place = self.places.get(address)
            if reads and place:
                _merge(state.seen, place)
                if any(mod in _ACQUIRES for mod in mods):
                    _merge(state.known, place)
            if writes and publishes:
                _merge(self.places.setdefault(address, {}), publishes)
        state.epoch += releases

    def fence(self, cta: int) -> None:
        """A fence of scope cluster, gpu or sys by a thread of the CTA."""
        state = self.of(cta)
        _merge(state.known, state.seen)
        state.seen = {}
        state.published = {**state.known, cta: state.epoch}
        state.epoch += 1

    def meet(self, ctas: list[int]) -> None:
        """All of these CTAs pass a barrier of their cluster."""
        together: Clock = {}
        for cta in ctas:
            state = self.of(cta)
            _merge(together, {**state.known, cta: state.epoch})
            state.epoch += 1
        for cta in ctas:
            _merge(self.of(cta).known, together)

    def ordered(self, cta: int, owners: np.ndarray, epochs: np.ndarray) -> bool:
        """Whether the CTA is ordered after stores by `owners` (CTA + 1, 0 for nobody)."""
        foreign = (owners != 0) & (owners != cta + 1)
        if not foreign.any():
            return True
        known = self.of(cta).known
        others, when = owners[foreign], epochs[foreign]
        return all(
            int(when[others == other].max()) <= known.get(int(other) - 1, 0)
            for other in np.unique(others)
        )
