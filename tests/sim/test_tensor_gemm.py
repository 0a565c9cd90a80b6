"""A whole GEMM with tcgen05 from hand-written PTX: right, clean, and every rule is needed."""

import re

import numpy as np
import pytest

from tilecat import sim
from tilecat.errors import MachineError

from . import tensor_gemm_text as gemm
from .texts import clean, kinds

ROUNDING = 1e-6  # f32 sums of products of bf16, which are exact


@pytest.mark.parametrize("seed", range(6))
def test_gemm_is_right_and_clean_at_every_schedule(seed):
    result, error = gemm.run(seed=seed)
    clean(result)
    assert error < ROUNDING


@pytest.mark.parametrize("target, version", [("sm_103a", "8.8"), ("sm_100f", "8.8"),
                                             ("sm_107a", "9.4"), ("sm_107f", "9.4")])  # fmt: skip
def test_gemm_runs_on_every_target_of_the_family(target, version):
    text = gemm.text().replace("sm_100a", target).replace(".version 8.6", f".version {version}")
    result, error = gemm.run(text, k=128, m=128)
    clean(result)
    assert error < ROUNDING


@pytest.mark.parametrize("old, new", [("sm_100a", "sm_90a"), ("sm_100a", "sm_100")])
def test_other_targets_have_no_tcgen05(old, new):
    with pytest.raises(MachineError, match=f"not supported on target {new}"):
        sim.parse(gemm.text().replace(old, new))


@pytest.mark.parametrize("old, new, message", [
    (".version 8.6", ".version 8.5", "sm_100a has .version 8.6 to"),
    ("sm_100a", "sm_107a", "sm_107a has .version 9.4 to"),
    (".version 8.6", ".version 9.6", "got version=9.6"), ("sm_100a", "sm_130a", "sm_130a"),
])  # fmt: skip
def test_versions_and_targets_are_checked(old, new, message):
    with pytest.raises(MachineError, match=re.escape(message)):
        sim.parse(gemm.text().replace(old, new))


DELETIONS = [
    ("mbarrier.init.shared::cta.b64 [%r4+", {"mbarrier"}),
    ("tcgen05.alloc", {"tcgen05"}),
    ("bar.sync 0;", {"race", "uninitialised"}),
    # Late work: the producer arrives twice in one phase before anything can race.
    ("FREE: mbarrier.try_wait", {"race", "mbarrier"}),
    ("mbarrier.arrive.expect_tx", {"deadlock"}),
    ("ARRIVED: mbarrier.try_wait", {"race", "uninitialised"}),
    ("b64 [%r14];", {"deadlock"}),
    ("COMPUTED: mbarrier.try_wait", {"race"}),
    ("after_thread_sync; // of the epilogue", {"tcgen05-fence"}),
    ("tcgen05.wait::ld", {"race"}),
    ("bar.sync 0; // before the end", {"race"}),
    ("tcgen05.dealloc", {"exit"}),
]  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("line, wanted", DELETIONS, ids=[d[0] for d in DELETIONS])
def test_deleted_synchronisation_is_reported(line, wanted, seed):
    lines = gemm.text().splitlines()
    place = next(index for index, one in enumerate(lines) if line in one)
    lines[place] = ""
    result, _ = gemm.run("\n".join(lines), seed=seed)
    assert kinds(result) & wanted, str(result)


CORRUPTIONS = [
    ("], 24576;", "], 16384;"),  # expect_tx
    ("mov.u32 %r11, 1;", "mov.u32 %r11, 0;"),  # the producer's first parity
    ("shl.b32 %r21, %r8, 21;", "shl.b32 %r21, %r8, 20;"),  # lanes of the epilogue's warps
    ("%r9, 64;\nEND", "%r9, 32;\nEND"),  # dealloc
    ("[%r7], 64;", "[%r7], 32;"),  # alloc
    ("[%r22+32]", "[%r22+48]"),  # past the allocation
    ("%p5, %r12, 0;", "%p5, %r12, -1;"),  # accumulates on nothing
    ("[%r4+49184], 1;", "[%r4+49184], 2;"),  # arrivals
]


@pytest.mark.parametrize("old, new", CORRUPTIONS)
def test_corrupted_protocol_is_reported(old, new):
    assert old in gemm.text()
    result, _ = gemm.run(gemm.text().replace(old, new))
    assert result.reports


def flipped(bit: int) -> str:
    """The kernel with one bit of its instruction descriptor flipped."""
    old = f"mov.u32 %r50, {gemm.IDESC};"
    assert old in gemm.text()
    return gemm.text().replace(old, f"mov.u32 %r50, {gemm.IDESC ^ 1 << bit};")


@pytest.mark.parametrize("bit", range(32))
def test_every_bit_of_the_instruction_descriptor_matters(bit):
    result, error = gemm.run(flipped(bit), k=64, m=128)
    assert result.reports or not error < 0.01


@pytest.mark.parametrize("bit", range(32, 64))
def test_every_bit_of_a_matrix_descriptor_matters(bit):
    high = gemm.HIGH ^ 1 << (bit - 32)
    text = gemm.text().replace(f"%r41, {gemm.HIGH}", f"%r41, {high}")
    assert text != gemm.text()
    result, error = gemm.run(text, k=64, m=128)
    assert result.reports or not error < 0.01


def test_commit_takes_a_generic_address():
    window = "cvt.u64.u32 %d9, %r14; cvta.shared.u64 %d9, %d9;"
    generic = gemm.COMMIT.replace(".shared::cluster", "")
    text = gemm.text().replace(f"{gemm.COMMIT} [%r14];", f"{window} {generic} [%d9];")
    assert text.count(generic) == 2
    result, error = gemm.run(text)
    clean(result)
    assert error < ROUNDING
    wrong = text.replace("cvta.shared.u64 %d9, %d9;", "")
    result, _ = gemm.run(wrong)
    assert kinds(result) == {"bounds"}


@np.errstate(invalid="ignore")
def test_races_off_still_computes():
    result, error = gemm.run(races=False)
    clean(result)
    assert error < ROUNDING
