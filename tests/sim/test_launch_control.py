"""Cluster launch control: every tile of the grid is done once, by whoever got it."""

import re

import numpy as np
import pytest

from tilecat import sim
from tilecat.errors import MachineError

from .texts import clean, kernel, kinds, pointers

CANCEL = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
QUERY = "clusterlaunchcontrol.query_cancel"
# Thread 0 of each CTA expects the response, rank 0 asks; all add 1 to the words of their tile.
LOOP = """mov.u32 %r1, %tid.x; mov.u32 %r2, smem; add.u32 %r3, %r2, 16; mov.u32 %r4, %ctaid.x;
mov.u32 %r10, %ctaid.y; mov.u32 %r5, %cluster_ctarank; setp.eq.u32 %p1, %r1, 0;
setp.eq.u32 %p2, %r5, 0; and.pred %p2, %p2, %p1; mov.u32 %r6, 0; ld.param.u64 %d1, [out];
mov.u32 %r7, %nctaid.x;
@%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
NEXT:
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 16;
@%p2 {cancel} [%r2], [%r3];
mad.lo.u32 %r8, %r10, %r7, %r4; mad.lo.u32 %r8, %r8, 32, %r1; mul.wide.u32 %d2, %r8, 4;
add.u64 %d2, %d2, %d1; ld.global.b32 %r9, [%d2]; add.u32 %r9, %r9, 1; st.global.b32 [%d2], %r9;
W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r3], %r6; @!%p3 bra W;
xor.b32 %r6, %r6, 1;
ld.shared.b128 %q1, [%r2];
{query}.is_canceled.pred.b128 %p4, %q1;
@!%p4 bra END;
@%p4 {query}.get_first_ctaid.v4.b32.b128 {{%r4, %r10, _, _}}, %q1;
add.u32 %r4, %r4, %r5;
fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;
barrier.cluster.arrive.aligned; // of a turn
barrier.cluster.wait.aligned;
fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;
bra NEXT;
END:
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""


def loop(cluster: int) -> str:
    """The kernel, 32 threads, with clusters of so many CTAs."""
    everywhere = ".multicast::cluster::all" if cluster > 1 else ""
    body = LOOP.format(cancel=f"{CANCEL}{everywhere}.b128", query=QUERY)
    text = kernel(".reg .b128 %q<2>;" + body, ".param .u64 out",
                  extra=f".reqnctapercluster {cluster}, 1, 1")  # fmt: skip
    return text.replace(".version 8.7", ".version 8.8").replace("sm_90a", "sm_100a")


@pytest.mark.parametrize("cluster", [1, 2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_every_tile_is_done_once(cluster, seed):
    out = np.zeros((3, 8, 32), np.uint32)
    result = sim.run(loop(cluster), grid=(8, 3), args=pointers(out), smem_bytes=32, seed=seed)
    clean(result)
    assert (out == 1).all()
    begun = result.stats["clusterlaunchcontrol"]
    assert begun >= 24 // cluster


def test_eager_requests_take_all_that_is_left():
    out = np.zeros((1, 8, 32), np.uint32)
    result = sim.run(loop(1), grid=8, args=pointers(out), smem_bytes=32)
    assert result.stats["mbarrier"] < 8 * 4  # one CTA has begun


def broken(old: str, new: str, **options) -> set[str]:
    """Kinds of the reports with a changed line."""
    text = loop(options.pop("cluster", 2))
    assert old in text
    out = np.zeros((1, 8, 32), np.uint32)
    return kinds(sim.run(text.replace(old, new), grid=8, args=pointers(out), smem_bytes=32,
                         **options))  # fmt: skip


def test_broken_protocols_are_reported():
    wait = re.search(r"W: mbarrier.*", loop(2))[0]
    assert broken(wait, "") & {"race", "uninitialised"}
    assert broken("barrier.cluster.arrive.aligned; // of a turn\nbarrier.cluster.wait.aligned;",
                  "") & {"race", "deadlock", "mbarrier"}  # fmt: skip
    fences = "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;"
    assert broken(fences, "", cluster=1) == set()  # the acquire fences this warp's read as well
    endless = broken("@!%p4 bra END;", "", cluster=1, limit=2000)
    assert {"launch-control", "limit"} <= endless
    assert broken("@%p4 clusterl", "clusterl", cluster=1) == set()
    assert broken("[%r3], 16;", "[%r3], 32;") == {"deadlock"}


def test_a_request_after_a_refusal_is_reported():
    again = f"@!%p4 {CANCEL}.b128 [%r2], [%r3]; @!%p4 bra END;"
    assert "launch-control" in broken("@!%p4 bra END;", again, cluster=1)


@pytest.mark.parametrize("axis, wanted", [("x", 1), ("y", 0), ("z", 0)])
def test_single_coordinates(axis, wanted):
    one = f"{QUERY}.get_first_ctaid::{axis}.b32.b128 %r20, %q1;"
    store = "setp.ne.u32 %p6, %r1, 0; @!%p6 st.global.b32 [%d1], %r20;"
    text = loop(1).replace(f"@%p4 {QUERY}.get_first_ctaid.v4", one + store + "bra END; //")
    out = np.full(8 * 32, 7, np.uint32)
    sim.run(text, grid=2, args=pointers(out), smem_bytes=32)
    assert out[0] == wanted


def test_moves_of_128_bits():
    body = """.reg .b128 %q<3>; mov.u32 %r1, %tid.x; ld.param.u64 %d1, [out];
    mul.wide.u32 %d2, %r1, 16; add.u64 %d1, %d1, %d2; ld.global.b128 %q1, [%d1];
    mov.b128 {%d3, %d4}, %q1; add.u64 %d3, %d3, 1; mov.b128 %q2, {%d4, %d3};
    mov.b128 %q1, %q2; st.global.b128 [%d1], %q1;"""
    out = np.arange(64, dtype=np.uint64).reshape(32, 2)
    want = np.stack([out[:, 1], out[:, 0] + 1], 1)
    clean(sim.run(kernel(body, ".param .u64 out"), grid=1, args=pointers(out), smem_bytes=16))
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("line, message", [
    ("add.u32 %r1, %q1, %r2;", "size of .u32|operand form"),
    ("st.shared.b32 [%r1], %q1;", "128 bits"),
    ("mov.b128 {%d1, %r1}, %q1;", "64 bits"), ("shfl.sync.idx.b32 %r1, %q1, 0, 31, -1;", "form"),
    (f"{QUERY}.is_canceled.pred.b128 %p1, %d1;", "operand form"),
    (f"{QUERY}.get_first_ctaid.v4.b32.b128 {{%r1, %r2, %r3}}, %q1;", "four registers"),
    ("cvt.u32.u64 %r1, %q1;", "size|form"),
])  # fmt: skip
def test_forms_the_manual_does_not_have_are_refused(line, message):
    text = kernel(".reg .b128 %q<2>;" + line).replace("sm_90a", "sm_100a")
    with pytest.raises(MachineError, match=message):
        sim.parse(text)


def test_other_targets_have_no_launch_control():
    with pytest.raises(MachineError, match="not supported on target sm_90a"):
        sim.parse(loop(1).replace("sm_100a", "sm_90a"))
    sim.parse(loop(1).replace("sm_100a", "sm_100"))
    with pytest.raises(MachineError, match="not supported on target sm_100:"
                       "|not supported on target sm_100,"):  # fmt: skip
        sim.parse(loop(2).replace("sm_100a", "sm_100"))
