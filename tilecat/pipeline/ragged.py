"""Ragged tasks: (sequence, chunk) of a packed batch, from offsets that the device knows alone."""

from __future__ import annotations

from typing import Any

from ..dtypes import s32
from ..errors import LayoutError
from ..language.control import range_
from ..language.memory import load
from ..language.scalars import binary, cdiv, minimum_of, named, select, var
from ..language.views import GlobalTensor
from .scheduler import Schedule

WAYS = 8  # parts that a round of the search tells apart: loads that are under way together
BEYOND = 1 << 30  # where sequences that there are not begin
MAX_ROUNDS = 7  # two million sequences


def ragged(starts: GlobalTensor, total: Any, *, chunk: int = 64) -> Schedule:
    """Chunks of `chunk` rows of each sequence of a packed batch; none crosses two sequences.

    Sequence i has rows starts[i] to starts[i + 1] - 1 (`cu_seqlens`), any number of them. It gets
    the tasks from starts[i] // chunk + i on, which are enough for all its chunks; those beyond its
    end have no rows. So the number of tasks, total // chunk + sequences, needs no offset, and a
    task finds its sequence by a search, in eighths.

    Coordinates: sequence; chunk, its number in the sequence; first and last, the sequence's rows
    (last excluded); rows, of the chunk that are the sequence's (0: nothing to do).

    Example: `X[task.first:, :][task.chunk, 0]` is loaded by TMA, with rows of the next sequence
    where the chunk is not full; a store to `Y[task.first : task.last, :][task.chunk, 0]` touches
    rows of this sequence alone.

    Args:
        starts: offsets, s32, one axis, one more than sequences, ascending from 0.
        total: rows of all sequences, an s32 scalar: `X.rows`.
        chunk: rows of a task.

    Raises:
        LayoutError: offsets of another kind, a chunk that is no positive int.
    """
    if not isinstance(starts, GlobalTensor) or starts.rank != 1 or starts.dtype != s32:
        raise LayoutError(
            f"ragged: offsets are an s32 tensor of one axis, got {starts!r}",
            hint='starts: gl[s32, "sequences + 1"]',
        )
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise LayoutError(f"ragged: chunk is a compile-time int from 1 up, got {chunk=}")
    sequences, rounds = binary("sub", starts.size(0), 1), 0
    for number in range(MAX_ROUNDS):  # here, ahead of the tasks: once
        rounds = rounds + select(sequences > WAYS**number, 1, 0)

    def locate(t: Any) -> tuple[tuple[str, Any], ...]:
        sequence = _sequence_of(starts, sequences, rounds, t, chunk)
        first = named(load(starts[sequence], s32), "first")
        last = named(load(starts[sequence + 1], s32), "last")
        number = named(t - (first // chunk + sequence), "chunk")
        left = minimum_of(last - first - number * chunk, chunk)
        rows = named(select(left < 0, 0, left), "rows")
        return (
            ("sequence", sequence), ("chunk", number), ("first", first), ("last", last),
            ("rows", rows),
        )  # fmt: skip

    count = select(sequences < 1, 0, binary("add", binary("div", total, chunk), sequences))
    return Schedule(f"chunks of {chunk} rows of each sequence", count, locate)


def _sequence_of(
    starts: GlobalTensor, sequences: Any, rounds: Any, t: Any, chunk: int
) -> Any:  # fmt: skip
    """The last sequence whose first task is not beyond t: one of `size` from `low` on."""
    low, size = var(0, name="low"), var(sequences, name="size")
    for _ in range_(rounds):
        step = named(cdiv(size.get(), WAYS), "step")
        before: Any = 0  # parts behind the first whose first sequence begins before t, or at it
        for part in range(1, WAYS):
            other = named(low.get() + step * part, "other")
            begins = load(starts[other], s32, fill=BEYOND) // chunk + other
            before = before + select(begins <= t, 1, 0)
        low.set(low.get() + step * before)
        size.set(step)
    return named(low.get(), "sequence")
