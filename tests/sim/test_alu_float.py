"""Floating-point rows and conversions against NumPy, ml_dtypes and exact rationals."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from .test_alu import EDGES, FLOATS, execute, signed

F32 = np.array(FLOATS, np.float32)
BF16 = ml_dtypes.bfloat16


def float_pairs() -> tuple[np.ndarray, np.ndarray]:
    """All pairs of float32 edge values."""
    a, b = np.meshgrid(F32, F32)
    return a.ravel(), b.ravel()


def bits(values: np.ndarray) -> np.ndarray:
    """The bits of an array."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal values, signs of zero included; NaN for NaN."""
    g, w = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(g, w)
    number = ~np.isnan(w)
    np.testing.assert_array_equal(np.signbit(g[number]), np.signbit(w[number]))


@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_f32_arithmetic(name):
    a, b = float_pairs()
    with np.errstate(all="ignore"):
        want = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[name](a, b)
    same(execute(f"{name}.f32", [bits(a), bits(b)], np.dtype("u4")).view("f4"), want)


def test_fma_rounds_once():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(300).astype("f4") for _ in range(2))
    c = (-(a.astype("f8") * b)).astype("f4")
    got = execute("fma.rn.f32", [bits(a), bits(b), bits(c)], np.dtype("u4")).view("f4")
    want = [float(np.float32(float(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))))
            for x, y, z in zip(a, b, c, strict=True)]  # fmt: skip
    assert got.tolist() == want
    assert np.any(got != (a * b + c)), "a product rounded first would give other values"


@pytest.mark.parametrize("name", ["min", "max"])
def test_min_max_prefer_the_number(name):
    a, b = float_pairs()
    got = execute(f"{name}.f32", [bits(a), bits(b)], np.dtype("u4")).view("f4")
    pick = min if name == "min" else max
    for x, y, z in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        numbers = [v for v in (x, y) if not math.isnan(v)]
        assert z == pick(numbers) if numbers else math.isnan(z)
    loud = execute(f"{name}.NaN.f32", [bits(a), bits(b)], np.dtype("u4")).view("f4")
    assert np.isnan(loud).tolist() == (np.isnan(a) | np.isnan(b)).tolist()


def test_ftz_flushes_inputs_and_results():
    a = np.array([1e-40, -1e-40, 2e-38, 1.0], "f4")
    b = np.array([1.0, 1.0, 0.25, 2.0], "f4")
    got = execute("mul.ftz.f32", [bits(a), bits(b)], np.dtype("u4")).view("f4")
    same(got, np.array([0.0, -0.0, 0.0, 2.0], "f4"))
    kept = execute("mul.f32", [bits(a), bits(b)], np.dtype("u4")).view("f4")
    assert (kept[:3] != 0).all()
    with np.errstate(all="ignore"):
        low = execute("ex2.approx.ftz.f32", [bits(np.array([-130, -126, 0], "f4"))], np.dtype("u4"))
    assert low.view("f4").tolist() == [0.0, 2.0**-126, 1.0]


UNARY = {
    "ex2.approx.f32": np.exp2, "lg2.approx.f32": np.log2, "sqrt.approx.f32": np.sqrt,
    "rcp.approx.f32": lambda x: 1 / x, "rsqrt.approx.f32": lambda x: 1 / np.sqrt(x),
    "sin.approx.f32": np.sin, "cos.approx.f32": np.cos, "tanh.approx.f32": np.tanh,
    "neg.f32": np.negative, "abs.f32": np.abs, "sqrt.rn.f32": np.sqrt,
}  # fmt: skip


@pytest.mark.parametrize("op", list(UNARY))
def test_unary_functions(op):
    values = np.linspace(0.01, 9, 64).astype("f4")
    got = execute(op, [bits(values)], np.dtype("u4")).view("f4")
    np.testing.assert_allclose(got, UNARY[op](values.astype("f8")), rtol=3e-7, atol=3e-7)


COMPARE = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


@pytest.mark.parametrize("name", [*COMPARE, *(f"{name}u" for name in COMPARE), "num", "nan"])
def test_setp_f32_ordered_and_unordered(name):
    a, b = float_pairs()
    form = f"mov.b32 %f1, %r1; mov.b32 %f2, %r2; setp.{name}.f32 %p1|%p2, %f1, %f2;"
    form += " selp.u32 %r10, 1, 0, %p1; @%p2 or.b32 %r10, %r10, 2;"
    got = execute("", [bits(a), bits(b)], np.dtype("u4"), form)
    for x, y, z in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        unordered = math.isnan(x) or math.isnan(y)
        if name in ("num", "nan"):
            want = unordered == (name == "nan")
        elif name in COMPARE:
            want = not unordered and COMPARE[name](x, y)
        else:
            want = unordered or COMPARE[name[:-1]](x, y)
        assert z == (1 if want else 2)


@pytest.mark.parametrize("combine", ["and", "or", "xor"])
def test_setp_combines_with_a_predicate(combine):
    a = np.array(EDGES[32], np.uint32)
    b = np.roll(a, 3)
    form = f"setp.gt.u32 %p3, %r1, 100; setp.lt.{combine}.s32 %p4|%p5, %r1, %r2, !%p3;"
    form += " selp.u32 %r10, 1, 0, %p4; @%p5 or.b32 %r10, %r10, 2;"
    got = execute("", [a, b], np.dtype("u4"), form)
    function = {"and": lambda p, q: p and q, "or": lambda p, q: p or q, "xor": lambda p, q: p != q}
    for x, y, z in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        less, other = signed(x, 32) < signed(y, 32), not x > 100
        want = function[combine](less, other) | function[combine](not less, other) << 1
        assert z == want


ROUND = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("mode", list(ROUND))
@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "s16"])
def test_float_to_integer_rounds_and_saturates(mode, kind):
    width = int(kind[1:])
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if kind[0] == "s" else (0, 2**width - 1)
    got = execute(f"cvt.{mode}.{kind}.f32", [bits(F32)], np.dtype(f"u{width // 8}"))
    for x, z in zip(F32.tolist(), got.tolist(), strict=True):
        if math.isnan(x):
            want = 0
        elif math.isinf(x):
            want = high if x > 0 else low
        else:
            want = min(max(ROUND[mode](x), low), high)
        assert z == want % 2**width, (x, z, want)


def nearest_below(exact: Fraction, dtype) -> float:
    """The largest finite value of a 16- or 32-bit type that is not above `exact`."""
    with np.errstate(over="ignore"):
        near = np.array(float(exact)).astype(dtype)
    while not np.isfinite(near.astype("f8")) or Fraction(float(near)) > exact:
        near = np.nextafter(near, np.array(-np.inf).astype(dtype))
    return float(near)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_integer_to_f32_directed_rounding(mode):
    values = np.array([0, 1, 2**24 + 1, 2**24 + 3, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 129], "u4")
    got = execute(f"cvt.{mode}.f32.s32", [values], np.dtype("u4")).view("f4")
    for x, z in zip(values.tolist(), got.tolist(), strict=True):
        exact = Fraction(signed(x, 32))
        below, above = nearest_below(exact, "f4"), -nearest_below(-exact, "f4")
        near = float(np.float32(float(exact)))
        towards_zero = below if exact >= 0 else above
        assert z == {"rn": near, "rz": towards_zero, "rm": below, "rp": above}[mode]


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
def test_f32_to_halves(name, mode):
    dtype = np.float16 if name == "f16" else BF16
    rng = np.random.default_rng(1)
    values = np.concatenate([F32, rng.standard_normal(200).astype("f4") * 100])
    got = execute(f"cvt.{mode}.{name}.f32", [bits(values)], np.dtype("u2")).view(dtype)
    with np.errstate(all="ignore"):
        near = values.astype(dtype)
    if mode == "rn":
        same(got, near)
        return
    for x, z in zip(values.tolist(), got.astype("f8").tolist(), strict=True):
        if math.isnan(x) or math.isinf(x):
            assert z == x or math.isnan(x) and math.isnan(z)
        else:
            size = nearest_below(Fraction(abs(x)), dtype)
            assert z == math.copysign(size, x)


def test_packed_conversions_put_the_first_operand_high():
    a, b = np.array([1.5, -2.0, 300.0], "f4"), np.array([0.25, 7.0, -1e9], "f4")
    for name, dtype in (("bf16x2", BF16), ("f16x2", np.float16)):
        got = execute(f"cvt.rn.{name}.f32", [bits(a), bits(b)], np.dtype("u4"))
        with np.errstate(all="ignore"):
            want = bits(b.astype(dtype)).astype("u4") | bits(a.astype(dtype)).astype("u4") << 16
        assert got.tolist() == want.tolist()
    for name, dtype in (("e4m3x2", ml_dtypes.float8_e4m3fn), ("e5m2x2", ml_dtypes.float8_e5m2)):
        got = execute(f"cvt.rn.satfinite.{name}.f32", [bits(a), bits(b)], np.dtype("u2"))
        top = float(ml_dtypes.finfo(dtype).max)
        low, high = (np.clip(x, -top, top).astype(dtype).view("u1").astype("u2") for x in (b, a))
        assert got.tolist() == (low | high << 8).tolist()


@pytest.mark.parametrize("op", ["cvt.s32.s16", "cvt.u32.u16", "cvt.s64.s32", "cvt.u16.u32",
                                "cvt.sat.s16.s32", "cvt.sat.u16.s32",
                                "cvt.sat.s32.u32"])  # fmt: skip
def test_integer_conversions(op):
    *_, target, source = op.split(".")
    wide, narrow = int(source[1:]), int(target[1:])
    values = np.array(EDGES[wide], f"u{wide // 8}")
    got = execute(op, [values], np.dtype(f"u{narrow // 8}"))
    low, high = (-(2 ** (narrow - 1)), 2 ** (narrow - 1) - 1) if target[0] == "s" else (
        0, 2**narrow - 1)  # fmt: skip
    for x, z in zip(values.tolist(), got.tolist(), strict=True):
        value = signed(x, wide) if source[0] == "s" else x
        want = min(max(value, low), high) if ".sat." in op else value
        assert z == want % 2**narrow


HALF_OPS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.fmin, "max": np.fmax}


@pytest.mark.parametrize("name", list(HALF_OPS))
@pytest.mark.parametrize("kind", ["f16x2", "bf16x2", "f16", "bf16"])
def test_half_arithmetic(name, kind):
    dtype = BF16 if "bf" in kind else np.float16
    rng = np.random.default_rng(2)
    a, b = ((rng.standard_normal(128) * 8).astype(dtype) for _ in range(2))
    word = "u4" if "x2" in kind else "u2"
    got = execute(f"{name}.{kind}", [a.view(word), b.view(word)], np.dtype(word)).view(dtype)
    with np.errstate(all="ignore"):
        want = HALF_OPS[name](a.astype("f4"), b.astype("f4")).astype(dtype)
    same(got, want)


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_half_fma_rounds_once(kind):
    dtype = BF16 if "bf" in kind else np.float16
    rng = np.random.default_rng(3)
    a, b, c = ((rng.standard_normal(512) * 4).astype(dtype) for _ in range(3))
    columns = [x.view("u4") for x in (a, b, c)]
    got = execute(f"fma.rn.{kind}", columns, np.dtype("u4")).view(dtype).astype("f8")
    for x, y, z, result in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        below, above = nearest_below(exact, dtype), -nearest_below(-exact, dtype)
        assert abs(Fraction(result) - exact) == min(
            exact - Fraction(below), Fraction(above) - exact
        )


def test_vector_moves_pack_and_unpack():
    a = np.array(EDGES[32], np.uint32)
    b = np.roll(a, 1)
    form = ("mov.b64 %d5, {%r1, %r2}; mov.b64 {%r3, %r4}, %d5; mov.b32 {%h1, %h2}, %r3;"
            " mov.b32 %r5, {%h2, %h1}; xor.b32 %r10, %r5, %r4;")  # fmt: skip
    got = execute("", [a, b], np.dtype("u4"), form)
    want = [
        ((x >> 16 | x << 16) & 0xFFFFFFFF) ^ y for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert got.tolist() == want


def test_half_fma_does_not_round_twice():
    # 7 * 37/256 = 259/256 is a tie of bf16; a tiny negative addend decides it. Rounding to float32
    # first would lose the addend and go to the even neighbour 130/128.
    a, b, c = (np.full(32, x).astype(BF16) for x in (7.0, 37 / 256, -(2.0**-40)))
    got = execute("fma.rn.bf16", [x.view("u2") for x in (a, b, c)], np.dtype("u2")).view(BF16)
    assert set(got.astype("f8")) == {129 / 128}
