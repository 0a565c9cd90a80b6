"""A streaming template without a ring, for row-wise kernels: norms, rotary, element-wise maps."""

from __future__ import annotations

from typing import Any

from ..builder import Builder, add, current
from ..errors import LayoutError, Loc, ScopeError
from ..ir import Role as Threads
from ..ir import Scope
from ..language.control import range_
from ..language.functions import copy
from ..language.scalars import named, operand_of
from ..language.sections import cta_id, num_ctas, warp_id
from ..language.values import Registers
from ..ops.control import RoleSection
from ..ops.scalar import require_s32
from .holes import Hole, Holes
from .pipeline import check_int

WARP_THREADS = 32
MAX_WARPS = 32


class Rows:
    """Each warp takes rows (or blocks of rows) by itself, and loads the next while it computes.

    Nothing is shared between warps, so nothing synchronises. A CTA takes `warps` rows at a time,
    the grid is persistent: warp w takes the rows w, w + all warps, ...

    Holes:
        start(): what all rows need, once a warp; returns register tiles or vectors.
        load(row): returns a row's register tiles or vectors; it runs one row ahead.
        compute(row, *loaded, *started): computes and stores, with `tc.store`.

    Args:
        count: rows, an s32 scalar.
        warps: of a CTA, 4 to 32, a multiple of 4.
        blocks_per_sm: CTAs that share an SM.
    """

    def __init__(self, count: Any, *, warps: int = 4, blocks_per_sm: int = 1):
        self.builder: Builder = current()
        self.loc: Loc | None = self.builder.loc()
        require_s32("rows: count", operand_of(count, "rows: count"))
        check_int("rows: warps", warps, 4, MAX_WARPS, self.loc)
        if warps % 4:
            raise LayoutError(
                f"rows: warps of a CTA are a multiple of 4, got {warps=}",
                loc=self.loc, hint=f"warps={warps // 4 * 4}",
            )  # fmt: skip
        check_int("rows: blocks_per_sm", blocks_per_sm, 1, 16, self.loc)
        facts = self.builder.kernel.facts
        if "template" in facts:
            raise ScopeError("rows: a kernel has one template, got another", loc=self.loc)
        facts.update(template="rows", blocks_per_sm=blocks_per_sm)
        self.count = count
        self.warps = warps
        self.holes = Holes("rows", "rows")
        self.builder.kernel.threads = warps * WARP_THREADS
        self.builder.finalizers.append(self.build)

    def start(self, hole: Hole) -> Hole:
        """Decorator of the start hole.

        Scope of the hole: a warp; returns register tiles and vectors that all rows need.
        """
        return self.holes.fill("rows_start", hole)

    def load(self, hole: Hole) -> Hole:
        """Decorator of the load hole.

        Scope of the hole: a warp; `return tc.load(X[row, 0], kind)`.
        """
        return self.holes.fill("rows_load", hole)

    def compute(self, hole: Hole) -> Hole:
        """Decorator of the compute hole.

        Scope of the hole: a warp; `tc.store(Y[row, 0], y)`.
        """
        return self.holes.fill("rows_compute", hole)

    def build(self) -> None:
        """Emits the kernel around the holes; called when the trace ends."""
        builder, kernel = self.builder, self.builder.kernel
        with builder.located(self.loc):
            self.holes.require("rows_load", self.loc)
            self.holes.require("rows_compute", self.loc)
            body = builder.child()
            kernel.roles.append(Threads(0, kernel.threads - 1, "rows"))
            add(RoleSection("rows", 0, kernel.threads - 1, None, False, body, rest=True))
            with builder.within(body, Scope.WARP):
                self._rows()

    def _rows(self) -> None:
        first = named(cta_id() * self.warps + warp_id(), "first_row")
        stride = named(num_ctas() * self.warps, "rows_of_grid")
        started = self._registers("start", self.holes.call("rows_start"))
        now = self._registers("load", self.holes.call("rows_load", first))
        for row in range_(first, self.count, stride):
            ahead = self._registers("load", self.holes.call("rows_load", row + stride))
            self.holes.call("rows_compute", row, *now, *started)
            for place, loaded in zip(now, ahead, strict=True):
                copy(place, loaded)

    def _registers(self, hole: str, found: Any) -> tuple[Registers, ...]:
        values = found if isinstance(found, tuple) else () if found is None else (found,)
        for value in values:
            if not isinstance(value, Registers):
                raise ScopeError(
                    f"rows.{hole}: returns register tiles and vectors, got {value!r}",
                    hint="return tc.load(X[row, 0], tc.rv[tc.f32, 1024, \"plain\"])",
                )
        if hole == "load" and not values:
            raise ScopeError("rows.load: returns what it has loaded, got nothing",
                             hint="return tc.load(...)")
        return values


def rows(count: Any, *, warps: int = 4, blocks_per_sm: int = 1) -> Rows:
    """A streaming template (see `Rows`), on a persistent grid.

    Scope: CTA; one a kernel, in place of `tc.warpgroup`. PTX: none.
    """
    return Rows(count, warps=warps, blocks_per_sm=blocks_per_sm)
