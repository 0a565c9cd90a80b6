"""Divergence, warp-wide instructions, named barriers, mbarriers, clusters, register budgets."""

import numpy as np
import pytest

from .texts import clean, kernel, kinds, pointers, run, wait

OUT = """ld.param.u64 %d1, [out]; mov.u32 %r31, %tid.x; mul.wide.u32 %d2, %r31, 4;
add.u64 %d1, %d1, %d2; st.global.b32 [%d1], %r30;"""


def result_of(body: str, threads: int = 32, seed: int = 0) -> list[int]:
    """What every thread leaves in %r30."""
    out = np.zeros(threads, np.uint32)
    clean(run(kernel(f"{body}\n{OUT}", ".param .u64 out", threads), pointers(out), seed=seed))
    return out.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_trip_counts_a_lane_and_nested_divergence(seed):
    body = """mov.u32 %r1, %tid.x; mov.u32 %r2, 0; mov.u32 %r30, 0; and.b32 %r3, %r1, 7;
    OUTER: setp.ge.u32 %p1, %r2, %r3; @%p1 bra DONE;
    and.b32 %r4, %r2, 1; setp.eq.u32 %p2, %r4, 0; @%p2 bra EVEN;
    add.u32 %r30, %r30, 100; bra NEXT;
    EVEN: mov.u32 %r5, 0;
    INNER: add.u32 %r30, %r30, 1; add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, %r1; @%p3 bra INNER;
    NEXT: add.u32 %r2, %r2, 1; bra OUTER;
    DONE: shfl.sync.bfly.b32 %r6, %r30, 1, 31, -1; add.u32 %r30, %r30, %r6;"""

    def one(t: int) -> int:
        return sum(100 if k % 2 else max(t, 1) for k in range(t % 8))

    want = [one(t) + one(t ^ 1) for t in range(64)]
    assert result_of(body, 64, seed) == want


def test_predicated_exit_and_branch_table():
    body = """mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3; mov.u32 %r30, 7;
    T: .branchtargets A, B, C, D;
    brx.idx %r2, T;
    A: mov.u32 %r30, 10; bra JOIN;
    B: mov.u32 %r30, 11; bra JOIN;
    C: mov.u32 %r30, 12; bra JOIN;
    D: mov.u32 %r30, 13;
    JOIN: setp.gt.u32 %p1, %r1, 19;
    @%p1 exit;"""
    assert result_of(body) == [10 + t % 4 if t < 20 else 0 for t in range(32)]


@pytest.mark.parametrize("mode, b, c, source", [
    ("bfly", "5", "31", lambda t: t ^ 5), ("idx", "3", "31", lambda t: 3),
    ("down", "4", "31", lambda t: t + 4 if t + 4 < 32 else t),
    ("up", "4", "0", lambda t: t - 4 if t >= 4 else t),
    ("down", "2", "0x1807", lambda t: t + 2 if t % 8 < 6 else t),  # segments of 8
    ("idx", "%r1", "0x1c03", lambda t: t // 4 * 4 + t % 4),
])  # fmt: skip
def test_shuffles(mode, b, c, source):
    body = f"""mov.u32 %r1, %tid.x; mul.lo.u32 %r2, %r1, 3;
    shfl.sync.{mode}.b32 %r30|%p1, %r2, {b}, {c}, 0xffffffff;"""
    assert result_of(body) == [3 * source(t) for t in range(32)]


def test_votes_match_redux_elect():
    body = """mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 5;
    vote.sync.ballot.b32 %r2, %p1, -1; vote.sync.any.pred %p2, %p1, -1;
    vote.sync.all.pred %p3, !%p1, -1;
    shr.u32 %r3, %r1, 4; match.any.sync.b32 %r4, %r3, -1; redux.sync.add.u32 %r5, %r1, -1;
    elect.sync %r6|%p4, -1; activemask.b32 %r7;
    selp.u32 %r30, 1, 0, %p2; @%p3 add.u32 %r30, %r30, 2; @%p4 add.u32 %r30, %r30, 4;
    setp.eq.u32 %p5, %r2, 31; @%p5 add.u32 %r30, %r30, 8;
    setp.eq.u32 %p5, %r4, 0xFFFF; @%p5 add.u32 %r30, %r30, 16;
    setp.eq.u32 %p5, %r5, 496; @%p5 add.u32 %r30, %r30, 32;
    setp.eq.u32 %p5, %r7, 0xFFFFFFFF; @%p5 add.u32 %r30, %r30, 64;"""
    common = 1 + 8 + 32 + 64
    want = [common + (16 if t < 16 else 0) + (4 if t == 0 else 0) for t in range(32)]
    assert result_of(body) == want


def test_shuffle_of_half_a_warp():
    body = """mov.u32 %r1, %tid.x; mov.u32 %r30, 99; setp.lt.u32 %p1, %r1, 16; @!%p1 bra JOIN;
    shfl.sync.bfly.b32 %r30, %r1, 1, 31, 0xffff;
    JOIN:"""
    assert result_of(body) == [t ^ 1 if t < 16 else 99 for t in range(32)]


@pytest.mark.parametrize("seed", range(4))
def test_named_barriers_with_register_ids(seed):
    body = """mov.u32 %r1, %tid.x; mov.u32 %r2, smem; shr.u32 %r3, %r1, 6; add.u32 %r4, %r3, 1;
    mad.lo.u32 %r5, %r1, 4, %r2; st.shared.b32 [%r5], %r1;
    bar.sync %r4, 64;
    xor.b32 %r6, %r1, 32; mad.lo.u32 %r6, %r6, 4, %r2; ld.shared.b32 %r30, [%r6];"""
    assert result_of(body, 128, seed) == [t ^ 32 for t in range(128)]


def test_barrier_reduction():
    body = """mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 40; bar.red.popc.u32 %r30, 0, 64, %p1;"""
    assert result_of(body, 64) == [40] * 64


HANDOVER = """mov.u32 %r1, %tid.x; mov.u32 %r2, smem; setp.ge.u32 %p1, %r1, 32; @%p1 bra READER;
mov.u32 %r30, 0; mad.lo.u32 %r5, %r1, 4, %r2; st.shared.b32 [%r5], %r1; {writer} bra JOIN;
READER: and.b32 %r3, %r1, 31; {reader} mad.lo.u32 %r5, %r3, 4, %r2; ld.shared.b32 %r30, [%r5];
JOIN:"""


@pytest.mark.parametrize("seed", range(4))
def test_bar_arrive_orders_and_its_lack_races(seed):
    good = HANDOVER.format(writer="barrier.arrive 3, 64;", reader="bar.sync 3, 64;")
    assert result_of(good, 64, seed) == [0] * 32 + list(range(32))
    bad = kernel(HANDOVER.format(writer="", reader="") + OUT, ".param .u64 out", 64)
    out = np.zeros(64, np.uint32)
    assert kinds(run(bad, pointers(out), seed=seed)) & {"race", "uninitialised"}


def test_barrier_misuse():
    assert kinds(run(kernel("bar.sync 1, 64;", threads=32))) == {"barrier"}
    assert kinds(run(kernel("bar.sync 16, 32;"))) == {"barrier"}
    result = run(kernel("mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 32; @%p1 bar.sync 2, 64;",
                        threads=64))  # fmt: skip
    assert kinds(result) == {"deadlock"}
    assert "barrier 2: 32 of 64 threads have come" in str(result)


MBARRIER = """mov.u32 %r1, %tid.x; mov.u32 %r2, smem; add.u32 %r3, %r2, 1024;
setp.ne.u32 %p1, %r1, 0; @%p1 bra READY; mbarrier.init.shared::cta.b64 [%r3], {count};
READY: bar.sync 0;
mad.lo.u32 %r5, %r1, 4, %r2; st.shared.b32 [%r5], %r1;
{arrive}
{wait}
xor.b32 %r6, %r1, 63; mad.lo.u32 %r6, %r6, 4, %r2; ld.shared.b32 %r30, [%r6];"""
STATE_WAIT = """AGAIN: mbarrier.test_wait.shared::cta.b64 %p2, [%r3], %d3; @!%p2 bra AGAIN;"""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("arrive, waiting, count", [
    ("mbarrier.arrive.shared::cta.b64 _, [%r3];", wait("%r3", "0", "W"), 64),
    ("mbarrier.arrive.shared::cta.b64 %d3, [%r3];", STATE_WAIT, 64),
    ("mbarrier.arrive.shared::cta.b64 _, [%r3], 2;", wait("%r3", "-2", "W"), 128),
    ("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r3], 16; bar.sync 1, 64; "
     "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r3], 16; "
     "mbarrier.arrive.shared::cta.b64 _, [%r3];", wait("%r3", "0", "W"), 64),
])  # fmt: skip
def test_mbarrier_orders_threads(arrive, waiting, count, seed):
    body = MBARRIER.format(count=count, arrive=arrive, wait=waiting)
    assert result_of(body, 64, seed) == [t ^ 63 for t in range(64)]


def mbarrier_kinds(body: str) -> set[str]:
    """Kinds of reports of a kernel with an mbarrier of count 1 at %r3."""
    start = """mov.u32 %r1, %tid.x; mov.u32 %r3, smem; setp.ne.u32 %p1, %r1, 0; @%p1 bra END;
    mbarrier.init.shared::cta.b64 [%r3], 1;"""
    return kinds(run(kernel(f"{start}\n{body}\nEND:")))


def test_mbarrier_misuse():
    arrive = "mbarrier.arrive.shared::cta.b64 _, [%r3];"
    assert mbarrier_kinds(arrive) == set()
    assert mbarrier_kinds("mbarrier.arrive.shared::cta.b64 _, [%r3], 2;") == {"mbarrier"}
    assert mbarrier_kinds("mbarrier.arrive.shared::cta.b64 _, [%r3+8];") == {"mbarrier"}
    assert mbarrier_kinds("mbarrier.init.shared::cta.b64 [%r3+4], 1;") == {"align"}
    assert mbarrier_kinds("mbarrier.inval.shared::cta.b64 [%r3];" + arrive) == {"mbarrier"}
    assert mbarrier_kinds(wait("%r3", "0", "W")) == {"deadlock"}
    assert mbarrier_kinds("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 2097152;") == {
        "mbarrier"
    }


def test_poll_that_can_never_succeed_is_a_deadlock():
    assert mbarrier_kinds(
        "L: mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r3], 0; @!%p2 bra L;"
    ) == {"deadlock"}


CLUSTER = """mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mov.u32 %r4, %cluster_ctarank;
xor.b32 %r5, %r4, 1;
add.u32 %r3, %r2, 1024; setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r3], 32; {fence}
READY: {first}
mad.lo.u32 %r6, %r1, 4, %r2; mad.lo.u32 %r7, %r4, 1000, %r1;
mapa.shared::cluster.u32 %r8, %r6, %r5; mapa.shared::cluster.u32 %r9, %r3, %r5;
st.shared::cluster.b32 [%r8], %r7;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r9];
{wait}
ld.shared.b32 %r30, [%r6]; {last}
ld.param.u64 %d1, [out]; mad.lo.u32 %r10, %r4, 32, %r1; mul.wide.u32 %d2, %r10, 4;
add.u64 %d1, %d1, %d2; st.global.b32 [%d1], %r30;"""
SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
PAIR = ".explicitcluster\n.reqnctapercluster 2, 1, 1"


def cluster_run(seed: int = 0, **parts):
    """Two CTAs that write into each other's shared memory."""
    whole = {"fence": "fence.mbarrier_init.release.cluster;", "first": SYNC, "last": SYNC,
             "wait": wait("%r3", "0", "W"), **parts}  # fmt: skip
    out = np.zeros(64, np.uint32)
    text = kernel(CLUSTER.format(**whole), ".param .u64 out", 32, PAIR)
    return run(text, pointers(out), grid=2, seed=seed), out


@pytest.mark.parametrize("seed", range(6))
def test_cluster_exchange(seed):
    result, out = cluster_run(seed)
    clean(result)
    assert out.tolist() == [1000 + t for t in range(32)] + list(range(32))


@pytest.mark.parametrize("part, wanted", [
    ("fence", {"fence"}), ("first", {"race", "mbarrier"}), ("wait", {"race", "uninitialised"}),
])  # fmt: skip
def test_cluster_exchange_without_a_part(part, wanted):
    result, _ = cluster_run(**{part: ""})
    assert kinds(result) & wanted, str(result)


def test_register_budget():
    body = """mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 256; @%p1 bra MORE;
    {dec} bra JOIN;
    MORE: setmaxnreg.inc.sync.aligned.u32 240;
    JOIN:"""
    clean(run(kernel(body.format(dec="setmaxnreg.dec.sync.aligned.u32 24;"), threads=384)))
    result = run(kernel(body.format(dec=""), threads=384))
    assert kinds(result) == {"deadlock"} and "registers" in str(result)


def test_trap_is_reported():
    result = run(kernel("mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 3; @%p1 trap;"))
    assert kinds(result) == {"trap"} and "thread 3" in str(result)


def test_special_registers_of_a_grid():
    out = np.zeros((2, 3, 64, 4), np.uint32)
    body = """mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ctaid.y;
    mov.u32 %r5, %ntid.x; mad.lo.u32 %r6, %r2, %r5, %r1; mov.u32 %r7, %nctaid.x;
    mad.lo.u32 %r8, %r4, %r7, %r3; mad.lo.u32 %r9, %r8, 64, %r6; ld.param.u64 %d1, [out];
    mul.wide.u32 %d2, %r9, 16; add.u64 %d1, %d1, %d2; mov.u32 %r11, %laneid; mov.u32 %r12, %warpid;
    st.global.v4.b32 [%d1], {%r1, %r2, %r11, %r12};"""
    text = kernel(body, ".param .u64 out").replace(".maxntid 32, 1, 1", ".maxntid 16, 4, 1")
    clean(run(text, pointers(out), grid=(3, 2)))
    t = np.arange(64)
    want = np.stack([t % 16, t // 16, t % 32, t // 32], 1)
    assert (out == want).all()


def test_lanes_outside_the_member_mask_are_reported():
    body = "mov.u32 %r1, %tid.x; shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xff;"
    result = run(
        kernel(f"mov.u32 %r9, %tid.x; setp.lt.u32 %p1, %r9, 16; @!%p1 bra END; {body} END:")
    )
    assert kinds(result) == {"warp"} and "lanes 0xff00" in str(result)


def test_the_global_timer_grows():
    out = np.zeros(4, np.uint32)
    body = """ld.param.u64 %d1, [out]; mov.u32 %r1, %globaltimer_lo; mov.u32 %r2, %globaltimer_hi;
    mov.u32 %r5, %tid.x; add.u32 %r5, %r5, 1; add.u32 %r5, %r5, 1;
    mov.u32 %r3, %globaltimer_lo; mov.u64 %d2, %globaltimer; cvt.u32.u64 %r4, %d2;
    sub.u32 %r3, %r3, %r1; sub.u32 %r4, %r4, %r1;
    st.global.u32 [%d1], %r3; st.global.u32 [%d1 + 4], %r4; st.global.u32 [%d1 + 8], %r2;"""
    clean(run(kernel(body, ".param .u64 .ptr .global .align 4 out"), pointers(out)))
    assert 0 <= out[0] <= out[1] < 100 and out[2] == 0
