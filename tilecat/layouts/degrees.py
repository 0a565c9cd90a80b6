"""Conflict degrees of the usual ways a warp reads and writes a shared tile, for inspection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import LayoutError
from .access import plan_access
from .banks import WARP, bank_conflicts, ideal_wavefronts, ldmatrix_conflicts, stmatrix_conflicts
from .registers import RegisterLayout
from .shared import CHUNK_BYTES, SharedLayout

ORDERS = ("row", "col")


@dataclass(frozen=True)
class Degree:
    """How one kind of access fares: wavefronts over the ideal is its conflict degree.

    Args:
        name: what a warp does.
        width_bytes: bytes at a lane's address.
        wavefronts: of the worst request, or of all requests of one warp.
        ideal: without conflicts.
    """

    name: str
    width_bytes: int
    wavefronts: int
    ideal: int

    @property
    def ways(self) -> float:
        """1 without conflicts, 8 for an 8-way one."""
        return self.wavefronts / self.ideal


def access_degrees(layout: SharedLayout) -> tuple[Degree, ...]:
    """Matrices, rows and columns by a warp, then whole register tiles of the same shape.

    A row access is 32 lanes at adjacent columns of one row (as many as there are, at most 32), one
    element each; a column access 32 lanes at adjacent rows of one column.

    Example: `SharedLayout.of(bf16, 64, 64)`: every access 1-way but the column's, whose 32 rows
    lie in 8 chunks: 4-way; without swizzle ldmatrix is 8-way and a column 32-way.
    """
    found = [
        Degree("ldmatrix, 8 lines", CHUNK_BYTES, ldmatrix_conflicts(layout), 1),
        Degree("stmatrix, 8 lines", CHUNK_BYTES, stmatrix_conflicts(layout), 1),
        _along(layout, "row"),
        _along(layout, "column"),
    ]
    for order in ORDERS:
        try:
            whole = _whole_tile(layout, order)
        except LayoutError:  # no register tile has this shape in this order
            continue
        found += [whole] if whole is not None else []
    return tuple(found)


def _along(layout: SharedLayout, axis: str) -> Degree:
    """The worst request of lanes along a row or a column."""
    outer, inner = (layout.rows, layout.cols) if axis == "row" else (layout.cols, layout.rows)
    size, lanes = layout.dtype.nbytes, min(WARP, inner)
    worst = 0
    for line in range(outer):
        at = np.full(lanes, line)
        for first in range(0, inner - lanes + 1, lanes):
            along = first + np.arange(lanes)
            row, col = (at, along) if axis == "row" else (along, at)
            worst = max(worst, bank_conflicts(layout.byte_offset(row, col), size))
    return Degree(f"{axis}, an element a lane", size, worst, ideal_wavefronts(lanes, size))


def _whole_tile(layout: SharedLayout, order: str) -> Degree | None:
    """The register tile of the same shape and dtype, to or from the shared tile, as kernels do it.

    None where they do not: no instruction moves a part of a register.
    """
    along = layout.rows if order == "row" else layout.cols
    warps = 4 if along % 64 == 0 else 1
    registers = RegisterLayout(layout.dtype, layout.rows, layout.cols, warps, order)
    plan = plan_access(registers, layout, exchange=True)
    if plan.elements < registers.elements_per_register:
        return None
    if plan.kind == "matrix":
        how = f"ldmatrix.x{plan.matrices}{'.trans' if plan.trans else ''}"
    else:
        how = "ld.shared, st.shared" + (", accesses traded" if plan.exchange else "")
    holder = "warpgroup" if warps == 4 else "warp"
    name = f"{order}-order register tile of a {holder}: {how}"
    return Degree(name, plan.width_bytes, plan.wavefronts, plan.ideal_wavefronts)
