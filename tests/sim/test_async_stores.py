"""st.async and red.async: values, order, and what goes wrong without it."""

from __future__ import annotations

import numpy as np
import pytest

from tilecat import sim

from .texts import clean, kernel, kinds, pointers, run, wait

# Thread t of each of four CTAs of 64 threads sends to the next one. Barrier at +8192, data at 0.
START = """mov.u32 %r1, %tid.x; mov.u32 %r4, %cluster_ctarank; mov.u32 %r2, smem;
add.u32 %r3, %r2, 8192; shl.b32 %r5, %r1, 4; add.u32 %r5, %r5, %r2;
setp.eq.u32 %p1, %r1, 0; @!%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r3], 1; fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {expected};
READY: mov.u32 %r20, 100; st.shared.v4.b32 [%r5], {{%r20, %r20, %r20, %r20}};
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
add.u32 %r6, %r4, 1; and.b32 %r6, %r6, 3;
mapa.shared::cluster.u32 %r7, {target}, %r6; mapa.shared::cluster.u32 %r8, %r3, %r6;
mad.lo.u32 %r9, %r4, 64, %r1; add.u32 %r10, %r9, 1000; add.u32 %r11, %r9, 2000;
cvt.u64.u32 %d5, %r9; mov.b32 %f1, %r9;
"""
END = """ld.shared.v4.b32 {%r12, %r13, %r14, %r15}, [%r5];
ld.param.u64 %d1, [out]; mul.wide.u32 %d2, %r9, 16; add.u64 %d1, %d1, %d2;
st.global.v4.b32 [%d1], {%r12, %r13, %r14, %r15};
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""
TX = ".shared::cluster.mbarrier::complete_tx::bytes"
CLUSTER = ".explicitcluster\n.reqnctapercluster 4, 1, 1"


def text(send: str, expected: int, target: str = "%r5", end: str = END) -> str:
    """A kernel that sends, waits and stores what has come."""
    body = START.format(expected=expected, target=target) + send + wait("%r3", "0", "W") + end
    return kernel(body, ".param .u64 out", 64, CLUSTER)


def received(source: str, seed: int) -> np.ndarray:
    """What each thread holds at the end; the run has no report."""
    out = np.zeros((4, 64, 4), np.uint32)
    clean(run(source, pointers(out), grid=4, seed=seed))
    return out


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("form", "data", "words"), [
    (".b32", "%r9", 1), (".f32", "%f1", 1), (".v2.u32", "{%r9, %r10}", 2),
    (".v4.s32", "{%r9, %r10, %r11, %r9}", 4), (".b64", "%d5", 2), (".v2.u64", "{%d5, %d5}", 4),
])  # fmt: skip
def test_stores_arrive_at_the_next_cta(form, data, words, seed):
    send = f"st.async.weak{TX}{form} [%r7], {data}, [%r8];"
    got = received(text(send, 64 * 4 * words), seed)
    sender = (np.arange(4)[:, None] - 1) % 4 * 64 + np.arange(64)
    want = np.full((4, 64, 4), 100)
    values = [sender, sender + 1000, sender + 2000, sender]
    if "64" in form:
        values = [sender, 0 * sender, sender, 0 * sender]
    for index in range(words):
        want[:, :, index] = values[index]
    np.testing.assert_array_equal(got, want)


REDUCTIONS = {
    "add.u32": lambda old, x: old + x, "add.s32": lambda old, x: old + x,
    "min.u32": np.minimum, "max.s32": np.maximum, "and.b32": lambda old, x: old & x,
    "or.b32": lambda old, x: old | x, "xor.b32": lambda old, x: old ^ x,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("operation", REDUCTIONS)
def test_reductions_of_all_threads_into_one_word(operation, seed):
    send = f"red.async.relaxed.cluster{TX}.{operation} [%r7], %r9, [%r8];"
    got = received(text(send, 64 * 4, "%r2"), seed)
    for cta in range(4):
        want = np.int64(100)
        for value in (cta - 1) % 4 * 64 + np.arange(64):
            want = REDUCTIONS[operation](want, value)
        assert got[cta, 0, 0] == want
    assert (got.reshape(-1)[1:4] == 100).all()


def found(source: str, seed: int) -> sim.Result:
    return run(source, pointers(np.zeros((4, 64, 4), np.uint32)), grid=4, seed=seed)


SEND = f"st.async{TX}.b32 [%r7], %r9, [%r8];"
RED = f"red.async.relaxed.cluster{TX}.add.u32 [%r7], %r9, [%r8];"


def changed(old: str, new: str, send: str = SEND, count: int = 1, **options) -> str:
    source = text(send, 64 * 4 * count, **options)
    assert old in source
    return source.replace(old, new, 1)


FAULTS = {
    "no wait": (changed("W: mbarrier.try_wait.parity.shared::cta.b64 %p15, [%r3], 0; "
                        "@!%p15 bra W;", ""), {"race"}),
    "too few bytes": (text(SEND, 64 * 4 + 16), {"deadlock"}),
    "no barrier before": (changed("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
                                  ""), {"start", "race", "mbarrier"}),
    "to one place": (text(SEND, 64 * 4, "%r2"), {"race"}),
    "onto a reduction": (text(SEND + RED, 2 * 64 * 4), {"race"}),
    "reduction of nothing": (changed("st.shared.v4.b32 [%r5], {%r20, %r20, %r20, %r20};", "", RED),
                             {"uninitialised"}),
    "barrier elsewhere": (changed("[%r8];", "[%r3];"), {"bounds"}),
    "misaligned": (changed("st.async", "add.u32 %r7, %r7, 2; st.async"), {"align"}),
    "early exit": (text(SEND, 64 * 4, end="").replace("W: mbarrier", "bra DONE; W: mbarrier")
                   .replace("ret;", "DONE: ret;"), {"exit"}),
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name, seed):
    source, wanted = FAULTS[name]
    result = found(source, seed)
    assert kinds(result) & wanted, str(result)


def test_the_async_proxy_needs_a_fence():
    """What st.async wrote is read by a bulk store: generic writes, and another proxy."""
    store = """ld.param.u64 %d1, [out]; mul.wide.u32 %d2, %r4, 1024; add.u64 %d1, %d1, %d2;
bar.sync 0; {fence} @!%p1 bra OUT;
cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r2], 1024;
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; OUT:
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""
    send = f"st.async{TX}.v4.b32 [%r7], {{%r9, %r9, %r9, %r9}}, [%r8];"
    with_fence = text(send, 1024, end=store.format(fence="fence.proxy.async.shared::cta;"))
    for seed in range(3):
        clean(found(with_fence, seed))
        without = found(text(send, 1024, end=store.format(fence="")), seed)
        assert kinds(without) == {"fence"}, str(without)
