"""A streaming template without a ring, for row-wise kernels: norms, rotary, element-wise maps."""

from __future__ import annotations

from typing import Any

from ..builder import Builder, add, current
from ..errors import LayoutError, Loc, ScopeError
from ..ir import Role as Threads
from ..ir import Scope
from ..language.clusters import MAX_CLUSTER, cluster_id, cluster_rank, cluster_sync, num_clusters
from ..language.clusters import cluster as ask_for_cluster
from ..language.control import range_, when
from ..language.cta import cluster_reduce, combine_warps, cta_reduce
from ..language.functions import copy
from ..language.reductions import reduce_vector
from ..language.scalars import Scalar, named, operand_of, var
from ..language.sections import cta_id, num_ctas, warp_id
from ..language.values import Registers, RegVec
from ..ops.control import RoleSection
from ..ops.scalar import require_s32
from ..ops.sync import WarpSync
from ..tiles import SharedVecType
from .controls import check_int
from .holes import Hole, Holes
from .row_inputs import RowInput, Staging
from .row_meetings import Meetings

WARP_THREADS = 32
MAX_WARPS = 32


class Rows:
    """Each warp takes rows (or blocks of rows) by itself, and loads the next while it computes.

    Nothing is shared between warps, so nothing synchronises. A CTA takes `warps` rows at a time,
    the grid is persistent: warp w takes the rows w, w + all warps, ...

    A wide row is shared: by all warps of a CTA (`shared_by="cta"`), or of several CTAs
    (`cluster=4`). Each warp has part `rows.part` of `rows.parts`, `X[row, rows.part]`, and
    `rows.reduce` combines what the parts have.

    Holes:
        start(): what all rows need, once a warp; returns register tiles or vectors, which compute
            may write, as sums over rows.
        load(row): returns a row's register tiles or vectors; it runs one row ahead.
        compute(row, *loaded, *started): computes and stores, with `tc.store`.
        behind(row, *started): a row's second half, behind compute of the next row; or none.
        finish(*started): once a warp, behind its last row.

    Args:
        count: rows, an s32 scalar.
        warps: of a CTA, 4 to 32, a multiple of 4.
        blocks_per_sm: CTAs that share an SM.
        shared_by: "warp": a warp has a row by itself; "cta": all warps of a CTA share it.
        cluster: CTAs that share a row; above 1, `tc.cluster` is asked for here.
        ahead: rows that are loaded before they are needed, 1 or 0: a row that takes most registers
            is loaded while other CTAs of the SM compute.
        stages: chunks of rows that a warp has in shared memory at once, of `rows.input`; None:
            those of one row. Of fewer, rows are read once.
    """

    def __init__(
        self, count: Any, *, warps: int = 4, blocks_per_sm: int = 1, shared_by: str = "warp",
        cluster: int = 1, ahead: int = 1, stages: int | None = None,
    ):  # fmt: skip
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
        check_int("rows: cluster", cluster, 1, MAX_CLUSTER, self.loc)
        check_int("rows: ahead", ahead, 0, 1, self.loc)
        if stages is not None:
            check_int("rows: stages", stages, 1, 64, self.loc)
        if shared_by not in ("warp", "cta"):
            raise LayoutError(
                f'rows: a row is shared by "warp" or "cta", got {shared_by=}', loc=self.loc,
                hint='shared_by="cta"',
            )  # fmt: skip
        facts = self.builder.kernel.facts
        if "template" in facts:
            raise ScopeError("rows: a kernel has one template, got another", loc=self.loc)
        facts.update(template="rows", blocks_per_sm=blocks_per_sm)
        self.count = count
        self.warps = warps
        self.ahead = ahead
        self.staging = Staging(stages)
        self.exchanges = 0  # of a row between CTAs
        self.meetings: Meetings | None = None
        self.turn: Any = None  # rows of this CTA so far
        self.now: Any = None  # number of the row that a hole has
        self.places: Any = None  # the row, and how far it is to the next
        self.cluster = cluster
        self.shared = shared_by == "cta" or cluster > 1
        self.parts = warps * cluster if self.shared else 1
        if cluster > 1:
            ask_for_cluster(cluster)
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

    def input(
        self, kind: SharedVecType, *, fill: float | None = None, chunks: int = 1
    ) -> RowInput:
        """This warp's part of a shared row in shared memory: `load` brings it, compute reads it.

        In the load hole `x.load(X.at(row, n))`, in compute `tc.load(x.vector.part(i, n), kind)`.
        The load hole runs `stages` rows ahead then, and returns nothing. No warp waits for the
        load of another.

        Args:
            kind: `sv[dtype, length]`, of each warp.
            fill: what elements are that a load does not reach, in multiples of 256 elements; None
                where loads write all.
            chunks: of a part, each `kind`, that are waited for and given back by themselves: the
                load hole brings `x.chunk`, compute has them from `x.parts`.

        Raises:
            LayoutError: chunks, and other inputs. ScopeError: rows that are not shared.
        """
        check_int("rows.input: chunks", chunks, 1, 64, self.builder.loc())
        if not self.shared:
            raise ScopeError("rows.input: rows are shared by a CTA or a cluster, got rows of warps",
                             hint='tc.rows(..., shared_by="cta")')  # fmt: skip
        return self.staging.add(kind, fill, chunks, self.warps, self._free)

    def behind(self, hole: Hole) -> Hole:
        """Decorator of the behind hole: the second half of a row's work, behind the next compute.

        So that nobody waits for what warps tell one another: compute sends (`rows.send`), behind
        receives. Rows lie in shared memory, two whole ones at least.

        Scope of the hole: a warp; gets the row, and what start has returned.
        """
        return self.holes.fill("rows_behind", hole)

    def finish(self, hole: Hole) -> Hole:
        """Decorator of the finish hole.

        Scope of the hole: a warp; gets what start has returned.
        """
        return self.holes.fill("rows_finish", hole)

    @property
    def part(self) -> Any:
        """Which part of a row this warp has; 0 of a row by itself."""
        if not self.shared:
            return 0
        warp = warp_id()
        return warp if self.cluster == 1 else cluster_rank() * self.warps + warp

    def reduce(self, name: str, x: Any) -> Scalar:
        """`op` over the whole row of a vector's values, or of one scalar a part, for all threads.

        Args:
            name: max, min, sum, prod or absmax.
            x: a plain vector of this warp's part, or an f32 or s32 scalar.

        Scope: a warp, in holes; where rows are shared, all warps of the CTA or the cluster.
        """
        mine = reduce_vector(name, x) if isinstance(x, RegVec) else x
        if not self.shared:
            return mine
        whole = cta_reduce(name, mine)
        if self.cluster == 1:
            return whole
        self.exchanges += 1
        return cluster_reduce(name, whole)

    def gather(self, *values: tuple[Any, float]) -> tuple[RegVec, ...]:
        """Up to four f32 scalars of every part of a row, as plain vectors, for all threads of all.

        One meeting of the warps (of the CTAs of a cluster) for all of them.

        Args:
            values: pairs of this part's scalar and what a vector has behind the last part.

        Returns:
            Plain vectors of `rows.parts` values, rounded up to a multiple of 32.

        Scope: all warps that share rows, once a row. PTX: `st.shared`, of a cluster `st.async`; an
        mbarrier; `ld.shared.v4`.
        """
        self.send(*(value for value, _ in values))
        return self.receive(*(fill for _, fill in values))

    def send(self, *values: Any) -> None:
        """The first half of `gather`: this part's scalars, to all; in compute.

        Scope: all warps that share rows, once a row.
        """
        if self.meetings is None:
            depth = 4 if "rows_behind" in self.holes else 2
            self.meetings = Meetings(self.parts, self.cluster, depth)
        self.meetings.send(self.now, self.part, values)

    def receive(self, *fills: float) -> tuple[RegVec, ...]:
        """The other half: the scalars of all, in `behind`, or later in compute.

        Args:
            fills: what each vector has behind the last part.

        Scope: all warps that share rows, once a row.
        """
        if self.meetings is None:
            raise ScopeError("rows.receive: what compute has sent, got no rows.send before")
        return self.meetings.receive(self.now, fills)

    def combine(self, vector: RegVec) -> None:
        """Adds the vectors of all warps of the CTA, in the order of their numbers, in place.

        The sum is where `rows.has_sum` says. In `finish`; of shared rows in `compute` too.

        Scope: all warps of the CTA. PTX: `st.shared`, `bar.sync`, `ld.shared`.
        """
        combine_warps(vector, self.warps)

    @property
    def has_sum(self) -> Any:
        """Condition: this warp has what `rows.combine` made."""
        return warp_id() == self.warps - 1

    def build(self) -> None:
        """Emits the kernel around the holes; called when the trace ends."""
        builder, kernel = self.builder, self.builder.kernel
        with builder.located(self.loc):
            self.holes.require("rows_load", self.loc)
            self.holes.require("rows_compute", self.loc)
            self._check_behind()
            body = builder.child()
            name = "shared rows" if self.shared else "rows"
            kernel.roles.append(Threads(0, kernel.threads - 1, name))
            with builder.within(body, Scope.WARP):
                self._rows()
            add(RoleSection("rows", 0, kernel.threads - 1, None, False, body, rest=True))

    def _rows(self) -> None:
        first, stride = self._span()
        self.turn = self.now = var(0)
        if self.staging.inputs:
            self._load_first(first, stride)
        if self.cluster > 1:
            cluster_sync()  # the others must be there to be written to
        started = self._registers("start", self.holes.call("rows_start"))
        if self.staging.inputs:
            self._staged(first, stride, started)
        elif self.ahead == 0:
            for row in range_(first, self.count, stride):
                now = self._registers("load", self.holes.call("rows_load", row))
                self._row("compute", row, *now, *started)
                self.turn += 1
        else:
            now = self._registers("load", self.holes.call("rows_load", first))
            for row in range_(first, self.count, stride):
                ahead = self._registers("load", self.holes.call("rows_load", row + stride))
                self._row("compute", row, *now, *started)
                self.turn += 1
                for place, loaded in zip(now, ahead, strict=True):
                    copy(place, loaded)
        self.holes.call("rows_finish", *started)
        if self.cluster > 1:
            cluster_sync()  # no CTA leaves while another may still write to it

    def _row(self, hole: str, row: Any, *values: Registers) -> None:
        """A hole; after one exchange alone CTAs meet again, before the next row's writes."""
        before = self.exchanges
        self.holes.call(f"rows_{hole}", row, *values)
        if self.exchanges - before == 1:
            cluster_sync()

    def _check_behind(self) -> None:
        """Raises: LayoutError: fewer than two rows in shared memory, for `behind`."""
        inputs = self.staging.inputs
        if "rows_behind" not in self.holes or inputs and inputs[0].stages >= 2 * inputs[0].chunks:
            return
        got = f"stages={inputs[0].stages}" if inputs else "no rows.input"
        chunks = 2 * inputs[0].chunks if inputs else 2
        hint = f"tc.rows(..., stages={chunks})" if inputs else "x = rows.input(...)"
        raise LayoutError(
            f"rows.behind: two rows lie in shared memory, {chunks} chunks, got {got}",
            loc=self.loc, hint=hint,
        )  # fmt: skip

    def _staged(self, first: Any, stride: Any, started: tuple[Registers, ...]) -> None:
        """Rows in shared memory: each warp waits for its part, computes, loads again."""
        staging = self.staging
        if "rows_behind" not in self.holes:
            for row in range_(first, self.count, stride):
                staging.begin(self.turn)
                self._half("compute", row, stride, started)
                self.turn += 1
            return
        for row in range_(first, self.count + stride, stride):
            with when(row < self.count):
                staging.begin(self.turn)
                self.now = self.turn
                self._row("compute", row, *started)
            with when(self.turn > 0):
                staging.begin(self.turn - 1, waited=True)
                self._half("behind", row - stride, stride, started)
            self.turn += 1

    def _load_first(self, first: Any, stride: Any) -> None:
        """Each warp loads its part of the first rows."""
        given = self.staging.inputs[0]
        for stage in range_(given.stages) if given.stages > 2 else range(given.stages):
            self._load_chunk(first + stage // given.chunks * stride, stage, stage % given.chunks)

    def _half(self, hole: str, row: Any, stride: Any, started: tuple[Registers, ...]) -> None:
        """The hole that reads a row for the last time, and gives its chunks back."""
        given = self.staging.inputs[0]
        self.places, self.now = (row, stride), given.turn
        self._row(hole, row, *started)
        if not given.freed:
            for _ in given.parts(last=True):
                pass

    def _load_chunk(self, row: Any, stage: Any, chunk: Any) -> None:
        with when(row < self.count):
            for given in self.staging.inputs:
                given.stage, given.chunk = stage, chunk
            self.holes.call("rows_load", row)

    def _free(self, given: RowInput) -> None:
        """This warp has read the current chunk: another takes its place."""
        if self.places is None:
            raise ScopeError("x.parts: with rows.behind that hole reads a row for the last time, "
                             "got last=True in compute", hint="last=True in behind")  # fmt: skip
        add(WarpSync())
        row = given.ahead(*self.places)
        self._load_chunk(row, given.stage, given.chunk)

    def _span(self) -> tuple[Any, Any]:
        """The first row of this warp, and how far it is to the next."""
        if self.cluster > 1:
            return named(cluster_id(), "first_row"), named(num_clusters(), "rows_of_grid")
        if self.shared:
            return named(cta_id(), "first_row"), named(num_ctas(), "rows_of_grid")
        first = named(cta_id() * self.warps + warp_id(), "first_row")
        return first, named(num_ctas() * self.warps, "rows_of_grid")

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


def rows(
    count: Any, *, warps: int = 4, blocks_per_sm: int = 1, shared_by: str = "warp",
    cluster: int = 1, ahead: int = 1, stages: int | None = None,
) -> Rows:  # fmt: skip
    """A streaming template (see `Rows`), on a persistent grid.

    Scope: CTA; one a kernel, in place of `tc.warpgroup`. PTX: none; `.explicitcluster` of clusters.
    """
    return Rows(
        count, warps=warps, blocks_per_sm=blocks_per_sm, shared_by=shared_by, cluster=cluster,
        ahead=ahead, stages=stages,
    )  # fmt: skip
