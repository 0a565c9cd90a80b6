"""Calls with torch tensors on a GPU, seen before: their launches made ready.

A call whose tensors lie as those of an earlier one, with the same options, skips checks and
choices: of addresses seen before the launches are at hand, else the addresses in them are replaced.
What ran once is not remembered yet: a seed may be another in each call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .binding import Movable
from .captured import remembered
from .driver import KernelFunction
from .runtime.arrays import TENSORS, allocator
from .runtime.workspace import unread

MAX_CALLS = 4096  # layouts remembered, and launches of each
NUMBERS = (float, int)
TENSOR_TOKENS = 5  # address, device, dtype, extents and strides of a tensor in a key

_calls: dict[Any, _Known] = {}
_seen: set[Any] = set()  # keys of calls that ran once
# Of three tensors without options, by their addresses: how they lie, and the launch. To look there
# first takes 0.7 us less of a call than to hash how they lie.
_three: dict[tuple[int, int, int], tuple[tuple[Any, ...], Callable[[Any], None]]] = {}


def forget() -> None:
    """Forgets every call."""
    for memory in (_calls, _seen, _three):
        memory.clear()


@dataclass(frozen=True)
class Launch:
    """One kernel that ran.

    Args:
        kernel: what was called.
        tensors: its first arguments, each memory that the call was given, or made.
        rest: its further arguments: numbers, tensors of its options, and of the call too; those of
            options stand in the key, with their addresses.
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
        makers: allocate what a call writes, or needs.
        shared: memory of the current stream, which another stream has elsewhere; or None.
        movable: by the alignment of all tensors and which of them are one, launches of each kernel,
            and where each of its arguments is: the number of a tensor, or an address.
        launches: by the addresses of all tensors.
    """

    makers: tuple[Callable[[], Any], ...]
    shared: Callable[[Any], tuple[Any, ...]] | None
    movable: dict[Any, list[tuple[Movable, list[tuple[int, int]]]]] = field(default_factory=dict)
    launches: dict[Any, list[Callable[[Any], None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Whether the call's tensors are all there is."""
        self.alone = not self.makers and self.shared is None

    def learn(
        self, addresses: tuple[int, ...], found: list[tuple[Movable, list[tuple[int, int]]]]
    ) -> None:
        """Takes the kernels that ran for tensors aligned as these are.

        Args:
            addresses: of all tensors.
            found: of each kernel its launches, and where each of its arguments is.
        """
        self.movable[_likeness(addresses)] = found

    def at(self, addresses: tuple[int, ...]) -> list[Callable[[Any], None]] | None:
        """Launches for tensors at these addresses; None if nothing is known of such."""
        found: list[Callable[[Any], None]] = []
        for movable, places in self.movable.get(_likeness(addresses), ()):
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


def key_of(tensors: tuple[Any, ...], options: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What a call depends on beside addresses; None where nothing is remembered.

    Args:
        tensors: of the call; None for what is not given.
        options: numbers, strings, functions, tensors (whose addresses count), tuples of them.
    """
    found: list[Any] = []
    try:
        for x in tensors:
            if x is None:
                found.append(None)
            elif type(x) in TENSORS:
                found += (x.shape, x.stride(), x.dtype, x.get_device())
            else:
                return None
    except RuntimeError:  # a tensor without strides: sparse, nested
        return None
    if options:
        named = tokens(*options)
        if named is None:
            return None
        found += named
    return tuple(found)


def tokens(*options: Any) -> tuple[Any, ...] | None:
    """Options as part of a key; None for other than torch's tensors, numbers, functions, names.

    Of tensors the address is part: their launches are for them alone.
    """
    found: list[Any] = []
    for x in options:
        if x is None or x is True or x is False:
            found.append(x)  # in the place of a number there is a pair, so none equals True
            continue
        kind = type(x)
        if kind in TENSORS:
            try:
                found.append((x.data_ptr(), x.get_device(), x.dtype, x.shape, x.stride()))
            except RuntimeError:  # a tensor without memory of its own
                return None
        elif kind in NUMBERS:
            found.append((kind, x or repr(x)))  # 0.0 and -0.0 differ
        elif kind is str:
            found.append(x)
        elif kind is tuple:
            inner = tokens(*x)
            if inner is None:
                return None
            found.append(inner)
        elif callable(x) and _is_hashable(x):
            found.append(remembered(x))
        else:
            return None
    return tuple(found)


def _is_hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


def _addresses_in(key: tuple[Any, ...]) -> Iterator[int]:
    """Of the tensors that `tokens` names in a key."""
    for x in key:
        if type(x) is tuple:
            if len(x) == TENSOR_TOKENS and type(x[0]) is int:
                yield x[0]
            else:
                yield from _addresses_in(x)


@dataclass(frozen=True)
class Results:
    """What a call writes.

    Args:
        arrays: all of it.
        makers: allocate what was not given, and is read.
        made: what they gave, part of arrays.
        shared: of a tensor: what is written and not read, memory of the device; or None.
    """

    arrays: tuple[Any, ...]
    makers: tuple[Callable[[], Any], ...]
    made: tuple[Any, ...]
    shared: Callable[[Any], tuple[Any, ...]] | None


def allocate(
    like: Any, out: Any, lse: Any, read: bool, shapes: tuple[Any, Any], dtype: str
) -> Results:  # fmt: skip
    """The output and the log-sum-exp of a call.

    Args:
        like: an array of the call.
        out, lse: given, or None.
        read: whether anybody reads the log-sum-exp.
        shapes: of both.
        dtype: of the output; sums are f32.
    """
    makers = [allocator(like, shapes[0], dtype)] if out is None else []
    shared = None
    if lse is None and not read and type(like) in TENSORS and like.is_cuda:
        count = math.prod(shapes[1])
        lse = unread(like, count)[:count].reshape(*shapes[1])
        shared = partial(_unread, count)
    elif lse is None:
        makers.append(allocator(like, shapes[1], "f32"))
    made = tuple([make() for make in makers])
    arrays = made[0] if out is None else out, made[-1] if lse is None else lse
    return Results(arrays, tuple(makers), made, shared)


def _unread(count: int, like: Any) -> tuple[Any, ...]:
    return (unread(like, count),)


def present(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Those that are given."""
    return tuple([x for x in tensors if x is not None])


def three_again(a: Any, b: Any, out: Any) -> bool:
    """Launches again what `again` kept of three tensors; False unless the tensors lie as then."""
    if type(a) not in TENSORS or type(b) not in TENSORS or type(out) not in TENSORS:
        return False
    try:
        found = _three.get((a.data_ptr(), b.data_ptr(), out.data_ptr()))
    except RuntimeError:  # a tensor without memory of its own
        return False
    if found is None:
        return False
    layout, launch = found
    (shape_a, shape_b, shape, steps_a, steps_b, steps, dtype_a, dtype_b, dtype,
     device_a, device_b, device) = layout  # fmt: skip
    if (
        a.shape == shape_a and b.shape == shape_b and out.shape == shape
        and a.stride() == steps_a and b.stride() == steps_b and out.stride() == steps
        and a.dtype == dtype_a and b.dtype == dtype_b and out.dtype == dtype
        and a.get_device() == device_a and b.get_device() == device_b
        and out.get_device() == device
    ):  # fmt: skip
        launch(None)
        return True
    return False


def again(key: Any, given: tuple[Any, ...], *, three: bool = False) -> tuple[Any, ...] | None:
    """What a call's makers made, launched; None if the call is not known.

    Args:
        key: of the call; None for one that nothing is remembered of.
        given: its tensors.
        three: there are three, and no options: key is how they lie, and (). One launch that is met
            again at the same addresses is kept for `three_again`; one of addresses that are new,
            as those of results that go to other places each time, is not.
    """
    known = _calls.get(key)
    if known is None:
        return None
    made: tuple[Any, ...] = ()
    tensors = given
    if not known.alone:
        made = tuple([make() for make in known.makers])
        tensors += made
        if known.shared is not None:
            tensors += known.shared(given[0])
    addresses = tuple([x.data_ptr() for x in tensors])
    launches = known.launches.get(addresses)
    if launches is None:
        launches = known.at(addresses)
        if launches is None:
            return None
    elif three and known.alone and len(launches) == 1:
        if len(_three) >= MAX_CALLS:
            _three.clear()
        _three[addresses[0], addresses[1], addresses[2]] = key[:-1], launches[0]
    for launch in launches:
        launch(None)
    return made


def remember(
    key: Any, given: tuple[Any, ...], makers: tuple[Callable[[], Any], ...],
    made: tuple[Any, ...], launches: Sequence[Launch], *,
    shared: Callable[[Any], tuple[Any, ...]] | None = None,
) -> None:  # fmt: skip
    """Keeps what ran for the second time.

    Args:
        key: of the call; None for one that nothing is remembered of.
        given: its tensors.
        makers: allocate what it wrote beside.
        made: what they gave.
        launches: the kernels, in order.
        shared: of a tensor: memory of the current stream that the launches use too.
    """
    if key is None or not given[0].is_cuda:
        return
    if key not in _calls and key not in _seen:
        if len(_seen) >= MAX_CALLS:
            _seen.clear()
        _seen.add(key)
        return
    tensors = (*given, *made, *(shared(given[0]) if shared else ()))
    addresses = tuple([x.data_ptr() for x in tensors])
    number = {address: at for at, address in enumerate(addresses)}
    named = set(_addresses_in(key))
    found = []
    for launch in launches:
        movable = launch.kernel.movable(*launch.tensors, *launch.rest, **launch.params)
        if movable is None:
            return
        first = [number.get(x.data_ptr(), -1) for x in launch.tensors]
        if -1 in first:  # a copy, which another call makes anew
            return
        rest = [x.data_ptr() if hasattr(x, "data_ptr") else 0 for x in launch.rest]
        if any(ptr and ptr not in number and ptr not in named for ptr in rest):
            return  # the same of an option
        places = [(at, 0) for at in first] + [(number.get(ptr, -1), ptr) for ptr in rest]
        found.append((movable, places))
    if key not in _calls and len(_calls) >= MAX_CALLS:
        _calls.clear()
        _three.clear()
    _calls.setdefault(key, _Known(makers, shared)).learn(addresses, found)


def _likeness(addresses: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """What launches depend on: alignment, and which addresses are equal."""
    return tuple([(address & 15, addresses.index(address)) for address in addresses])
