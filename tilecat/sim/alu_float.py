"""ALU table, floating point and conversions. PTX ISA 9.7.3, 9.7.4, 9.7.5, 9.7.9.21 (cvt)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np

from tilecat.sim.alu_types import BF16, HALVES, INTEGERS, NUMPY, AluRow, choose, flush, round_to

_INTS = ("u8", "s8", *INTEGERS)
_ROUND_INT = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_FP8 = {"e4m3x2": ml_dtypes.float8_e4m3fn, "e5m2x2": ml_dtypes.float8_e5m2}


def _wrapped(function, ftz: bool, sat: bool):
    """`function` with float32 inputs and result flushed, and the result clamped to [0, 1]."""

    def apply(*srcs):
        value = function(*(flush(s) if s.dtype == np.float32 else s for s in srcs) if ftz else srcs)
        if ftz:
            value = flush(value)
        return np.where(np.isnan(value), 0, np.clip(value, 0, 1)) if sat else value

    return apply


def _row(kind: str, count: int, function, isa: str, ftz: bool = False, sat: bool = False) -> AluRow:
    plain_ufunc = isinstance(function, np.ufunc) and not ftz and not sat
    apply = _wrapped(function, ftz, sat) if ftz or sat else function
    return AluRow(kind, (kind,) * count, apply, isa, into=plain_ufunc)


def fused(a, b, c):
    """A * b + c with one rounding (float64 inside; float64 itself rounds twice)."""
    dtype = a.dtype
    exact = np.multiply(a, b, dtype=np.float64) if dtype != BF16 else (
        a.astype(np.float64) * b.astype(np.float64))  # fmt: skip
    exact = exact + c.astype(np.float64)
    return round_to(exact, dtype) if dtype.itemsize == 2 else exact


def _fused_f32(a, b, c, out):
    exact = np.multiply(a, b, dtype=np.float64)
    np.add(exact, c, exact)
    np.copyto(out, exact, casting="same_kind")


_ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def _arithmetic(base: str, mods: list[str]) -> AluRow | None:
    """add, sub, mul: round to nearest only. 9.7.3.1 to 9.7.3.5, 9.7.4.1 to 9.7.4.3."""
    choose(mods, "rn")
    ftz, sat = bool(choose(mods, "ftz")), bool(choose(mods, "sat"))
    if len(mods) != 1 or mods[0] not in ("f32", "f64", *HALVES):
        return None
    if ftz and mods[0] != "f32" or sat and mods[0] not in ("f32", "f16", "f16x2"):
        return None
    return _row(mods[0], 2, _ARITHMETIC[base], "9.7.3.3", ftz, sat)


def _fma(base: str, mods: list[str]) -> AluRow | None:
    """fma, mad of floats: 9.7.3.6, 9.7.3.7, 9.7.4.4."""
    rounding = choose(mods, "rn")
    ftz, sat = bool(choose(mods, "ftz")), bool(choose(mods, "sat"))
    relu = bool(choose(mods, "relu"))
    if rounding is None or len(mods) != 1 or mods[0] not in ("f32", "f64", *HALVES):
        return None
    kind = mods[0]
    if (ftz or sat) and kind in ("f64", "bf16", "bf16x2") or relu and kind not in HALVES:
        return None
    if base == "mad" and kind in HALVES:
        return None
    if kind == "f32" and not (ftz or sat):
        return AluRow("f32", ("f32",) * 3, _fused_f32, "9.7.3.6", into=True)

    def apply(*srcs):
        value = fused(*srcs)
        return np.where(value > 0, value, np.zeros(1, value.dtype)) if relu else value

    if kind == "f32":
        return _row("f32", 3, lambda *s: fused(*s).astype(np.float32), "9.7.3.6", ftz, sat)
    return _row(kind, 3, apply, "9.7.4.4", False, sat)


def _propagate(function, a, b):
    return np.where(np.isnan(a) | np.isnan(b), np.array(np.nan, a.dtype), function(a, b))


def _min_max(base: str, mods: list[str]) -> AluRow | None:
    """min, max: the operand that is a number, unless `.NaN`. 9.7.3.11, 9.7.3.12, 9.7.4.9."""
    ftz, nan, size = (bool(choose(mods, mod)) for mod in ("ftz", "NaN", "abs"))
    if len(mods) != 1 or mods[0] not in ("f32", "f64", *HALVES) or (nan and mods[0] == "f64"):
        return None
    if ftz and mods[0] not in ("f32", "f16", "f16x2"):
        return None
    function = np.fmin if base == "min" else np.fmax
    if nan:
        function = partial(_propagate, np.minimum if base == "min" else np.maximum)
    if mods[0] != "f32":
        return None if size else _row(mods[0], 2, function, "9.7.3.11")
    longer = replace(_row("f32", 3, partial(_of_three, function, size), "9.7.3.11", ftz),
                     needs="since-100")  # fmt: skip
    if size:  # with .abs there are three operands, as .xorsign is not implemented
        return longer
    return replace(_row("f32", 2, function, "9.7.3.11", ftz), longer=longer)


def _of_three(function, size: bool, a, b, c):
    """Of the three values, or of their magnitudes."""
    if size:
        a, b, c = np.abs(a), np.abs(b), np.abs(c)
    return function(function(a, b), c)


def _sign(base: str, mods: list[str]) -> AluRow | None:
    """abs, neg, copysign, testp: 9.7.3.1, 9.7.3.2, 9.7.3.9, 9.7.3.10, 9.7.4."""
    if base == "copysign":
        if mods not in (["f32"], ["f64"]):
            return None
        return AluRow(mods[0], (mods[0],) * 2, lambda a, b: np.copysign(b, a), "9.7.3.2")
    if base == "testp":
        return _testp(mods)
    ftz = bool(choose(mods, "ftz"))
    if len(mods) != 1 or mods[0] not in ("f32", "f64", *HALVES) or (ftz and mods[0] != "f32"):
        return None
    return _row(mods[0], 1, np.absolute if base == "abs" else np.negative, "9.7.3.9", ftz)


def _testp(mods: list[str]) -> AluRow | None:
    tests = {
        "finite": np.isfinite, "infinite": np.isinf, "notanumber": np.isnan,
        "number": lambda a: ~np.isnan(a),
        "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
        "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
    }  # fmt: skip
    if len(mods) != 2 or mods[0] not in tests or mods[1] not in ("f32", "f64"):
        return None
    return AluRow("pred", (mods[1],), tests[mods[0]], "9.7.3.1")


def _reciprocal(a):
    return np.divide(np.ones(1, a.dtype), a)


def _reciprocal_root(a):
    return np.divide(np.ones(1, a.dtype), np.sqrt(a))


_APPROXIMATE = {
    "ex2": np.exp2, "lg2": np.log2, "rcp": _reciprocal, "sqrt": np.sqrt, "sin": np.sin,
    "cos": np.cos, "rsqrt": _reciprocal_root, "tanh": np.tanh,
}  # fmt: skip


def _gross(function, a: np.ndarray) -> np.ndarray:
    """An approximation from the high 32 bits of a double, to its high 32 bits. 9.7.3.14."""
    mask, tiny = np.uint64(0xFFFFFFFF00000000), np.finfo(np.float64).tiny

    def flushed(value: np.ndarray) -> np.ndarray:
        return np.where(np.abs(value) < tiny, np.copysign(0.0, value), value)

    result = function(flushed((a.view(np.uint64) & mask).view(np.float64)))
    return (flushed(result).view(np.uint64) & mask).view(np.float64)


def _special(base: str, mods: list[str]) -> AluRow | None:
    """Approximations, computed to float32 accuracy: 9.7.3.13 to 9.7.3.22, 9.7.4.10, 9.7.4.11."""
    rounding = choose(mods, "approx", "rn", "full")
    ftz = bool(choose(mods, "ftz"))
    if rounding is None or len(mods) != 1:
        return None
    kind = mods[0]
    if base == "div":
        allowed = kind == "f32" or kind == "f64" and rounding == "rn" and not ftz
        return _row(kind, 2, np.divide, "9.7.3.8", ftz) if allowed else None
    if base in ("rcp", "rsqrt") and (rounding, ftz, kind) == ("approx", True, "f64"):
        return AluRow("f64", ("f64",), partial(_gross, _APPROXIMATE[base]), "9.7.3.14")
    exact = base in ("rcp", "sqrt") and rounding == "rn"
    if rounding == "full" or rounding == "rn" and not exact or base == "tanh" and ftz:
        return None
    function = _APPROXIMATE[base]
    if kind in HALVES and base in ("ex2", "tanh") and not (ftz and "bf" not in kind):
        dtype = NUMPY[kind]
        return AluRow(
            kind, (kind,), lambda a: function(a.astype(np.float32)).astype(dtype), "9.7.4.11"
        )
    if kind == "f64" and exact and not ftz:
        return _row(kind, 1, function, "9.7.3.13")
    if kind != "f32":
        return None
    if base == "ex2" and ftz:
        return AluRow("f32", ("f32",), _exp2_flushed, "9.7.3.21", into=True)
    return _row("f32", 1, function, "9.7.3.13", ftz)


def _exp2_flushed(a, out):
    """ex2.approx.ftz: results below 2^-126 are zero; flushed inputs give 1 anyway."""
    np.exp2(a, out)
    if out.min() < np.float32(2.0**-126):
        np.copyto(out, 0, where=out < np.float32(2.0**-126))


def _integer_limits(kind: str) -> tuple[int, int]:
    info = np.iinfo(NUMPY[kind])
    return int(info.min), int(info.max)


def _float_to_integer(mode: str, kind: str, ftz: bool, a):
    """Rounded, clamped to the type's range; NaN gives 0. 9.7.9.21."""
    low, high = _integer_limits(kind)
    wide = flush(a).astype(np.float64) if ftz else a.astype(np.float64)
    value = _ROUND_INT[mode](wide)
    above, below = value >= float(high), value <= float(low)
    inside = np.where(above | below | np.isnan(value), 0.0, value).astype(NUMPY[kind])
    result = np.where(above, np.array(high, NUMPY[kind]), inside)
    return np.where(below, np.array(low, NUMPY[kind]), result)


def _clamp_integer(kind: str, a):
    low, high = _integer_limits(kind)
    source = np.iinfo(a.dtype)
    lower, upper = max(low, int(source.min)), min(high, int(source.max))
    return np.clip(a, np.array(lower, a.dtype), np.array(upper, a.dtype)).astype(NUMPY[kind])


def _integer_to_float(mode: str, kind: str, a):
    if mode == "rn":
        wide = a if kind in ("f32", "f64") else a.astype(np.float64)
        return wide.astype(NUMPY[kind]) if kind in ("f32", "f64") else round_to(wide, NUMPY[kind])
    return round_to(a.astype(np.float64), NUMPY[kind], mode)


def _float_to_float(target: str, mode: str, ftz: bool, relu: bool, sat: str | None, a):
    value = flush(a) if ftz and a.dtype == np.float32 else a
    dtype = NUMPY[target]
    if mode in _ROUND_INT:
        result = _ROUND_INT[mode](value.astype(np.float64)).astype(dtype)
    else:
        result = round_to(value, dtype, mode)
    if ftz and dtype == np.float32:
        result = flush(result)
    if sat == "sat":
        result = np.where(np.isnan(result), 0, np.clip(result.astype(np.float64), 0, 1)).astype(
            dtype
        )
    elif sat == "satfinite":
        result = np.clip(result, ml_dtypes.finfo(dtype).min, ml_dtypes.finfo(dtype).max).astype(
            dtype
        )
    return np.where(result < 0, np.zeros(1, dtype), result) if relu else result


def _pack(dtype, mode: str, relu: bool, sat: bool, a, b):
    """Two float32 to one word, the first operand in the high half."""
    halves = []
    for source in np.broadcast_arrays(b, a):
        value = np.where(source < 0, np.float32(0), source) if relu else source
        value = round_to(value, dtype, mode)
        if sat:
            value = np.clip(value, ml_dtypes.finfo(dtype).min, ml_dtypes.finfo(dtype).max)
        halves.append(value.astype(dtype).view(np.uint16))
    return halves[0].astype(np.uint32) | halves[1].astype(np.uint32) << np.uint32(16)


def _pack_bf16(a, b, out):
    halves = out.view(BF16)
    np.copyto(halves[0::2], b, casting="unsafe")
    np.copyto(halves[1::2], a, casting="unsafe")


def to_fp8(values, dtype, relu: bool):
    """Nearest, finite values only: cvt.rn.satfinite. NaN stays NaN."""
    limit = np.float32(ml_dtypes.finfo(dtype).max)
    clipped = np.where(np.isnan(values), values, np.clip(values, -limit, limit))
    if relu:
        clipped = np.where(clipped < 0, np.float32(0), clipped)
    return clipped.astype(dtype).view(np.uint8)


def _pack_fp8(dtype, relu: bool, a, b):
    a, b = np.broadcast_arrays(a, b)
    return to_fp8(b, dtype, relu).astype(np.uint16) | (
        to_fp8(a, dtype, relu).astype(np.uint16) << np.uint16(8)
    )


def _halves_to_fp8(dtype, relu: bool, a):
    values = a.astype(np.float32).reshape(-1, 2)
    return _pack_fp8(dtype, relu, values[:, 1], values[:, 0])


def _fp8_to_halves(dtype, relu: bool, a):
    values = np.ascontiguousarray(a).view(np.uint8).view(dtype).astype(np.float16)
    return np.where(values < 0, np.float16(0), values) if relu else values


def _to_tf32(mode: str, a):
    """Cvt to tf32: 10 mantissa bits; rna ties away, rn ties to even, rz truncates. 9.7.9.21."""
    bits = a.view(np.uint32)
    if mode == "rz":
        rounded = bits
    elif mode == "rna":
        rounded = bits + np.uint32(0x1000)
    else:
        rounded = bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))
    return np.where(np.isfinite(a), rounded & np.uint32(0xFFFFE000), bits)


def _cvt_packed(mods: list[str]) -> AluRow | None:
    mode = choose(mods, "rn", "rz", "rna")
    first = choose(mods, "satfinite", "relu")
    second = choose(mods, "relu", "satfinite")
    relu, sat = "relu" in (first, second), "satfinite" in (first, second)
    if len(mods) != 2 or mode is None:
        return None
    target, source = mods
    if target in ("f16x2", "bf16x2") and source == "f32" and mode in ("rn", "rz"):
        if target == "bf16x2" and mode == "rn" and not (relu or sat):
            return AluRow("b32", ("f32", "f32"), _pack_bf16, "9.7.9.21", into=True)
        function = partial(_pack, NUMPY[target], mode, relu, sat)
        return AluRow("b32", ("f32", "f32"), function, "9.7.9.21")
    if target in _FP8 and mode == "rn" and sat:
        if source == "f32":
            return AluRow("b16", ("f32", "f32"), partial(_pack_fp8, _FP8[target], relu), "9.7.9.21")
        if source == "f16x2":
            return AluRow(
                "b16", ("f16x2",), partial(_halves_to_fp8, _FP8[target], relu), "9.7.9.21"
            )
    if target == "f16x2" and source in _FP8 and mode == "rn" and not sat:
        return AluRow("f16x2", ("b16",), partial(_fp8_to_halves, _FP8[source], relu), "9.7.9.21")
    if target == "tf32" and source == "f32" and not (relu or sat):
        return AluRow("b32", ("f32",), partial(_to_tf32, mode), "9.7.9.21")
    return None


def _cvt(base: str, mods: list[str]) -> AluRow | None:
    """cvt: 9.7.9.21."""
    row = _cvt_packed(list(mods))
    if row is not None:
        return row
    mode = choose(mods, "rn", "rz", "rm", "rp", *_ROUND_INT)
    ftz, relu = bool(choose(mods, "ftz")), bool(choose(mods, "relu"))
    sat = choose(mods, "sat", "satfinite")
    if len(mods) != 2:
        return None
    target, source = mods
    floats = ("f16", "bf16", "f32", "f64")
    if target in _INTS and source in _INTS and mode is None and not (ftz or relu):
        if sat == "sat":
            return _cvt_row(target, source, partial(_clamp_integer, target))
        return _cvt_row(target, source, lambda a: a.astype(NUMPY[target]))
    if target in _INTS and source in floats and mode in _ROUND_INT and not relu:
        return _cvt_row(target, source, partial(_float_to_integer, mode, target, ftz))
    if target in floats and source in _INTS and mode in ("rn", "rz", "rm", "rp") and not sat:
        return _cvt_row(target, source, partial(_integer_to_float, mode, target))
    if target not in floats or source not in floats:
        return None
    if {target, source} == {"f16", "bf16"}:
        mode = mode or "rn"  # ptxas makes one instruction of both spellings
    narrower = NUMPY[target].itemsize < NUMPY[source].itemsize or {target, source} == {
        "f16",
        "bf16",
    }
    if narrower and mode is None or not narrower and mode in ("rn", "rz", "rm", "rp") and (
        target != source):  # fmt: skip
        return None
    function = partial(_float_to_float, target, mode or "rn", ftz, relu, sat)
    return _cvt_row(target, source, function)


def _cvt_row(target: str, source: str, function) -> AluRow:
    return AluRow(target, (source,), function, "9.7.9.21", loose=True)


FLOAT_FAMILIES = {
    **dict.fromkeys(("add", "sub", "mul"), _arithmetic),
    **dict.fromkeys(("fma", "mad"), _fma),
    **dict.fromkeys(("min", "max"), _min_max),
    **dict.fromkeys(("abs", "neg", "copysign", "testp"), _sign),
    **dict.fromkeys(("div", *_APPROXIMATE), _special),
    "cvt": _cvt,
}
