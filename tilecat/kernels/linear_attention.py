"""Causal linear attention, with scalar decays: `o_t = scale q_t S_t`, of each head.

`S_t = exp(g_t) S_(t-1) + k_t v_t` (K x V): g is 0 (plain), one number a head (lightning, RetNet),
one a token and head (simple gated linear attention, Mamba-2 without its dt), or a sum of both.
Sums of g are f32, and exponents differences of them: `tc.decay_tile`.
"""

from __future__ import annotations

from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, st

from .chunk_scan import CHUNK, LEAST, LOG2_E, ROW, At, ChunkScan, Recurrence, tasks_of

T = DTypeVar("T", bf16, f16)


class Gated(Recurrence):
    """Scores with decays.

    Args:
        scan: the core. tensors, tiles: of Q, K, V. scale: of the output.
        g: gates [B, H, T], or None. gamma: gates [H], or None.
        dots: f32 [B, H, blocks of 64 columns, T]: of O with the fourth tensor; or None.
    """

    def __init__(
        self, scan: ChunkScan, tensors: Any, tiles: Any, scale: Any, g: Any, gamma: Any, dots: Any
    ):
        self.scan, self.tensors, self.tiles, self.scale = scan, tensors, tiles, scale
        self.dots = dots
        self.g, self.gamma, self.s = g, gamma, tc.empty(rt[f32, CHUNK, CHUNK])
        self.ahead = [tc.empty(ROW) for _ in range(scan.scored if g is not None else 0)]

    def load(self, task: Any, at: At) -> None:
        """Q, K and V of the heads of a task."""
        for tensor, tiles in zip(self.tensors, self.tiles, strict=True):
            self.scan.load(tiles, tensor, task, at, columns=tiles not in self.tiles[:2])

    def start(self, task: Any) -> None:
        """Gates of the first chunk; gates of heads."""
        heads = [task.head * self.scan.heads + self.scan.head(i) for i in range(self.scan.scored)]
        for own in range(len(self.ahead)):
            self.fetch(task, own, self.scan.at(task, 0).row)
        self.constant = [] if self.gamma is None else [tc.load(self.gamma[h], f32) for h in heads]

    def fetch(self, task: Any, own: int, row: Any) -> None:
        """Loads the gates of a head's chunk, which are used a step later."""
        place = self.g.at(task.batch, task.head * self.scan.heads + self.scan.head(own), row)
        tc.copy(self.ahead[own], tc.load(place, ROW))

    def gates(self, task: Any, at: At, own: int) -> Any:
        """Gates of a chunk's tokens, base 2; 0 behind the last."""
        g: Any = tc.zeros(ROW)
        if self.ahead:
            tc.copy(g, self.ahead[own])
            self.fetch(task, own, at.row + (-CHUNK if self.scan.reverse else CHUNK))
        if self.constant:
            g = g + self.constant[own]
        g = tc.maximum(g * LOG2_E, LEAST, nan=True)
        return tc.select(tc.row_index(self.s) < at.rows, g, 0.0)

    def scores(self, task: Any, at: At, own: int) -> tuple[Any, ...]:
        """`Q K^T` times decays, and those to and from the ends of the chunk."""
        (q, k, *_), s, head = self.tiles, self.s, self.scan.head(own)
        tc.mma_ABt(s, q[head], k[head], accumulate=False)
        if not self.scan.decayed:
            tc.mma_wait()
            return (self.scan.mask(s),)
        g = self.gates(task, at, own)
        before, behind = tc.cumsum(g), tc.cumsum(g, exclusive=True, reverse=True)
        decays = self.scan.decays(before)
        tc.mma_wait()
        a, b = (behind, before) if self.scan.reverse else (before, behind)
        return self.scan.mask(tc.mul(s, decays, out=s)), tc.exp2(a), tc.exp2(b)

    def result(self, task: Any, at: At, index: Any, y: Any) -> Any:
        """Times the scale; before it is rounded, its products with another tensor."""
        tc.mul(y, self.scale, out=y)
        if self.dots is not None:
            head, col = self.scan.place(task, index)
            other = tc.cast(tc.load(self.tiles[3][index].tile.T), f32)
            rows = self.dots[:, :, :, : task.last]
            tc.store(rows.at(task.batch, head, col // CHUNK, at.row), tc.col_sum(y * other))
        return y


@tc.kernel
def linear_attention(
    Q: gl[T, "B", "H", "T", "K"], K: gl[T, "B", "H", "T", "K"], V: gl[T, "B", "H", "T", "V"],
    O: gl[T, "B", "H", "T", "V"], scale: f32, *args, dim=64, heads=1, slices=1, stages=3, depth=2,
    reverse=False, g=False, gamma=False, dots=False, packed=False, start=False, end=False,
    blocks_per_sm=1, registers=(None, None), scorers=1,
):  # fmt: skip
    """O, and states f32 [sequences, H, K, V] before and after; of a reversed scan over the scale.

    args: g f32 [B, H, T]; gamma f32 [H]; a tensor like O and f32 [B, H, V / 64, T], their products
    with O summed over 64 columns; cu_seqlens s32; states before and after: those that are wanted.
    """
    args = list(args)
    gates, gammas, other, products, starts, *states = (
        args.pop(0) if wanted else None
        for wanted in (g, gamma, dots, dots, packed, start, end)
    )  # fmt: skip
    blocks = tc.cdiv(V.cols, CHUNK * slices)
    tasks = tasks_of(tc.cdiv(Q.size(1), heads), Q.size(0), Q.rows, blocks, starts)
    scan = ChunkScan(Q.dtype, tasks, heads=heads, slices=slices, stages=stages, depth=depth,
                     reverse=reverse, decayed=g or gamma, packed=packed,
                     blocks_per_sm=blocks_per_sm, registers=registers,
                     scorers=scorers)  # fmt: skip
    q, k = (scan.pipe.input(st[Q.dtype, CHUNK, dim], count=heads) for _ in range(2))
    v = scan.pipe.input(st[Q.dtype, CHUNK, CHUNK], count=heads * slices)
    tensors, tiles = [Q, K, V], [q, k, v]
    if dots:
        tensors.append(other)
        tiles.append(scan.pipe.input(st[Q.dtype, CHUNK, CHUNK], count=heads * slices))
    work = Gated(scan, tensors, tiles, scale, gates, gammas, products)
    turned = [None if x is None else x.permute(0, 1, 3, 2) for x in states]
    scan.run(work, q, k, v, O, *turned, unit=scale if reverse else None)
