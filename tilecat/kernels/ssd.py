"""Mamba-2's recurrence (state space duality): `y_t = C_t h_t + D x_t`, times silu(z_t) if gated.

`h_t = exp(dt_t A) h_(t-1) + dt_t x_t B_t` (P x N) of each head; heads of a group share B and C, so
`C B^T` is made once for all heads of a CTA. dt is `clamp(softplus(dt + bias))`, f32. x stays exact:
dt is a factor of scores and of what comes into the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, st

from .chunk_scan import LEAST, LOG2_E, PLAIN, ROW, WARPS, ChunkScan, Recurrence
from .chunk_tasks import CHUNK, At, tasks_of
from .segments import LocalStates
from .ssd_steps import Steps

T, TD = DTypeVar("T", bf16, f16), DTypeVar("TD", f32, bf16, f16)


@dataclass(eq=False)
class Ssd(Recurrence):
    """Scores with decays and steps dt.

    Args:
        scan: the core. tensors, tiles: of C, B, x, and z. steps: of tokens. skip: D, or None.
    """

    scan: ChunkScan
    tensors: Any
    tiles: Any
    steps: Steps
    skip: Any

    def __post_init__(self) -> None:
        """Its registers."""
        self.s, self.p = tc.empty(rt[f32, CHUNK, CHUNK]), tc.empty(rt[f32, CHUNK, CHUNK])

    def load(self, task: Any, at: At) -> None:
        """C and B of the group, x (and z) of the heads of a task."""
        heads = self.steps.dt.size(1)
        for i, (tensor, tiles) in enumerate(zip(self.tensors, self.tiles, strict=True)):
            if tiles is not None:
                group = 1 if i > 1 else heads // tensor.size(1)
                self.scan.load(tiles, tensor, task, at, columns=i > 1, group=group)

    def start(self, task: Any) -> None:
        """Of the head of a warp: A, the bias, and dt of the first chunk."""
        with tc.warps():
            head = task.head * self.scan.heads + tc.warp_id() % WARPS
            rate, self.offset = self.steps.of_head(head)
            self.rate = rate * LOG2_E
            self.ahead = tc.empty(PLAIN)
            self.fetch(task, head, self.scan.first(task).row)

    def fetch(self, task: Any, head: Any, row: Any) -> None:
        """Loads dt of a chunk, which is used a step later."""
        tc.copy(self.ahead, tc.load(self.steps.dt.at(task.batch, head, row), PLAIN))

    def products(self, task: Any, at: At) -> None:
        """`C B^T`, of all heads."""
        tc.mma_ABt(self.s, *self.tiles[:2], accumulate=False)

    def factors(self, task: Any, at: At, head: Any) -> tuple[Any, ...]:
        """Sums of gates dt A, the same less log2 dt, decays to and from the ends of the chunk."""
        dt = self.ahead + self.offset
        self.fetch(task, task.head * self.scan.heads + head, self.scan.following(at))
        dt = self.steps.of(dt)
        inside = tc.row_index(dt) < at.rows
        gates = tc.maximum(dt * self.rate, LEAST, nan=True)
        gates = self.steps.going_on(gates, LEAST, task.batch, at.row)
        dt, gates = tc.select(inside, dt, 0.0), tc.select(inside, gates, 0.0)
        sums = tc.cumsum(gates)
        before, behind = tc.exp2(sums), tc.exp2(tc.reduce_vector("sum", gates) - sums)
        less = sums + tc.log2(dt) if self.scan.reverse else sums - tc.log2(dt)
        a, b = (behind * dt, before) if self.scan.reverse else (before, behind * dt)
        return sums, less, a, b

    def scores(self, task: Any, at: At, head: int) -> tuple[Any, ...]:
        """`C B^T` times decays and dt."""
        decays = self.scan.made_decays(head)
        if head == 0:
            tc.mma_wait()
        return (self.scan.mask(tc.mul(self.s, decays, out=self.p)),)

    def begin(self, task: Any) -> None:
        """D of the head, or of its columns."""
        if self.skip is not None:
            head, col = self.scan.place(task, self.scan.state.consumer)
            wide = self.skip.rank == 2
            place = self.skip.at(head, col) if wide else self.skip[head]
            self.direct = tc.load(place, ROW if wide else f32)

    def result(self, task: Any, at: At, index: Any, y: Any) -> Any:
        """Plus D x, times silu(z)."""
        if self.skip is not None:
            tc.fma(tc.cast(self.scan.loaded, f32), self.direct, y, out=y)
        for z in self.tiles[3:]:
            tc.mul(y, tc.silu(tc.cast(tc.load(z[index].tile.T), f32)), out=y)
        return y


@tc.kernel
def ssd(
    X: gl[T, "B", "H", "T", "P"], dt: gl[TD, "B", "H", "T"], A: gl[f32, "H"],
    Bm: gl[T, "B", "G", "T", "N"], C: gl[T, "B", "G", "T", "N"], O: gl[T, "B", "H", "T", "P"],
    low: f32, high: f32, *args, dim=64, heads=1, slices=1, stages=3, depth=2, reverse=False,
    softplus=False, limits=False, names=(), local=False, blocks_per_sm=1, registers=(None, None),
    turns=1,
):  # fmt: skip
    """O, and states f32 [sequences, H, P, N] before and after. G divides H, and heads H / G.

    args: those of `names`: z [B, H, T, P], D f32 [H] or [H, P], bias f32 [H], sequences s32 [B, T],
    starts s32 (cu_seqlens), before, after, segment (tokens of one), fades f32 [states, H] (of
    `local` states).
    """
    given = dict(zip(names, args, strict=True))
    blocks = tc.cdiv(X.cols, CHUNK * slices)
    starts = given.get("starts")
    tasks = tasks_of(tc.cdiv(X.size(1), heads), X.size(0), X.rows, blocks, starts,
                     given.get("segment"))  # fmt: skip
    core = LocalStates if local else ChunkScan
    scan = core(X.dtype, tasks, heads=heads, slices=slices, stages=stages, depth=depth,
                reverse=reverse, gated=True, packed=starts is not None,
                blocks_per_sm=blocks_per_sm, registers=registers, turns=turns)  # fmt: skip
    scan.fades = given.get("fades")
    c, b = (scan.pipe.input(st[X.dtype, CHUNK, dim]) if wanted else None
            for wanted in (not local, True))  # fmt: skip
    x = scan.pipe.input(st[X.dtype, CHUNK, CHUNK], count=heads * slices)
    tensors, tiles = [C, Bm, X], [c, b, x]
    if "z" in given:
        z = scan.pipe.input(st[X.dtype, CHUNK, CHUNK], count=heads * slices)
        tensors, tiles = [*tensors, given["z"]], [*tiles, z]
    steps = Steps(dt, A, given.get("bias"), softplus, (low, high) if limits else None,
                  given.get("sequences"))  # fmt: skip
    work = Ssd(scan, tensors, tiles, steps, given.get("D"))
    scan.run(work, c, b, x, O, given.get("before"), given.get("after"))
