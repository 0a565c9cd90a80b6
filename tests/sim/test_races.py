"""Pairs of accesses of the generic and async proxies: silent when ordered, else found."""

import numpy as np
import pytest

from .texts import clean, kernel, kinds, pointers, run

PARAMS = ".param .u64 src, .param .u64 dst"
# One barrier at +8192, one tile of 1024 bytes at 0; thread 0 of warp 0 copies, warp 1 stands by.
START = """mov.u32 %r1, %tid.x; mov.u32 %r2, smem; add.u32 %r3, %r2, 8192; mov.u32 %r30, 7;
ld.param.u64 %d1, [src]; ld.param.u64 %d2, [dst]; mad.lo.u32 %r4, %r1, 16, %r2;
setp.eq.u32 %p1, %r1, 0; setp.ge.u32 %p2, %r1, 32;
@%p1 mbarrier.init.shared::cta.b64 [%r3], 1; bar.sync 0;
"""
LOAD = """@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 1024;
@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], 1024, [%r3];
"""
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3], 0; @!%p3 bra W;\n"
READ = "ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r4];\n"
WRITE = "st.shared.v4.b32 [%r4], {%r30, %r30, %r30, %r30};\n"
FENCE = "fence.proxy.async.shared::cta;\n"
SYNC = "bar.sync 0;\n"
STORE = """@%p1 cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r2], 1024;
@%p1 cp.async.bulk.commit_group;
"""
READ_DONE = "@%p1 cp.async.bulk.wait_group.read 0;\n"
END = "@%p1 cp.async.bulk.wait_group 0;\n"

CASES = {
    "load, read": ([LOAD, WAIT, READ], 1, {"race", "uninitialised"}),
    "write, load": ([WRITE, FENCE, SYNC, LOAD, WAIT], 1, {"fence"}),
    "write, barrier, load": ([WRITE, FENCE, SYNC, LOAD, WAIT], 2, {"race"}),
    "write, store": ([WRITE, FENCE, SYNC, STORE, END], 1, {"fence"}),
    "write, barrier, store": ([WRITE, FENCE, SYNC, STORE, END], 2, {"race", "uninitialised"}),
    "read, load": ([WRITE, FENCE, SYNC, READ, SYNC, LOAD, WAIT], 4, {"race"}),
    "store, write": ([WRITE, FENCE, SYNC, STORE, READ_DONE, SYNC, WRITE], 4, {"race"}),
    "store, barrier, write": ([WRITE, FENCE, SYNC, STORE, READ_DONE, SYNC, WRITE], 5, {"race"}),
    "store, load": ([WRITE, FENCE, SYNC, STORE, READ_DONE, LOAD, WAIT], 4, {"race"}),
    "load, store": ([LOAD, WAIT, STORE, END], 1, {"race", "uninitialised"}),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", list(CASES))
def test_pair_is_silent_with_its_order_and_found_without(name, seed):
    steps, missing, wanted = CASES[name]
    source = np.arange(256, dtype=np.float32)
    args = pointers(source, np.zeros(256, np.float32))
    clean(run(kernel(START + "".join(steps), PARAMS, 64), args, seed=seed))
    fewer = START + "".join(step for index, step in enumerate(steps) if index != missing)
    result = run(kernel(fewer, PARAMS, 64), args, seed=seed)
    assert kinds(result) & wanted, str(result)


def test_overwrite_names_the_reader():
    steps = [WRITE, FENCE, SYNC, READ, LOAD, WAIT]
    source = np.zeros(256, np.float32)
    result = run(kernel(START + "".join(steps), PARAMS, 64), pointers(source, source.copy()))
    (report,) = result.reports
    assert report.kind == "race" and "still being read by warp 1 of CTA 0" in report.message
    assert report.text.startswith("@%p1 cp.async.bulk.shared::cluster")
    assert report.other.text.startswith("ld.shared.v4")


def test_shared_memory_starts_poisoned():
    out = np.zeros(64, np.uint32)
    body = START + READ + "mul.wide.u32 %d3, %r1, 4; add.u64 %d3, %d3, %d2;"
    body += "st.global.b32 [%d3], %r10;"
    run(kernel(body, PARAMS, 64), pointers(out, out), races=False)
    assert (out == 0xFFFFFFFF).all()


TWO_STORES = """@%p1 cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r2], 512;
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.global.shared::cta.bulk_group [%d2+512], [%r2+512], 512;
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.wait_group.read 1;
"""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("warp, found", [(0, set()), (1, {"race"})])
def test_wait_group_covers_all_but_the_last_groups(warp, found, seed):
    # Warp 0 wrote, and the first group reads, bytes 0 to 511; warp 1 and the second group the rest.
    again = f"shr.u32 %r5, %r1, 5; setp.eq.u32 %p4, %r5, {warp}; @%p4 {WRITE}"
    body = START + WRITE + FENCE + SYNC + TWO_STORES + SYNC + again + END
    args = pointers(np.zeros(256, np.float32), np.zeros(256, np.float32))
    assert kinds(run(kernel(body, PARAMS, 64), args, seed=seed)) == found
