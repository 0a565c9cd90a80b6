"""tcgen05.mma of CTA pairs against float64: kinds, scales, A in tensor memory, lanes, copies."""

import numpy as np
import pytest

from tilecat import sim

from .tensor_kernel import A_PLACE, B_PLACE, C_PLACE, SMEM, canonical, descriptor, text
from .test_tensor_mma import BITS, close, instruction, packed
from .test_tensor_scales import SFA, SFB, in_memory, operand, scales
from .test_tensor_scales import instruction as scaled_instruction
from .texts import clean, kinds
from .values import random, seen

MEMORY = 49152
CLUSTER = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
COMMIT = ("mov.u16 %h1, 3; tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster"
          ".multicast::cluster.b64 [%r4], %h1;")  # fmt: skip


def pair_text(lines: str, filled: int, read: int, **options) -> str:
    """The kernel of `tensor_kernel` for a pair: rows of memory by CTA, thread 0 of all issues."""
    made = text(lines, filled=filled, read=read, commit=COMMIT, **options)
    for old, new in (
        ("cta_group::1", "cta_group::2"), ("bar.sync 0;", CLUSTER),
        (".maxntid 128, 1, 1", ".maxntid 128, 1, 1\n.reqnctapercluster 2, 1, 1"),
        (".reg .pred %p<8>;", ".reg .pred %p<8>; .reg .b16 %h<2>;"),
        ("ld.param.u64 %d1, [mem];", "mov.u32 %r50, %cluster_ctarank; mad.lo.u32 %r51, %r50, 128, "
         f"%r1; ld.param.u64 %d1, [mem]; mul.wide.u32 %d20, %r50, {MEMORY}; "
         "add.u64 %d1, %d1, %d20;"),
        ("mul.wide.u32 %d4, %r1,", "mul.wide.u32 %d4, %r51,"),
        ("setp.ne.u32 %p5, %r1, 0;", "setp.ne.u32 %p5, %r51, 0;"),
        ("add.u32 %r7,", "fence.mbarrier_init.release.cluster; add.u32 %r7,"),
    ):  # fmt: skip
        assert old in made
        made = made.replace(old, new)
    return made


def run(ptx: str, shared: list[np.ndarray], words: np.ndarray, read: int, **options):
    """Result, and the columns read, (CTA, 128, read); `shared` and `words` by CTA."""
    memory, out = np.zeros((2, MEMORY), np.uint8), np.zeros((2, 128, read), np.uint32)
    for cta, data in enumerate(shared):
        memory[cta, : len(data)] = data
    args = [sim.Pointer(a) for a in (memory, np.ascontiguousarray(words, np.uint32), out)]
    return sim.run(ptx, grid=2, args=args, smem_bytes=SMEM, **options), out


def d_of(out: np.ndarray, m: int, n: int, d: str) -> np.ndarray:
    """D (m x n): layout A has row r % 128 in CTA r / 128, layout B is 2 x 2 in each."""
    view = {"f32": np.float32, "s32": np.int32}.get(d)
    values = out.view(view) if view else out.astype(np.uint16).view(np.float16)
    if m == 256:
        return np.concatenate([values[0, :, :n], values[1, :, :n]])
    half = n // 2
    return np.concatenate([
        np.concatenate([values[cta, :64, :half], values[cta, 64:, :half]], 1) for cta in range(2)
    ])  # fmt: skip


def multiply(kind: str, d: str, a: str, b: str, *, m=256, n=64, majors=(True, True), swizzle=64,
             mask="", from_memory=False, spoil=False, **options):  # fmt: skip
    """Result, D and the float64 product; D begins at 1."""
    rng = np.random.default_rng(m + n)
    depth = 32 // np.asarray(random(rng, (1, 1), a)).dtype.itemsize
    left, right = random(rng, (m, depth), a), random(rng, (n, depth), b)
    shared, lines = [[], []], []
    for matrix, code, major, place, register in (
        (left, a, majors[0], A_PLACE, "%d10"), (right, b, majors[1], B_PLACE, "%d11")
    ):  # fmt: skip
        for cta, part in enumerate(np.split(matrix, 2)):
            data, *strides = canonical(packed(part, code), major, swizzle)
            shared[cta].append(data)
        lines.append(descriptor(place, *strides, swizzle, register))
    one = {"f32": 0x3F800000, "f16": 0x3C00, "s32": 1}[d]
    words = np.full((2, 128, n + 8), one, np.uint32)
    if from_memory:
        for cta, part in enumerate(np.split(np.ascontiguousarray(left).view(np.uint32), 2)):
            words[cta, :, n:] = np.concatenate([part, part]) if m == 128 else part
        if spoil:
            words[1, 100, n] ^= 1
    source = "[%r22]" if from_memory else "%d10"
    lines += [
        f"mov.u32 %r23, {instruction(d, a, b, m, n, majors)}; add.u32 %r22, %r5, {n};",
        f"tcgen05.mma.cta_group::2.kind::{kind} [%r5], {source}, %d11, %r23, {mask}%p4;",
    ]
    ptx = pair_text("\n".join(lines), n + 8, n)
    result, out = run(ptx, [np.concatenate(part) for part in shared], words, n, **options)
    return result, d_of(out, m, n, d), seen(left, a) @ seen(right, b).T + 1


TYPES = [("f16", "f32", "bf16", "bf16"), ("tf32", "f32", "tf32", "tf32"),
         ("f8f6f4", "f16", "e4m3", "e5m2"), ("i8", "s32", "u8", "s8")]  # fmt: skip


@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize("m", [256, 128])
def test_every_kind(types, m):
    result, got, want = multiply(*types, m=m)
    clean(result)
    close(got, want, types[1])


@pytest.mark.parametrize("majors", [(False, True), (True, False), (False, False)])
@pytest.mark.parametrize("m, n", [(256, 128), (128, 128), (256, 256)])
def test_majors_and_shapes(majors, m, n):
    result, got, want = multiply(*TYPES[0], m=m, n=n, majors=majors, swizzle=32)
    clean(result)
    close(got, want, "f32")


@pytest.mark.parametrize("m", [256, 128])
def test_a_from_tensor_memory(m):
    result, got, want = multiply(*TYPES[0], m=m, from_memory=True)
    clean(result)
    close(got, want, "f32")


def test_half_a_tile_of_a_is_there_twice():
    result, *_ = multiply(*TYPES[0], m=128, from_memory=True, spoil=True)
    assert kinds(result) == {"tcgen05"} and "do not repeat" in str(result)


def test_lanes_of_both_ctas_can_be_disabled():
    mask = "{1, 0, 0, 0, 0, 0, 0, 0x80000000}, "
    result, got, want = multiply(*TYPES[0], mask=mask)
    clean(result)
    want[[0, 255]] = 1
    close(got, want, "f32")


@pytest.mark.parametrize("m, n, message", [(64, 64, "M of"), (256, 40, "a multiple of 16")])
def test_shapes_of_one_cta_are_refused(m, n, message):
    result, *_ = multiply(*TYPES[0], m=m, n=n, swizzle=32)
    assert kinds(result) == {"tcgen05"} and message in str(result)


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("kind, a, block, scale", [
    ("mxf8f6f4", "e4m3", "", "ue8m0"), ("mxf4nvf4", "e2m1", ".block16", "ue4m3"),
])  # fmt: skip
def test_scales_of_pairs(kind, a, block, scale, copied):
    """Each CTA has the scales of its rows of A, and those of all columns of B."""
    n, size = 128, 16 if block else 32
    depth = 64 if a in BITS else 32
    count = depth // size
    rng = np.random.default_rng(3)
    left, a_values = operand(rng, 256, depth, a, a not in BITS)
    right, b_values = operand(rng, n, depth, a, a not in BITS)
    (sa, sa_values), (sb, sb_values) = (scales(rng, rows, 4, scale) for rows in (256, n))
    shared, words, lines = [], np.zeros((2, 128, 384), np.uint32), []
    for cta in range(2):
        parts = []
        for place, data, register in ((A_PLACE, left, "%d10"), (B_PLACE, right, "%d11")):
            part, *strides = canonical(np.split(data, 2)[cta], True, 32)
            parts.append(part)
            lines += [descriptor(place, *strides, 32, register)] * (cta == 0)
        for codes, column in ((sa[128 * cta :][:128], SFA), (sb, SFB)):
            found = in_memory(codes, 0)
            words[cta, :, column : column + found.shape[1]] = 0 if copied else found
            parts.append(codes.reshape(4, 32, 4).transpose(1, 0, 2).ravel())
        shared.append(np.concatenate(parts))
    lines += [descriptor(C_PLACE + 512 * k, 0, 128, 0, f"%d{12 + k}") for k in range(2)]
    bits = scaled_instruction(kind, a, a, 256, n, scale, (0, 0), False)
    lines.append(f"mov.u32 %r23, {bits}; add.u32 %r24, %r5, {SFA}; add.u32 %r25, %r5, {SFB};")
    if copied:
        lines += [f"tcgen05.cp.cta_group::2.32x128b.warpx4 [%r{24 + k}], %d{12 + k};"
                  for k in range(2)]  # fmt: skip
    lines.append(f"tcgen05.mma.cta_group::2.kind::{kind}.block_scale{block} [%r5], %d10, %d11, "
                 "%r23, [%r24], [%r25], %p3;")  # fmt: skip
    result, out = run(pair_text("\n".join(lines), 384, n), shared, words, n)
    clean(result)
    wide = [np.repeat(values[:, :count], size, 1) for values in (sa_values, sb_values)]
    close(d_of(out, 256, n, "f32"), (a_values * wide[0]) @ (b_values * wide[1]).T, "f32")
