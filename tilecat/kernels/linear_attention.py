"""Causal linear attention, plain: `o_t = scale q_t S_t`, `S_t = S_(t-1) + k_t v_t`."""

from __future__ import annotations

from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, st

from .chunk_scan import CHUNK, At, ChunkScan, Recurrence, tasks_of

T = DTypeVar("T", bf16, f16)


class Plain(Recurrence):
    """Scores without decay."""

    def __init__(self, scan: ChunkScan, tensors: Any, tiles: Any, scale: Any):
        self.scan, self.tensors, self.tiles, self.scale = scan, tensors, tiles, scale
        self.s = tc.empty(rt[f32, CHUNK, CHUNK])

    def load(self, task: Any, at: At) -> None:
        """Q, K and V of the heads of a task."""
        for tensor, tiles in zip(self.tensors, self.tiles, strict=True):
            self.scan.load(tiles, tensor, task, at, columns=tiles is self.tiles[2])

    def scores(self, task: Any, at: At, head: int) -> tuple[Any, ...]:
        """`tril(Q K^T)`."""
        q, k, _ = self.tiles
        tc.mma_ABt(self.s, q[head], k[head], accumulate=False)
        tc.mma_wait()
        return ((tc.triu if self.scan.reverse else tc.tril)(self.s),)

    def result(self, task: Any, at: At, index: Any, y: Any) -> Any:
        """Times the scale."""
        return tc.mul(y, self.scale, out=y)


@tc.kernel
def linear_attention(
    Q: gl[T, "B", "H", "T", "K"], K: gl[T, "B", "H", "T", "K"], V: gl[T, "B", "H", "T", "V"],
    O: gl[T, "B", "H", "T", "V"], scale: f32, *args, dim=64, heads=1, slices=1, stages=3, depth=2,
    reverse=False, packed=False, start=False, end=False, blocks_per_sm=1, registers=(None, None),
):  # fmt: skip
    """O, and states f32 [sequences, H, K, V] before and after. args: cu_seqlens, start, end."""
    args = list(args)
    starts = args.pop(0) if packed else None
    states = [args.pop(0) if wanted else None for wanted in (start, end)]
    blocks = tc.cdiv(V.cols, CHUNK * slices)
    tasks = tasks_of(tc.cdiv(Q.size(1), heads), Q.size(0), Q.rows, blocks, starts)
    scan = ChunkScan(Q.dtype, tasks, heads=heads, slices=slices, stages=stages, depth=depth,
                     reverse=reverse, packed=packed, blocks_per_sm=blocks_per_sm,
                     registers=registers)  # fmt: skip
    q = scan.pipe.input(st[Q.dtype, CHUNK, dim], count=heads)
    k = scan.pipe.input(st[Q.dtype, CHUNK, dim], count=heads)
    v = scan.pipe.input(st[Q.dtype, CHUNK, CHUNK], count=heads * slices)
    turned = [None if x is None else x.permute(0, 1, 3, 2) for x in states]
    scan.run(Plain(scan, (Q, K, V), (q, k, v), scale), q, k, v, O, *turned)
