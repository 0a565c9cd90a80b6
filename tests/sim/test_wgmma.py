"""wgmma against float64: every N, type, layout and sign; descriptor and register rules."""

import numpy as np
import pytest

from tilecat import sim
from tilecat.errors import MachineError

from .texts import clean, kernel, kinds, pointers, run
from .values import DTYPES, random, seen

A_PLACE, B_PLACE = 0, 8192
SWIZZLE_CODE = {0: 0, 128: 1, 64: 2, 32: 3}


def canonical(matrix: np.ndarray, k_major: bool, swizzle: int) -> tuple[np.ndarray, int, int]:
    """Bytes of an operand (rows x K) in its canonical layout, with LBO and SBO.

    PTX ISA 9.7.15.5.1.2.1, written with loops over elements, apart from the machine's arrays.
    """
    rows, depth = matrix.shape
    size = matrix.dtype.itemsize
    flat = np.zeros(16384, np.uint8)
    width = swizzle or 16
    per = width // size  # elements of a swizzle row
    if k_major:
        sbo, lbo = (8 * width, 16) if swizzle else (128, rows * 16)
    elif swizzle:
        lbo, sbo = 8 * width * (depth // 8), 8 * width
    else:
        sbo, lbo = 128, rows * size * 8
    mask = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
    for r in range(rows):
        for k in range(depth):
            if k_major and swizzle:
                place = r // 8 * sbo + r % 8 * width + k * size
            elif k_major:
                place = r // 8 * sbo + r % 8 * 16 + k * size // 16 * lbo + k * size % 16
            elif swizzle:
                place = r // per * lbo + r % per * size + k // 8 * sbo + k % 8 * width
            else:
                place = r * size // 16 * sbo + r * size % 16 + k // 8 * lbo + k % 8 * 16
            place ^= (place // 128 % 8 & mask) * 16
            flat[place : place + size] = matrix[r, k : k + 1].view(np.uint8)
    return flat, lbo, sbo


def descriptor(place: int, lbo: int, sbo: int, swizzle: int) -> tuple[int, int]:
    """Low word beside the start address, and high word."""
    return (lbo >> 4) << 16, sbo >> 4 | SWIZZLE_CODE[swizzle] << 30


def multiply(n: int, kinds_: tuple[str, str, str], *, swizzle: int = 128, majors=(True, True),
             signs=(1, 1), registers=False, scale="0", fence="wgmma.fence.sync.aligned;",
             extra_bits: int = 0, rows=None, **options):  # fmt: skip
    """Result, D and the float64 product of one wgmma on random operands, D starting from 1."""
    d_kind, a_kind, b_kind = kinds_
    rng = np.random.default_rng(n)
    size = np.dtype(DTYPES[a_kind]).itemsize
    depth = 32 // size
    a, b = random(rng, (64, depth), a_kind), random(rng, (n, depth), b_kind)
    a_bytes, *a_strides = canonical(a, majors[0], swizzle)
    b_bytes, *b_strides = canonical(b, majors[1], swizzle)
    a_low, a_high = descriptor(A_PLACE, *a_strides, swizzle)
    b_low, b_high = descriptor(B_PLACE, *b_strides, swizzle)
    memory = np.concatenate([a_bytes[:8192], b_bytes])
    count = n // 4 if d_kind == "f16" else n // 2
    acc = [f"%a{k}" for k in (rows or range(count))]
    one = {"f32": 0x3F800000, "f16": 0x3C003C00, "s32": 1}[d_kind]
    a_words = np.zeros((128, 4), np.uint32)
    for t in range(128):  # PTX ISA 9.7.15.5.1.1, figures of A fragments
        for r in range(4):
            row = t // 32 * 16 + t % 32 // 4 + 8 * (r % 2)
            start = (r // 2) * 16 + t % 4 * 4
            a_words[t, r] = (
                np.ascontiguousarray(a[row]).view(np.uint8)[start : start + 4].view("u4")[0]
            )
    trailing = []
    if a_kind not in ("s8", "u8"):
        trailing = [*signs]
        if size == 2:
            trailing += ([] if registers else [int(not majors[0])]) + [int(not majors[1])]
    op = f"wgmma.mma_async.sync.aligned.m64n{n}k{depth}.{d_kind}.{a_kind}.{b_kind}"
    left = "{%r60, %r61, %r62, %r63}" if registers else "%d10"
    operands = ", ".join([f"{{{', '.join(acc)}}}", left, "%d11", scale, *map(str, trailing)])
    copy = "\n".join(f"ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%d5+{2048 * k}]; "
                     f"st.shared.v4.b32 [%r3+{2048 * k}], {{%r10, %r11, %r12, %r13}};"
                     for k in range(12))  # fmt: skip
    store = "\n".join(f"st.global.b32 [%d6+{512 * k}], {name};" for k, name in enumerate(acc))
    body = f""".reg .b32 %a<320>; .reg .pred %q<2>;
mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mad.lo.u32 %r3, %r1, 16, %r2; setp.eq.u32 %q1, %r1, %r1;
ld.param.u64 %d1, [mem]; ld.param.u64 %d2, [out]; mul.wide.u32 %d3, %r1, 16;
mul.wide.u32 %d4, %r1, 4; add.u64 %d5, %d1, %d3; add.u64 %d6, %d2, %d4; {copy}
ld.param.u64 %d7, [words]; add.u64 %d7, %d7, %d3;
ld.global.v4.b32 {{%r60, %r61, %r62, %r63}}, [%d7];
{chr(10).join(f"mov.b32 {name}, {one};" for name in acc)}
fence.proxy.async.shared::cta; bar.sync 0;
and.b32 %r20, %r2, 0x3FFFF; shr.u32 %r20, %r20, 4; add.u32 %r21, %r20, {B_PLACE >> 4};
or.b32 %r20, %r20, {a_low}; or.b32 %r21, %r21, {b_low};
mov.b64 %d10, {{%r20, {a_high}}}; mov.b64 %d11, {{%r21, {b_high | extra_bits}}};
{fence} {op} {operands};
wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
{store}"""
    out = np.zeros((count, 128), np.uint32)
    text = kernel(body, ".param .u64 mem, .param .u64 out, .param .u64 words", 128)
    result = run(text, pointers(memory, out, a_words), **options)
    return result, fragment(out, n, d_kind), signs[0] * signs[1] * (
        seen(a, a_kind) @ seen(b, b_kind).T)  # fmt: skip


def fragment(out: np.ndarray, n: int, kind: str) -> np.ndarray:
    """D (64 x n) from registers: PTX ISA 9.7.15.5.1.1, figure of D."""
    matrix = np.zeros((64, n))
    for t in range(128):
        for j in range(n // 8):
            for h in range(2):
                row, column = t // 32 * 16 + t % 32 // 4 + 8 * h, 8 * j + t % 4 * 2
                if kind == "f16":
                    pair = out[2 * j + h, t : t + 1].view(np.float16)
                else:
                    view = np.float32 if kind == "f32" else np.int32
                    pair = out[4 * j + 2 * h : 4 * j + 2 * h + 2, t].copy().view(view)
                matrix[row, column : column + 2] = pair
    return matrix


def close(got: np.ndarray, want: np.ndarray, kind: str) -> None:
    """Equal up to the rounding of sums of at most 33 terms of size 16."""
    tolerance = {"f32": 33 * 16 * 2.0**-22, "f16": 2.0**-10 * (np.abs(want).max() + 1), "s32": 0}[
        kind
    ]
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_every_n(n):
    result, got, want = multiply(n, ("f32", "bf16", "bf16"), swizzle=32)
    clean(result)
    close(got, want, "f32")


TYPES = [
    ("f32", "bf16", "bf16"), ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "tf32", "tf32"),
    ("f32", "e4m3", "e4m3"), ("f32", "e4m3", "e5m2"), ("f16", "e5m2", "e5m2"), ("s32", "s8", "s8"),
    ("s32", "u8", "s8"), ("s32", "u8", "u8"),
]  # fmt: skip


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("scale", ["0", "%q1"])
@pytest.mark.parametrize("types", TYPES, ids=".".join)
def test_every_type_from_shared_memory_and_registers(types, scale, registers):
    result, got, want = multiply(32, types, registers=registers, scale=scale)
    clean(result)
    close(got, want + (scale == "%q1"), types[0])


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("majors", [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize("n", [64, 128])
def test_every_layout(n, majors, swizzle):
    result, got, want = multiply(n, ("f32", "bf16", "bf16"), swizzle=swizzle, majors=majors)
    clean(result)
    close(got, want, "f32")


@pytest.mark.parametrize("signs", [(1, -1), (-1, 1), (-1, -1)])
def test_negated_operands(signs):
    result, got, want = multiply(16, ("f32", "f16", "f16"), signs=signs, scale="%q1")
    clean(result)
    close(got, want + 1, "f32")


def test_scattered_accumulator_registers():
    rows = list(np.random.default_rng(0).permutation(32))
    result, got, want = multiply(64, ("f32", "bf16", "bf16"), rows=rows)
    clean(result)
    close(got, want, "f32")


@pytest.mark.parametrize("seed", [1, 2])
def test_late_and_random_execution(seed):
    result, got, want = multiply(64, ("f32", "bf16", "bf16"), seed=seed)
    clean(result)
    close(got, want, "f32")


def test_reserved_descriptor_bits_are_reported():
    for bit in (14, 15, 20, 28, 29):  # of the high word; 17 to 19 are the base offset
        result, *_ = multiply(16, ("f32", "bf16", "bf16"), extra_bits=1 << bit)
        assert kinds(result) == {"wgmma"} and "reserved bits" in str(result)
    with pytest.raises(MachineError, match="base offset"):
        multiply(16, ("f32", "bf16", "bf16"), extra_bits=1 << 17)


def test_missing_fence_and_touched_registers():
    result, *_ = multiply(16, ("f32", "bf16", "bf16"), fence="")
    assert kinds(result) == {"wgmma"} and "without a wgmma.fence" in str(result)
    result, *_ = multiply(16, ("f32", "bf16", "bf16"), scale="%q1",
                          fence="wgmma.fence.sync.aligned; mov.b32 %a3, 0;")  # fmt: skip
    (report,) = result.reports
    assert "after the last wgmma.fence" in report.message or "below after" in report.message
    assert report.other.text == "mov.b32 %a3, 0"


def op(shape: str, types: str, registers: int, tail: str) -> str:
    """A kernel with one wgmma."""
    acc = ", ".join(f"%f{k}" for k in range(registers))
    return kernel(f"wgmma.mma_async.sync.aligned.{shape}.{types} {{{acc}}}, %d1, %d2, 1{tail};",
                  threads=128)  # fmt: skip


@pytest.mark.parametrize("text, message", [
    (op("m64n16k16", "f32.bf16.f16", 8, ", 1, 1, 0, 0"), "types"),
    (op("m64n16k16", "f16.bf16.bf16", 8, ", 1, 1, 0, 0"), "types"),
    (op("m64n40k32", "s32.s8.s8", 20, ""), "shape"),
    (op("m64n16k8", "f32.bf16.bf16", 8, ", 1, 1, 0, 0"), "shape"),
    (op("m64n12k16", "f32.bf16.bf16", 6, ", 1, 1, 0, 0"), "not implemented"),
    (op("m64n16k16", "f32.bf16.bf16", 4, ", 1, 1, 0, 0"), "8 accumulator registers"),
    (op("m64n16k8", "f32.tf32.tf32", 8, ", 1, 1, 0, 0"), "2 constants"),
    (op("m64n16k16", "f32.bf16.bf16", 8, ", 2, 1, 0, 0"), "signs"),
])  # fmt: skip
def test_forms_the_manual_does_not_have_are_refused(text, message):
    with pytest.raises(MachineError, match=message):
        sim.parse(text)


AGAIN = """wgmma.fence.sync.aligned; {first} wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0; {between} {second} wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;"""


def twice(between: str, second: str = "") -> set[str]:
    """Reports of two wgmma on one accumulator with something between them."""
    one = ("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d1, %d1, 1,"
           " 1, 1, 0, 0;")  # fmt: skip
    body = f"""mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mad.lo.u32 %r3, %r1, 16, %r2;
    st.shared.v4.b32 [%r3], {{%r1, %r1, %r1, %r1}}; fence.proxy.async.shared::cta; bar.sync 0;
    mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
    shr.u32 %r4, %r2, 4; or.b32 %r4, %r4, {8 << 16}; mov.b64 %d1, {{%r4, 16}};
    {AGAIN.format(first=one, between=between, second=second or one)}"""
    return kinds(run(kernel(body, threads=128), races=False))


def test_fence_covers_registers_used_since_the_last_one():
    use, fence = "add.f32 %f9, %f2, %f2;", "wgmma.fence.sync.aligned;"
    assert twice("") == set()
    assert twice(use + fence) == set()
    assert twice(use) == {"wgmma"}
    assert twice(fence + use) == {"wgmma"}
    assert twice("add.f32 %f9, %f8, %f8;") == set()
    assert twice("shfl.sync.bfly.b32 %f2, %f8, 1, 31, -1;") == {"wgmma"}
    assert twice("st.shared.b32 [%r3], %f2;") == {"wgmma"}


def test_accumulators_in_flight_keep_their_role():
    left = ("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d1, %d1, "
            "1, 1, 1, 0, 0; ")  # fmt: skip
    fragment_ = ("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f4, %f5, %f6, %f7}, "
                 "{%f0, %f1, %f2, %f3}, %d1, 1, 1, 1, 0;")  # fmt: skip
    wider = ("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
             "{%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}, %d1, %d1, 1, 1, 1, 0, 0;")  # fmt: skip
    for other in (fragment_, wider):
        assert twice("wgmma.fence.sync.aligned;", left + other) == {"wgmma"}
    assert twice("wgmma.fence.sync.aligned;", fragment_) == set()
