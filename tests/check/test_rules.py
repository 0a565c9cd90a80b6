"""Checks between trace and text: resources, barriers, registers in flight, first writes."""

from __future__ import annotations

from typing import Any

import pytest
from failures import fails
from language.bodies import kernel_of, traced

import tilecat as tc
from tilecat import bf16, f32, rt, rv, st
from tilecat.arch import ARCHS, arch_of
from tilecat.builder import Builder
from tilecat.check import check
from tilecat.errors import ArchError, ResourceError, SyncError
from tilecat.ir import Block, Kernel, Scope
from tilecat.kernels.gemm import matmul
from tilecat.ops.memory import AllocShared
from tilecat.ops.sync import AllocBarriers, Arrive, InitBarriers, NamedBarrier, WaitBarrier

WIDE = rt[f32, 64, 64]
HOPPER = arch_of("sm_90a")


def tiles(k: Any) -> tuple[Any, Any, Any]:
    """A in registers, B shared, an accumulator that holds zeros."""
    a = tc.cast(tc.load(k.X[0, 0], WIDE), bf16)
    b = tc.shared(st[bf16, 64, 64])
    acc = tc.zeros(WIDE)
    tc.store(b, a)
    tc.sync()
    return a, b, acc


# ---- registers in flight


def reads_accumulator(k: Any) -> None:
    a, b, acc = tiles(k)
    tc.mma_AB(acc, a, b)
    acc *= 2.0


def writes_fragment(k: Any) -> None:
    a, b, acc = tiles(k)
    tc.mma_AB(acc, a, b)
    tc.fill(a, 0)


def reads_in_branch(k: Any) -> None:
    a, b, acc = tiles(k)
    with tc.when(k.n > 3):
        tc.mma_AB(acc, a, b)
    tc.store(k.Y[0, 0], acc)


def reads_in_next_iteration(k: Any) -> None:
    a, b, acc = tiles(k)
    for _ in tc.range(k.n):
        tc.exp2(acc, out=acc)
        tc.mma_AB(acc, a, b)
    tc.mma_wait()


def waits_for_too_few(k: Any) -> None:
    a, b, acc = tiles(k)
    other = tc.zeros(WIDE)
    tc.mma_AB(other, a, b)
    tc.mma_AB(acc, a, b)
    tc.mma_wait(1)
    tc.store(k.Y[0, 0], acc)


@pytest.mark.parametrize(
    ("body", "message", "at"),
    [
        (reads_accumulator, "mul: acc is read while mma_AB is still using it", "acc *= 2.0"),
        (writes_fragment, "fill: a is written while mma_AB is still using it", "tc.fill(a"),
        (reads_in_branch, "store: acc is read while mma_AB is still using it", "tc.store(k.Y"),
        (reads_in_next_iteration, "exp2: acc is read while mma_AB is still using it", "tc.exp2("),
        (waits_for_too_few, "store: acc is read while mma_AB is still using it", "tc.store(k.Y"),
    ],
)
def test_tiles_of_an_mma_under_way_are_left_alone(body, message: str, at: str):
    error = pytest.raises(SyncError, traced, body).value
    assert error.message == message
    assert error.loc is not None and error.loc.text.strip().startswith(at)
    assert error.hint is not None and "call tc.mma_wait() after the mma_AB at " in error.hint


def test_mma_is_finished_where_the_role_ends():
    def body(k: Any) -> None:
        a, b, acc = tiles(k)
        tc.mma_AB(acc, a, b)

    fails(
        lambda: traced(body),
        SyncError,
        "mma_AB: is still under way where the warpgroup ends",
        at="tc.mma_AB(",
        hint="end with tc.mma_wait()",
    )


def test_mma_may_follow_on_one_accumulator_and_read_fragments_again():
    def body(k: Any) -> None:
        a, b, acc = tiles(k)
        for _ in tc.range(k.n):
            tc.mma_AB(acc, a, b)
            tc.mma_ABt(acc, a, b)
        tc.mma_wait()
        tc.store(k.Y[0, 0], acc)

    traced(body)


# ---- first writes


@pytest.mark.parametrize("kind", [rt[f32, 64, 16], rv[f32, 64]], ids=str)
def test_registers_are_written_before_they_are_read(kind):
    def body(k: Any) -> None:
        late = tc.empty(kind)
        k.x += late
        tc.fill(late, 0.0)

    fails(
        lambda: traced(body),
        SyncError,
        f"add: late: {kind} is read before anything was written to it",
        at="k.x += late",
        hint="make it with tc.zeros(...), or let its first mma have accumulate=False",
    )


def test_accumulator_is_not_added_to_before_it_is_written():
    def body(k: Any) -> None:
        a, b, _ = tiles(k)
        acc = tc.empty(WIDE)
        tc.mma_AB(acc, a, b)
        tc.mma_wait()

    error = pytest.raises(SyncError, traced, body).value
    assert error.message == (
        "mma_AB: acc: rt[f32, 64, 64] is added to before anything was written to it"
    )


def test_accumulator_whose_first_mma_overwrites_is_fine():
    def body(k: Any) -> None:
        a, b, _ = tiles(k)
        acc = tc.empty(WIDE)
        tc.mma_AB(acc, a, b, accumulate=False)
        tc.mma_AB(acc, a, b)
        tc.mma_wait()
        tc.store(k.Y[0, 0], acc)

    traced(body)


# ---- mma's operands


def wrong_b(k: Any) -> None:
    a, _, acc = tiles(k)
    tc.mma_AB(acc, a, a)


def wrong_b_transposed(k: Any) -> None:
    a, _, acc = tiles(k)
    tc.mma_ABt(acc, a, a)


@pytest.mark.parametrize(
    ("body", "name", "shown"),
    [
        (wrong_b, "mma_AB", "rt[bf16, 64, 64]"),
        (wrong_b_transposed, "mma_ABt", "rt[bf16, 64, 64, col]"),
    ],
)
def test_mma_rejects_b_in_registers(body, name: str, shown: str):
    fails(
        lambda: traced(body),
        tc.LayoutError,
        f"{name}: B of a warpgroup's mma lies in shared memory, row or column order, "
        f"got b={shown} (registers, as K x N)",
        at=f"tc.{name}(",
        hint="s = tc.shared(tc.st[tc.bf16, 64, 64]); tc.store(s, b); tc.sync(); "
        f"tc.{name}(acc, a, s)",
    )


def test_mma_rejects_shapes_that_do_not_fit():
    def body(k: Any) -> None:
        a, b, _ = tiles(k)
        tc.mma_AB(tc.zeros(rt[f32, 64, 128]), a, b)

    fails(
        lambda: traced(body),
        tc.LayoutError,
        "mma_AB: A is M x K, B is K x N, acc is M x N, "
        "got a=64x64, b=64x64 (as used), acc=64x128",
        at="tc.mma_AB(",
        hint="B as 64x128 fits this A and acc",
    )


def test_mma_rejects_an_accumulator_of_another_type():
    def body(k: Any) -> None:
        a, b, _ = tiles(k)
        tc.mma_AB(a, a, b)

    fails(
        lambda: traced(body),
        tc.DTypeError,
        "mma_AB: the accumulator of bf16 x bf16 is f32, got a=bf16, b=bf16, acc=bf16",
        at="tc.mma_AB(",
        hint="make it f32, and convert after: tc.cast(acc, tc.bf16)",
    )


# ---- resources


def test_registers_of_a_role_are_bounded_by_those_of_a_thread():
    def body(k: Any) -> None:
        a, b = tc.shared(st[bf16, 64, 16]), tc.shared(st[bf16, 16, 256])
        left, right = tc.zeros(rt[f32, 64, 256]), tc.zeros(rt[f32, 64, 256])
        tc.mma_AB(left, a, b)
        tc.mma_AB(right, a, b)
        tc.mma_wait()

    fails(
        lambda: traced(body),
        ResourceError,
        "traced: a thread of the warpgroup has 255 registers, got 256 in the tiles of its mma "
        "alone (left: rt[f32, 64, 256] = 128, right: rt[f32, 64, 256] = 128)",
        at="tc.zeros(rt[f32, 64, 256]), tc.zeros",
        hint="use a smaller tile_n, or more consumers with smaller tiles",
    )


def test_shared_memory_without_a_ring_says_so():
    def body(k: Any) -> None:
        for _ in range(15):
            tc.shared(st[f32, 64, 64])

    error = pytest.raises(ResourceError, traced, body).value
    assert "shared memory of a CTA on sm_90a is 232448 bytes, got 246784 bytes" in error.message
    assert error.hint == "use smaller tiles"


def test_shared_memory_is_used_to_the_last_byte():
    limit = HOPPER.limit("shared_bytes_per_cta")
    kernel = Kernel("k", [], {}, Block())
    builder = Builder(kernel, HOPPER)
    tile = st[bf16, 64, 64]
    copies = (limit - 1024) // tile.layout.num_bytes
    op = builder.add(AllocShared(tile, "t", copies))
    checked = check(kernel, HOPPER)
    assert checked.shared.launch_bytes == 1024 + copies * 8192 <= limit
    assert checked.offset(op) == 0


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_rings_lie_apart_and_aligned(stages: int):
    table = matmul.compile(stages=stages).module.table
    ends = 0
    for item in sorted(table.shared, key=lambda item: item.start):
        assert item.start % 1024 == 0 and item.start >= ends
        ends = item.start + item.num_bytes
    assert [b.offset for b in table.barriers] == [ends + 8 * i for i in range(2 * stages)]
    assert {b.expected_bytes for b in table.barriers if "full" in b.name} == {49152}
    assert {b.count for b in table.barriers if "empty" in b.name} == {2}


# ---- barriers


def barrier_kernel(*, init: bool = True, arrive: bool = True, wait: bool = True) -> Kernel:
    kernel = Kernel("k", [], {}, Block())
    builder = Builder(kernel, HOPPER)
    barrier = builder.add(AllocBarriers("ring", 1)).result
    if init:
        builder.add(InitBarriers((barrier,)))
    with builder.within(builder.block, Scope.THREAD):
        if arrive:
            builder.add(Arrive(barrier, 0))
        if wait:
            builder.add(WaitBarrier(barrier, 0, 0))
    return kernel


@pytest.mark.parametrize(
    ("missing", "verb"),
    [("init", "initialised"), ("arrive", "arrived on"), ("wait", "waited for")],
)
def test_barrier_has_somebody_on_each_side(missing: str, verb: str):
    check(barrier_kernel(), HOPPER)
    error = pytest.raises(SyncError, check, barrier_kernel(**{missing: False}), HOPPER).value
    assert error.message == f"mbarrier ring: is never {verb}"


def test_named_barriers_end_with_the_hardwares():
    for number in (15, 16):
        kernel = Kernel("k", [], {}, Block())
        Builder(kernel, HOPPER).add(NamedBarrier(number, 128))
        if number < 16:
            check(kernel, HOPPER)
            continue
        with pytest.raises(ResourceError, match="sm_90a has 16 a CTA, got number=16"):
            check(kernel, HOPPER)


def test_targets_are_rows():
    assert [arch.target for arch in ARCHS][0] == "sm_90a"
    with pytest.raises(ArchError, match="tilecat compiles for .*, got 'sm_1'"):
        arch_of("sm_1")
    assert kernel_of(lambda k: None).signature.name == "traced"
