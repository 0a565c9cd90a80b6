"""tcgen05.mma against float64: kinds, shapes, layouts, operands in tensor memory, descriptors."""

import numpy as np
import pytest

from tilecat import sim
from tilecat.errors import MachineError

from .tensor_kernel import A_PLACE, B_PLACE, canonical, descriptor, run, text
from .texts import clean, kinds
from .values import DTYPES, random, seen

CODES = {"bf16": 1, "f16": 0, "tf32": 2, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5,
         "u8": 0, "s8": 1}  # fmt: skip
D_CODES = {"f16": 0, "f32": 1, "s32": 2}
BITS = {"e2m1": 4, "e2m3": 6, "e3m2": 6}


def packed(values: np.ndarray, kind: str, padded: bool = True) -> np.ndarray:
    """Bytes of 4- and 6-bit elements, 16 of them in 16 bytes if padded. 9.7.17.10.4.4."""
    if kind not in BITS:
        return values
    bits, codes = BITS[kind], values.view(np.uint8)
    rows = []
    for row in codes:
        out = bytearray()
        for start in range(0, len(row), 16):
            whole = sum(int(code) << bits * k for k, code in enumerate(row[start : start + 16]))
            out += whole.to_bytes(16 if padded else 2 * bits, "little")
        rows.append(np.frombuffer(bytes(out), np.uint8))
    return np.array(rows)


def instruction(d: str, a: str, b: str, m: int, n: int, majors=(True, True), signs=(1, 1)) -> int:
    """The instruction descriptor of kinds without scales: table 45."""
    bits = D_CODES[d] << 4 | CODES[a] << 7 | CODES[b] << 10 | (n >> 3) << 17 | (m >> 4) << 24
    return bits | (signs[0] < 0) << 13 | (signs[1] < 0) << 14 | (not majors[0]) << 15 | (
        not majors[1]) << 16  # fmt: skip


def rows_of(out: np.ndarray, m: int, n: int, d: str, lane: int = 0) -> np.ndarray:
    """D (m x n) from lanes and words: figures of layouts D and F."""
    matrix = np.zeros((m, n))
    for r in range(m):
        word = out[r if m == 128 else r // 16 * 32 + r % 16 + lane, :n]
        if d == "f16":
            matrix[r] = word.astype(np.uint16).view(np.float16)
        else:
            matrix[r] = word.view(np.float32 if d == "f32" else np.int32)
    return matrix


def multiply(kind: str, d: str, a: str, b: str, *, m=128, n=64, swizzle=128, majors=(True, True),
             signs=(1, 1), mask="", enable="%p3", scale="", flip=(0, 0, 0), target="sm_100a",
             version="8.8", lane=0, from_memory=False, saturate=False, start=None,
             **options):  # fmt: skip
    """Result, D and the float64 product of one mma on random operands; D begins at 1."""
    rng = np.random.default_rng(n)
    depth = 32 // np.dtype(DTYPES[a]).itemsize
    left, right = random(rng, (m, depth), a), random(rng, (n, depth), b)
    swizzles = swizzle if isinstance(swizzle, tuple) else (swizzle, swizzle)
    a_bytes, *a_strides = canonical(packed(left, a), majors[0], swizzles[0])
    b_bytes, *b_strides = canonical(packed(right, b), majors[1], swizzles[1])
    one = {"f32": 0x3F800000, "f16": 0x3C00, "s32": 1}[d]
    words = np.full((128, n + 8), one if start is None else start, np.uint32)
    if from_memory:
        rows = np.arange(m) if m == 128 else np.arange(m) // 16 * 32 + np.arange(m) % 16 + lane
        words[rows, n:] = np.ascontiguousarray(left).view(np.uint32)
    bits = instruction(d, a, b, m, n, majors, signs) ^ flip[2] | saturate << 3
    lanes = f"add.u32 %r21, %r5, {lane << 16}; add.u32 %r22, %r21, {n};"
    operand = "[%r22]" if from_memory else "%d10"
    tail = ", ".join(part for part in (mask, enable, scale) if part)
    lines = "\n".join([
        descriptor(A_PLACE, *a_strides, swizzles[0], "%d10", flip=flip[0]),
        descriptor(B_PLACE, *b_strides, swizzles[1], "%d11", flip=flip[1]),
        f"mov.u32 %r23, {bits}; {lanes}",
        f"tcgen05.mma.cta_group::1.kind::{kind} [%r21], {operand}, %d11, %r23, {tail};",
    ])  # fmt: skip
    ptx = text(lines, filled=n + 8, read=n, target=target, version=version)
    result, out = run(ptx, np.concatenate([a_bytes, b_bytes]), words, n, **options)
    want = signs[0] * signs[1] * (seen(left, a) @ seen(right, b).T)
    return result, rows_of(out, m, n, d, lane), want


def close(got: np.ndarray, want: np.ndarray, d: str) -> None:
    """Equal up to the rounding of sums of at most 33 terms."""
    size = np.abs(want).max() + 1
    atol = {"f32": size * 33 * 2.0**-24, "f16": size * 2.0**-10, "s32": 0}[d]
    np.testing.assert_allclose(got, want, rtol=0, atol=atol)


TYPES = [
    ("f16", "f32", "bf16", "bf16"), ("f16", "f32", "f16", "f16"), ("f16", "f16", "f16", "f16"),
    ("tf32", "f32", "tf32", "tf32"), ("f8f6f4", "f32", "e4m3", "e5m2"),
    ("f8f6f4", "f16", "e5m2", "e4m3"), ("i8", "s32", "s8", "u8"), ("i8", "s32", "s8", "s8"),
    *[("f8f6f4", "f32", a, b) for a in ("e2m1", "e2m3", "e3m2") for b in ("e4m3", "e2m1", "e3m2")],
]  # fmt: skip


@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize("enable", ["%p3", "%p4"])
def test_every_kind_and_type(types, enable):
    result, got, want = multiply(*types, enable=enable)
    clean(result)
    close(got, want + (enable == "%p4"), types[1])


@pytest.mark.parametrize("m, n", [(64, n) for n in (8, 24, 64, 256)] +
                         [(128, n) for n in (8, 24, 128, 256)])  # fmt: skip
@pytest.mark.parametrize("lane", [0, 16])
def test_shapes_and_their_lanes(m, n, lane):
    if m == 128 and lane:
        result, *_ = multiply("f16", "f32", "bf16", "bf16", m=m, n=n, lane=lane, swizzle=32)
        assert kinds(result) == {"tcgen05"} and "begins at lane 0" in str(result)
        return
    result, got, want = multiply("f16", "f32", "bf16", "bf16", m=m, n=n, lane=lane, enable="%p4",
                                 swizzle=32)  # fmt: skip
    clean(result)
    close(got, want + 1, "f32")


def test_bytes_of_128_rows_have_steps_of_16_columns():
    result, *_ = multiply("f8f6f4", "f32", "e4m3", "e4m3", m=128, n=24, swizzle=32)
    assert kinds(result) == {"tcgen05"} and "a multiple of 16" in str(result)
    result, got, want = multiply("f8f6f4", "f32", "e4m3", "e4m3", m=64, n=24, swizzle=32)
    clean(result)
    close(got, want, "f32")


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("majors", [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize("types", [
    ("f16", "f32", "bf16", "bf16"), ("i8", "s32", "u8", "s8"),
    pytest.param(("f8f6f4", "f32", "e4m3", "e5m2"), marks=pytest.mark.full),
], ids="-".join)  # fmt: skip
def test_every_layout(types, majors, swizzle):
    result, got, want = multiply(*types, n=128, majors=majors, swizzle=swizzle)
    clean(result)
    close(got, want, types[1])


def test_tf32_is_mn_major_with_atoms_of_32_bytes_only():
    for majors in ((False, True), (True, False), (False, False), (True, True)):
        swizzles = tuple(64 if major else "32B atoms" for major in majors)
        result, got, want = multiply("tf32", "f32", "tf32", "tf32", majors=majors, swizzle=swizzles)
        clean(result)
        close(got, want, "f32")
    result, *_ = multiply("tf32", "f32", "tf32", "tf32", majors=(False, False))
    assert kinds(result) == {"tcgen05"} and "atoms of 32" in str(result)
    result, *_ = multiply("f16", "f32", "bf16", "bf16", majors=(False, False), swizzle="32B atoms")
    assert kinds(result) == {"tcgen05"} and "atoms of 32" in str(result)


@pytest.mark.parametrize("types", [TYPES[0], TYPES[3], TYPES[4], TYPES[6]], ids="-".join)
@pytest.mark.parametrize("m, lane", [(128, 0), (64, 0), (64, 16)])
def test_a_from_tensor_memory(types, m, lane):
    result, got, want = multiply(*types, m=m, lane=lane, from_memory=True)
    clean(result)
    close(got, want, types[1])


def test_small_floats_in_tensor_memory_are_refused():
    with pytest.raises(MachineError, match="A of e2m1 in tensor memory"):
        multiply("f8f6f4", "f32", "e2m1", "e4m3", from_memory=True)


@pytest.mark.parametrize("signs", [(1, -1), (-1, 1), (-1, -1)])
def test_negated_operands(signs):
    result, got, want = multiply("f16", "f32", "f16", "f16", signs=signs, enable="%p4")
    clean(result)
    close(got, want + 1, "f32")


@pytest.mark.parametrize("power", [0, 1, 15])
def test_d_is_scaled(power):
    result, got, want = multiply("f16", "f32", "f16", "f16", enable="%p4", scale=str(power))
    clean(result)
    close(got, want + 2.0**-power, "f32")


def test_lanes_that_are_disabled_keep_d():
    words = [0x1, 0x80000000, 0xFFFFFFFF, 0xF0]
    result, got, want = multiply("f16", "f32", "bf16", "bf16",
                                 mask="{" + ", ".join(map(str, words)) + "}")  # fmt: skip
    clean(result)
    off = np.array([words[r // 32] >> r % 32 & 1 for r in range(128)], bool)
    want[off] = 1
    close(got, want, "f32")


@pytest.mark.parametrize("saturate", [False, True])
def test_integers_wrap_or_saturate(saturate):
    start = (1 << 31) - 1
    result, got, want = multiply("i8", "s32", "s8", "s8", saturate=saturate, enable="%p4",
                                 start=start)  # fmt: skip
    clean(result)
    total = want + start
    wrapped = (total + (1 << 31)) % (1 << 32) - (1 << 31)
    close(got, np.minimum(total, start) if saturate else wrapped, "s32")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_late_and_random_execution(seed):
    result, got, want = multiply("f16", "f32", "bf16", "bf16", seed=seed, enable="%p4")
    clean(result)
    close(got, want + 1, "f32")


@pytest.mark.parametrize("start", [0, 128, 512, 896])
def test_base_offset_says_where_the_swizzle_begins(start):
    """A tile whose pattern does not begin at a multiple of 1024 bytes. 9.7.17.4.1."""
    rng = np.random.default_rng(start)
    left, right = random(rng, (64, 16), "bf16"), random(rng, (64, 16), "bf16")
    a_bytes, *a_strides = canonical(left, True, 128)
    b_bytes, *b_strides = canonical(right, True, 128)
    shared = np.zeros(B_PLACE + 16384, np.uint8)
    shared[start : start + 8192] = a_bytes[:8192]
    shared[B_PLACE:] = b_bytes
    flip = (start >> 7 & 7) << 49
    lines = [descriptor(A_PLACE + start, *a_strides, 128, "%d10", flip=flip),
             descriptor(B_PLACE, *b_strides, 128, "%d11"),
             f"mov.u32 %r23, {instruction('f32', 'bf16', 'bf16', 64, 64)};",
             "tcgen05.mma.cta_group::1.kind::f16 [%r5], %d10, %d11, %r23, %p3;"]  # fmt: skip
    ptx = text("\n".join(lines), filled=64, read=64)
    result, out = run(ptx, shared, np.zeros((128, 64)), 64)
    clean(result)
    close(rows_of(out, 64, 64, "f32"), seen(left, "bf16") @ seen(right, "bf16").T, "f32")


def matters(flip) -> bool:
    """Whether a flipped bit is refused or seen in the numbers."""
    result, got, want = multiply("f16", "f32", "bf16", "bf16", flip=flip, enable="%p4")
    return bool(result.reports) or not np.allclose(got, want + 1, atol=1e-3)


@pytest.mark.parametrize("bit", range(64))
@pytest.mark.parametrize("operand", [0, 1])
def test_every_bit_of_a_matrix_descriptor_matters(operand, bit):
    flip = [0, 0, 0]
    flip[operand] = 1 << bit
    unused = 16 <= bit < 30  # the leading offset of a K-major operand with swizzle
    assert matters(flip) != unused


@pytest.mark.parametrize("kind", [
    ("i8", "s32", "s8", "u8"),
    pytest.param(("f8f6f4", "f32", "e4m3", "e5m2"), marks=pytest.mark.full),
], ids="-".join)  # fmt: skip
@pytest.mark.parametrize("bit", range(32))
def test_every_bit_of_the_instruction_descriptor_matters(kind, bit):
    result, got, want = multiply(*kind, flip=(0, 0, 1 << bit), enable="%p4")
    if kind[0] == "i8" and bit == 3:  # saturation, which changes nothing in range
        clean(result)
        return
    assert result.reports or not np.allclose(got, want + 1, atol=1e-3)


@pytest.mark.parametrize("line, message", [
    ("tcgen05.mma.cta_group::1.kind::f16 [%r5], %d1, %d2, %r1, %p1, 16;", "0 to 15"),
    ("tcgen05.mma.cta_group::1.kind::f8f6f4 [%r5], %d1, %d2, %r1, %p1, 1;", "f16 and tf32 only"),
    ("tcgen05.mma.cta_group::2.kind::f16 [%r5], %d1, %d2, %r1, {%r1, %r1, %r1, %r1}, %p1;",
     "8 words"),
    ("tcgen05.mma.cta_group::1.kind::f32 [%r5], %d1, %d2, %r1, %p1;", "not implemented"),
    ("tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale [%r5], %d1, %d2, %r1, [%r1], [%r1], %p1;",
     "block16"),
    ("tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block16 [%r5], %d1, %d2, %r1, [%r1], "
     "[%r1], %p1;", "block32"),
    ("tcgen05.shift.cta_group::1.down [%r5];", "not implemented"),
    ("tcgen05.cp.cta_group::1.32x128b [%r5], %d1;", "not implemented"),
])  # fmt: skip
def test_forms_the_manual_does_not_have_are_refused(line, message):
    with pytest.raises(MachineError, match=message):
        sim.parse(text(line, filled=0, read=0))


@pytest.mark.parametrize("target, version", [("sm_100f", "8.8"), ("sm_103a", "8.8"),
                                             ("sm_107a", "9.4")])  # fmt: skip
def test_i8_is_on_one_chip_only(target, version):
    with pytest.raises(MachineError, match=f"not supported on target {target}"):
        multiply("i8", "s32", "s8", "s8", target=target, version=version)
