"""Causal linear attention, with scalar decays: `o_t = scale q_t S_t`, of each head.

`S_t = exp(g_t) S_(t-1) + k_t v_t` (K x V): g is 0 (plain), one number a head (lightning, RetNet),
one a token and head (simple gated linear attention, Mamba-2 without its dt), or a sum of both.
Sums of g are f32, and exponents differences of them: `tc.decay_tile`.
"""

from __future__ import annotations

from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, st

from .checkpoints import Checkpoints
from .chunk_scan import LEAST, LOG2_E, PLAIN, WARPS, ChunkScan, Recurrence
from .chunk_tasks import CHUNK, At, tasks_of
from .segments import LocalStates

T = DTypeVar("T", bf16, f16)


class Gated(Recurrence):
    """Scores with decays.

    Args:
        scan: the core. tensors, tiles: of Q, K, V, and further ones. scale: of the output.
        g: gates [B, H, T], or None. gamma: gates [H], or None.
        dots: f32 [B, H, blocks of 64 columns, T]: of O with the fourth tensor; or None.
        checkpoints: what happens to states on the way; or None.
        groups: heads that share one of Q's and K's; one of V's (and of the fourth tensor's).
    """

    def __init__(
        self, scan: ChunkScan, tensors: Any, tiles: Any, scale: Any, g: Any, gamma: Any, dots: Any,
        checkpoints: Checkpoints | None, groups: tuple[Any, Any] = (1, 1),
    ):  # fmt: skip
        self.scan, self.tensors, self.tiles, self.scale = scan, tensors, tiles, scale
        self.g, self.gamma, self.dots, self.groups = g, gamma, dots, groups
        self.checkpoints, self.s = checkpoints, tc.empty(rt[f32, CHUNK, CHUNK])

    def load(self, task: Any, at: At) -> None:
        """Q, K and V of the heads of a task."""
        for i, (tensor, tiles) in enumerate(zip(self.tensors, self.tiles, strict=True)):
            if tiles is not None:
                group = self.groups[i > 1]
                self.scan.load(tiles, tensor, task, at, columns=i > 1, group=group)

    def start(self, task: Any) -> None:
        """Gates of the first chunk, and of the head."""
        with tc.warps():
            head = task.head * self.scan.heads + tc.warp_id() % WARPS
            self.constant = 0.0 if self.gamma is None else tc.load(self.gamma[head], f32)
            if self.g is not None:
                self.ahead = tc.empty(PLAIN)
                self.fetch(task, head, self.scan.first(task).row)

    def fetch(self, task: Any, head: Any, row: Any) -> None:
        """Loads the gates of a chunk, which are used a step later."""
        place = self.g[:, :, : task.last].at(task.batch, head, row)
        tc.copy(self.ahead, tc.load(place, PLAIN))

    def products(self, task: Any, at: At) -> None:
        """`Q K^T` of the first head."""
        tc.mma_ABt(self.s, self.tiles[0][0], self.tiles[1][0], accumulate=False)

    def factors(self, task: Any, at: At, head: Any) -> tuple[Any, ...]:
        """Sums of gates, and decays to and from the ends of the chunk."""
        g: Any = tc.zeros(PLAIN)
        if self.g is not None:
            tc.copy(g, self.ahead)
            self.fetch(task, task.head * self.scan.heads + head, self.scan.following(at))
        g = tc.maximum((g + self.constant) * LOG2_E, LEAST, nan=True)
        if self.gamma is not None:
            g = tc.select(tc.row_index(g) < at.rows, g, 0.0)
        sums = tc.cumsum(g)
        before, behind = tc.exp2(sums), tc.exp2(tc.reduce_vector("sum", g) - sums)
        a, b = (behind, before) if self.scan.reverse else (before, behind)
        return sums, sums, a, b

    def scores(self, task: Any, at: At, head: int) -> tuple[Any, ...]:
        """`Q K^T` times decays."""
        (q, k, *_), s = self.tiles, self.s
        if head > 0:
            tc.mma_ABt(s, q[head], k[head], accumulate=False)
        decays = self.scan.made_decays(head) if self.scan.gated else None
        tc.mma_wait()
        return (self.scan.mask(s if decays is None else tc.mul(s, decays, out=s)),)

    def passing(self, task: Any, at: At, index: Any, state: Any) -> None:
        """Checkpoints."""
        if self.checkpoints is not None:
            self.checkpoints.passing(task, at, index, state)

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
    Q: gl[T, "B", "Hq", "T", "K"], K: gl[T, "B", "Hq", "T", "K"], V: gl[T, "B", "Hv", "T", "V"],
    O: gl[T, "B", "H", "T", "V"], scale: f32, *args, dim=64, heads=1, slices=1, stages=3, depth=2,
    reverse=False, g=False, gamma=False, dots=False, packed=False, start=False, end=False,
    checkpoints=False, products=False, segmented=False, local=False, blocks_per_sm=1,
    registers=(None, None), turns=1, strict=False, grouped=False, shared=False,
):  # fmt: skip
    """O, and states f32 [sequences, H, K, V] before and after; of a reversed scan over the scale.

    strict: tokens do not see themselves. grouped: several heads share one of V's; else Hv is H.
    shared: several heads share one of Q's and K's; else Hq is H.

    args: g f32 [B, H, T]; gamma f32 [H]; a tensor like O and f32 [B, H, V / 64, T], their products
    with O summed over 64 columns; cu_seqlens s32; states before and after; checkpoints and
    their products (`Checkpoints`); tokens of a segment; of `local` states factors f32
    [states, H]: those that are wanted.
    """
    args = list(args)
    gates, gammas, other, sums, starts, *states, kept, met, segment, fades = (
        args.pop(0) if wanted else None
        for wanted in (g, gamma, dots, dots, packed, start, end, checkpoints, products, segmented,
                       local and (g or gamma))
    )  # fmt: skip
    blocks, every = tc.cdiv(V.cols, CHUNK * slices), (O if shared else Q).size(1)
    tasks = tasks_of(tc.cdiv(every, heads), Q.size(0), Q.rows, blocks, starts, segment)
    core = LocalStates if local else ChunkScan
    scan = core(Q.dtype, tasks, heads=heads, slices=slices, stages=stages, depth=depth,
                reverse=reverse, gated=g or gamma, packed=packed, blocks_per_sm=blocks_per_sm,
                registers=registers, turns=turns, strict=strict)  # fmt: skip
    scan.fades = fades
    q, k = (scan.pipe.input(st[Q.dtype, CHUNK, dim], count=heads) if wanted else None
            for wanted in (not local, True))  # fmt: skip
    v = scan.pipe.input(st[Q.dtype, CHUNK, CHUNK], count=heads * slices)
    tensors, tiles = [Q, K, V], [q, k, v]
    if dots:
        tensors.append(other)
        tiles.append(scan.pipe.input(st[Q.dtype, CHUNK, CHUNK], count=heads * slices))
    points = Checkpoints(scan, Q.rows, kept, met, scale) if checkpoints else None
    groups = tuple(every // x.size(1) if wanted else 1
                   for x, wanted in ((Q, shared), (V, grouped)))  # fmt: skip
    work = Gated(scan, tensors, tiles, scale, gates, gammas, sums, points, groups)
    turned = [None if x is None else x.permute(0, 1, 3, 2) for x in states]
    scan.run(work, q, k, v, O, *turned, unit=scale if reverse else None)
