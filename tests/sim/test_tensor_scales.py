"""tcgen05.cp, and tcgen05.mma with scales, against float64."""

import ml_dtypes
import numpy as np
import pytest

from .tensor_kernel import A_PLACE, B_PLACE, C_PLACE, canonical, descriptor, run, text
from .test_tensor_mma import CODES, close, packed, rows_of
from .texts import clean, kinds
from .values import DTYPES, random

SFA, SFB, A_COLUMN = 256, 320, 368  # columns of the scales, and of A in tensor memory
BLACKWELL, RUBIN = ("sm_100a", "8.8"), ("sm_107a", "9.4")


def scales(rng, rows: int, count: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes and values."""
    if kind == "ue8m0":
        codes = rng.integers(120, 134, (rows, count)).astype(np.uint8)
        return codes, 2.0 ** (codes.astype(np.float64) - 127)
    values = rng.uniform(0.25, 4, (rows, count)).astype(ml_dtypes.float8_e4m3fn)
    return values.view(np.uint8), values.astype(np.float64)


def in_memory(codes: np.ndarray, index: int) -> np.ndarray:
    """Words of scales, (128, columns): row r % 32 of every quarter, column r / 32, four a word."""
    rows, count = codes.shape
    width, words = -(-rows // 32), -(-(index + count) // 4)
    data = np.zeros((128, width * words, 4), np.uint8)
    for r in range(rows):
        for k in range(count):
            word, byte = divmod(index + k, 4)
            for quarter in range(4):
                data[r % 32 + 32 * quarter, r // 32 + word * width, byte] = codes[r, k]
    return data.reshape(128, -1).view(np.uint32)


def operand(rng, rows: int, depth: int, kind: str, padded: bool):
    """Bytes of an operand (rows x bytes of K) and its values."""
    values = random(rng, (rows, depth), kind)
    data = packed(values, kind, padded) if kind.startswith("e2m") or kind == "e3m2" else values
    return data.view(np.uint8).reshape(rows, -1), values.astype(np.float64)


def instruction(
    kind: str, a: str, b: str, m: int, n: int, scale: str, ids: tuple[int, int], wide: bool
) -> int:
    """The instruction descriptor of kinds with scales: tables 46 and 47."""
    bits = (n >> 3) << 17 | (m >> 7) << 27 | ids[0] << 29 | ids[1] << 4
    bits |= (scale == "ue8m0") << 23
    if kind == "mxf8f6f4":
        return bits | CODES[a] << 7 | CODES[b] << 10 | wide << 31
    return bits | 1 << 7 | 1 << 10 | wide << 3


def multiply(kind: str, a: str, b: str, *, n=64, block="", scale="ue8m0", ids=(0, 0), wide=False,
             chip=BLACKWELL, swizzle=64, flip=0, spoil=None, enable="%p3", beyond=0,
             from_memory=False, k96=False, **options):  # fmt: skip
    """Result, D and the float64 product; the scales come through registers.

    D begins at 1, and has `beyond` columns more, which nothing may touch.
    """
    rng = np.random.default_rng(n)
    four = kind != "mxf8f6f4"
    depth = 96 if k96 else (64 if four else 32) * (1 + wide)
    size = 16 if "16" in block or "4X" in block else 32
    left, a_values = operand(rng, 128, depth, a, not (four or wide))
    right, b_values = operand(rng, n, depth, b, not (four or wide))
    (sa, sa_values), (sb, sb_values) = (scales(rng, r, depth // size, scale) for r in (128, n))
    shared, lines = [], []
    for place, data, register in ((A_PLACE, left, "%d10"), (B_PLACE, right, "%d11")):
        data, *strides = canonical(data, True, swizzle)
        shared.append(data)
        lines.append(descriptor(place, *strides, swizzle, register))
    words = np.full((128, 384), 0x3F800000, np.uint32)
    words[:, SFA:] = 0x7F7F7F7F
    for column, codes, index in ((SFA, sa, ids[0]), (SFB, sb, ids[1])):
        found = in_memory(codes, index)
        words[:, column : column + found.shape[1]] = found
    if from_memory:
        width = left.shape[1] // 4
        words[:, A_COLUMN : A_COLUMN + width] = left.view(np.uint32)
    if spoil is not None:
        words[spoil] ^= 0xFFFFFFFF
    bits = instruction(kind, a, b, 128, n, scale, ids, wide) ^ flip ^ k96 << 31
    lines += [f"mov.u32 %r23, {bits}; add.u32 %r24, %r5, {SFA}; add.u32 %r25, %r5, {SFB};",
              f"add.u32 %r26, %r5, {A_COLUMN};",
              f"tcgen05.mma.cta_group::1.kind::{kind}.block_scale{block} [%r5], "
              f"{'[%r26]' if from_memory else '%d10'}, %d11, %r23, [%r24], [%r25], "
              f"{enable};"]  # fmt: skip
    read = n + beyond
    ptx = text("\n".join(lines), filled=384, read=read, target=chip[0], version=chip[1])
    result, out = run(ptx, np.concatenate(shared), words, read, **options)
    want = (a_values * np.repeat(sa_values, size, 1)) @ (b_values * np.repeat(sb_values, size, 1)).T
    want = np.concatenate([want, np.zeros((128, beyond))], 1)
    return result, rows_of(out, 128, read, "f32"), want


CASES = [
    ("mxf8f6f4", "e4m3", "e5m2", "", "ue8m0", (0, 0)),
    ("mxf8f6f4", "e4m3", "e4m3", ".block32", "ue8m0", (1, 3)),
    ("mxf8f6f4", "e2m1", "e4m3", ".scale_vec::1X", "ue8m0", (2, 0)),
    ("mxf8f6f4", "e3m2", "e2m3", "", "ue8m0", (0, 1)),
    ("mxf4", "e2m1", "e2m1", "", "ue8m0", (0, 2)),
    ("mxf4", "e2m1", "e2m1", ".scale_vec::2X", "ue8m0", (2, 0)),
    ("mxf4nvf4", "e2m1", "e2m1", ".block16", "ue4m3", (0, 0)),
    ("mxf4nvf4", "e2m1", "e2m1", ".block16", "ue8m0", (0, 0)),
    ("mxf4nvf4", "e2m1", "e2m1", ".block32", "ue8m0", (2, 2)),
    ("mxf4nvf4", "e2m1", "e2m1", ".scale_vec::4X", "ue4m3", (0, 0)),
]


@pytest.mark.parametrize("kind, a, b, block, scale, ids", CASES)
@pytest.mark.parametrize("n", [16, 144, *(pytest.param(n, marks=pytest.mark.full)
                                          for n in (64, 256))])  # fmt: skip
def test_every_kind_with_scales(kind, a, b, block, scale, ids, n):
    result, got, want = multiply(kind, a, b, n=n, block=block, scale=scale, ids=ids, enable="%p4")
    clean(result)
    close(got, want + 1, "f32")


@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[6]], ids=lambda case: case[0])
def test_a_from_tensor_memory(case):
    kind, a, b, block, scale, ids = case
    result, got, want = multiply(kind, a, b, block=block, scale=scale, ids=ids, from_memory=True)
    clean(result)
    close(got, want, "f32")


WIDE = [
    ("mxf8f6f4", "e4m3", "e5m2", "", "ue8m0", (0, 2)),
    ("mxf8f6f4", "e2m1", "e4m3", ".block32", "ue8m0", (2, 0)),
    ("mxf8f6f4", "e2m1", "e2m1", ".block32", "ue8m0", (2, 2)),
    ("mxf4", "e2m1", "e2m1", "", "ue8m0", (0, 0)),
    ("mxf4nvf4", "e2m1", "e2m1", ".block16", "ue4m3", (0, 0)),
    ("mxf4nvf4", "e2m1", "e2m1", ".block32", "ue8m0", (0, 0)),
]


@pytest.mark.parametrize("kind, a, b, block, scale, ids", WIDE)
@pytest.mark.parametrize("n", [64, pytest.param(256, marks=pytest.mark.full)])
def test_wide_k_of_rubin(kind, a, b, block, scale, ids, n):
    form = {"n": n, "block": block, "scale": scale, "ids": ids, "wide": True}
    form["swizzle"] = {"e4m3": 64, "e2m1": 64 if kind != "mxf8f6f4" else 32}[a]
    if a != b and "e2m1" in (a, b):
        form["swizzle"] = 64
    result, got, want = multiply(kind, a, b, chip=RUBIN, **form)
    clean(result)
    close(got, want, "f32")
    result, *_ = multiply(kind, a, b, **form)
    assert kinds(result) == {"tcgen05"} and "on sm_100a" in str(result)


@pytest.mark.parametrize("kind, block, scale, ids", [
    ("mxf4", "", "ue8m0", (0, 1)), ("mxf4", ".block32", "ue8m0", (2, 3)),
    ("mxf4nvf4", ".block16", "ue4m3", (0, 2)), ("mxf4nvf4", ".block16", "ue8m0", (2, 0)),
    ("mxf4nvf4", ".block32", "ue8m0", (3, 1)),
])  # fmt: skip
@pytest.mark.parametrize("chip", [("sm_103a", "8.8"), RUBIN], ids=lambda chip: chip[0])
def test_k_of_96(kind, block, scale, ids, chip):
    """Three or six scales a row, which may go on in the next word: 9.7.17.10.7.2.4 and 5."""
    form = {"block": block, "scale": scale, "ids": ids, "swizzle": 0, "k96": True}
    result, got, want = multiply(kind, "e2m1", "e2m1", chip=chip, **form)
    clean(result)
    close(got, want, "f32")
    result, *_ = multiply(kind, "e2m1", "e2m1", **form)
    assert kinds(result) == {"tcgen05"} and "on sm_100a" in str(result)


def test_six_scales_begin_at_a_half_word():
    form = {"block": ".block16", "scale": "ue4m3", "swizzle": 0, "k96": True}
    result, *_ = multiply("mxf4nvf4", "e2m1", "e2m1", chip=RUBIN, ids=(0, 1), **form)
    assert kinds(result) == {"tcgen05"} and "indices of 6 scales" in str(result)


@pytest.mark.parametrize("bit", range(32))
@pytest.mark.parametrize("case", [
    CASES[1], CASES[6], pytest.param(CASES[4], marks=pytest.mark.full),
], ids=lambda case: case[0])  # fmt: skip
def test_every_bit_of_the_instruction_descriptor_matters(case, bit):
    kind, a, b, block, scale, ids = case
    result, got, want = multiply(kind, a, b, block=block, scale=scale, ids=ids, flip=1 << bit,
                                 enable="%p4", beyond=8)  # fmt: skip
    assert result.reports or not np.allclose(got, want + 1, rtol=0.01)


@pytest.mark.parametrize("place", [(40, SFA), (100, SFB + 1), (0, SFA + 3)])
def test_scales_are_repeated_in_every_quarter(place):
    result, *_ = multiply("mxf8f6f4", "e4m3", "e4m3", spoil=place)
    assert kinds(result) == {"tcgen05"} and "do not repeat" in str(result)


# ---- tcgen05.cp
SHAPES = {
    "128x256b": (128, 32), "128x128b": (128, 16), "64x128b.warpx2::02_13": (64, 16),
    "64x128b.warpx2::01_23": (64, 16), "32x128b.warpx4": (32, 16),
}  # fmt: skip


def row_of(shape: str, lane: int) -> int:
    """Which row of the source a lane gets: 9.7.17.9.2."""
    warp = lane // 32
    if "02_13" in shape:  # of each pair of warps the first has rows 0 to 31
        return lane % 32 + 32 * (warp in (2, 3))
    if "01_23" in shape:
        return lane % 32 + 32 * (warp in (1, 3))
    return lane % int(shape.split("x")[0])


def copy(shape: str, swizzle, lines: str = "", **options):
    """Result, and the columns that a copy of random bytes wrote."""
    rows, num_bytes = SHAPES[shape]
    source = np.random.default_rng(rows).integers(0, 256, (rows, num_bytes)).astype(np.uint8)
    data, *strides = canonical(source, True, swizzle)
    shared = np.concatenate([np.zeros(C_PLACE, np.uint8), data])
    lines = (descriptor(C_PLACE, *strides, swizzle, "%d12") + lines
             + f"tcgen05.cp.cta_group::1.{shape} [%r5], %d12;")  # fmt: skip
    columns = num_bytes // 4
    read = -(-columns // 8) * 8
    ptx = text(lines, filled=8, read=read)
    result, out = run(ptx, shared, np.zeros((128, 8)), read, **options)
    want = np.array([source[row_of(shape, lane)] for lane in range(128)]).view(np.uint32)
    return result, out[:, :columns], want


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("swizzle", [0, 32, 128])
@pytest.mark.parametrize("seed", [0, 1])
def test_copies(shape, swizzle, seed):
    result, got, want = copy(shape, swizzle, seed=seed)
    clean(result)
    np.testing.assert_array_equal(got, want)


def test_a_copy_needs_its_commit_and_lane_0():
    result, *_ = copy("32x128b.warpx4", 0, lines="add.u32 %r5, %r5, 65536;")
    assert "tcgen05" in kinds(result)


def through_a_copy(before: str = "", between: str = "", seed: int = 0):
    """An mxfp8 product whose scales tcgen05.cp brings; D begins at 0."""
    rng = np.random.default_rng(1)
    left, a_values = operand(rng, 128, 32, "e4m3", True)
    right, b_values = operand(rng, 128, 32, "e4m3", True)
    (sa, sa_values), (sb, sb_values) = (scales(rng, 128, 4, "ue8m0") for _ in range(2))
    shared, lines = [], [before]
    for place, data, register in ((A_PLACE, left, "%d10"), (B_PLACE, right, "%d11")):
        data, *strides = canonical(data, True, 32)
        shared.append(data)
        lines.append(descriptor(place, *strides, 32, register))
    for codes, offset, register in ((sa, 0, "%d12"), (sb, 512, "%d13")):
        # The chunk of 128 rows x 4 scales: byte (row % 32) * 16 + row / 32 * 4 + k.
        chunk = codes.reshape(4, 32, 4).transpose(1, 0, 2).ravel()
        shared.append(chunk)
        lines.append(descriptor(C_PLACE + offset, 0, 128, 0, register))
    bits = instruction("mxf8f6f4", "e4m3", "e4m3", 128, 128, "ue8m0", (0, 0), False)
    lines += [f"mov.u32 %r23, {bits}; add.u32 %r24, %r5, {SFA}; add.u32 %r25, %r5, {SFB};",
              "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r24], %d12;",
              "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r25], %d13;", between,
              "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%r5], %d10, %d11, %r23, "
              "[%r24], [%r25], %p3;"]  # fmt: skip
    ptx = text("\n".join(lines), filled=0, read=128)
    result, out = run(ptx, np.concatenate(shared), np.zeros((128, 8)), 128, seed=seed)
    want = (a_values * sa_values[:, :1]) @ (b_values * sb_values[:, :1]).T
    return result, rows_of(out, 128, 128, "f32"), want


@pytest.mark.parametrize("seed", range(3))
def test_mma_follows_the_copy_of_its_scales(seed):
    result, got, want = through_a_copy(seed=seed)
    clean(result)
    close(got, want, "f32")


def test_dtypes_of_the_tests_have_the_sizes_of_the_formats():
    assert all(np.dtype(DTYPES[kind]).itemsize == 1 for kind in ("e2m1", "e2m3", "e3m2"))
