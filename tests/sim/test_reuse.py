"""Barriers used again: in order, initialised once; waits that give up must be looked at."""

import pytest

from .texts import clean, kernel, kinds, run

SEEDS = range(4)
TWO_WARPS = """mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 32; @%p1 bra SECOND;
bar.sync 1, 32; {between} bra END;
SECOND: {between} bar.sync 1, 32;
END:"""


@pytest.mark.parametrize("seed", SEEDS)
def test_named_barrier_of_two_groups_in_no_order_is_reported(seed):
    """Each warp could count in the other's use."""
    result = run(kernel(TWO_WARPS.format(between=""), threads=64), seed=seed)
    assert kinds(result) == {"barrier"}, str(result)
    clean(run(kernel(TWO_WARPS.format(between="bar.sync 2, 64;"), threads=64), seed=seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_bar_arrive_twice_without_an_answer_is_reported(seed):
    body = """mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 32; @%p1 bra SECOND;
    bar.arrive 1, 64; {answer} bar.arrive 1, 64; bra END;
    SECOND: bar.sync 1, 64; {answer} bar.sync 1, 64;
    END:"""
    found = kinds(run(kernel(body.format(answer=""), threads=64), seed=seed))
    assert found and found <= {"barrier", "deadlock"}
    clean(run(kernel(body.format(answer="bar.sync 2, 64;"), threads=64), seed=seed))


@pytest.mark.parametrize("again", ["mbarrier.init.shared.b64 [%r2], 2;",
                                   "mbarrier.init.shared.b64 [%r2], 1;"])  # fmt: skip
def test_init_of_a_valid_mbarrier_is_reported(again):
    first = "mov.u32 %r2, smem; mbarrier.init.shared.b64 [%r2], 1;"
    one = "mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra END;"
    assert kinds(run(kernel(f"{one} {first} {again}\nEND:"))) == {"mbarrier"}
    clean(run(kernel(f"{one} {first} mbarrier.inval.shared.b64 [%r2]; {again}\nEND:")))
    assert kinds(run(kernel(first))) == {"mbarrier"}, "every thread initialises it"


@pytest.mark.parametrize("seed", SEEDS)
def test_try_wait_without_its_loop_races(seed):
    body = """mov.u32 %r1, %tid.x; mov.u32 %r2, smem; setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;
    mbarrier.init.shared.b64 [%r2], 32;
    READY: bar.sync 0;
    setp.ge.u32 %p1, %r1, 32; @%p1 bra SECOND;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; {loop}
    ld.shared.b32 %r3, [%r2+64]; bra END;
    SECOND: st.shared.b32 [%r2+64], 7; mbarrier.arrive.shared.b64 _, [%r2];
    END:"""
    found = kinds(run(kernel(body.format(loop=""), threads=64), seed=seed))
    assert found & {"race", "uninitialised"}
    clean(run(kernel(body.format(loop="@!%p2 bra WAIT;"), threads=64), seed=seed))
