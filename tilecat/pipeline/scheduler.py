"""Orders of tasks on a persistent grid: from a task's number to its coordinates.

Each order is a `Schedule`: how many tasks there are and what task `t` is. A CTA takes tasks
`ctaid, ctaid + grid, ...`, so neighbours in number run at one time and share the L2 cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import LayoutError, ScopeError
from ..language.clusters import cluster_rank
from ..language.scalars import binary, cdiv, minimum_of, named, operand_of
from ..ops.scalar import require_s32


@dataclass(frozen=True)
class Task:
    """Coordinates of one task, as run-time scalars.

    Args:
        index: its number.
        coords: named coordinates; also attributes: `task.row`.
    """

    index: Any
    coords: tuple[tuple[str, Any], ...]

    def __getattr__(self, name: str) -> Any:
        """A coordinate by name."""
        for key, value in self.coords:
            if key == name:
                return value
        if name.startswith("__"):
            raise AttributeError(name)
        known = ", ".join(key for key, _ in self.coords)
        raise ScopeError(f"task: has the coordinates {known}, got task.{name}")


@dataclass(frozen=True)
class Schedule:
    """An order of tasks.

    Args:
        name: for reports.
        count: number of tasks, a run-time scalar or an int.
        locate: from a task's number to its coordinates.
        cluster: CTAs that take one task together, each with coordinates of its own.
        cluster_cols: how many of them lie beside each other, in one block row.
    """

    name: str
    count: Any
    locate: Callable[[Any], tuple[tuple[str, Any], ...]]
    cluster: int = 1
    cluster_cols: int = 1

    def task(self, index: Any) -> Task:
        """Task number `index`."""
        return Task(index, self.locate(index))


def row_major(rows: Any, cols: Any) -> Schedule:
    """Task t is block (t // cols, t mod cols). Coordinates: row, col.

    Args: block rows and columns, ints or s32 scalars. Scope: any.
    """
    count, (_, cols) = _count("row_major", rows=rows, cols=cols)

    def locate(t: Any) -> tuple[tuple[str, Any], ...]:
        row = named(binary("div", t, cols), "row")
        return (("row", row), ("col", named(t - row * cols, "col")))

    return Schedule("row-major", count, locate)


def _count(name: str, **extents: Any) -> tuple[Any, tuple[Any, ...]]:
    """Number of tasks, and extents that can be divided by: no task asks where there is none."""
    count: Any = 1
    for what, extent in extents.items():
        require_s32(f"{name}: {what}", operand_of(extent, f"{name}: {what}"))
        count = binary("mul", count, extent)
    return count, tuple(max(e, 1) if isinstance(e, int) else e for e in extents.values())


def _cluster_shape(cluster: Any) -> tuple[int, int]:
    """Block rows and columns that the CTAs of a cluster take together."""
    shape = cluster if isinstance(cluster, tuple) else (cluster, 1)
    ints = all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in shape)
    if len(shape) != 2 or not ints:
        raise LayoutError(f"grouped: cluster is a compile-time int from 1 up, got {cluster=}",
                          hint="cluster=2 for two rows, cluster=(1, 2) for two columns")
    return shape


def grouped(
    rows_total: Any, cols: Any, *, rows: int = 8, cluster: int | tuple[int, int] = 1
) -> Schedule:
    """Groups of `rows` block rows, column by column inside a group ("supergroup" raster).

    The CTAs that run at one time then cover a compact patch, which reads each block of A and B
    once from memory and then from L2. Coordinates: row, col.

    Args:
        rows_total: block rows.
        cols: block columns.
        rows: block rows of a group; 1 is row-major.
        cluster: block rows that the CTAs of a cluster take together; divides `rows`. With an odd
            number of block rows the last cluster has CTAs beyond them, whose loads are zeros and
            whose stores are masked. A pair is block rows and columns: (1, 2), (2, 2).
    """
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise LayoutError(f"grouped: rows is a compile-time int from 1 up, got rows={rows!r}")
    high, wide = _cluster_shape(cluster)
    if rows % high:
        raise LayoutError(f"grouped: the cluster divides the group, got {rows=} and {cluster=}")
    if rows == 1 and wide == 1:
        return row_major(rows_total, cols)
    if high > 1:
        rows_total, rows = cdiv(rows_total, high), rows // high
    if wide > 1:
        cols = cdiv(cols, wide)
    count, (_, cols) = _count("grouped", rows_total=rows_total, cols=cols)

    def locate(t: Any) -> tuple[tuple[str, Any], ...]:
        per_group = named(cols * rows, "per_group")
        group = named(binary("div", t, per_group), "group")
        first = named(group * rows, "first_row")
        height = named(minimum_of(rows_total - first, rows), "height")
        inside = named(t - group * per_group, "in_group")
        col = named(binary("div", inside, height), "col")
        row = named(first + inside - col * height, "row")
        rank = cluster_rank() if high * wide > 1 else 0
        if high > 1:
            row = named(row * high + (rank // wide if wide > 1 else rank), "row")
        if wide > 1:
            col = named(col * wide + (rank % wide if high > 1 else rank), "col")
        return (("row", row), ("col", col))

    return Schedule(f"groups of {rows * high} rows", count, locate, high * wide, wide)


def batched(tasks: Schedule, *extents: Any) -> Schedule:
    """The tasks of one plane after another: one more coordinate, batch, a tuple.

    Args:
        tasks: those of a plane.
        extents: of the axes of planes, outermost first; none for a single plane.
    """
    if not isinstance(tasks, Schedule):
        raise ScopeError(
            f"batched: tasks is an order of tasks, got {tasks!r} ({type(tasks).__name__})",
            hint="tc.grouped(rows, cols)",
        )
    count, inner = _count("batched", **{f"axis {i}": n for i, n in enumerate(extents)})

    def locate(t: Any) -> tuple[tuple[str, Any], ...]:
        place, batch = t, []
        if extents:
            index = named(binary("div", t, per_plane), "plane")
            place = named(t - index * per_plane, "in_plane")
            for extent in reversed(inner[1:]):
                outer = named(binary("div", index, extent), "plane")
                batch.append(named(index - outer * extent, "batch"))
                index = outer
            batch.append(index)
        return (*tasks.locate(place), ("batch", tuple(reversed(batch))))

    _, (per_plane,) = _count("batched", tasks=tasks.count)
    return Schedule(tasks.name, binary("mul", tasks.count, count), locate, tasks.cluster)


def sequence_first(tiles: Any, heads: Any, batch: Any) -> Schedule:
    """All query tiles of one head, then the next head: its keys and values stay in L2.

    Coordinates: tile, head, batch.
    """
    count, (tiles, heads, _) = _count("sequence_first", tiles=tiles, heads=heads, batch=batch)

    def locate(t: Any) -> tuple[tuple[str, Any], ...]:
        plane = named(binary("div", t, tiles), "plane")
        entry = named(binary("div", plane, heads), "batch")
        tile = named(t - plane * tiles, "tile")
        return (("tile", tile), ("head", named(plane - entry * heads, "head")), ("batch", entry))

    return Schedule("sequence first", count, locate)
