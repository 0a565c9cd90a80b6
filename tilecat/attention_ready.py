"""Calls of attention with torch tensors seen before: their launches made ready.

A call whose tensors lie as those of an earlier one, with the same options, skips checks and
choices: of addresses seen before the launch is at hand, else the addresses in it are replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .driver import Movable
from .gemm_ready import tokens
from .runtime.arrays import TENSORS

MAX_CALLS = 4096  # layouts remembered, and launches of each

_calls: dict[Any, _Known] = {}


@dataclass
class _Known:
    """What is known of calls of one layout.

    Args:
        make_out, make_lse: allocate what a call does not give.
        movable: launches of the kernel, by the alignment of q, k, v, out and lse.
        launches: by their addresses.
    """

    make_out: Callable[[], Any]
    make_lse: Callable[[], Any]
    movable: dict[tuple[int, ...], tuple[Movable, list[int]]] = field(default_factory=dict)
    launches: dict[tuple[int, ...], Callable[[Any], None]] = field(default_factory=dict)


def key_of(tensors: tuple[Any, ...], options: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What a call depends on beside addresses; None where nothing is remembered.

    Args:
        tensors: q, k, v, out, lse; None for what is not given.
        options: numbers, strings, functions, tensors (whose addresses count), tuples of them.
    """
    found: list[Any] = []
    for x in tensors:
        if x is None:
            found.append(None)
        elif type(x) in TENSORS and x.is_cuda:
            found += (x.shape, x.stride(), x.dtype, x.get_device())
        else:
            return None
    named = tokens(*options)
    return None if named is None else (*found, *named)


def again(
    key: Any, q: Any, k: Any, v: Any, out: Any, lse: Any
) -> tuple[Any, Any] | None:
    """Output and log-sum-exp, launched; None if the call is not known."""
    known = None if key is None else _calls.get(key)
    if known is None:
        return None
    out = known.make_out() if out is None else out
    lse = known.make_lse() if lse is None else lse
    at = (q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), lse.data_ptr())
    launch = known.launches.get(at)
    if launch is None:
        found = known.movable.get(_alignment(at))
        launch = None if found is None else found[0]([*at, *found[1]])
        if launch is None:
            return None
        if len(known.launches) >= MAX_CALLS:
            known.launches.clear()
        known.launches[at] = launch
    launch(None)
    return out, lse


def remember(
    key: Any, movable: Movable | None, makers: tuple[Callable[[], Any], Callable[[], Any]],
    arguments: tuple[Any, ...],
) -> None:  # fmt: skip
    """Keeps what ran.

    Args:
        key: of the call.
        movable: launches of the kernel; None where there was nothing to launch.
        makers: allocate the output and the log-sum-exp.
        arguments: of the kernel: q, k, v, out, lse and further ones.
    """
    if movable is None:
        return
    addresses = [x.data_ptr() if hasattr(x, "data_ptr") else 0 for x in arguments]
    if len(_calls) >= MAX_CALLS:
        _calls.clear()
    known = _calls.setdefault(key, _Known(*makers))
    known.movable[_alignment(tuple(addresses[:5]))] = movable, addresses[5:]


def _alignment(addresses: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([address & 15 for address in addresses])
