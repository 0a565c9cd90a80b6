"""Scales of blocks of an FP8 product's operands: sums of 128 of K, scaled and added in f32.

The tensor cores sum FP8 products of one step, of which they keep about 14 bits; so each step's sums
are a tile of their own, `part`, and are added to those of the task by the FP32 cores. Meanwhile the
tensor cores work for the other consumer: two of them are never long at the same place.

    consumer 0   mma to part | wait, acc += scale part | mma to part           | wait, acc += ...
    consumer 1               | mma to part             | wait, acc += scale part | mma to part

Scales of A travel with the tiles of a step, through shared memory; those of B, a number a block,
are loaded a step ahead.
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
        rows: a pipeline's input: scales of the rows of each consumer.
        out: the output, whose leading axes theirs are matched with.
    """

    of_a: Any
    of_b: Any
    rows: Any
    out: Any

    @classmethod
    def take(
        cls, pipe: Any, args: tuple[Any, ...], out: Any, consumers: int
    ) -> tuple[BlockScales, tuple[Any, ...]]:
        """The scales at the head of the kernel's further arguments, and the others."""
        of_a, of_b, *others = args
        rows = pipe.input(sv[f32, ROWS], count=consumers)
        return cls(of_a, of_b, rows, out), tuple(others)

    def load(self, task: Any, k: Any, first: Any = None) -> None:
        """Loads a step's scales of A.

        Args:
            task: whose batch, and block rows, it is.
            k: the step.
            first: row of A where the task begins, if that is no multiple of its rows.
        """
        lead, n = plane(self.of_a, self.out, task.batch, "KM"), self.rows.count
        for i in range(n):
            place = self.of_a[*lead, k, task.row * n + i]
            if first is not None:
                place = self.of_a.at(*lead, k, first + i * ROWS)
            tc.load_async(self.rows[i], place)

    def add_steps(self, pipe: Any, acc: Any, a: Any, b: Any, place_of: Any) -> None:
        """`acc = sum over steps of scale_a scale_b (A @ B of the step)`: the consumers' steps.

        Args:
            pipe, acc, a, b: of the kernel.
            place_of: from a task to coordinates in the output.
        """
        cols = acc.type.cols
        wide = min(cols, BLOCK)
        tc.require(a.kind.cols == BLOCK and cols % wide == 0 and BLOCK % wide == 0,
                   f"matmul: a step is one block of {BLOCK}, and a tile one, half of one or "
                   f"several, got tile_k={a.kind.cols}, tile_n={cols}")  # fmt: skip
        part = tc.empty(rt[f32, ROWS, wide])
        blocks = range(0, cols, wide)

        @pipe.consume
        def _(task: Any, steps: Any) -> None:
            *batch, _, col = place_of(task)
            lead = plane(self.of_b, self.out, batch, "KB")

            def of_block(k: Any, first: int) -> Any:
                return tc.load(self.of_b.at(*lead, k, (col + first) // BLOCK), f32)

            tc.fill(acc, 0.0)
            scales = [tc.var(of_block(0, first)) for first in blocks]
            for k in tc.range(steps):
                a.wait()
                tile, factors = b.tile, []
                for first in blocks:
                    tc.mma_AB(part, a[pipe.consumer], tile[:, first : first + wide],
                              accumulate=False)  # fmt: skip
                    if not factors:  # while the first product is under way
                        rows = tc.load(self.rows[pipe.consumer], rv[f32, ROWS])
                        factors = [rows * scale.get() for scale in scales]
                        for scale, block in zip(scales, blocks, strict=True):
                            scale.set(of_block(k + 1, block))
                        tc.barrier_sync(pipe.consumer + 1, THREADS)  # all have read their scales
                    tc.mma_wait()
                    if first == blocks[-1]:
                        a.release()
                    sums = acc[:, first : first + wide]
                    tc.fma(part, factors[first // wide], sums, out=sums)
