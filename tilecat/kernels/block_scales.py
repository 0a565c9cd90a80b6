"""Scales of blocks of an FP8 product's operands: sums of 128 of K, scaled and added in f32.

The tensor cores sum FP8 products of one step, of which they keep about 14 bits; so each step's sums
are a tile of their own, `part`, and are added to those of the task by the FP32 cores. Meanwhile the
tensor cores are free for the other consumer, whose products may lie there; nothing makes them (to
take turns was slower on an H200 in most of what benchmarks/results/block_scales.json has):

    consumer 0   mma to part | wait, acc += scale part | mma to part           | wait, acc += ...
    consumer 1               | mma to part             | wait, acc += scale part | mma to part

Scales travel with the tiles of a step, through shared memory: of A a vector for each consumer's
rows, of B a number for each block of the tile's columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilecat as tc
from tilecat import f32, rt, rv, sv

from .epilogues import plane

BLOCK = 128  # elements of K, and of N, that have one scale
ROWS = 64  # of a consumer
THREADS = 128  # of a consumer


@dataclass(frozen=True, eq=False)
class BlockScales:
    """Scales of a product's blocks, f32.

    Args:
        of_a: [..., K/128, M].
        of_b: [..., K/128, N/128].
        rows: a pipeline's input: scales of the tile's rows.
        cols: a pipeline's input: scales of the blocks of the tile's columns.
        tile_n: columns of a tile.
        out: the output, whose leading axes theirs are matched with.
    """

    of_a: Any
    of_b: Any
    rows: Any
    cols: Any
    tile_n: int
    out: Any

    @classmethod
    def take(
        cls, pipe: Any, args: tuple[Any, ...], out: Any, consumers: int, tile_n: int
    ) -> tuple[BlockScales, tuple[Any, ...]]:
        """The scales at the head of the kernel's further arguments, and the others."""
        tc.require_feature(
            "wgmma", "matmul: f32 scales of blocks, whose sums are scaled step by step",
            "scales that the tensor core applies: tc.matmul_mxfp8, tc.matmul_nvfp4",
        )
        of_a, of_b, *others = args
        rows = pipe.input(sv[f32, consumers * ROWS])
        cols = pipe.input(sv[f32, 4])  # 16 bytes, a vector's least
        return cls(of_a, of_b, rows, cols, tile_n, out), tuple(others)

    @property
    def blocks(self) -> range:
        """First columns of the tile's blocks."""
        return range(0, self.tile_n, min(self.tile_n, BLOCK))

    def load(self, task: Any, k: Any, first: Any = None) -> None:
        """Loads a step's scales.

        Args:
            task: whose batch, and block rows, it is.
            k: the step.
            first: row of A where the task begins, if that is no multiple of its rows.
        """
        lead = plane(self.of_a, self.out, task.batch, "KM")
        place = self.of_a[*lead, k, task.row] if first is None else self.of_a.at(*lead, k, first)
        tc.load_async(self.rows, place)
        lead = plane(self.of_b, self.out, task.batch, "KB")
        for i, col in enumerate(self.blocks):
            block = (task.col * self.tile_n + col) >> (BLOCK.bit_length() - 1)
            tc.load_async(self.cols.at(i), self.of_b.at(*lead, k, block))

    def add_steps(self, pipe: Any, tiles: Any, a: Any, b: Any, _: Any) -> None:
        """`acc = sum over steps of scale_a scale_b (A @ B of the step)`: the consumers' steps."""
        wide, acc = min(self.tile_n, BLOCK), tiles[0][0]
        tc.require(a.kind.cols == BLOCK and self.tile_n % wide == 0 and BLOCK % wide == 0,
                   f"matmul: a step is one block of {BLOCK}, and a tile one, half of one or "
                   f"several, got tile_k={a.kind.cols}, tile_n={self.tile_n}")  # fmt: skip
        part = tc.empty(rt[f32, ROWS, wide])

        @pipe.consume
        def _(task: Any, steps: Any) -> None:
            tc.fill(acc, 0.0)
            for _k in tc.range(steps):
                a.wait()
                tile, scales = b.tile, []
                for i, col in enumerate(self.blocks):
                    place = slice(col, col + wide)
                    tc.mma_AB(part, a[pipe.consumer], tile[:, place], accumulate=False)
                    scales = scales or self._factors(pipe, a.count)
                    tc.mma_wait()
                    if col == self.blocks[-1]:
                        a.release()
                    tc.fma(part, scales[i], acc[:, place], out=acc[:, place])

    def _factors(self, pipe: Any, consumers: int) -> list[Any]:
        """A step's factors of a consumer's rows, for each block; read under the first product."""
        rows = tc.load(self.rows.tile.part(pipe.consumer, consumers), rv[f32, ROWS])
        found = [rows * tc.load(self.cols.at(i), f32) for i in range(len(self.blocks))]
        tc.barrier_sync(pipe.consumer + 1, THREADS)  # all have read: the stage may be given back
        return found
