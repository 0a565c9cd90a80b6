"""Scales of blocks that the tensor cores apply: MXFP8, MXFP4 and NVFP4 on Blackwell and Rubin.

A step is 128 bytes of K. Its scales travel with its tiles, packed in the order in which the tensor
core takes them (`tc.formats.pack_scales`): a chunk of 512 bytes is 4 scales of 128 rows. The warp
that issues products copies them to tensor memory, then multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilecat as tc
from tilecat import DType, e4m3, sc

from .epilogues import plane

ROWS = 128  # that a chunk has scales of


@dataclass(frozen=True)
class Format:
    """A format of operands with scales.

    Args:
        name: as errors have it.
        scale: dtype of the scales.
        block: elements of K that share one.
        per_byte: elements in a byte.
    """

    name: str
    scale: DType
    block: int
    per_byte: int


FORMATS = {
    f.name: f for f in (
        Format("mxfp8", tc.dtypes.e8m0, 32, 1),
        Format("mxfp4", tc.dtypes.e8m0, 32, 2),
        Format("nvfp4", e4m3, 16, 2),
    )
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class TensorScales:
    """Packed scales of a product's operands, as 64-bit words.

    Args:
        of_a: [..., M/128, words].
        of_b: [..., N/128, words].
        rows: a pipeline's input: scales of each 128 rows of a tile.
        cols: a pipeline's input: scales of a tile's columns.
        out: the output, whose leading axes theirs are matched with.
    """

    of_a: Any
    of_b: Any
    rows: Any
    cols: Any
    out: Any

    @classmethod
    def take(
        cls, pipe: Any, args: tuple[Any, ...], out: Any, tile: tuple[int, int, int], name: str
    ) -> tuple[TensorScales, tuple[Any, ...]]:
        """The scales at the head of the kernel's further arguments, and the others."""
        tile_m, tile_n, num_bytes = tile
        tc.require(name in FORMATS, f"matmul: block_scales is True, or {', '.join(FORMATS)}, got "
                   f"block_scales={name!r}")  # fmt: skip
        tc.require(tile_m % ROWS == 0 and tile_n % ROWS == 0,
                   f"matmul: {ROWS} rows of A and columns of B share a chunk of scales in {name}, "
                   f"got {tile_m=}, {tile_n=}", hint="tile_m=128, tile_n=128 or 256")  # fmt: skip
        form = FORMATS[name]
        blocks = num_bytes * form.per_byte // form.block
        of_a, of_b, *others = args
        rows = pipe.input(sc[form.scale, ROWS, blocks], count=tile_m // ROWS)
        cols = pipe.input(sc[form.scale, tile_n, blocks])
        return cls(of_a, of_b, rows, cols, out), tuple(others)

    def load(self, task: Any, k: Any, first: Any = None) -> None:
        """Loads a step's scales; `first`: rows of groups, which begin anywhere, have none."""
        tc.require(first is None, "matmul: rows of groups have no packed scales")
        lead, n = plane(self.of_a, self.out, task.batch, "PS"), self.rows.count
        for i in range(n):
            tc.load_async(self.rows[i], self.of_a[*lead, task.row * n + i, k])
        lead = plane(self.of_b, self.out, task.batch, "PS")
        tc.load_async(self.cols, self.of_b[*lead, task.col, k])

    def add_steps(self, pipe: Any, tiles: Any, a: Any, b: Any, rows: Any) -> None:
        """`acc += (scale_a A) @ (scale_b B)`: the steps of a consumer, or of two as one."""

        @pipe.compute
        def _(task: Any, k: Any) -> None:
            for row, (acc, *_) in zip(rows(), tiles, strict=True):
                of_a = self.rows[row // 2]
                tc.mma_AB(acc, a[row], b, scale_a=of_a, scale_b=self.cols)
