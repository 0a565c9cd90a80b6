"""Tasks that share the K of a tile: work for SMs that would be idle.

Some tasks end a tile, the others leave partial sums for those that do. Coordinates that both
schedules add to a task's own:

    first_step, steps   a pipeline takes `task.steps` of it; its kernel loads
                        step `task.first_step + k`
    ends                whether the task ends its tile
    slot                of one that does not: the number of the place of its partial sums;
                        of one that does: the number of the first place that it adds
    partials            of one that ends its tile: how many places it adds, from `slot` on
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import LayoutError, ScopeError
from ..language.clusters import cluster_id, num_clusters
from ..language.scalars import binary, compare, minimum_of, named, operand_of, select
from ..language.sections import cta_id, num_ctas
from ..ops.scalar import require_s32
from .scheduler import Schedule

Coordinates = tuple[tuple[str, Any], ...]
WHOLE: Coordinates = (("first_step", 0), ("ends", True), ("slot", 0), ("partials", 0))


def split_k(tasks: Schedule, parts: int, steps: Any, *, slots: Any = None) -> Schedule:
    """Each task as `parts` tasks of some of its steps: work for SMs that would be idle.

    All first parts come before all second ones, and a tile's last part ends it: it waits for parts
    (`tc.turn`) that CTAs of lower numbers have begun, as long as no CTA takes two tasks. With more
    tasks than CTAs, a launch beside another one that waits likewise is not sure to end.

    Further coordinates: part; first_step and steps, how many it has, which differ by one at most
    and are 0 where there are more parts than steps; ends, whether it is the last part; slot, where
    a part that is not leaves its sums, and the first of `partials` places that the last adds. A
    pipeline takes `task.steps` of it; its kernel loads step `task.first_step + k`.

    Args:
        tasks: the whole ones.
        parts: of each, a compile-time int; 1 leaves tasks whole.
        steps: of a whole task, an s32 scalar, at most 2^31 / parts.
        slots: places that there are, an s32 scalar; too few make fewer parts. None: enough.
    """
    _check("split_k", tasks, parts, steps)
    if parts == 1:
        return replace(tasks, locate=lambda t: (*tasks.locate(t), ("part", 0), *WHOLE))
    count = _divisor(tasks.count)
    most: Any = parts
    if slots is not None:
        require_s32("split_k: slots", operand_of(slots, "split_k: slots"))
        some = count if isinstance(count, int) else select(count < 1, 1, count)
        most = named(minimum_of(binary("div", slots, some) + 1, parts), "parts")

    def locate(t: Any) -> Coordinates:
        part = named(binary("div", t, count), "part")
        first = named(binary("div", part * steps, most), "first_step")
        behind = binary("div", (part + 1) * steps, most)
        whole = named(t - part * count, "whole")
        last = part == most - 1
        slot = named(whole * (most - 1) + select(last, 0, part), "slot")
        return (*tasks.locate(whole), ("part", part), ("first_step", first),
                ("steps", named(behind - first, "steps")), ("ends", last), ("slot", slot),
                ("partials", named(select(last, most - 1, 0), "partials")))  # fmt: skip

    total = binary("mul", tasks.count, most)
    return replace(tasks, name=f"{tasks.name}, K in {parts}", count=total, locate=locate)


def stream_k(tasks: Schedule, parts: int, steps: Any, *, slots: Any = None) -> Schedule:
    """Whole tasks as long as all CTAs have one; the rest shared evenly, a stretch of steps each.

    133 tasks on 132 CTAs then take one wave and a little, not two: the tail's steps, those of all
    its tasks in a row, are cut into as many stretches as there are CTAs, wherever tasks begin. A
    stretch that lies in two tasks is two tasks of its CTA, the end of one and the beginning of the
    other. The CTA that has a task's beginning ends it: it adds what the others left, in the order
    of K. How sums are grouped depends on extents and grid alone: equal bits each time.

    A CTA leaves partial sums first, and then waits (`tc.turn`) for CTAs of lower numbers alone,
    which have begun: no launch waits for itself, also beside others.

    Further coordinates: first_step, steps, ends, slot and partials, as of `tc.split_k`; there are
    as many slots as CTAs (clusters).

    Args:
        tasks: the whole ones.
        parts: how many CTAs share a task of the tail at most (one more where stretches do not
            begin with tasks), a compile-time int; 1 leaves tasks whole. More take fewer steps
            each, and the one that ends the task has more to add.
        steps: of a whole task, an s32 scalar, at most 2^31 / CTAs^2.
        slots: places that there are, an s32 scalar; with too few, fewer CTAs share. None: enough.

    Scope: any; the number of tasks is that of this CTA. Stream-K: Osama et al., PPoPP 2023.
    """
    _check("stream_k", tasks, parts, steps)
    if parts == 1:
        return replace(tasks, locate=lambda t: (*tasks.locate(t), *WHOLE))
    units = named(select(steps < 1, 1, steps), "units")  # a task without steps ends all the same
    tail = _Tail(tasks, parts, units, slots)
    number, begin = tail.number, tail.begin

    def locate(t: Any) -> Coordinates:
        wave = named(binary("div", t, tail.ctas), "wave")
        split, later = wave >= tail.waves, wave > tail.waves
        task = named(tail.first + select(later, 1, 0), "tail_task")
        low = named(select(later, task * units, begin), "low")
        high = named(minimum_of(tail.end, (task + 1) * units), "high")
        ends = compare("eq", low, task * units)
        partials = tail.stretch_of((task + 1) * units - 1) - number
        own = minimum_of(high - low, steps)
        return (
            *tasks.locate(named(select(split, tail.whole + task, t), "task")),
            ("first_step", named(select(split, low - task * units, 0), "first_step")),
            ("steps", named(select(split, own, steps), "steps")),
            ("ends", binary("or", ends, wave < tail.waves)),
            ("slot", named(select(ends, number + 1, number), "slot")),
            ("partials", named(select(split, partials, 0), "partials")),
        )

    return replace(tasks, name=f"{tasks.name}, a tail in {parts}", count=tail.count, locate=locate)


class _Tail:
    """What is left behind whole waves, in stretches of its units, one for each of some CTAs.

    Args:
        tasks: all of them.
        parts: stretches for each task of the tail at most.
        units: of a task: its steps, or 1.
        slots: places that there are, or None. One CTA a task, the least, needs none.
    """

    def __init__(self, tasks: Schedule, parts: int, units: Any, slots: Any):
        clustered = tasks.cluster > 1
        cta, self.ctas = (cluster_id(), num_clusters()) if clustered else (cta_id(), num_ctas())
        self.waves = named(binary("div", tasks.count, self.ctas), "waves")
        self.whole = named(self.waves * self.ctas, "whole_tasks")
        rest = named(tasks.count - self.whole, "rest")
        total = named(rest * units, "rest_units")
        most = minimum_of(minimum_of(self.ctas, rest * parts), total)
        if slots is not None:
            require_s32("stream_k: slots", operand_of(slots, "stream_k: slots"))
            most = minimum_of(most, select(slots < rest, rest, slots))
        self.sharers = named(most, "sharers")
        self.total, one = (named(select(x < 1, 1, x), "divisor") for x in (total, self.sharers))
        # Stretches go to CTAs backwards: those that a CTA waits for have lower numbers.
        self.number = named(self.sharers - 1 - cta, "stretch")
        self.begin = named(binary("div", self.number * total, one), "begin")
        self.end = named(binary("div", (self.number + 1) * total, one), "end")
        self.first = named(binary("div", self.begin, units), "first_task")
        two = compare("lt", (self.first + 1) * units, self.end)
        mine = select(self.number < 0, 0, select(two, 2, 1))
        self.count = named((self.waves + mine) * self.ctas, "tasks_of_cta")

    def stretch_of(self, unit: Any) -> Any:
        """The stretch that holds a unit: x, where x total // sharers <= unit is the last."""
        return named(binary("div", (unit + 1) * self.sharers - 1, self.total), "stretch_of")


def _divisor(count: Any) -> Any:
    return max(count, 1) if isinstance(count, int) else count


def _check(name: str, tasks: Any, parts: Any, steps: Any) -> None:
    if not isinstance(tasks, Schedule):
        raise ScopeError(f"{name}: tasks is an order of tasks, got {tasks!r}",
                         hint=f"tc.{name}(tc.grouped(rows, cols), parts, steps)")  # fmt: skip
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        raise LayoutError(f"{name}: parts is a compile-time int from 1 up, got {parts=}")
    require_s32(f"{name}: steps", operand_of(steps, f"{name}: steps"))
