"""What Rubin adds: wide K, collectors of B, early release of A, masks of 32 CTAs."""

import numpy as np
import pytest

from tilecat import sim
from tilecat.errors import MachineError

from . import tensor_pair_text as pair
from .tensor_kernel import A_PLACE, B_PLACE, canonical, descriptor, run, text
from .test_tensor_mma import close, instruction, rows_of
from .texts import clean, kernel, kinds
from .values import random

RUBIN = {"target": "sm_107a", "version": "9.4"}
BLACKWELL = {"target": "sm_100a", "version": "8.8"}


def product(lines: list[str], *, a=("e4m3", 128), b=("e5m2", 64), depth: int = 64, read: int = 64,
            chip=RUBIN, seed: int = 0):  # fmt: skip
    """Result, words read, and the values of A and of B; descriptors in %d10 and %d11."""
    rng = np.random.default_rng(5)
    shared, values, before = [], [], []
    for (kind, rows), place, register in ((a, A_PLACE, "%d10"), (b, B_PLACE, "%d11")):
        matrix = random(rng, (rows, depth), kind)
        data, *strides = canonical(matrix, True, 64)
        shared.append(data)
        values.append(matrix.astype(np.float64))
        before.append(descriptor(place, *strides, 64, register))
    ptx = text("\n".join([*before, *lines]), filled=0, read=read, **chip)
    result, out = run(ptx, np.concatenate(shared), np.zeros((128, 8)), read, seed=seed)
    return result, out, *values


MMA = "tcgen05.mma.cta_group::1.kind::f8f6f4{} [{}], %d10, %d11, %r23, %p3;"
WIDE = 1 << 29


@pytest.mark.parametrize("seed", [0, 1])
def test_wide_k_of_bytes(seed):
    bits = instruction("f32", "e4m3", "e5m2", 128, 64) | WIDE
    result, out, a, b = product([f"mov.u32 %r23, {bits};", MMA.format("", "%r5")], seed=seed)
    clean(result)
    close(rows_of(out, 128, 64, "f32"), a @ b.T, "f32")


@pytest.mark.parametrize("types, m, chip", [
    (("e4m3", "e5m2"), 128, BLACKWELL), (("e4m3", "e5m2"), 64, RUBIN),
    (("e2m3", "e5m2"), 128, RUBIN),
])  # fmt: skip
def test_wide_k_is_for_128_rows_of_bytes_on_rubin(types, m, chip):
    bits = instruction("f32", *types, m, 64) | WIDE
    result, *_ = product([f"mov.u32 %r23, {bits};", MMA.format("", "%r5")], chip=chip)
    assert kinds(result) == {"tcgen05"}


def test_a_descriptor_has_64_bits():
    bits = instruction("f32", "e4m3", "e5m2", 128, 64) | WIDE
    line = MMA.format("", "%r5").replace("%d11", "%r10")
    with pytest.raises(MachineError, match="an operand of type u64 is wanted, got PTX line"):
        product([f"mov.u32 %r23, {bits};", line])


def test_no_other_kind_has_that_bit():
    bits = instruction("f32", "bf16", "bf16", 128, 64) | WIDE
    line = MMA.replace("f8f6f4", "f16").format("", "%r5")
    operands = {"a": ("bf16", 128), "b": ("bf16", 64), "depth": 16}
    result, *_ = product([f"mov.u32 %r23, {bits};", line], **operands)
    assert kinds(result) == {"tcgen05"} and "wide K" in str(result)


# ---- collectors: two products of one A (or one B), into columns 0 and 64
SECOND = "add.u32 %r24, %r5, 64;"
STORE = f"st.shared.b32 [%r2+{A_PLACE}], %r1; fence.proxy.async.shared::cta;"


def collected(first: str, second: str, between: str = "", chip=RUBIN):
    """Result and both products."""
    bits = instruction("f32", "e4m3", "e5m2", 128, 64)
    lines = [f"mov.u32 %r23, {bits}; {SECOND}", MMA.format(first, "%r5"), between,
             MMA.format(second, "%r24")]  # fmt: skip
    result, out, a, b = product(lines, depth=32, read=128, chip=chip)
    return result, [rows_of(out[:, 64 * k :], 128, 64, "f32") for k in range(2)], a @ b.T


A_FILL, A_USE, A_LAST = (f".collector::a::{use}" for use in ("fill", "use", "lastuse"))
B_FILL, B_LAST = ".collector::b::fill", ".collector::b::lastuse"


@pytest.mark.parametrize("first, second", [
    (A_FILL, A_USE), (A_FILL, A_LAST), (".collector::a::discard" + B_FILL, B_LAST),
    (A_FILL + B_FILL, A_USE + B_LAST),
])  # fmt: skip
def test_collectors_change_no_number(first, second):
    result, got, want = collected(first, second)
    clean(result)
    for matrix in got:
        close(matrix, want, "f32")


@pytest.mark.parametrize("first, second", [
    ("", A_USE), ("", B_LAST), (A_LAST, A_USE), (A_FILL, B_LAST), (B_FILL, A_LAST),
])  # fmt: skip
def test_use_without_a_fill_is_reported(first, second):
    result, *_ = collected(first, second)
    assert kinds(result) == {"tcgen05"} and "without a fill" in str(result)


def test_a_third_product_may_have_emptied_the_buffer():
    result, *_ = collected(A_FILL, A_USE, between=MMA.format("", "%r5"))
    assert kinds(result) == {"tcgen05"} and "still valid" in str(result)


def test_an_operand_that_is_filled_must_not_change():
    result, *_ = collected(A_FILL, A_USE, between=STORE)
    assert "race" in kinds(result)


def test_collectors_of_b_are_rubins():
    with pytest.raises(MachineError, match="not supported on target sm_100a"):
        collected(B_FILL, B_LAST, chip=BLACKWELL)
    result, *_ = collected(A_FILL, A_USE, chip=BLACKWELL)
    clean(result)


# ---- early release of A
EARLY = ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.sync_restrict::shared::read::mma::a"
         ".shared::cluster.b64 [%r30];")  # fmt: skip
FULL = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r30];"
WAIT = "E: mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r30], 0; @!%p6 bra E;"


def released(commit: str, place: int, wait: str = WAIT, chip=RUBIN, seed: int = 0):
    """Result of a product some of whose operand is overwritten after a commit was waited for."""
    bits = instruction("f32", "e4m3", "e5m2", 128, 64)
    lines = [f"mov.u32 %r23, {bits}; add.u32 %r30, %r4, 16;",
             "mbarrier.init.shared::cta.b64 [%r30], 1;", MMA.format("", "%r5"), commit, wait,
             f"st.shared.b32 [%r2+{place}], %r1;"]  # fmt: skip
    return product(lines, depth=32, chip=chip, seed=seed)[0]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("commit, place, wait, wanted", [
    (EARLY, A_PLACE, WAIT, set()), (EARLY, B_PLACE, WAIT, {"race"}), (FULL, A_PLACE, WAIT, set()),
    (FULL, B_PLACE, WAIT, set()), (EARLY, A_PLACE, "", {"race"}), (FULL, B_PLACE, "", {"race"}),
])  # fmt: skip
def test_early_release_is_of_a_alone(commit, place, wait, wanted, seed):
    assert kinds(released(commit, place, wait, seed=seed)) == wanted


def test_early_release_says_nothing_of_commits_before_it():
    other = "mbarrier.init.shared::cta.b64 [%r30+8], 1;" + FULL.replace("%r30", "%r30+8")
    assert "race" in kinds(released(other + EARLY, B_PLACE))  # nobody waits for the other one


def test_early_release_is_rubins():
    with pytest.raises(MachineError, match="not supported on target sm_100a"):
        released(EARLY, A_PLACE, chip=BLACKWELL)


# ---- masks of 32 bits, shared memory
def test_masks_of_32_bits():
    text_ = pair.text().replace("multicast::cluster.b64 [%r14], %h1", "multicast::cluster::32b.b64 "
                                "[%r14], %r65")  # fmt: skip
    text_ = text_.replace("mov.u16 %h1, 3;", "mov.u32 %r65, 3;")
    rubin = text_.replace("sm_100a", "sm_107a").replace(".version 8.6", ".version 9.4")
    result, error = pair.run(rubin, pairs=1)
    clean(result)
    assert error < 1e-6
    with pytest.raises(MachineError, match="not supported on target sm_100a"):
        sim.parse(text_)


ARRIVALS = """mov.u32 %r1, smem; mov.u32 %r2, %cluster_ctarank; setp.eq.u32 %p1, %r2, 0;
mov.u32 %r3, %tid.x; setp.eq.u32 %p2, %r3, 0; and.pred %p1, %p1, %p2;
@%p2 mbarrier.init.shared::cta.b64 [%r1], 2; fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; mov.u32 %r5, {mask};
@%p1 mbarrier.arrive.release.cluster.shared::cluster.multicast::cluster::32b.b64 _, [%r1], 1, %r5;
@%p1 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.multicast::cluster::32b.b64
  _, [%r1], 16, %r5;
@%p1 mbarrier.complete_tx.relaxed.cluster.shared::cluster.multicast::cluster::32b.b64
  [%r1], 16, %r5;
W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r1], 0; @!%p3 bra W;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""


@pytest.mark.parametrize("mask, wanted", [(15, set()), (7, {"deadlock"}), (16, {"bounds"})])
def test_arrivals_in_many_ctas(mask, wanted):
    text_ = kernel(ARRIVALS.format(mask=mask), extra=".reqnctapercluster 4, 1, 1")
    rubin = text_.replace("sm_90a", "sm_107a").replace(".version 8.7", ".version 9.4")
    assert kinds(sim.run(rubin, grid=4, args=[], smem_bytes=16)) == wanted
    with pytest.raises(MachineError, match="not supported on target sm_90a"):
        sim.parse(text_)


def test_rubin_has_327_kib_of_shared_memory():
    for chip, most in ((BLACKWELL, 232448), (RUBIN, 334848)):
        ptx = text("", filled=0, read=0, copied=1, **chip)
        args = [sim.Pointer(np.zeros(4096, np.uint8))] * 3
        clean(sim.run(ptx, grid=1, args=args, smem_bytes=most))
        with pytest.raises(MachineError, match=f"at most {most} bytes"):
            sim.run(ptx, grid=1, args=args, smem_bytes=most + 16)
