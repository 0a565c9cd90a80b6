"""Calls of several kernels with torch tensors seen before: their launches made ready.

As `attention_ready` has it for the one kernel of the forward: a call of a known layout skips checks
and choices. Here several kernels run one after another, on tensors of the call, on those that it
allocates, and on what its options hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .driver import KernelFunction, Movable

MAX_CALLS = 1024  # layouts remembered, and launches of each

_calls: dict[Any, _Known] = {}


@dataclass(frozen=True)
class Launch:
    """One kernel that ran.

    Args:
        kernel: what was called.
        tensors: its first arguments: tensors that the call was given, or made.
        rest: its further arguments: numbers, tensors of its options, and of the call too.
        params: compile-time parameters.
    """

    kernel: KernelFunction
    tensors: tuple[Any, ...]
    rest: tuple[Any, ...]
    params: dict[str, Any]

    def run(self) -> None:
        """Calls it."""
        self.kernel(*self.tensors, *self.rest, **self.params)


@dataclass
class _Known:
    """What is known of calls of one layout.

    Args:
        makers: allocate what a call writes: the gradients, then memory for sums.
        movable: by the alignment of all tensors, launches of each kernel, and where each of its
            arguments is: the number of a tensor, or an address.
        launches: by the addresses of all tensors.
    """

    makers: tuple[Callable[[], Any], ...]
    movable: dict[Any, list[tuple[Movable, list[tuple[int, int]]]]] = field(default_factory=dict)
    launches: dict[Any, list[Callable[[Any], None]]] = field(default_factory=dict)

    def at(self, addresses: tuple[int, ...]) -> list[Callable[[Any], None]] | None:
        """Launches for tensors at these addresses; None if nothing is known of such."""
        found: list[Callable[[Any], None]] = []
        for movable, places in self.movable.get(_alignment(addresses), ()):
            launch = movable([addresses[at] if at >= 0 else ptr for at, ptr in places])
            if launch is None:
                return None
            found.append(launch)
        if not found:
            return None
        if len(self.launches) >= MAX_CALLS:
            self.launches.clear()
        self.launches[addresses] = found
        return found


def again(key: Any, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What its makers made, launched; None if the call is not known.

    Args:
        key: of the call; None for one that nothing is remembered of.
        given: its tensors.
    """
    known = None if key is None else _calls.get(key)
    if known is None:
        return None
    made = [make() for make in known.makers]
    addresses = tuple([x.data_ptr() for x in (*given, *made)])
    launches = known.launches.get(addresses) or known.at(addresses)
    if launches is None:
        return None
    for launch in launches:
        launch(None)
    return tuple(made)


def remember(
    key: Any, given: tuple[Any, ...], makers: tuple[Callable[[], Any], ...],
    made: tuple[Any, ...], launches: Sequence[Launch],
) -> None:  # fmt: skip
    """Keeps what ran.

    Args:
        key: of the call.
        given: its tensors.
        makers: allocate what it wrote.
        made: what they gave.
        launches: the kernels, in order.
    """
    tensors = (*given, *made)
    addresses = tuple([x.data_ptr() for x in tensors])
    number = {address: at for at, address in enumerate(addresses)}  # views of them begin there too
    if len(number) < len(tensors):  # of another call they need not be one
        return
    found = []
    for launch in launches:
        movable = launch.kernel.movable(*launch.tensors, *launch.rest, **launch.params)
        if movable is None:
            return
        args = [x.data_ptr() if hasattr(x, "data_ptr") else 0 for x in launch.rest]
        places = [(number[x.data_ptr()], 0) for x in launch.tensors]
        places += [(number.get(address, -1), address) for address in args]
        found.append((movable, places))
    if len(_calls) >= MAX_CALLS:
        _calls.clear()
    _calls.setdefault(key, _Known(makers)).movable[_alignment(addresses)] = found


def _alignment(addresses: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([address & 15 for address in addresses])
