"""Functions of several f32 instructions, as programs; bounds measured against float64.

A line is `name = opcode sources`; numbers with a point are f32. Names that start with `p` are
predicates, with `i` 32-bit integers, others f32; `d` is the result, `a` and `b` the operands.
"measured" means: over 65,536 values (`tests/ops/test_accuracy.py`) on the PTX machine, whose
approximate instructions are correctly rounded; a GPU adds the error of those named (PTX ISA
9.7.3): ex2 2 ulp, rcp 1 ulp, lg2 absolute 2**-22 in [0.5, 2] and relative 2**-22 elsewhere.
"""

from __future__ import annotations

import math

from ..ptx import instructions as ptx

# (opcode, sources) or (opcode, sources, destination)
Steps = tuple[tuple[str, str] | tuple[str, str, str], ...]
LOG2_E = math.log2(math.e)


def _constant(word: str) -> str:
    """A number with a point (or inf) as an f32 literal; anything else as it is."""
    if "." in word or word.lstrip("-") == "inf":
        return ptx.f32_literal(float(word))
    return word


def program(text: str, **numbers: float) -> Steps:
    """Steps from lines `name = opcode sources`; `numbers` stand for their names."""
    steps = []
    for line in filter(None, map(str.strip, text.splitlines())):
        target, _, right = line.partition(" = ")
        opcode, *sources = right.split()
        words = (ptx.f32_literal(numbers[s]) if s in numbers else _constant(s) for s in sources)
        steps.append((opcode, " ".join(words), target))
    return tuple(steps)


def polynomial(result: str, x: str, *coefficients: float) -> str:
    """Lines of Horner's rule, highest coefficient first."""
    lines = [f"{result} = mov.f32 {coefficients[0]!r}"]
    lines += [f"{result} = fma.rn.f32 {result} {x} {c!r}" for c in coefficients[1:]]
    return "\n".join(lines)


# n = round(x log2 e); e**(x - n ln 2) by a polynomial; times 2**n in two factors, so that results
# below 2**-126 come out.
EXP = program(
    f"""
    x = max.NaN.f32 a -106.0
    x = min.NaN.f32 x 90.0
    n = mul.rn.f32 x {LOG2_E}
    n = cvt.rni.f32.f32 n
    r = fma.rn.f32 n -0.693145751953125 x
    r = fma.rn.f32 n -1.42860677e-06 r
    {
        polynomial(
            "y",
            "r",
            0.0013948727864772081,
            0.008375232107937336,
            0.041666217148303986,
            0.16666413843631744,
            0.5,
            1.0,
            1.0,
        )
    }
    i = cvt.rzi.s32.f32 n
    ih = shr.s32 i 1
    i = sub.s32 i ih
    i = shl.b32 i 23
    i = add.s32 i 0x3f800000
    s = mov.b32 i
    y = mul.rn.f32 y s
    ih = shl.b32 ih 23
    ih = add.s32 ih 0x3f800000
    s = mov.b32 ih
    d = mul.rn.f32 y s
    """
)
# a = 2**k m with m in [2/3, 4/3): log1p(m - 1) by a polynomial in two halves, plus k ln 2.
LOG = program(
    """
    p = setp.lt.f32 a 1.1754943508222875e-38
    x = mul.rn.f32 a 8388608.0
    x = selp.f32 x a p
    k = selp.f32 -23.0 0.0 p
    i = mov.b32 x
    i = sub.s32 i 0x3f2aaaab
    i = and.b32 i 0xff800000
    ih = mov.b32 x
    ih = sub.s32 ih i
    m = mov.b32 ih
    f = cvt.rn.f32.s32 i
    k = fma.rn.f32 f 1.1920928955078125e-07 k
    m = add.rn.f32 m -1.0
    s = mul.rn.f32 m m
    r = fma.rn.f32 s -0.130310059 -0.121483363
    t = fma.rn.f32 s 0.140869141 0.139814854
    r = fma.rn.f32 r s -0.166846052
    t = fma.rn.f32 t s 0.200120345
    r = fma.rn.f32 r s -0.249996200
    r = fma.rn.f32 t m r
    r = fma.rn.f32 r m 0.333331972
    r = fma.rn.f32 r m -0.5
    r = fma.rn.f32 r s m
    r = fma.rn.f32 k 0.693147182 r
    q = add.rn.f32 a a
    p = setp.gt.f32 a 0.0
    pf = setp.lt.f32 a inf
    p = and.pred p pf
    r = selp.f32 r q p
    p = setp.lt.f32 a 0.0
    q = mov.b32 0x7fffffff
    r = selp.f32 q r p
    p = setp.eq.f32 a 0.0
    d = selp.f32 -inf r p
    """
)


def _circular(add: int) -> Steps:
    """Sin (0) or cos (1): quadrants by Cody and Waite's three-part pi/2, then a polynomial."""
    return program(
        f"""
        n = mul.rn.f32 a {2 / math.pi!r}
        n = cvt.rni.f32.f32 n
        r = fma.rn.f32 n -1.57079601 a
        r = fma.rn.f32 n -3.13916473e-07 r
        r = fma.rn.f32 n -5.39030253e-15 r
        i = cvt.rzi.s32.f32 n
        i = add.s32 i {add}
        s = mul.rn.f32 r r
        {polynomial("y", "s", 2.86567956e-06, -1.98559923e-04, 8.33338592e-03, -1.66666672e-01)}
        t = mul.rn.f32 r s
        y = fma.rn.f32 y t r
        {polynomial("z", "s", 2.44677067e-05, -1.38877297e-03, 4.16666567e-02, -0.5, 1.0)}
        ih = and.b32 i 1
        p = setp.ne.s32 ih 0
        y = selp.f32 z y p
        ih = and.b32 i 2
        p = setp.ne.s32 ih 0
        z = neg.f32 y
        d = selp.f32 z y p
        """
    )


TANH = program(
    f"""
    t = abs.f32 a
    x = mul.rn.f32 t {2 * LOG2_E!r}
    x = ex2.approx.ftz.f32 x
    x = add.rn.f32 x 1.0
    x = rcp.approx.ftz.f32 x
    x = fma.rn.f32 x -2.0 1.0
    x = copysign.f32 a x
    s = mul.rn.f32 a a
    {
        polynomial(
            "y",
            "s",
            -0.006391771137714386,
            0.02118687704205513,
            -0.053888387978076935,
            0.13333001732826233,
            -0.3333333134651184,
        )
    }
    s = mul.rn.f32 s a
    y = fma.rn.f32 y s a
    p = setp.lt.f32 t 0.55
    d = selp.f32 y x p
    """
)
# Near 0 an odd polynomial, beyond 0.93 one minus e**(a polynomial).
ERF = program(
    f"""
    t = abs.f32 a
    t = min.NaN.f32 t 4.0
    s = mul.rn.f32 a a
    r = fma.rn.f32 t -1.72853470e-5 3.83197126e-4
    u = mul.rn.f32 t t
    v = fma.rn.f32 t -3.88396438e-3 2.42546219e-2
    r = fma.rn.f32 r u v
    r = fma.rn.f32 r t -1.06777877e-1
    r = fma.rn.f32 r t -6.34846687e-1
    r = fma.rn.f32 r t -1.28717512e-1
    u = neg.f32 t
    x = fma.rn.f32 r t u
    x = mul.rn.f32 x {LOG2_E!r}
    x = ex2.approx.ftz.f32 x
    x = sub.rn.f32 1.0 x
    x = copysign.f32 a x
    {
        polynomial(
            "y",
            "s",
            -5.96761703e-4,
            4.99119423e-3,
            -2.67681349e-2,
            1.12819925e-1,
            -3.76125336e-1,
            1.28379166e-1,
        )
    }
    y = fma.rn.f32 y a a
    p = setp.lt.f32 t 0.927734375
    d = selp.f32 y x p
    """
)
# 2 tanh(u) = 2 - 4 / (1 + e**2u), so x (1 + tanh u) / 2 = x / (1 + e**-2u): no cancellation.
GELU_TANH = program(
    f"""
    s = mul.rn.f32 a a
    s = fma.rn.f32 s {-2 * math.sqrt(2 / math.pi) * LOG2_E * 0.044715!r} \
{-2 * math.sqrt(2 / math.pi) * LOG2_E!r}
    s = mul.rn.f32 s a
    s = ex2.approx.ftz.f32 s
    s = add.rn.f32 s 1.0
    s = rcp.approx.ftz.f32 s
    d = mul.rn.f32 s a
    """
)
# x (1 + erf(x / sqrt 2)) / 2 by erfc(z) = t e**(-z z + p(t)), t = 1 / (1 + z / 2) (Numerical
# Recipes, 2nd edition, 6.2: relative 1.2e-7 for every z), so that the tail keeps its digits.
GELU_ERF = program(
    f"""
    z = abs.f32 a
    z = mul.rn.f32 z {math.sqrt(0.5)!r}
    t = fma.rn.f32 z 0.5 1.0
    t = rcp.approx.ftz.f32 t
    {
        polynomial(
            "y",
            "t",
            0.17087277,
            -0.82215223,
            1.48851587,
            -1.13520398,
            0.27886807,
            -0.18628806,
            0.09678418,
            0.37409196,
            1.00002368,
            -1.26551223,
        )
    }
    s = mul.rn.f32 a -0.5
    y = fma.rn.f32 s a y
    y = mul.rn.f32 y {LOG2_E!r}
    y = ex2.approx.ftz.f32 y
    t = mul.rn.f32 t 0.5
    y = mul.rn.f32 y t
    s = sub.rn.f32 1.0 y
    p = setp.lt.f32 a 0.0
    y = selp.f32 y s p
    d = mul.rn.f32 y a
    """
)
# The same as x / (1 + 2**u): u = log2(1/Phi(x) - 1) = x p(x x), p of least largest
# error for |x| <= 5, growing beyond (coefficients by a linear program): for results of 16 bits.
GELU_HALF = program(
    f"""
    s = mul.rn.f32 a a
    {
        polynomial(
            "y",
            "s",
            -1.842235031190853e-09,
            1.755161775918168e-07,
            -6.513591870316304e-06,
            0.00010412547999294475,
            0.0003938411537092179,
            -0.1055244579911232,
            -2.301758050918579,
        )
    }
    y = mul.rn.f32 y a
    y = ex2.approx.ftz.f32 y
    y = add.rn.f32 y 1.0
    y = rcp.approx.ftz.f32 y
    d = mul.rn.f32 y a
    """
)
_SIGMOID = f"""
    t = mul.rn.f32 a {-LOG2_E!r}
    t = ex2.approx.ftz.f32 t
    t = add.rn.f32 t 1.0
"""
# max(a, 0) + log1p(e) with e = e**-|a|, by log1p(e) = 2 atanh(e / (2 + e)).
SOFTPLUS = program(
    f"""
    t = abs.f32 a
    t = mul.rn.f32 t {-LOG2_E!r}
    t = ex2.approx.ftz.f32 t
    x = add.rn.f32 t 2.0
    x = rcp.approx.ftz.f32 x
    x = mul.rn.f32 x t
    s = mul.rn.f32 x x
    {
        polynomial(
            "y",
            "s",
            0.1161954402923584,
            0.10851652920246124,
            0.14296291768550873,
            0.19999851286411285,
            0.3333333432674408,
        )
    }
    s = mul.rn.f32 s x
    y = fma.rn.f32 y s x
    s = max.NaN.f32 a 0.0
    d = fma.rn.f32 y 2.0 s
    """
)

# name -> operands, steps, formula with its error
POWER_OF_TWO = program(
    """
    i = mov.b32 a
    i = and.b32 i 0x7f800000
    p = setp.eq.s32 i 0x7f800000
    i = selp.b32 0x7fffffff i p
    d = mov.b32 i
    """
)
EXPONENT = program(
    """
    i = mov.b32 a
    i = shr.u32 i 23
    i = and.b32 i 255
    d = cvt.rn.f32.s32 i
    """
)
FROM_E8M0 = program(
    """
    i = cvt.rzi.s32.f32 a
    p = setp.eq.s32 i 0
    i = shl.b32 i 23
    i = selp.b32 0x00400000 i p
    p = setp.eq.s32 i 0x7f800000
    i = selp.b32 0x7fffffff i p
    d = mov.b32 i
    """
)
# Four digits by integer arithmetic; below 2**-6 the last bit is 2**-9, that of numbers near 2**14.
TO_E4M3 = program(
    """
    x = abs.f32 a
    x = min.f32 x 448.0
    i = mov.b32 x
    ih = shr.u32 i 20
    ih = and.b32 ih 1
    i = add.s32 i ih
    i = add.s32 i 0x7ffff
    i = and.b32 i 0xfff00000
    y = mov.b32 i
    z = add.rn.f32 x 16384.0
    z = sub.rn.f32 z 16384.0
    p = setp.lt.f32 x 0.015625
    y = selp.f32 z y p
    y = copysign.f32 a y
    p = setp.neu.f32 a a
    d = selp.f32 a y p
    """
)

PROGRAMS: dict[str, tuple[int, Steps, str]] = {
    "power_of_two": (1, POWER_OF_TWO, "the power of two up to |a|; 0 below 2**-126; NaN of inf"),
    "exponent": (1, EXPONENT, "the exponent of a's power of two plus 127; 0 for |a| < 2**-126"),
    "e8m0": (1, FROM_E8M0, "2**(a - 127) of whole numbers from 0 to 254; NaN of 255"),
    "to_e4m3": (1, TO_E4M3, "a rounded to e4m3 (nearest even, saturated), as an f32"),
    "exp_accurate": (1, EXP, "e**a, results below 2**-126 included; 1.01 ulp measured"),
    "log_accurate": (1, LOG, "ln a, subnormal a included; 1 ulp measured"),
    "tanh_accurate": (1, TANH, "tanh a; 2 ulp measured (ex2, rcp), 3 ulp on a GPU"),
    "sin_accurate": (1, _circular(0), "sin a; absolute 2**-23 for |a| <= 2**16, measured"),
    "cos_accurate": (1, _circular(1), "cos a; absolute 2**-23 for |a| <= 2**16, measured"),
    "erf": (1, ERF, "erf a; 2 ulp measured (ex2)"),
    "gelu_tanh": (
        1,
        GELU_TANH,
        "a / (1 + e**(-2u)), u = sqrt(2/pi) (a + 0.044715 a**3); 32 ulp for |a| < 5, measured "
        "(ex2, rcp)",
    ),
    "gelu_erf": (
        1,
        GELU_ERF,
        "a (1 + erf(a / sqrt 2)) / 2; 24 ulp for |a| < 5, 160 ulp from -12 on, measured (ex2, rcp)",
    ),
    "gelu_half": (
        1,
        GELU_HALF,
        "a (1 + erf(a / sqrt 2)) / 2; relative 2**-13 for |a| < 5, absolute 2**-20 beyond "
        "(ex2, rcp)",
    ),
    "sigmoid": (
        1,
        program(f"{_SIGMOID}\nd = rcp.approx.ftz.f32 t"),
        "1 / (1 + e**-a); relative 2**-23 (4 + |a|), measured (ex2, rcp)",
    ),
    "silu": (
        1,
        program(f"{_SIGMOID}\nt = rcp.approx.ftz.f32 t\nd = mul.rn.f32 t a"),
        "a / (1 + e**-a); relative 2**-23 (4 + |a|), measured (ex2, rcp)",
    ),
    "softplus": (1, SOFTPLUS, "ln(1 + e**a); relative 2**-23 (4 + |a|), measured (ex2, rcp)"),
    "pow": (
        2,
        program("t = lg2.approx.ftz.f32 a\nt = mul.rn.f32 t b\nd = ex2.approx.ftz.f32 t"),
        "a**b as 2**(b log2 a) for a > 0; relative 2**-22 (1 + |b log2 a|) (lg2, ex2)",
    ),
}
