"""What orders accesses to tensor memory, and what does not: each link of a chain is needed."""

import numpy as np
import pytest

from .tensor_kernel import A_PLACE, B_PLACE, C_PLACE, canonical, descriptor, run, text
from .test_tensor_mma import close, instruction, rows_of
from .texts import clean, kinds
from .values import random

N = 64
BITS = instruction("f32", "bf16", "bf16", 128, N)
BEFORE, AFTER, SYNC = (
    "tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;", "bar.sync 0;"
)  # fmt: skip
WAIT_STORE, WAIT_LOAD = "tcgen05.wait::st.sync.aligned;", "tcgen05.wait::ld.sync.aligned;"
COMMIT = "@%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r4];"
ZERO = "mov.b32 %w0, 0;"
# Columns: D at 0 (64 wide), A at 64 (8 wide), a second D at 128.
PLACES = f"add.u32 %r40, %r5, {N}; add.u32 %r41, %r5, 128; mov.u32 %r23, {BITS};"
WORDS = ", ".join(f"%w{k}" for k in range(8))
STORE_A = f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%r9+{N}], {{{WORDS}}};"
LOAD_D = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%w9}, [%r9];"


def mma(d: str = "%r5", a: str = "%d10", enable: str = "%p3", idesc: str = "%r23") -> str:
    """One product, issued by thread 0."""
    return f"@%p1 tcgen05.mma.cta_group::1.kind::f16 [{d}], {a}, %d11, {idesc}, {enable};"


def wait(parity: int = 0) -> str:
    """A wait for the commit, by all threads."""
    return (f"L{parity}: mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r4], {parity};"
            f" @!%p6 bra L{parity};")  # fmt: skip


def chain(steps: list[str], seed: int = 0, read: int = N):
    """Result, words of D, and the operands; all threads execute the steps."""
    rng = np.random.default_rng(2)
    shared, values, places = [], [], []
    for rows, place, register in ((128, A_PLACE, "%d10"), (N, B_PLACE, "%d11")):
        matrix = random(rng, (rows, 16), "bf16")
        data, *strides = canonical(matrix, True, 32)
        shared.append(data)
        values.append(matrix)
        places.append(descriptor(place, *strides, 32, register))
    places.append(descriptor(C_PLACE, 0, 128, 0, "%d12"))
    shared.append(np.ones(512, np.uint8))
    begin = "\n".join([*places, PLACES, ZERO])
    ptx = text("", filled=0, read=read, before="\n".join([begin, *steps]), commit="")
    own = ptx.index("setp.ne.u32 %p5, %r1, 0;")  # the steps commit and wait themselves
    ptx = ptx[:own] + ptx[ptx.index("tcgen05.fence::after_thread_sync; // of the reader") :]
    words = np.zeros((128, 8), np.uint32)
    result, out = run(ptx, np.concatenate(shared), words, read, seed=seed)
    return result, out, values


DONE = [COMMIT, wait(), AFTER]
FILL = [f"mov.b32 {name}, %r1;" for name in WORDS.split(", ")]
CHAINS = {
    # A comes from registers of all warps.
    "st, mma": (
        [*FILL, STORE_A, WAIT_STORE, BEFORE, SYNC, AFTER, mma(a="[%r40]"), *DONE],
        {WAIT_STORE: {"race"}, BEFORE: {"tcgen05-fence"}, SYNC: {"race"},
         AFTER: {"tcgen05-fence"}},
    ),
    # D is read by all warps, then written again.
    "mma, ld, mma": (
        [mma(), *DONE, LOAD_D, WAIT_LOAD, BEFORE, SYNC, AFTER, mma(), COMMIT, wait(1)],
        {COMMIT: {"deadlock"}, wait(): {"race", "uninitialised"}, AFTER: {"tcgen05-fence"},
         WAIT_LOAD: {"race"},
         BEFORE: {"tcgen05-fence"}, SYNC: {"race", "deadlock"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", list(CHAINS))
def test_chain_is_clean_and_every_link_is_needed(name, seed):
    steps, links = CHAINS[name]
    result, _, _ = chain(steps, seed)
    clean(result)
    for link, wanted in links.items():
        place = steps.index(link)
        result, _, _ = chain(steps[:place] + steps[place + 1 :], seed)
        assert kinds(result) & wanted, f"{link}\n{result}"


OTHER = f"mov.u32 %r24, {BITS ^ (N >> 3 ^ 32 >> 3) << 17};"
PIPELINES = [
    ([mma(), mma(enable="%p4"), *DONE], set()),
    ([mma(), OTHER, mma(idesc="%r24"), *DONE], {"race"}),  # another shape
    ([mma(), *DONE, SYNC, OTHER, mma(idesc="%r24"), COMMIT, wait(1)], set()),
    ([mma(), mma(d="%r41"), *DONE], set()),  # another accumulator
    ([mma(), mma(d="%r41", a="[%r5]"), *DONE], {"race"}),  # a product's D as the next one's A
    ([mma(), *DONE, SYNC, mma(d="%r41", a="[%r5]"), COMMIT, wait(1)], set()),
    ([mma(), "@%p1 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r5], %d12;", *DONE], {"race"}),
    (["@%p1 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r5], %d12;", mma(), *DONE], set()),
    ([mma(), COMMIT], {"race", "exit"}),  # nobody waits
    ([mma(), wait()], {"deadlock"}),
    ([COMMIT, wait()], {"uninitialised"}),  # a commit of nothing arrives
]  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("steps, wanted", PIPELINES)
def test_operations_of_one_thread(steps, wanted, seed):
    result, _, _ = chain(steps, seed)
    found = kinds(result)
    assert found & wanted if wanted else not found, str(result)


SECOND = "setp.eq.u32 %p7, %r1, 32;"  # the first thread of warp 1


@pytest.mark.parametrize("missing, wanted", [
    (None, set()), (SYNC, {"race"}), (AFTER, {"tcgen05-fence", "race"}),
])  # fmt: skip
def test_products_of_two_threads_pipeline_with_fences(missing, wanted):
    steps = [SECOND, mma(), BEFORE, SYNC, AFTER, mma(enable="%p4").replace("%p1", "%p7"),
             COMMIT.replace("%p1", "%p7"), COMMIT, wait(), AFTER]  # fmt: skip
    steps = [step for index, step in enumerate(steps) if step != missing or index == 9]
    count = "mbarrier.inval.shared::cta.b64 [%r4]; mbarrier.init.shared::cta.b64 [%r4], 2;"
    start = [f"@%p1 {part};" for part in count.split("; ")]
    start = [one.replace(";;", ";") for one in start] + [SYNC]
    result, out, (a, b) = chain(start + steps)
    assert bool(kinds(result) & wanted) == bool(wanted), str(result)
    if not wanted:
        clean(result)
        close(rows_of(out, 128, N, "f32"), 2 * a.astype(float) @ b.astype(float).T, "f32")


def test_values_go_round():
    """D of one product becomes A of the next, through registers, as in attention."""
    steps = [mma(), *DONE, SYNC,
             "tcgen05.ld.sync.aligned.32x32b.x16.b32 {" + ", ".join(f"%w{k}" for k in range(16))
             + "}, [%r9];", WAIT_LOAD,
             *[f"cvt.rn.bf16x2.f32 %w{20 + k}, %w{2 * k + 1}, %w{2 * k};" for k in range(8)],
             f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%r9+{N}], {{"
             + ", ".join(f"%w{20 + k}" for k in range(8)) + "};", WAIT_STORE, BEFORE, SYNC, AFTER,
             mma(a="[%r40]"), COMMIT, wait(1)]  # fmt: skip
    result, out, (a, b) = chain(steps)
    clean(result)
    first = a.astype(np.float64) @ b.astype(np.float64).T
    rounded = first[:, :16].astype(np.float32).astype(b.dtype).astype(np.float64)
    close(rows_of(out, 128, N, "f32"), rounded @ b.astype(np.float64).T, "f32")
