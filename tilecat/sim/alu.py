"""ALU table, integers: opcode -> (destination type, source types, NumPy function). PTX ISA 9.7."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from tilecat.sim.alu_directed import DIRECTED_FAMILIES
from tilecat.sim.alu_float import FLOAT_FAMILIES
from tilecat.sim.alu_pairs import PAIR_FAMILIES
from tilecat.sim.alu_products import PRODUCT_FAMILIES
from tilecat.sim.alu_types import (
    INTEGERS,
    LOCAL_WINDOW,
    NUMPY,
    PARAM_WINDOW,
    SHARED_WINDOW,
    AluRow,
    choose,
)

_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_BOOL = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_UNSIGNED_COMPARE = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_UNORDERED = {"equ": "eq", "neu": "ne", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}


def _bits(kind: str) -> int:
    return NUMPY[kind].itemsize * 8


def _saturate_s32(function, a, b):
    wide = function(a.astype(np.int64), b.astype(np.int64))
    return np.clip(wide, -(2**31), 2**31 - 1)


def _add_sub(base: str, mods: list[str]) -> AluRow | None:
    """add, sub: 9.7.1.1, 9.7.1.2."""
    function = np.add if base == "add" else np.subtract
    if mods == ["sat", "s32"]:
        return AluRow("s32", ("s32",) * 2, partial(_saturate_s32, function), "9.7.1.1")
    if len(mods) == 1 and mods[0] in INTEGERS:
        return AluRow(mods[0], (mods[0],) * 2, function, "9.7.1.1", into=True)
    return None


def _high64(a, b):
    """High 64 bits of a 64 x 64 bit product."""
    signed = a.dtype.kind == "i"
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1, y0, y1 = x & mask, x >> half, y & mask, y >> half
    middle = x1 * y0 + (x0 * y0 >> half)
    other = x0 * y1 + (middle & mask)
    high = x1 * y1 + (middle >> half) + (other >> half)
    if signed:
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.astype(np.uint64).view(a.dtype)


def _high(a, b):
    bits = a.dtype.itemsize * 8
    if bits == 64:
        return _high64(*np.broadcast_arrays(a, b))
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    return (a.astype(wide) * b.astype(wide)) >> np.array(bits).astype(wide)


def _multiply_wide(a, b, out):
    np.multiply(a, b, out, dtype=out.dtype)


def _add_product_low(a, b, c, out):
    np.multiply(a, b, out)
    np.add(out, c, out)


def _mul(base: str, mods: list[str]) -> AluRow | None:
    """mul, mad: 9.7.1.3, 9.7.1.4."""
    part = choose(mods, "lo", "hi", "wide")
    if part is None or len(mods) != 1 or mods[0] not in INTEGERS:
        return None
    kind, mad = mods[0], base == "mad"
    if part == "wide" and kind not in _WIDE:
        return None
    result = _WIDE[kind] if part == "wide" else kind
    srcs = (kind, kind, result) if mad else (kind, kind)
    isa = "9.7.1.4" if mad else "9.7.1.3"
    if part == "lo":
        function = _add_product_low if mad else np.multiply
        return AluRow(result, srcs, function, isa, into=True)
    if part == "wide":
        if not mad:
            return AluRow(result, srcs, _multiply_wide, isa, into=True)
        wide = NUMPY[result]
        return AluRow(result, srcs, lambda a, b, c: np.multiply(a, b, dtype=wide) + c, isa)
    if not mad:
        return AluRow(result, srcs, _high, isa)
    return AluRow(result, srcs, lambda a, b, c: _high(a, b).astype(c.dtype) + c, isa)


def _divide(a, b):
    """Quotient towards zero; a zero divisor gives all ones (the manual leaves it open)."""
    safe = np.where(b == 0, np.ones(1, b.dtype), b)
    if a.dtype.kind == "u":
        quotient = a // safe
    else:
        quotient = (a - np.fmod(a, safe)) // safe
    return np.where(b == 0, np.array(-1).astype(a.dtype), quotient)


def _remainder(a, b):
    safe = np.where(b == 0, np.ones(1, b.dtype), b)
    return np.where(b == 0, a, np.fmod(a, safe))


def _div_rem(base: str, mods: list[str]) -> AluRow | None:
    """div, rem: 9.7.1.8, 9.7.1.9."""
    if len(mods) != 1 or mods[0] not in INTEGERS:
        return None
    function = _divide if base == "div" else _remainder
    return AluRow(mods[0], (mods[0],) * 2, function, "9.7.1.8")


def _unary(base: str, mods: list[str]) -> AluRow | None:
    """abs, neg: 9.7.1.10, 9.7.1.11."""
    if len(mods) != 1 or mods[0] not in ("s16", "s32", "s64"):
        return None
    function = np.absolute if base == "abs" else np.negative
    return AluRow(mods[0], (mods[0],), function, "9.7.1.10", into=True)


def _min_max(base: str, mods: list[str]) -> AluRow | None:
    """min, max of integers: 9.7.1.12, 9.7.1.13."""
    relu = choose(mods, "relu")
    function = np.minimum if base == "min" else np.maximum
    if len(mods) != 1 or mods[0] not in INTEGERS or (relu and mods[0] != "s32"):
        return None
    if relu:
        return AluRow("s32", ("s32",) * 2, lambda a, b: np.maximum(function(a, b), 0), "9.7.1.12")
    return AluRow(mods[0], (mods[0],) * 2, function, "9.7.1.12", into=True)


def _shift(base: str, mods: list[str]) -> AluRow | None:
    """shl, shr: amounts above the width are clamped to it. 9.7.8.7, 9.7.8.8."""
    allowed = ("b16", "b32", "b64") if base == "shl" else ("b16", "b32", "b64", *INTEGERS)
    if len(mods) != 1 or mods[0] not in allowed:
        return None
    kind = mods[0]
    function = partial(_shift_by, base == "shl", _bits(kind))
    return AluRow(kind, (kind, "u32"), function, "9.7.8.7", into=True)


def _shift_by(left: bool, bits: int, a, amount, out):
    function = np.left_shift if left else np.right_shift
    if amount.size == 1 and amount[0] < bits:
        function(a, amount.astype(a.dtype), out)
        return
    big = amount >= bits
    signed = a.dtype.kind == "i" and not left
    clamped = np.where(big, bits - 1 if signed else 0, amount).astype(a.dtype)
    value = function(a, clamped)
    np.copyto(out, value if signed else np.where(big, np.zeros(1, a.dtype), value))


def _logic(base: str, mods: list[str]) -> AluRow | None:
    """and, or, xor, not: 9.7.8.1 to 9.7.8.4."""
    if len(mods) != 1 or mods[0] not in ("pred", "b16", "b32", "b64"):
        return None
    kind = mods[0]
    if base == "not":
        function = np.logical_not if kind == "pred" else np.invert
        return AluRow(kind, (kind,), function, "9.7.8.4", into=True)
    function = (_BOOL if kind == "pred" else _LOGIC)[base]
    return AluRow(kind, (kind,) * 2, function, "9.7.8.1", into=True)


def _lop3(a, b, c, table):
    lut, result = int(table[0]), np.zeros(np.broadcast(a, b, c).shape, np.uint32)
    for row in range(8):
        if lut >> row & 1:
            result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return result


def _prmt(a, b, c):
    a, b, c = np.broadcast_arrays(a, b, c)
    pair = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    result = np.zeros(a.shape, np.uint64)
    for index in range(4):
        selector = (c >> np.uint32(4 * index)).astype(np.uint64) & np.uint64(15)
        byte = pair >> (np.uint64(8) * (selector & np.uint64(7))) & np.uint64(255)
        sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
        byte = np.where(selector & np.uint64(8), sign, byte)
        result |= byte << np.uint64(8 * index)
    return result


def _funnel(left: bool, clamp: bool, a, b, c):
    """shf: the 64-bit value b:a shifted; l gives the high word, r the low one. 9.7.8.6."""
    a, b, c = (x.astype(np.uint64) for x in np.broadcast_arrays(a, b, c))
    amount = np.minimum(c, np.uint64(32)) if clamp else c & np.uint64(31)
    both = b << np.uint64(32) | a
    if left:
        return np.where(amount == 32, a, both << amount >> np.uint64(32))
    return np.where(amount == 32, b, both >> amount) & np.uint64(0xFFFFFFFF)


def _extract(kind: str, a, position, length):
    """bfe: 9.7.1.19."""
    bits = _bits(kind)
    value = a.view(f"u{bits // 8}").astype(np.uint64)
    position, length = (x.astype(np.int64) & 255 for x in (position, length))
    value, position, length = np.broadcast_arrays(value, position, length)
    width = np.minimum(length, bits)
    mask = np.where(
        width >= 64, ~np.uint64(0), (np.uint64(1) << np.uint64(width % 64)) - np.uint64(1)
    )
    shifted = np.where(position < bits, value >> np.minimum(position, 63).astype(np.uint64), 0)
    if kind[0] == "u":
        return shifted & mask
    top = np.minimum(position + length - 1, bits - 1)
    sign = (value >> np.maximum(top, 0).astype(np.uint64) & np.uint64(1)).astype(bool) & (
        length > 0
    )
    room = np.clip(bits - position, 0, width)
    held = np.where(
        room >= 64, ~np.uint64(0), (np.uint64(1) << np.uint64(room % 64)) - np.uint64(1)
    )
    filled = (shifted & mask & held) | np.where(sign, ~(held & mask), np.uint64(0))
    return (filled & np.uint64(2**bits - 1)).astype(f"u{bits // 8}").view(NUMPY[kind])


def _insert(bits: int, a, b, position, length):
    """bfi: 9.7.1.20."""
    a, b, position, length = np.broadcast_arrays(a, b, position, length)
    position, length = position.astype(np.int64) & 255, length.astype(np.int64) & 255
    width = np.clip(np.minimum(length, bits - position), 0, bits)
    ones = np.where(
        width >= 64, ~np.uint64(0), (np.uint64(1) << np.uint64(width % 64)) - np.uint64(1)
    )
    mask = ones << np.minimum(position, 63).astype(np.uint64)
    moved = a.astype(np.uint64) << np.minimum(position, 63).astype(np.uint64)
    return np.where(width > 0, (b & ~mask) | (moved & mask), b.astype(np.uint64))


def _leading_zeros(bits: int, a):
    count = np.zeros(a.shape, np.uint32)
    value = a.astype(np.uint64) << np.uint64(64 - bits)
    for shift in (32, 16, 8, 4, 2, 1):
        empty = value >> np.uint64(64 - shift) == 0
        count += np.where(empty, shift, 0).astype(np.uint32)
        value = np.where(empty, value << np.uint64(shift), value)
    return np.minimum(np.where(a == 0, bits, count), bits)


def _reverse(bits: int, a):
    bytes_ = np.unpackbits(np.ascontiguousarray(a).view(np.uint8).reshape(-1, bits // 8), axis=1,
                           bitorder="little")  # fmt: skip
    return np.packbits(bytes_[:, ::-1], axis=1, bitorder="little").view(a.dtype)[:, 0]


def _find_leading(kind: str, shift_amount: bool, a):
    """bfind: 9.7.1.16."""
    bits = _bits(kind)
    value = np.where(a < 0, ~a, a).astype(f"u{bits // 8}") if kind[0] == "s" else a
    zeros = _leading_zeros(bits, value)
    found = zeros if shift_amount else bits - 1 - zeros.astype(np.int64)
    return np.where(value == 0, 0xFFFFFFFF, found)


def _bit_ops(base: str, mods: list[str]) -> AluRow | None:
    """lop3, prmt, shf, bfe, bfi, popc, clz, brev, bfind: 9.7.1.14 to 9.7.1.20, 9.7.8."""
    text = ".".join(mods)
    b32, b64 = text == "b32", text == "b64"
    if base == "lop3" and b32:
        return AluRow("b32", ("b32",) * 4, _lop3, "9.7.8.5")
    if base == "prmt" and b32:
        return AluRow("b32", ("b32",) * 3, _prmt, "9.7.9.7")
    if base == "shf" and len(mods) == 3 and mods[0] in "lr" and mods[2] == "b32":
        if mods[1] in ("wrap", "clamp"):
            function = partial(_funnel, mods[0] == "l", mods[1] == "clamp")
            return AluRow("b32", ("b32", "b32", "u32"), function, "9.7.8.6")
    if base == "bfe" and text in ("u32", "s32", "u64", "s64"):
        return AluRow(text, (text, "u32", "u32"), partial(_extract, text), "9.7.1.19")
    if base == "bfi" and (b32 or b64):
        function = partial(_insert, _bits(text))
        return AluRow(text, (text, text, "u32", "u32"), function, "9.7.1.20")
    if base == "popc" and (b32 or b64):
        return AluRow("u32", (text,), np.bitwise_count, "9.7.1.14")
    if base == "clz" and (b32 or b64):
        return AluRow("u32", (text,), partial(_leading_zeros, _bits(text)), "9.7.1.15")
    if base == "brev" and (b32 or b64):
        return AluRow(text, (text,), partial(_reverse, _bits(text)), "9.7.1.18")
    if base == "bfind":
        shift_amount = bool(choose(mods, "shiftamt"))
        if len(mods) == 1 and mods[0] in ("u32", "s32", "u64", "s64"):
            function = partial(_find_leading, mods[0], shift_amount)
            return AluRow("u32", (mods[0],), function, "9.7.1.16")
    return None


def comparison(name: str, kind: str):
    """The comparison `name` on `kind`, or None. PTX ISA 9.3.1, 9.7.6."""
    floating = kind in ("f32", "f64", "f16", "bf16")
    if name in _COMPARE:
        if not floating or name != "ne":
            return _COMPARE[name] if kind[0] != "b" or name in ("eq", "ne") or floating else None
        return lambda a, b: (a != b) & ~np.isnan(a) & ~np.isnan(b)
    if name in _UNSIGNED_COMPARE and kind[0] == "u":
        return _COMPARE[_UNSIGNED_COMPARE[name]]
    if not floating:
        return None
    if name in _UNORDERED:
        base = _COMPARE[_UNORDERED[name]]
        return lambda a, b: base(a, b) | np.isnan(a) | np.isnan(b)
    if name == "num":
        return lambda a, b: ~np.isnan(a) & ~np.isnan(b)
    if name == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    return None


def _setp(base: str, mods: list[str]) -> AluRow | None:
    """setp: 9.7.6.2. The second destination and the combination are bound by the machine."""
    kinds = (*INTEGERS, "b16", "b32", "b64", "f32", "f64", "f16", "bf16")
    if len(mods) < 2 or mods[-1] not in kinds:
        return None
    compare = comparison(mods[0], mods[-1])
    middle = mods[1:-1]
    combine = choose(middle, "and", "or", "xor")
    choose(middle, "ftz")
    if compare is None or middle:
        return None
    kind = mods[-1]
    if combine is None:
        return AluRow("pred", (kind,) * 2, compare, "9.7.6.2", into=isinstance(compare, np.ufunc))
    function = _BOOL[combine]
    return AluRow(
        "pred", (kind, kind, "pred"), lambda a, b, c: function(compare(a, b), c), "9.7.6.2"
    )


@lru_cache(maxsize=256)
def inverted(op: str) -> AluRow:
    """The row of a setp's second destination: the comparison's opposite, combined alike."""
    mods = op.split(".")[1:]
    compare = comparison(mods[0], mods[-1])
    combine = next((_BOOL[mod] for mod in mods[1:-1] if mod in _BOOL), None)
    kind = mods[-1]
    if combine is None:
        return AluRow("pred", (kind,) * 2, lambda a, b: ~compare(a, b), "9.7.6.2")
    return AluRow(
        "pred", (kind, kind, "pred"), lambda a, b, c: combine(~compare(a, b), c), "9.7.6.2"
    )


def _set(base: str, mods: list[str]) -> AluRow | None:
    """set: all ones (or 1.0) where the comparison holds. 9.7.6.1."""
    if len(mods) < 3 or mods[-2] not in ("u32", "s32", "f32") or mods[-1] not in NUMPY:
        return None
    middle = mods[1:-2]
    choose(middle, "ftz")
    compare = comparison(mods[0], mods[-1])
    if middle or compare is None:
        return None
    true = 1.0 if mods[-2] == "f32" else (2**32 - 1 if mods[-2] == "u32" else -1)
    return AluRow(
        mods[-2], (mods[-1],) * 2, lambda a, b: np.where(compare(a, b), true, 0), "9.7.6.1"
    )


def _select(a, b, p):
    return np.where(p, a, b)


def _selp(base: str, mods: list[str]) -> AluRow | None:
    """selp: 9.7.6.3."""
    if len(mods) != 1 or mods[0] not in (*INTEGERS, "b16", "b32", "b64", "f32", "f64"):
        return None
    return AluRow(mods[0], (mods[0], mods[0], "pred"), _select, "9.7.6.3")


def _move(source, out):
    np.copyto(out, source)


def _cvta(mods: list[str]) -> AluRow | None:
    """cvta: global addresses are generic ones; the other spaces have windows. 9.7.9.20."""
    back = choose(mods, "to") is not None
    windows = {"global": 0, "const": 0, "param": PARAM_WINDOW, "param::entry": PARAM_WINDOW}
    windows |= {"shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "local": LOCAL_WINDOW}
    if len(mods) != 2 or mods[1] != "u64" or mods[0] not in windows:
        return None
    window = np.uint64(windows[mods[0]])
    function = np.subtract if back else np.add
    return AluRow("u64", ("u64",), lambda a: function(a, window), "9.7.9.20")


def _mov(base: str, mods: list[str]) -> AluRow | None:
    """mov, cvta: 9.7.9.1, 9.7.9.20."""
    if base == "cvta":
        return _cvta(mods)
    kinds = ("pred", "b16", "b32", "b64", *INTEGERS, "f16", "bf16", "f32", "f64")
    if len(mods) != 1 or mods[0] not in kinds:
        return None
    return AluRow(mods[0], (mods[0],), _move, "9.7.9.1", into=True)


_FAMILIES = {
    "add": _add_sub, "sub": _add_sub, "mul": _mul, "mad": _mul, "div": _div_rem, "rem": _div_rem,
    "abs": _unary, "neg": _unary, "min": _min_max, "max": _min_max, "shl": _shift, "shr": _shift,
    "and": _logic, "or": _logic, "xor": _logic, "not": _logic, "lop3": _bit_ops,
    "prmt": _bit_ops, "shf": _bit_ops, "bfe": _bit_ops, "bfi": _bit_ops, "popc": _bit_ops,
    "clz": _bit_ops, "brev": _bit_ops, "bfind": _bit_ops, "setp": _setp, "set": _set,
    "selp": _selp, "mov": _mov, "cvta": _mov,
}  # fmt: skip
_TABLES = (_FAMILIES, FLOAT_FAMILIES, DIRECTED_FAMILIES, PRODUCT_FAMILIES, PAIR_FAMILIES)


@lru_cache(maxsize=4096)
def resolve(op: str) -> AluRow | None:
    """The row of an opcode with its modifiers, or None if it is no ALU instruction we know."""
    base, *mods = op.split(".")
    for families in _TABLES:
        family = families.get(base)
        row = family(base, list(mods)) if family and mods else None
        if row is not None:
            return row
    return None
