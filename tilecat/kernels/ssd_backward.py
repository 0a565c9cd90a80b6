"""Gradients of Mamba-2: what is around the scans of linear attention that give most of them.

`y = (C h + D x) silu(z)` is `simple_gla(C, B, dt x, dt A)` and what a token does by itself. Ahead
of the scans are values `dt x`, gates `dt A` and the gradient of `C h + D x` (`ssd_operands`);
behind them, from the gradients of values and gates, those of x, z and D (`ssd_gradients`), of dt
and A (`ssd_step_gradients`), and of B and C sums over the heads that share them (`sum_heads`).

The large arrays pass through pipelines, chunk after chunk of 64 columns of a head; dt of a chunk is
loaded a step ahead.
"""

from __future__ import annotations

import math
from typing import Any

import tilecat as tc
from tilecat import f32, gl, rt, rv, s32, st

from .chunk_scan import COLUMN, ROW
from .chunk_tasks import CHUNK, chunk_of, tasks_of
from .ssd import TD, T
from .ssd_steps import Steps

# Stages and CTAs of an SM, by how many arrays are read: about 200 KB of shared memory an SM.
DEPTHS = {1: (4, 4), 2: (4, 2), 3: (3, 2), 5: (3, 1), 6: (3, 1)}
TOKENS = 512  # at a time, of what a token has one number of


class _Chunks:
    """Chunks of 64 columns of a head, from arrays through a pipeline into others.

    Args:
        steps: of tokens. arrays: read, [B, H, T, P], the first one x. outputs: how many are made.
        segment: tokens of a task.
    """

    def __init__(self, steps: Steps, arrays: list[Any], outputs: list[Any], segment: Any):
        (stages, blocks_per_sm), self.steps, x = DEPTHS[len(arrays)], steps, arrays[0]
        tasks = tasks_of(x.size(1), x.size(0), x.rows, tc.cdiv(x.cols, CHUNK), None, segment)
        self.pipe = tc.lcsf(consumers=1, stages=stages, steps=1, tasks=tasks,
                            blocks_per_sm=blocks_per_sm)  # fmt: skip
        kind = st[x.dtype, CHUNK, CHUNK]
        self.tiles = [self.pipe.input(kind) for _ in arrays]
        self.made = [self.pipe.output(kind) for _ in outputs]

        @self.pipe.load
        def _(task, step):
            for tile, array in zip(self.tiles, arrays, strict=True):
                tc.load_async(tile, array.at(*self.place(task, step), task.block * CHUNK))

        @self.pipe.store
        def _(task, step):
            for tile, array in zip(self.made, outputs, strict=True):
                tc.store_async(array.at(*self.place(task, step), task.block * CHUNK), tile)

    def place(self, task: Any, step: Any) -> tuple[Any, Any, Any]:
        """Batch entry, head and first token of a chunk."""
        return task.batch, task.head, chunk_of(task, step, False).row

    def start(self, task: Any) -> None:
        """A and the bias of the head, and dt of the first chunk."""
        self.rate, self.offset = self.steps.of_head(task.head)
        self.ahead = tc.empty(ROW)
        tc.copy(self.ahead, tc.load(self.steps.dt.at(*self.place(task, 0)), ROW))

    def taken(self, task: Any, step: Any) -> Any:
        """The steps of a chunk; dt of the next one is loaded."""
        dt = self.ahead + self.offset
        tc.copy(self.ahead, tc.load(self.steps.dt.at(*self.place(task, step + 1)), ROW))
        return self.steps.of(dt)

    def loaded(self, number: int) -> Any:
        """A tile of a chunk, f32."""
        return tc.cast(tc.load(self.tiles[number].tile), f32)

    def give(self, number: int, x: Any) -> None:
        """Rounds a chunk of an output, and hands it to the storing thread."""
        tile = self.made[number]
        tc.store(tile, tc.cast(x, tile.kind.dtype))


@tc.kernel
def ssd_operands(
    X: gl[T, "B", "H", "T", "P"], dt: gl[TD, "B", "H", "T"], A: gl[f32, "H"],
    Values: gl[T, "B", "H", "T", "P"], Gates: gl[f32, "B", "H", "T"], segment: s32, low: f32,
    high: f32, *args, softplus=False, limits=False, names=(),
):  # fmt: skip
    """Values dt X and gates dt A, dt as in `ssd`; gated, dN = dY silu(Z) too.

    args: those of `names`: bias f32 [H], sequences s32 [B, T]; z, dy and dn [B, H, T, P].
    """
    given = dict(zip(names, args, strict=True))
    steps = Steps(dt, A, given.get("bias"), softplus, (low, high) if limits else None,
                  given.get("sequences"))  # fmt: skip
    gated = [given[name] for name in ("z", "dy") if name in given]
    outputs = [Values, *([given["dn"]] if gated else [])]
    work = _Chunks(steps, [X, *gated], outputs, segment)
    work.pipe.start(lambda task: work.start(task))

    @work.pipe.compute
    def _(task, step):
        batch, head, row = work.place(task, step)
        made = work.taken(task, step)
        with tc.when(task.block == 0):
            gates = steps.going_on(made * work.rate, -math.inf, batch, row)
            tc.store(Gates.at(batch, head, row), gates)
        work.give(0, work.loaded(0) * made)
        if gated:
            work.give(1, work.loaded(2) * tc.silu(work.loaded(1)))


@tc.kernel
def ssd_gradients(
    X: gl[T, "B", "H", "T", "P"], dt: gl[TD, "B", "H", "T"], A: gl[f32, "H"],
    dValues: gl[T, "B", "H", "T", "P"], dX: gl[T, "B", "H", "T", "P"],
    Dots: gl[f32, "parts", "B", "H", "T"], segment: s32, low: f32, high: f32, *args,
    softplus=False, limits=False, names=(),
):  # fmt: skip
    """DX, dZ, and products X dValues summed over 64 columns, and parts of dD over a task's tokens.

    args: those of `names`: bias f32 [H], sequences s32 [B, T] (not read); D f32 [H] or [H, P], dn,
    the gradient of `C h + D x`, and d_skips f32 [tasks of a head, H, P]; z, dy, n, which is
    `C h + D x`, and dz.
    """
    given = dict(zip(names, args, strict=True))
    steps = Steps(dt, A, given.get("bias"), softplus, (low, high) if limits else None, None)
    read = [name for name in ("dn", "z", "dy", "n") if name in given]
    at = {name: number for number, name in enumerate(read, 2)}
    outputs = [dX, *([given["dz"]] if "dz" in given else [])]
    arrays = [X, dValues, *(given[name] for name in read)]
    work = _Chunks(steps, arrays, outputs, segment)
    skip, total = given.get("D"), tc.empty(COLUMN) if "D" in given else None

    @work.pipe.start
    def _(task):
        work.start(task)
        if skip is not None:
            tc.fill(total, 0.0)
            work.direct = (tc.load(skip.at(task.head, task.block * CHUNK), COLUMN)
                           if skip.rank == 2 else tc.load(skip[task.head], f32))  # fmt: skip

    @work.pipe.compute
    def _(task, step):
        x, values = work.loaded(0), work.loaded(1)
        tc.store(Dots.at(task.block, *work.place(task, step)), tc.row_sum(x * values))
        dx = values * work.taken(task, step)
        if skip is not None:
            dn = work.loaded(at["dn"])
            tc.copy(total, tc.col_sum(x * dn, total))
            dx = dx + dn * work.direct
        work.give(0, dx)
        if "dz" in given:
            z, dy, n = (work.loaded(at[name]) for name in ("z", "dy", "n"))
            s = tc.sigmoid(z)
            work.give(1, dy * n * s * tc.fma(z, 1.0 - s, 1.0))  # s (1 - s): of s the derivative

    @work.pipe.finish
    def _(task):
        if skip is not None:
            tc.store(given["d_skips"].at(task.state, task.head, task.block * CHUNK), total)


@tc.kernel
def ssd_step_gradients(
    dt: gl[TD, "B", "H", "T"], A: gl[f32, "H"], Dots: gl[f32, "parts", "B", "H", "T"],
    dGates: gl[f32, "B", "H", "T"], dDt: gl[TD, "B", "H", "T"], dRates: gl[f32, "B", "H", "sums"],
    low: f32, high: f32, *args, softplus=False, limits=False, names=(),
):  # fmt: skip
    """From parts of `<X, dValues>` and dGates dDt, and sums over 512 tokens of what is added to dA.

    args: those of `names`: bias f32 [H], sequences s32 [B, T]; d_offsets f32 [B, H, sums], sums of
    dDt.
    """
    given = dict(zip(names, args, strict=True))
    steps = Steps(dt, A, given.get("bias"), softplus, (low, high) if limits else None,
                  given.get("sequences"))  # fmt: skip
    kind, blocks = rv[f32, TOKENS], tc.cdiv(dt.cols, TOKENS)
    with tc.warpgroup():
        for task in tc.range(tc.cta_id(), dt.size(0) * dt.size(1) * blocks, tc.num_ctas()):
            plane, block = task // blocks, task % blocks
            batch, head = plane // dt.size(1), plane % dt.size(1)
            place = batch, head, block * TOKENS
            rate, offset = steps.of_head(head)
            raw = tc.load(dt.at(*place), kind) + offset
            taken, found = steps.of(raw), tc.zeros(kind)
            for part in tc.range(Dots.size(0)):
                found += tc.load(Dots.at(part, *place), kind)
            gates = steps.going_on(tc.load(dGates.at(*place), kind), 0.0, batch, place[2])
            found = steps.back(tc.fma(gates, rate, found), raw)
            tc.store(dDt.at(*place), found)
            for name, x in (("d_rates", gates * taken), ("d_offsets", found)):
                sums = dRates if name == "d_rates" else given.get(name)
                if sums is not None:
                    tc.store(sums[batch, head, block], tc.reduce_vector("sum", x))


@tc.kernel
def sum_heads(
    Heads: gl[T, "B", "H", "T", "N"], Groups: gl[T, "B", "G", "T", "N"], *, stages=6,
    blocks_per_sm=4,
):  # fmt: skip
    """The sum over the heads of each group, which lie one after another."""
    chunks, blocks = tc.cdiv(Heads.rows, CHUNK), tc.cdiv(Heads.cols, CHUNK)
    groups, each = Groups.size(1), Heads.size(1) // Groups.size(1)

    def locate(task: Any) -> dict[str, Any]:
        rest = task // blocks
        place = rest // chunks
        return {"batch": place // groups, "group": place % groups, "row": rest % chunks * CHUNK,
                "col": task % blocks * CHUNK}  # fmt: skip

    tasks = tc.custom_order(Heads.size(0) * groups * chunks * blocks, locate)
    pipe = tc.lcf(consumers=1, stages=stages, tasks=tasks, steps=each, blocks_per_sm=blocks_per_sm)
    tile, total = pipe.input(st[Heads.dtype, CHUNK, CHUNK]), tc.empty(rt[f32, CHUNK, CHUNK])

    @pipe.load
    def _(task, step):
        head = task.group * each + step
        tc.load_async(tile, Heads.at(task.batch, head, task.row, task.col))

    @pipe.start
    def _(task):
        tc.fill(total, 0.0)

    @pipe.compute
    def _(task, step):
        tc.copy(total, total + tc.cast(tc.load(tile.tile), f32))

    @pipe.finish
    def _(task):
        made = tc.cast(total, Groups.dtype)
        tc.store(Groups.at(task.batch, task.group, task.row, task.col), made)
