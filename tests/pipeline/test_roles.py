"""Pipelines of roles: consumers with different bodies, rings between them, their registers."""

from __future__ import annotations

import re
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


# Right programs: accumulators that no thread touches between products need no fence, and the first
# group of two that are waited for together no commit of its own.
EQUIVALENT = ["state: wgmma.commit_group #1", "state: wgmma.fence #2", "state: wgmma.fence #3"]


def scan(
    stages: int = 2, depth: int = 2, registers: Any = None, others: Any = None, turns: int = 1
) -> tc.KernelFunction:
    """Causal linear attention O = tril(Q K^T) V, in chunks of 64, by a score and a state role.

    The state S^T = V^T K stays in the accumulator of the state role; P = tril(Q K^T) of a chunk
    goes from role to role, O from the state role to the storing thread.
    """

    @tc.kernel
    def linear(Q: gl[bf16, "H", "N", 64], K: gl[bf16, "H", "N", 64], V: gl[bf16, "H", "N", 64],
               Y: gl[bf16, "H", "N", 64]):  # fmt: skip
        pipe = tc.roles(stages=stages, steps=tc.cdiv(Q.size(1), 64),
                        tasks=tc.row_major(Q.size(0), 1))  # fmt: skip
        score = pipe.role("score", registers=registers, warpgroups=turns, turns=turns > 1)
        state = pipe.role("state", registers=others)
        q, k, v = (pipe.input(st[bf16, 64, 64]) for _ in range(3))
        p = pipe.ring(st[bf16, 64, 64], writer=score, stages=max(depth, turns))
        out = pipe.ring(st[bf16, 64, 64], writer=state, stages=depth)
        s, y = tc.empty(tc.rt[f32, 64, 64]), tc.empty(tc.rt[f32, 64, 64])
        total = tc.empty(tc.rt[f32, 64, 64])  # S^T: a row for each column of V

        @pipe.load
        def _(task, i):
            for tile, tensor in ((q, Q), (k, K), (v, V)):
                tc.load_async(tile, tensor[task.row, i, 0])

        @score.compute
        def _(task, i):
            tc.mma_ABt(s, q, k, accumulate=False)
            tc.mma_wait()
            tc.store(p, tc.cast(tc.tril(s), bf16))

        @state.start
        def _(task):
            tc.fill(total, 0.0)

        @state.compute
        def _(task, i):
            before = tc.cast(total, bf16)
            tc.mma_ABt(y, before, q, accumulate=False)
            tc.mma_AtBt(y, v, p)
            tc.mma_wait()
            tc.mma_AtB(total, v, k)
            tc.store(out.tile.T, tc.cast(y, bf16))
            tc.mma_wait()

        @pipe.store
        def _(task, i):
            tc.store_async(Y[task.row, i, 0], out)

    return linear


def arrays(heads: int, length: int) -> Any:
    """Sparse zeros and ones: P and S are small integers, exact in bf16."""
    rng = np.random.default_rng(0)
    q, k, v = ((rng.random((heads, length, 64)) < 0.1).astype(BF16) for _ in range(3))
    wide = [x.astype(float) for x in (q, k, v)]
    value = np.tril(wide[0] @ wide[1].transpose(0, 2, 1)) @ wide[2]

    def check(args: list[Any]) -> None:
        reference.assert_close(args[3], reference.Reference(value, np.zeros_like(value)), BF16)

    return lambda: [q, k, v, np.full_like(q, np.nan)], check


@pytest.mark.parametrize(("stages", "depth"), [(1, 1), (2, 2), (3, 1), (2, 3)])
def test_a_role_uses_what_another_fills(stages: int, depth: int):
    make, check = arrays(3, 296)
    check_schedules(scan(stages, depth), make, check)


@pytest.mark.parametrize(("turns", "stages", "depth"), [(2, 2, 1), (2, 3, 2), (3, 2, 1)])
def test_warpgroups_take_steps_in_turn(turns: int, stages: int, depth: int):
    make, check = arrays(3, 296)
    check_schedules(scan(stages, depth, turns=turns), make, check)


def test_every_synchronisation_of_steps_in_turn_is_needed():
    make, check = arrays(2, 328)
    assert silent(scan(stages=3, turns=2), make, check, seeds=(0, 1)) == EQUIVALENT


def test_rings_of_steps_in_turn_have_stages_for_each():
    @tc.kernel
    def k(X: gl[bf16, "M", 64]):
        pipe = tc.roles(stages=1, steps=1, tasks=tc.row_major(1, 1))
        score = pipe.role("score", warpgroups=2, turns=True)
        pipe.ring(st[bf16, 64, 64], writer=score, stages=3)

    fails(
        k.compile, ScopeError,
        "pipe.ring: warpgroups that take steps in turn fill stages of their own, a multiple of 2, "
        "got stages=3", at="pipe.ring(", hint="stages=2",
    )  # fmt: skip


def test_every_synchronisation_is_needed():
    make, check = arrays(2, 328)
    assert silent(scan(stages=3), make, check, seeds=(0, 1)) == EQUIVALENT


def test_registers_are_what_ptxas_takes():
    compiled = scan().compile()
    budgets = compiled.kernel.facts["registers"]
    assert budgets["state"] > budgets["score"] > budgets["producer"]
    assert sum(budgets.values()) * 128 <= 65536
    assert compiled.resources.spill_bytes == 0
    # Matrix descriptors stay in uniform registers: 7 moves, all outside the loops (ptxas 13.5).
    assert sum("R2UR" in line for line in compiled.sass.splitlines()) <= 8


def test_registers_may_be_given():
    assert scan(registers=64).compile().kernel.facts["registers"]["score"] == 64


@pytest.mark.parametrize(
    ("registers", "message"),
    [
        (100, "registers: of a role are a multiple of 8 from 24 to 256, got score=100"),
        ("x", "registers: of a role are a multiple of 8 from 24 to 256, got score='x'"),
    ],
)
def test_registers_of_a_role_are_legal(registers: Any, message: str):
    error = pytest.raises(ResourceError, scan(registers=registers).compile).value
    assert error.message == message and error.loc is not None


def test_registers_of_roles_fit_together():
    error = pytest.raises(ResourceError, scan(registers=256, others=232).compile).value
    assert error.message == (
        "registers: the 2 warpgroups of the roles have 464 together, a thread of each, "
        "got score: 1 x 256, state: 1 x 232: 24 too many"
    )


def test_serialised_products_name_the_role_that_is_short_of_registers():
    error = pytest.raises(ResourceError, scan(others=88).compile).value
    first, second = error.message.splitlines()
    assert first.startswith("assemble: ptxas gave up performance in kernel linear: (C7512)")
    assert re.fullmatch(
        r"  the state has 88 registers a thread, takes \d+ without a limit: \d+ short", second
    )
    assert error.loc is not None and "tc.mma_ABt(y, before, q" in error.loc.text


def test_role_has_a_name_of_its_own():
    @tc.kernel
    def k(X: gl[bf16, "M", 64]):
        pipe = tc.roles(stages=1, steps=1, tasks=tc.row_major(1, 1))
        pipe.role("producer")

    fails(
        k.compile, ScopeError,
        "roles: a role has a name of its own, an identifier, got name='producer'",
        at="pipe.role(", hint="taken: producer, store",
    )  # fmt: skip


def test_writer_of_a_ring_is_a_role():
    @tc.kernel
    def k(X: gl[bf16, "M", 64]):
        pipe = tc.roles(stages=1, steps=1, tasks=tc.row_major(1, 1))
        pipe.ring(st[bf16, 64, 64], writer="score")

    fails(
        k.compile, ScopeError,
        "pipe.ring: the writer is a role of the pipeline, got 'score'",
        at="pipe.ring(", hint='role = pipe.role("score"); pipe.ring(kind, writer=role)',
    )  # fmt: skip


def test_vectors_and_tiles_in_one_ring():
    """One role makes a tile and factors of its rows, another uses both; one pair of barriers."""

    @tc.kernel
    def scaled(X: gl[bf16, "M", 64], Y: gl[bf16, "M", 64]):
        pipe = tc.roles(stages=2, steps=tc.cdiv(X.rows, 64), tasks=tc.row_major(1, 1))
        one, two = pipe.role("one"), pipe.role("two")
        x = pipe.input(st[bf16, 64, 64])
        doubled = pipe.ring(st[bf16, 64, 64], writer=one)
        size = pipe.ring(sv[f32, 64], writer=one, beside=doubled)
        y = pipe.ring(st[bf16, 64, 64], writer=two)

        @pipe.load
        def _(task, i):
            tc.load_async(x, X[i, 0])

        @one.compute
        def _(task, i):
            tile = tc.cast(tc.load(x), f32)
            tc.store(doubled, tc.cast(tile + tile, bf16))
            tc.store(size.tile, tc.row_sum(tile))

        @two.compute
        def _(task, i):
            tc.store(y, tc.cast(tc.cast(tc.load(doubled), f32) * tc.load(size.tile), bf16))

        @pipe.store
        def _(task, i):
            tc.store_async(Y[i, 0], y)

    rings = {b.name.split("[")[0] for b in scaled.compile().module.table.barriers}
    assert rings == {f"{ring} {side}" for ring in ("stage", "doubled", "y")
                     for side in ("full", "empty")}  # fmt: skip
    values = (np.random.default_rng(0).integers(-1, 2, (200, 64))).astype(BF16)
    wide = values.astype(float)

    def check(args: list[Any]) -> None:
        np.testing.assert_array_equal(
            args[1], (2 * wide * wide.sum(1, keepdims=True)).astype(BF16)
        )

    check_schedules(scaled, lambda: [values, np.full_like(values, np.nan)], check, grid=1)


def test_rings_may_have_one_name():
    """The name is that of the variable: several rings made in a loop have it."""

    @tc.kernel
    def doubled(X: gl[f32, "M", 64], Y: gl[f32, "M", 64], Z: gl[f32, "M", 64]):
        pipe = tc.roles(stages=2, tasks=tc.row_major(tc.cdiv(X.rows, 64), 1), steps=1)
        x, role = pipe.input(st[f32, 64, 64]), pipe.role("writer")
        rings = []
        for stages in (1, 2):
            ring = pipe.ring(st[f32, 64, 64], writer=role, stages=stages)
            rings.append(ring)

        @pipe.load
        def _(task, k):
            tc.load_async(x, X[task.row, 0])

        @role.compute
        def _(task, k):
            tile = tc.load(x)
            tc.store(rings[0], tile)
            tc.store(rings[1], tile * 2.0)

        @pipe.store
        def _(task, k):
            tc.store_async(Y[task.row, 0], rings[0])
            tc.store_async(Z[task.row, 0], rings[1])

    x = np.random.default_rng(0).standard_normal((200, 64)).astype(np.float32)
    y, z = np.full_like(x, np.nan), np.full_like(x, np.nan)
    doubled(x, y, z, grid=2)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(z, 2 * x)


def test_tiles_of_one_ring_have_one_writer():
    @tc.kernel
    def k(X: gl[bf16, "M", 64]):
        pipe = tc.roles(stages=1, steps=1, tasks=tc.row_major(1, 1))
        one, two = pipe.role("one"), pipe.role("two")
        p = pipe.ring(st[bf16, 64, 64], writer=one)
        pipe.ring(sv[f32, 64], writer=two, beside=p)

    fails(
        k.compile, ScopeError,
        "pipe.ring: beside is what the same role fills, got p: output of the one of 1 "
        "st[bf16, 64, 64] and the two", at="pipe.ring(sv",
        hint="p = pipe.ring(kind, writer=score); a = pipe.ring(other, writer=score, beside=p)",
    )  # fmt: skip


def test_roles_need_a_role():
    @tc.kernel
    def k(X: gl[bf16, "M", 64]):
        tc.roles(stages=1, steps=1, tasks=tc.row_major(1, 1))

    fails(k.compile, ScopeError, "roles: needs at least one pipe.role", at="tc.roles(")


def handed_on(ends: Any = None) -> tc.KernelFunction:
    """The scan by rings that are published and released before the holes end."""

    @tc.kernel
    def linear(Q: gl[bf16, "N", 64], K: gl[bf16, "N", 64], V: gl[bf16, "N", 64],
               Y: gl[bf16, "N", 64]):  # fmt: skip
        pipe = tc.roles(stages=2, steps=tc.cdiv(Q.rows, 64), tasks=tc.row_major(1, 1))
        score, state = pipe.role("score"), pipe.role("state")
        q, k, v = (pipe.input(st[bf16, 64, 64]) for _ in range(3))
        p = pipe.ring(st[bf16, 64, 64], writer=score, stages=1)
        copied = pipe.ring(st[bf16, 64, 64], writer=score, stages=1)
        out = pipe.ring(st[bf16, 64, 64], writer=state)
        s, y, total = (tc.empty(tc.rt[f32, 64, 64]) for _ in range(3))

        @pipe.load
        def _(task, i):
            for tile, tensor in ((q, Q), (k, K), (v, V)):
                tc.load_async(tile, tensor[i, 0])

        @score.compute
        def _(task, i):
            tc.mma_ABt(s, q, k, accumulate=False)
            tc.mma_wait()
            tc.store(p, tc.cast(tc.tril(s), bf16))
            p.publish()
            tc.store(copied, tc.load(k.tile))

        @state.start
        def _(task):
            tc.fill(total, 0.0)

        @state.compute
        def _(task, i):
            before = tc.cast(total, bf16)
            tc.mma_AtBt(y, v, p, accumulate=False)
            tc.mma_wait()
            p.release() if ends is None else ends(p)
            tc.mma_ABt(y, before, q)
            tc.mma_AtB(total, v, copied)
            tc.mma_wait()
            tc.store(out.tile.T, tc.cast(y, bf16))

        @pipe.store
        def _(task, i):
            tc.store_async(Y[i, 0], out)

    return linear


def test_rings_are_handed_on_before_the_holes_end():
    make, check = arrays(1, 300)
    check_schedules(handed_on(), lambda: [x[0] for x in make()], lambda args: check(
        [x[None] for x in args]), grid=1)  # fmt: skip


def twice(ring: Any) -> None:
    ring.release()
    ring.release()


def in_a_loop(ring: Any) -> None:
    for _ in tc.range(2):
        ring.release()


def test_a_ring_is_not_used_behind_its_release():
    make, _ = arrays(1, 64)

    def ends(ring: Any) -> None:
        ring.release()
        tc.load(ring.tile)

    fails(
        lambda: handed_on(ends).compile(*(x[0] for x in make())), SyncError,
        "ring p: its stage is used before it is published or released, got a use behind that",
        at="ring.tile)", hint="publish and release behind the last use of a step",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ends", "got"),
    [(twice, "for the second time"), (in_a_loop, "inside of a branch or a loop")],
)
def test_a_ring_is_handed_on_once_a_step(ends: Any, got: str):
    make, _ = arrays(1, 64)
    fails(
        lambda: handed_on(ends).compile(*(x[0] for x in make())), SyncError,
        "release: ends the use of a stage once a step, in compute itself, got p " + got,
        at="ring.release()", hint="once, after the last use of p's tiles",
    )  # fmt: skip
