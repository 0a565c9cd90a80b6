"""CTA pairs: a whole GEMM of .cta_group::2, and what each of its parts is needed for."""

import pytest

from tilecat import sim
from tilecat.errors import MachineError

from . import tensor_pair_text as pair
from .texts import clean, kinds

ROUNDING = 1e-6


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("m, n", [(256, 128), (128, 128), (256, 64), (128, 64)])
def test_gemm_of_pairs_is_right_and_clean(m, n, seed):
    result, error = pair.run(m=m, n=n, seed=seed)
    clean(result)
    assert error < ROUNDING


DELETIONS = [
    ("wait.aligned; // of the start", {"race", "fence", "mbarrier", "start", "barrier"}),
    ("fence.mbarrier_init", {"fence"}),
    ("FREE: mbarrier.try_wait", {"race", "mbarrier"}),
    ("ARRIVED: mbarrier.try_wait", {"race", "uninitialised"}),
    ("b64 [%r14], %h1;", {"deadlock"}),
    ("b64 [%r14], %h1; // of the end", {"deadlock", "exit"}),
    ("COMPUTED: mbarrier.try_wait", {"race"}),
    ("after_thread_sync; // of the epilogue", {"tcgen05-fence"}),
    ("wait.aligned; // of the end", {"race", "barrier", "exit"}),
    ("tcgen05.dealloc", {"exit"}),
]  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("line, wanted", DELETIONS, ids=[d[0] for d in DELETIONS])
def test_deleted_synchronisation_is_reported(line, wanted, seed):
    lines = pair.text().splitlines()
    place = next(index for index, one in enumerate(lines) if line in one)
    lines[place] = ""
    result, _ = pair.run("\n".join(lines), pairs=1, seed=seed)
    assert kinds(result) & wanted, str(result)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_fence_of_inits_goes_with_a_relaxed_arrive(seed):
    """Nothing else does: the address of tensor memory needs an order of its own. 9.7.14.4."""
    arrive = "barrier.cluster.arrive.aligned;"
    text = pair.text().replace(arrive, "barrier.cluster.arrive.relaxed.aligned;", 1)
    result, error = pair.run(text.replace(arrive, f"bar.sync 0; {arrive}"), pairs=1, seed=seed)
    assert kinds(result) == {"race"} and "mbarrier" not in str(result.reports[0].message)
    text = text.replace("HAVE:", "HAVE: bar.sync 0;")
    result, error = pair.run(text, pairs=1, seed=seed)
    clean(result)
    assert error < ROUNDING
    result, _ = pair.run(text.replace("fence.mbarrier_init.release.cluster;", ""), pairs=1)
    assert {"race", "fence"} <= kinds(result)


@pytest.mark.parametrize("seed", [0, 1])
def test_modifiers_in_another_order(seed):
    """As ptxas takes them: the pair's part of a copy before its spaces."""
    new = "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes"
    old = ("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
           ".cta_group::2")  # fmt: skip
    assert old in pair.text()
    result, error = pair.run(pair.text().replace(old, new), pairs=1, seed=seed)
    clean(result)
    assert error < ROUNDING


AT_THE_START = "barrier.cluster.wait.aligned; // of the start"
CORRUPTIONS = [
    (AT_THE_START, f"barrier.cluster.wait.aligned; {AT_THE_START}", {"barrier"}),
    ("mov.u16 %h1, 3;", "mov.u16 %h1, 1;", {"deadlock"}),  # commits for the even CTA alone
    ("mov.u16 %h1, 3;", "mov.u16 %h1, 7;", {"bounds"}),
    ("], 49152;", "], 24576;", {"deadlock", "race", "mbarrier", "uninitialised"}),
    ("setp.eq.u32 %p4, %r60, 0;", "setp.eq.u32 %p4, %r60, 1;", {"deadlock"}),  # the odd one issues
    ("[%r7], 128;", "[%r7], %r64;", {"tcgen05"}),  # different numbers in the two CTAs
    (".reqnctapercluster 2, 1, 1", "", {"tcgen05"}),
]  # fmt: skip


@pytest.mark.parametrize("old, new, wanted", CORRUPTIONS)
def test_corrupted_protocol_is_reported(old, new, wanted):
    text = pair.text()
    assert old in text
    doubled = "READY: add.u32 %r64, %r60, 1; mul.lo.u32 %r64, %r64, 128;\n"  # 128, 256 by rank
    text = text.replace(old, new).replace("READY:\n", doubled)
    result, _ = pair.run(text, pairs=1)
    assert kinds(result) & wanted, str(result)


def test_one_warp_of_each_cta_allocates():
    old = "setp.ne.u32 %p1, %r8, 0; @%p1 bra HAVE;"
    alone = pair.text().replace(old, f"mul.lo.u32 %r59, %r60, 64; add.u32 %r8, %r8, %r59; {old}")
    result, _ = pair.run(alone, pairs=1)
    assert kinds(result) == {"deadlock"} and "its peer CTA" in str(result)


@pytest.mark.parametrize("name", ["alloc", "mma", "commit", "dealloc"])
def test_groups_are_not_mixed(name):
    text = pair.text().replace(f"tcgen05.{name}.cta_group::2", f"tcgen05.{name}.cta_group::1")
    with pytest.raises(MachineError, match="one .cta_group in a kernel"):
        sim.parse(text)


def test_tma_of_a_pair_needs_its_modifier():
    text = pair.text().replace("bytes.cta_group::2", "bytes")
    result, _ = pair.run(text, pairs=1)
    assert kinds(result) == {"bounds"} and "another CTA" in str(result)


def test_half_the_lanes_of_a_pair_are_two_by_two():
    rows = pair.text(128).replace("mul.lo.u32 %r24, %r24, 64;", "mov.u32 %r24, 0;")
    result, error = pair.run(rows, m=128, pairs=1)
    assert not error < 0.1
