"""Memory for what CTAs of one launch leave for one another: made once a device and stream.

Launches on one stream follow one another, so they can have the same memory. Those on two streams
may overlap, and have memory of their own. A graph has its own too, since it may run beside the
stream that captured it: the first launch of a capture finds none, so the flags are zeroed inside
the graph, once a replay. One graph does not run beside itself.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from typing import Any

from . import deferred
from .arrays import ArrayView, empty, view

LIBRARIES = ("torch", "numpy", "cupy")  # whose arrays can be allocated
LEAST_ELEMS = 1 << 20  # of partial sums: 4 MiB, so that few shapes make it grow
LEAST_FLAGS = 1 << 12
PER_THREAD = 2  # CU_STREAM_PER_THREAD (cuda.h): one handle, a stream for each host thread


@dataclass
class _Memory:
    """Partial sums and flags of one stream.

    Args:
        capture: the graph's capture that they are for; 0 for launches.
        sums: f32, of one axis.
        flags: s32, all 0 between launches.
        views: of sums by dtype and columns.
    """

    capture: int
    sums: Any
    flags: Any
    views: dict[tuple[str, int], Any] = field(default_factory=dict)

    def view(self, dtype: str, cols: int) -> Any:
        """The sums as rows of `cols` elements."""
        found = self.views.get((dtype, cols))
        if found is None:
            rows = self.sums.shape[0] // cols
            found = self.sums[: rows * cols].reshape(rows, cols)
            found = self.views[dtype, cols] = _seen_as(found, dtype)
        return found


_memories: dict[tuple[Any, ...], _Memory] = {}
_unread: dict[tuple[Any, ...], Any] = {}
_outgrown: list[Any] = []  # of those: graphs that were captured, and other streams, write to them


def allocates(x: Any) -> bool:
    """Whether arrays of this one's library can be allocated."""
    return type(x).__module__.partition(".")[0] in LIBRARIES


def workspace(like: Any, places: int, rows: int, cols: int, dtype: str) -> tuple[Any, Any]:
    """Places for partial sums, uninitialised, and a flag for each, 0.

    The kernel that takes them leaves the flags at 0 when it ends; nothing is zeroed again.

    Args:
        like: an array of the call: its library allocates, on its device, for its current stream.
        places: how many.
        rows: of each.
        cols: of each, elements.
        dtype: f32 or s32.

    Returns:
        sums, at least [places rows, cols]; flags, s32, at least [places].
    """
    array = view(like)
    if array.device == "cpu":
        return empty(like, (places * rows, cols), dtype), _zeros(like, places)
    key, capture = place_of(array)
    elems, found = places * rows * cols, _memories.get(key)
    if (
        found is None or found.capture != capture
        or found.sums.shape[0] < elems or found.flags.shape[0] < places
    ):  # fmt: skip
        found = _memories[key] = _allocate(like, elems, places, capture)
    return found.view(dtype, cols), found.flags


def unread(like: Any, elems: int) -> Any:
    """Memory of f32 that kernels write because they always do, and nobody reads: one a device.

    Args:
        like: a GPU array of the call, whose library allocates.
        elems: at least so many elements.

    Returns:
        an array of one axis.
    """
    library, device = type(like).__module__, getattr(like, "device", None)
    found = _unread.get((library, device))
    if found is None or found.shape[0] < elems:
        with deferred.driver().capture_relaxed():
            least = LEAST_ELEMS if found is None else 2 * found.shape[0]
            _outgrown.append(found)
            found = empty(like, (max(elems, least),), "f32")
        _unread[library, device] = found
    return found


def place_of(array: ArrayView) -> tuple[tuple[Any, ...], int]:
    """Device, stream (and whether it is captured) of the next launch; the capture's number, or 0.

    What a stream's former capture was given is let go when the next one asks: a graph's memory is
    then its pool's (`torch.cuda.graph`), which only captures into the same pool can take.
    """
    launch = deferred.launch()
    stream = launch.current_stream(array)
    capture = deferred.driver().capture_id(stream)
    thread = threading.get_ident() if stream == PER_THREAD else 0
    return (array.device, stream, thread, capture != 0), capture


def _allocate(like: Any, elems: int, places: int, capture: int) -> _Memory:
    with deferred.driver().capture_relaxed():
        sums = empty(like, (max(elems, LEAST_ELEMS),), "f32")
        return _Memory(capture, sums, _zeros(like, max(places, LEAST_FLAGS)))


def _zeros(like: Any, count: int) -> Any:
    flags = empty(like, (count,), "s32")
    flags[:] = 0
    return flags


def _seen_as(sums: Any, dtype: str) -> Any:
    """Partial sums of f32 as the same bits of another 4-byte dtype."""
    if dtype == "f32":
        return sums
    library = sys.modules[type(sums).__module__.partition(".")[0]]
    return sums.view(library.int32)
