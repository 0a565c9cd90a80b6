"""Stages that the CTAs of a cluster fill together, several stages a step, and loads ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from failures import fails

import tilecat as tc
from pipeline.schedules import check_schedules, silent
from tilecat import bf16, f32, gl, st, sv
from tilecat.errors import ResourceError, ScopeError, SyncError

BF16 = bf16.numpy
TILE = st[bf16, 64, 64]
# Right programs: each stage is stored behind such a wait; only ptxas can object; at the end stages
# come back in order, so that the last wait is all; no thread touches accumulators between products,
# and one commit closes both groups.
EQUIVALENT = [
    "producer: cp.async.bulk.wait_group.read #3", "score: setmaxnreg.inc #1",
    "score: mbarrier.try_wait #3", "state: setmaxnreg.inc #1", "state: wgmma.commit_group #1",
    "state: wgmma.fence #2", "state: wgmma.fence #3", "state: wgmma.commit_group #4",
    "state: wgmma.fence #5", "state: wgmma.fence #6",
]  # fmt: skip


def columns(V: Any, size: int) -> Any:
    """A task is as many blocks of 64 columns as a cluster has CTAs."""
    return tc.custom_order(
        tc.cdiv(V.cols, 64 * size), lambda t: {"col": t * size + tc.cluster_rank()},
        cluster=size, cluster_cols=size,
    )  # fmt: skip


def chunk(sums: Any, tiles: Any, p: Any, ones: Any, out: Any) -> None:
    """Y and the next state."""
    (y, total), (q, k, v) = sums, tiles
    tc.mma_ABt(y, tc.cast(total, bf16), q, accumulate=False)
    tc.mma_AtBt(y, v, p)
    tc.mma_wait()
    tc.mma_AtB(total, v, k)
    tc.mul(y, tc.load(ones, tc.rv[f32, 64, "col"]), out=y)
    tc.store(out.tile.T, tc.cast(y, bf16))
    tc.mma_wait()


def scan(size: int = 2, turns: int = 2, state_ends: Any = None) -> tc.KernelFunction:
    """Causal linear attention O = tril(Q K^T) V of one head, 64 columns of V a CTA of a cluster.

    A step is a chunk of 64 tokens for each CTA: each makes P and row sums of one, for all.
    """

    @tc.kernel
    def linear(Q: gl[bf16, "N", 64], K: gl[bf16, "N", 64], V: gl[bf16, "N", "D"],
               Y: gl[bf16, "N", "D"]):  # fmt: skip
        steps, tasks = tc.cdiv(Q.rows, 64 * size), columns(V, size)
        pipe = tc.roles(stages=2, steps=steps, tasks=tasks, cluster=size)
        score = pipe.role("score", warpgroups=turns, turns=turns > 1)
        state = pipe.role("state")
        own = [pipe.input(TILE, ring="own", stages=turns, ahead=True, turns=turns)
               for _ in range(2)]  # fmt: skip
        q, k, v = (pipe.input(TILE) for _ in range(3))
        p = pipe.ring(TILE, writer=score, count=size, stages=turns, gather=True)
        ones = pipe.ring(sv[f32, 64], writer=score, count=size, stages=turns, beside=p,
                         gather=True)  # fmt: skip
        out = pipe.ring(TILE, writer=state)
        s, y, total = (tc.empty(tc.rt[f32, 64, 64]) for _ in range(3))

        @pipe.load_ahead
        def _(task, i):
            for tile, tensor in zip(own, (Q, K), strict=True):
                tc.load_async(tile, tensor[i * size + tc.cluster_rank(), 0])

        @pipe.load
        def _(task, i):
            for member in range(size):
                for tile, tensor, col in ((q, Q, 0), (k, K, 0), (v, V, task.col)):
                    tc.load_async(tile, tensor[i * size + member, col])
                if member + 1 < size:
                    v.next()

        @score.compute
        def _(task, i):
            rank = tc.cluster_rank()
            tc.mma_ABt(s, *own, accumulate=False)
            tc.mma_wait()
            own[0].release()
            tc.store(p[rank], tc.cast(tc.tril(s), bf16))
            tc.store(ones[rank].tile, tc.full(tc.rv[f32, 64, "row"], 1.0))

        state.start(lambda task: tc.fill(total, 0.0))

        @state.compute
        def _(task, i):
            for member in range(size):
                chunk((y, total), (q, k, v), p[member], ones[member].tile, out)
                (state_ends or (lambda ring: ring.next()))(q)
                out.next()

        @pipe.store
        def _(task, i):
            for member in range(size):
                tc.store_async(Y[i * size + member, task.col], out)
                out.next()

    return linear


def arrays(length: int, columns: int) -> Any:
    """Sparse zeros and ones: P and S are small integers, exact in bf16."""
    rng = np.random.default_rng(0)
    q, k, v = ((rng.random((length, n)) < 0.1).astype(BF16) for n in (64, 64, columns))
    wide = [x.astype(float) for x in (q, k, v)]
    value = np.tril(wide[0] @ wide[1].T) @ wide[2]

    def check(args: list[Any]) -> None:
        reference.assert_close(args[3], reference.Reference(value, np.zeros_like(value)), BF16)

    return lambda: [q, k, v, np.full_like(v, np.nan)], check


@pytest.mark.parametrize(
    ("size", "turns"),
    [(2, 2), *(pytest.param(*x, marks=pytest.mark.full) for x in ((2, 1), (2, 3), (4, 2)))],
)  # fmt: skip
def test_ctas_fill_stages_together(size: int, turns: int):
    make, check = arrays(64 * 2 * size + 72, 64 * size + 24)  # the last chunks have no tokens
    check_schedules(scan(size, turns), make, check, grid=size)


@pytest.mark.full
def test_every_synchronisation_is_needed():
    make, check = arrays(700, 128)
    assert silent(scan(), make, check, seeds=(0, 1)) == EQUIVALENT


def roles(cluster: int, count: int, warpgroups: int = 1) -> tc.KernelFunction:
    """A ring that is gathered."""

    @tc.kernel
    def k(X: gl[bf16, "M", 64]):
        tasks = tc.custom_order(1, lambda t: {"row": t}, cluster=cluster, cluster_cols=cluster)
        pipe = tc.roles(stages=1, steps=1, tasks=tasks, cluster=cluster)
        score = pipe.role("score", warpgroups=warpgroups)
        pipe.ring(TILE, writer=score, count=count, gather=True)

    return k


@pytest.mark.parametrize(("cluster", "count"), [(1, 1), (2, 3)])
def test_each_cta_fills_as_many_tiles(cluster: int, count: int):
    fails(
        roles(cluster, count).compile, ResourceError,
        "pipe.ring: gather=True is of a cluster in one row or column, each of whose CTAs fills as "
        f"many tiles, got {cluster} CTAs in {cluster} columns and {count=}",
        at="pipe.ring(", hint="tc.roles(..., cluster=2), count=2",
    )  # fmt: skip


def test_one_warpgroup_fills_a_stage_that_is_gathered():
    fails(
        roles(2, 2, warpgroups=2).compile, ScopeError,
        "pipe.ring: one warpgroup fills a stage that is gathered, got role score of 2 warpgroups",
        at="pipe.ring(", hint="turns=True: warpgroups take steps in turn",
    )  # fmt: skip


def in_a_loop(ring: Any) -> None:
    for _ in tc.range(2):
        ring.next()


def twice(ring: Any) -> None:
    ring.next()
    ring.next()


@pytest.mark.parametrize(
    ("ends", "got"),
    [(twice, "before its first use"), (in_a_loop, "inside of a branch or a loop")],
)  # fmt: skip
def test_a_stage_is_passed_where_it_was_used(ends: Any, got: str):
    make, _ = arrays(64, 64)
    fails(
        lambda: scan(state_ends=ends).compile(*make()), SyncError,
        f"next: ends the use of a stage in a hole itself, got input {got}",
        at="ring.next()", hint="after the last use of the stage's tiles",
    )  # fmt: skip


def test_a_loop_over_stages_has_all_uses_of_a_step():
    @tc.kernel
    def k(X: gl[bf16, "M", 64]):
        pipe = tc.roles(stages=2, steps=1, tasks=tc.row_major(1, 1))
        alone = pipe.role("alone")
        x = pipe.input(TILE)
        pipe.load(lambda task, i: tc.load_async(x, X[0, 0]))
        alone.compute(lambda task, i: [tc.load(x.tile) for _ in alone.stages(2, x)])

    fails(
        k.compile, SyncError,
        "stages: has all uses of its rings in a step, got stage in use before",
        at="[tc.load(", hint="for i in range(2): ...; tile.next()",
    )  # fmt: skip


def ahead(declared: bool, loaded: bool) -> tc.KernelFunction:
    """A product whose B is loaded ahead, or not."""

    @tc.kernel
    def k(X: gl[bf16, "M", 64]):
        pipe = tc.lcf(consumers=1, stages=2, steps=1, tasks=tc.row_major(1, 1))
        a = pipe.input(TILE)
        b = pipe.input(TILE, ring="own", ahead=declared)
        pipe.load(lambda task, i: tc.load_async(a, X[0, 0]))
        if loaded:
            pipe.load_ahead(lambda task, i: tc.load_async(b, X[0, 0]))
        pipe.compute(lambda task, i: None)

    return k


@pytest.mark.parametrize(
    ("declared", "loaded", "got"),
    [(True, False, "inputs without the hole"), (False, True, "a hole without inputs")],
)
def test_what_is_loaded_ahead_has_a_hole(declared: bool, loaded: bool, got: str):
    fails(
        ahead(declared, loaded).compile, ScopeError,
        "lcf: inputs with ahead=True, of each step, are loaded in the hole `load_ahead`, got "
        + got, at="pipe.input(" if declared else "tc.lcf(",
        hint='pipe.input(kind, ring="own", ahead=True), @pipe.load_ahead',
    )  # fmt: skip


def test_a_ring_is_loaded_by_one_thread():
    @tc.kernel
    def k(X: gl[bf16, "M", 64]):
        pipe = tc.lcf(consumers=1, stages=2, steps=1, tasks=tc.row_major(1, 1))
        pipe.input(TILE)
        pipe.input(TILE, ahead=True)

    fails(
        k.compile, ScopeError,
        "pipe.input: the inputs of a ring are loaded by one thread, got ahead=True in stage, which "
        "is not loaded ahead", at="pipe.input(TILE, ahead", hint='ring="own"',
    )  # fmt: skip


def test_who_does_not_take_turns_reads_no_ring_of_turns():
    @tc.kernel
    def k(X: gl[bf16, "M", 64]):
        pipe = tc.roles(stages=1, steps=1, tasks=tc.row_major(1, 1))
        score = pipe.role("score", warpgroups=2)
        x = pipe.input(TILE, turns=2)
        pipe.load(lambda task, i: tc.load_async(x, X[0, 0]))
        score.compute(lambda task, i: tc.load(x.tile))

    fails(
        k.compile, SyncError,
        "ring stage: is read by the 2 warpgroups of a role that takes steps in turn, got a use by "
        "role score of 2 warpgroups", at="tc.roles(", hint="leave out turns=",
    )  # fmt: skip
