"""Orders of tasks on a persistent grid: from a task's number to its coordinates.

Each order is a `Schedule`: how many tasks there are and what task `t` is. A CTA takes tasks
`ctaid, ctaid + grid, ...`, so neighbours in number run at one time and share the L2 cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import LayoutError, ScopeError
from ..language.clusters import cluster_rank
from ..language.divisors import Divisor
from ..language.scalars import binary, cdiv, named, operand_of, select
from ..language.sections import num_ctas
from ..ops.scalar import require_s32
from .sharing import COL, ROW, own

OWN = ("index", "coords")  # what a task has beside its coordinates


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

    by_cols = Divisor(cols)

    def locate(t: Any) -> tuple[tuple[str, Any], ...]:
        row = named(by_cols(t), "row")
        return (("row", row), ("col", named(t - row * cols, "col")))

    return Schedule("row-major", count, locate)


def column_major(rows: Any, cols: Any) -> Schedule:
    """Task t is block (t mod rows, t // rows). Coordinates: row, col.

    Args: block rows and columns, ints or s32 scalars. Scope: any.
    """
    count, (rows, _) = _count("column_major", rows=rows, cols=cols)

    by_rows = Divisor(rows)

    def locate(t: Any) -> tuple[tuple[str, Any], ...]:
        col = named(by_rows(t), "col")
        return (("row", named(t - col * rows, "row")), ("col", col))

    return Schedule("column-major", count, locate)


def custom_order(
    count: Any, f: Callable[[Any], Mapping[str, Any]], *, cluster: int = 1, cluster_cols: int = 1
) -> Schedule:
    """An order of the user's own: task t has the coordinates that `f(t)` says.

    Args:
        count: number of tasks, an int or an s32 scalar; of clusters with `cluster` above 1.
        f: from a task's number, an s32 scalar, to its named coordinates, e.g.
            `lambda t: {"row": t % 4, "col": t // 4}`; traced where a task begins. Each task's must
            be its own, and all of them there: nothing checks that.
        cluster: CTAs that take one task together; `f` tells them apart by `tc.cluster_rank()`.
        cluster_cols: how many of them lie beside each other, in one block row.

    Raises:
        ScopeError: `f` is no function, or returns no coordinates. Scope: any.
    """
    if not callable(f):
        raise ScopeError(
            f"custom_order: f is a function of a task's number, got {f!r} ({type(f).__name__})",
            hint='tc.custom_order(count, lambda t: {"row": t % 4, "col": t // 4})',
        )
    for name, value in (("cluster", cluster), ("cluster_cols", cluster_cols)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise LayoutError(f"custom_order: {name} is an int from 1 up, got {name}={value!r}")
    if cluster % cluster_cols:
        raise LayoutError(
            f"custom_order: block rows of a cluster are equally long, got {cluster=} and "
            f"{cluster_cols=}"
        )
    require_s32("custom_order: count", operand_of(count, "custom_order: count"))

    def locate(t: Any) -> tuple[tuple[str, Any], ...]:
        coords = f(t)
        if not isinstance(coords, Mapping) or not all(_is_coordinate(key) for key in coords):
            raise ScopeError(
                f"custom_order: f returns named coordinates (none of them {' or '.join(OWN)}), got "
                f"{coords!r} ({type(coords).__name__})",
                hint='return {"row": t % 4, "col": t // 4}',
            )
        return tuple(coords.items())

    return Schedule("custom", count, locate, cluster, cluster_cols)


def _is_coordinate(key: Any) -> bool:
    return isinstance(key, str) and key.isidentifier() and key not in OWN


def _count(name: str, **extents: Any) -> tuple[Any, tuple[Any, ...]]:
    """Number of tasks, and extents that can be divided by: no task asks where there is none."""
    count: Any = 1
    for what, extent in extents.items():
        require_s32(f"{name}: {what}", operand_of(extent, f"{name}: {what}"))
        count = binary("mul", count, extent)
    return count, tuple(max(e, 1) if isinstance(e, int) else e for e in extents.values())


def _cluster_shape(order: str, cluster: Any) -> tuple[int, int]:
    """Block rows and columns that the CTAs of a cluster take together."""
    shape = cluster if isinstance(cluster, tuple) else (cluster, 1)
    ints = all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in shape)
    if len(shape) != 2 or not ints:
        raise LayoutError(f"{order}: cluster is a compile-time int from 1 up, got {cluster=}",
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
    return _in_groups("grouped", rows_total, cols, rows, cluster)


def snake(
    rows_total: Any, cols: Any, *, rows: int = 1, cluster: int | tuple[int, int] = 1
) -> Schedule:
    """As `grouped`, but every second group runs from right to left (boustrophedon).

    A group then starts at the block columns where the one before ended, whose blocks of B are
    still in L2. Coordinates: row, col.

    Args:
        rows_total, cols, cluster: as of `grouped`.
        rows: block rows of a group; with 1, every second block row runs from right to left.
    """
    return _in_groups("snake", rows_total, cols, rows, cluster)


def _in_groups(order: str, rows_total: Any, cols: Any, rows: int, cluster: Any) -> Schedule:
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise LayoutError(f"{order}: rows is a compile-time int from 1 up, got rows={rows!r}")
    high, wide = _cluster_shape(order, cluster)
    if rows % high:
        raise LayoutError(f"{order}: the cluster divides the group, got {rows=} and {cluster=}")
    if order == "grouped" and rows == 1 and wide == 1:
        return row_major(rows_total, cols)
    if high > 1:
        rows_total, rows = cdiv(rows_total, high), rows // high
    if wide > 1:
        cols = cdiv(cols, wide)
    count, (_, cols) = _count(order, rows_total=rows_total, cols=cols)

    by_rows, per_group = Divisor(rows), named(cols * rows, "per_group")
    by_group = Divisor(per_group)
    tail = named(rows_total - by_rows(rows_total) * rows, "tail")  # block rows of the last group
    by_tail = Divisor(named(binary("max", tail, 1), "tail"))

    def locate(t: Any) -> tuple[tuple[str, Any], ...]:
        group = named(by_group(t), "group")
        first = named(group * rows, "first_row")
        full = rows_total - first >= rows
        height = named(select(full, rows, tail), "height")
        inside = named(t - group * per_group, "in_group")
        col = named(select(full, by_rows(inside), by_tail(inside)), "col")
        row = named(first + inside - col * height, "row")
        if order == "snake":
            col = named(select(binary("and", group, 1) == 0, col, cols - 1 - col), "col")
        return _of_cluster(row, col, high, wide)

    names = {"grouped": f"groups of {rows * high} rows", "snake": f"snake of {rows * high} rows"}
    return Schedule(names[order], count, locate, high * wide, wide)


def _of_cluster(row: Any, col: Any, high: int, wide: int) -> tuple[tuple[str, Any], ...]:
    """The block of this CTA, where those of a cluster take high x wide of them."""
    rank = cluster_rank() if high * wide > 1 else 0
    if high > 1:
        row = own(named(row * high + (rank // wide if wide > 1 else rank), "row"), ROW)
    if wide > 1:
        col = own(named(col * wide + (rank % wide if high > 1 else rank), "col"), COL)
    return (("row", row), ("col", col))


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
            index = named(by_plane(t), "plane")
            place = named(t - index * per_plane, "in_plane")
            for extent in reversed(inner[1:]):
                outer = named(binary("div", index, extent), "plane")
                batch.append(named(index - outer * extent, "batch"))
                index = outer
            batch.append(index)
        return (*tasks.locate(place), ("batch", tuple(reversed(batch))))

    _, (per_plane,) = _count("batched", tasks=tasks.count)
    by_plane = Divisor(per_plane if extents else 1)
    total = binary("mul", tasks.count, count)
    return Schedule(tasks.name, total, locate, tasks.cluster, tasks.cluster_cols)


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


def longest_first(
    tiles: Any, heads: Any, batch: Any, *, planes: Any, turned: Any = False
) -> Schedule:
    """Of `planes` heads the last query tiles, then those before: causal tasks, long to short.

    The short tasks at the end fill what the long ones leave of a wave. Then the next `planes`
    heads: their keys and values are what L2 should hold. Coordinates: tile, head, batch.

    Args:
        tiles: query tiles of a head; the last takes longest.
        heads, batch: how many.
        planes: heads whose tiles are taken together, at most, an int or an s32 scalar, 1 or more:
            heads are shared out evenly.
        turned: whether every other wave of the grid before the last runs from its last CTA to its
            first, so that none has the longest task of each: a bool, or an s32 scalar, 0 or 1.
    """
    count, (tiles, heads, _) = _count("longest_first", tiles=tiles, heads=heads, batch=batch)
    require_s32("longest_first: planes", operand_of(planes, "longest_first: planes"))
    total = binary("mul", heads, batch)
    sections = cdiv(total, planes)
    low = binary("div", total, binary("max", sections, 1))  # heads of a section, or one more
    taller = total - low * sections  # the first sections

    def locate(t: Any) -> tuple[tuple[str, Any], ...]:
        t = _there_and_back(t, count, turned)
        first_ones = t < taller * (low + 1) * tiles
        height = named(select(first_ones, low + 1, low), "height")
        skipped = named(select(first_ones, 0, taller), "skipped")  # heads, one a section
        section = named(binary("div", t - skipped * tiles, height * tiles), "section")
        first = named(section * height + skipped, "first_plane")
        inside = named(t - first * tiles, "in_section")
        level = named(binary("div", inside, height), "level")
        plane = named(first + inside - level * height, "plane")
        entry = named(binary("div", plane, heads), "batch")
        tile = named(tiles - 1 - level, "tile")
        return (("tile", tile), ("head", named(plane - entry * heads, "head")), ("batch", entry))

    return Schedule("longest first", count, locate)


def _there_and_back(t: Any, count: Any, turned: Any) -> Any:
    """Task t of a persistent grid, where every other wave before the last runs backwards.

    The CTAs that have a task more than others, in the last wave, have the shortest of the one
    before.
    """
    if turned is False:
        return t
    ctas = num_ctas()
    wave = named(binary("div", t, ctas), "wave")
    backwards = named(binary("div", count - 1, ctas) - wave & turned, "backwards")
    back = named(wave * ctas * 2 + ctas - 1 - t, "back")
    return named(select(backwards == 1, back, t), "task")
