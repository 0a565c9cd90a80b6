"""The ALU table against references that share no code with it, on edge values."""

import math
import struct

import numpy as np
import pytest

from .texts import clean, kernel, pointers, run

EDGES = {
    32: [0, 1, 2, 3, 7, 31, 32, 33, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000,
         0x80000001, 0xFFFFFFFF, 0xFFFFFFFE, 0xDEADBEEF, 0x12345678],
    16: [0, 1, 2, 15, 16, 255, 0x7FFF, 0x8000, 0xFFFF, 0x1234],
    64: [0, 1, 63, 64, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0],
}  # fmt: skip
FLOATS = [
    0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.75, 1e-40, -1e-40, 1e38, -3e38, 1e-3, 0.1, 448.0,
    500.0, 65504.0, 65520.0, 1e6, 2**24 + 1.0, math.inf, -math.inf, math.nan,
]  # fmt: skip
PREFIX = {16: "%h", 32: "%r", 64: "%d"}


def signed(value: int, bits: int) -> int:
    """Two's complement value."""
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def execute(
    op: str, columns: list[np.ndarray], out: np.dtype, form: str = "", chip: str = "sm_90a"
) -> np.ndarray:
    """Run `op d, a, b, ...` with a thread a row; sources and result by their bits."""
    n = len(columns[0])
    threads = -(-n // 32) * 32
    sources, loads = (
        [],
        ["mov.u32 %r100, %tid.x;", f"setp.ge.u32 %p9, %r100, {n};", "@%p9 bra END;"],
    )
    for index, column in enumerate(columns):
        bits = 8 * column.dtype.itemsize
        name = f"{PREFIX[bits]}{index + 1}"
        sources.append(name)
        loads += [f"ld.param.u64 %d20, [a{index}];",
                  f"mad.wide.u32 %d20, %r100, {bits // 8}, %d20;",
                  f"ld.global.b{bits} {name}, [%d20];"]  # fmt: skip
    bits = 8 * out.itemsize
    target = f"{PREFIX[bits]}10"
    line = form or f"{op} {target}, {', '.join(sources)};"
    store = ["ld.param.u64 %d20, [out];", f"mad.wide.u32 %d20, %r100, {bits // 8}, %d20;",
             f"st.global.b{bits} [%d20], {target};", "END:"]  # fmt: skip
    params = ", ".join([f".param .u64 a{k}" for k in range(len(columns))] + [".param .u64 out"])
    result = np.zeros(n, out)
    text = kernel("\n".join([*loads, line, *store]), params, threads).replace("sm_90a", chip)
    clean(run(text, pointers(*[c.copy() for c in columns], result)))
    return result


def pairs(bits: int) -> list[np.ndarray]:
    """All pairs of edge values."""
    values = np.array(EDGES[bits], f"u{bits // 8}")
    a, b = np.meshgrid(values, values)
    return [a.ravel(), b.ravel()]


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


def shift_right(a: int, b: int, bits: int, is_signed: bool) -> int:
    return (signed(a, bits) if is_signed else a) >> min(b, bits)


INTEGER = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul.lo": lambda a, b: a * b,
    "min": min, "max": max,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", list(INTEGER))
def test_integer_arithmetic_wraps(name, kind):
    bits = int(kind[1:])
    a, b = pairs(bits)
    got = execute(f"{name}.{kind}", [a, b], a.dtype)
    fix = (lambda x: signed(x, bits)) if kind[0] == "s" else (lambda x: x)
    want = [INTEGER[name](fix(int(x)), fix(int(y))) % 2**bits for x, y in zip(a, b, strict=True)]
    assert got.tolist() == want


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64", "s16"])
@pytest.mark.parametrize("name", ["div", "rem", "mul.hi"])
def test_division_truncates_and_high_product(name, kind):
    bits = int(kind[1:])
    a, b = pairs(bits)
    keep = (b != 0) & ~((a == 1 << (bits - 1)) & (b == 2**bits - 1))
    a, b = a[keep], b[keep]
    fix = (lambda x: signed(x, bits)) if kind[0] == "s" else (lambda x: x)

    def reference(x: int, y: int) -> int:
        if name == "mul.hi":
            return x * y >> bits
        return truncated(x, y) if name == "div" else x - y * truncated(x, y)

    want = [reference(fix(int(x)), fix(int(y))) % 2**bits for x, y in zip(a, b, strict=True)]
    assert execute(f"{name}.{kind}", [a, b], a.dtype).tolist() == want


@pytest.mark.parametrize("op", ["mul.wide.u32", "mul.wide.s32", "mul.wide.u16", "mul.wide.s16"])
def test_wide_product(op):
    bits, is_signed = int(op[-2:]), op[-3] == "s"
    a, b = pairs(bits)
    fix = (lambda x: signed(x, bits)) if is_signed else (lambda x: x)
    want = [fix(int(x)) * fix(int(y)) % 2 ** (2 * bits) for x, y in zip(a, b, strict=True)]
    assert execute(op, [a, b], np.dtype(f"u{bits // 4}")).tolist() == want


def test_mad_lo_and_wide():
    a, b = pairs(32)
    c = np.roll(a, 7)
    want = [(int(x) * int(y) + int(z)) % 2**32 for x, y, z in zip(a, b, c, strict=True)]
    assert execute("mad.lo.u32", [a, b, c], a.dtype).tolist() == want
    wide = c.astype(np.uint64) << np.uint64(20)
    want = [(signed(int(x), 32) * signed(int(y), 32) + int(z)) % 2**64
            for x, y, z in zip(a, b, wide, strict=True)]  # fmt: skip
    assert execute("mad.wide.s32", [a, b, wide], np.dtype("u8")).tolist() == want


@pytest.mark.parametrize("op", ["shl.b32", "shr.u32", "shr.s32", "shl.b64", "shr.s64", "shr.u64"])
def test_shift_amount_is_clamped(op):
    bits = int(op[-2:])
    values = np.array(EDGES[bits], f"u{bits // 8}")
    amounts = np.array([0, 1, 5, 31, 32, 33, 63, 64, 65, 255, 2**31, 2**32 - 1], np.uint32)
    a, b = (x.ravel() for x in np.meshgrid(values, amounts))
    got = execute(op, [a, b.astype(np.uint32)], a.dtype)
    if op.startswith("shl"):
        want = [int(x) << min(int(y), bits) & (2**bits - 1) for x, y in zip(a, b, strict=True)]
    else:
        want = [shift_right(int(x), int(y), bits, ".s" in op) % 2**bits
                for x, y in zip(a, b, strict=True)]  # fmt: skip
    assert got.tolist() == want


@pytest.mark.parametrize("side", ["l", "r"])
@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_funnel_shift(side, mode):
    a, b = pairs(32)
    c = np.resize(np.array([0, 1, 8, 31, 32, 33, 40, 2**31], np.uint32), len(a))
    amount = [min(int(x), 32) if mode == "clamp" else int(x) & 31 for x in c]
    both = [int(y) << 32 | int(x) for x, y in zip(a, b, strict=True)]
    if side == "l":
        want = [(v << s >> 32) & 0xFFFFFFFF for v, s in zip(both, amount, strict=True)]
    else:
        want = [v >> s & 0xFFFFFFFF for v, s in zip(both, amount, strict=True)]
    assert execute(f"shf.{side}.{mode}.b32", [a, b, c], a.dtype).tolist() == want


def reference_bfe(a: int, pos: int, length: int, bits: int, is_signed: bool) -> int:
    """The manual's own loop, PTX ISA 9.7.1.19."""
    pos, length = pos & 255, length & 255
    top = bits - 1
    fill = 0 if not is_signed or length == 0 else a >> min(pos + length - 1, top) & 1
    return sum(
        (a >> pos + i & 1 if i < length and pos + i <= top else fill) << i for i in range(bits)
    )


def reference_bfi(a: int, b: int, pos: int, length: int, bits: int) -> int:
    """The manual's own loop, PTX ISA 9.7.1.20."""
    out, pos, length = b, pos & 255, length & 255
    for i in range(length):
        if pos + i < bits:
            out = out & ~(1 << pos + i) | (a >> i & 1) << pos + i
    return out


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_field_extract(kind):
    bits = int(kind[1:])
    values = np.array(EDGES[bits], f"u{bits // 8}")
    spots = [0, 1, 7, 31, 32, 40, 63, 64, 255]
    a, pos, length = (x.ravel() for x in np.meshgrid(values, np.uint32(spots), np.uint32(spots)))
    a, pos, length = a[:960], pos[:960], length[:960]
    got = execute(f"bfe.{kind}", [a, pos, length], a.dtype)
    want = [reference_bfe(int(x), int(p), int(n), bits, kind[0] == "s")
            for x, p, n in zip(a, pos, length, strict=True)]  # fmt: skip
    assert got.tolist() == want


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_field_insert(bits):
    a, b = pairs(bits)
    spots = np.array([0, 1, 7, 31, 32, 40, 63, 64, 255], np.uint32)
    pos, length = np.resize(spots, len(a)), np.resize(np.roll(np.tile(spots, 2), 5)[:11], len(a))
    got = execute(f"bfi.b{bits}", [a, b, pos, length], a.dtype)
    want = [
        reference_bfi(*(int(v) for v in row), bits) for row in zip(a, b, pos, length, strict=True)
    ]
    assert got.tolist() == want


@pytest.mark.parametrize("bits", [32, 64])
def test_counts_of_bits(bits):
    a = np.array(EDGES[bits], f"u{bits // 8}")
    word = np.dtype("u4")
    assert execute(f"popc.b{bits}", [a], word).tolist() == [int(x).bit_count() for x in a]
    assert execute(f"clz.b{bits}", [a], word).tolist() == [bits - int(x).bit_length() for x in a]
    back = [int(f"{int(x):0{bits}b}"[::-1], 2) for x in a]
    assert execute(f"brev.b{bits}", [a], a.dtype).tolist() == back
    highest = [int(x).bit_length() - 1 & 0xFFFFFFFF for x in a]
    assert execute(f"bfind.u{bits}", [a], word).tolist() == highest


def test_lop3_is_its_truth_table():
    a, b = pairs(32)
    c = np.roll(a, 5)
    for table in (0x80, 0xFE, 0x96, 0xE8, 0x1B, 0):
        got = execute("", [a, b, c], a.dtype, f"lop3.b32 %r10, %r1, %r2, %r3, {table};")
        for x, y, z, result in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
            rows = [(x >> i & 1) << 2 | (y >> i & 1) << 1 | z >> i & 1 for i in range(32)]
            assert result == sum((table >> row & 1) << i for i, row in enumerate(rows))


def test_prmt_picks_bytes_and_signs():
    a, b = pairs(32)
    c = np.resize(np.array([0x3210, 0x7654, 0x5410, 0x7632, 0xFB8C, 0x0123], np.uint32), len(a))

    def reference(x: int, y: int, s: int) -> int:
        bytes_ = struct.pack("<II", x, y)
        out = 0
        for k in range(4):
            nibble = s >> 4 * k & 15
            byte = bytes_[nibble & 7]
            out |= ((255 if byte & 128 else 0) if nibble & 8 else byte) << 8 * k
        return out

    want = [reference(*(int(v) for v in row)) for row in zip(a, b, c, strict=True)]
    assert execute("prmt.b32", [a, b, c], a.dtype).tolist() == want


@pytest.mark.parametrize("name", ["and", "or", "xor"])
def test_logic(name):
    a, b = pairs(64)
    function = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[name]
    np.testing.assert_array_equal(execute(f"{name}.b64", [a, b], a.dtype), function(a, b))
