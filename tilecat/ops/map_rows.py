"""Element-wise functions, one row each: their instructions on f32, s32, pairs and conditions.

The rows of more than two instructions are in `map_programs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..ptx import instructions as ptx
from .map_programs import PROGRAMS, Steps

LOG2_E = ptx.f32_literal(math.log2(math.e))
LN_2 = ptx.f32_literal(math.log(2.0))


@dataclass(frozen=True)
class MapRow:
    """An element-wise function: its operand count and its f32 instructions.

    Args:
        arity: operands.
        steps: (opcode, sources) in order; `d` is the result, `a` `b` `c` the operands, anything
            else an immediate; a third item names another destination. Empty: not on floats.
        doc: the formula, and the error bound of approximate instructions (PTX ISA 9.7.3).
        integer: its s32 instructions; none: not defined on integers.
        packed: opcode on pairs of 16-bit floats, before `.bf16x2` or `.f16x2`; none: in f32.
        condition: its opcode on predicates; none: not defined on conditions.
    """

    arity: int
    steps: Steps
    doc: str
    integer: Steps = ()
    packed: str = ""
    condition: str = ""


def _whole(name: str, opcode: str, doc: str, condition: str = "") -> dict[str, MapRow]:
    """A row of integers, and perhaps of conditions."""
    return {name: MapRow(2, (), doc, ((opcode, "a b"),), condition=condition)}


def _rounding(name: str, mode: str, doc: str) -> dict[str, MapRow]:
    row = MapRow(1, ((f"cvt.{mode}.f32.f32", "a"),), doc, (("mov.b32", "a"),))
    return {name: row}


def _extremum(name: str, base: str, doc: str) -> dict[str, MapRow]:
    integer = ((f"{base}.s32", "a b"),)
    return {
        name: MapRow(2, ((f"{base}.f32", "a b"),), f"{doc}; a NaN operand is ignored", integer,
                     base),
        f"{name}_nan": MapRow(2, ((f"{base}.NaN.f32", "a b"),), f"{doc}; NaN if one operand is",
                              integer, f"{base}.NaN"),
    }  # fmt: skip


MAPS: dict[str, MapRow] = {
    "copy": MapRow(1, (("mov.f32", "a"),), "a", (("mov.b32", "a"),), condition="mov.pred"),
    "neg": MapRow(1, (("neg.f32", "a"),), "-a", (("neg.s32", "a"),), "neg"),
    "abs": MapRow(1, (("abs.f32", "a"),), "|a|", (("abs.s32", "a"),), "abs"),
    "relu": MapRow(1, (("max.f32", "a 0f00000000"),), "max(a, 0)", (("max.s32", "a 0"),)),
    "exp2": MapRow(1, (("ex2.approx.ftz.f32", "a"),), "2**a; 2 ulp"),
    "exp": MapRow(
        1,
        (("mul.rn.f32", f"a {LOG2_E}"), ("ex2.approx.ftz.f32", "d")),
        "e**a as 2**(a log2 e); 2 ulp plus the product's rounding times |a|",
    ),
    "log2": MapRow(1, (("lg2.approx.ftz.f32", "a"),), "log2 a; absolute 2**-22 near 1"),
    "log": MapRow(
        1,
        (("lg2.approx.ftz.f32", "a"), ("mul.rn.f32", f"d {LN_2}")),
        "ln a as log2(a) ln 2; absolute 2**-22 near 1",
    ),
    "rcp": MapRow(1, (("rcp.approx.ftz.f32", "a"),), "1/a; 1 ulp"),
    "rcp_accurate": MapRow(1, (("rcp.rn.f32", "a"),), "1/a, correctly rounded"),
    "sqrt": MapRow(1, (("sqrt.approx.ftz.f32", "a"),), "square root; relative 2**-23"),
    "sqrt_accurate": MapRow(1, (("sqrt.rn.f32", "a"),), "square root, correctly rounded"),
    "rsqrt": MapRow(1, (("rsqrt.approx.ftz.f32", "a"),), "1/sqrt(a); relative 2**-22.9"),
    "rsqrt_accurate": MapRow(
        1,
        (("sqrt.rn.f32", "a"), ("rcp.rn.f32", "d")),
        "1/sqrt(a) from two correctly rounded steps; 1 ulp",
    ),
    "tanh": MapRow(1, (("tanh.approx.f32", "a"),), "tanh a; relative 2**-11"),
    "softsign": MapRow(
        1,
        (
            ("abs.f32", "a", "t"),
            ("add.rn.f32", f"t {ptx.f32_literal(1.0)}", "t"),
            ("div.full.ftz.f32", "a t"),
        ),
        "a / (1 + |a|); 3 ulp",
    ),
    "sin": MapRow(
        1, (("sin.approx.ftz.f32", "a"),), "sin a; absolute 2**-20.5 for |a| <= pi, then growing"
    ),
    "cos": MapRow(
        1, (("cos.approx.ftz.f32", "a"),), "cos a; absolute 2**-20.5 for |a| <= pi, then growing"
    ),
    **_rounding("floor", "rmi", "the largest whole number that is not larger"),
    **_rounding("ceil", "rpi", "the smallest whole number that is not smaller"),
    **_rounding("round", "rni", "the nearest whole number, ties to even"),
    **_rounding("trunc", "rzi", "the whole part"),
    "add": MapRow(2, (("add.rn.f32", "a b"),), "a + b", (("add.s32", "a b"),), "add.rn"),
    "sub": MapRow(2, (("sub.rn.f32", "a b"),), "a - b", (("sub.s32", "a b"),), "sub.rn"),
    "mul": MapRow(2, (("mul.rn.f32", "a b"),), "a * b", (("mul.lo.s32", "a b"),), "mul.rn"),
    "div": MapRow(2, (("div.full.ftz.f32", "a b"),), "a / b; 2 ulp"),
    "div_accurate": MapRow(2, (("div.rn.f32", "a b"),), "a / b, correctly rounded"),
    **_extremum("maximum", "max", "the larger"),
    **_extremum("minimum", "min", "the smaller"),
    "clamp": MapRow(
        3,
        (("max.f32", "a b"), ("min.f32", "d c")),
        "a, at least b and at most c; b where a is NaN",
        (("max.s32", "a b"), ("min.s32", "d c")),
    ),
    "fma": MapRow(
        3,
        (("fma.rn.f32", "a b c"),),
        "a * b + c, rounded once",
        (("mad.lo.s32", "a b c"),),
        "fma.rn",
    ),
    **_whole("and", "and.b32", "bits of a and b", "and.pred"),
    **_whole("or", "or.b32", "bits of a or b", "or.pred"),
    **_whole("xor", "xor.b32", "bits of a other than in b", "xor.pred"),
    "not": MapRow(1, (), "bits of a flipped", (("not.b32", "a"),), condition="not.pred"),
    **_whole("shl", "shl.b32", "a moved up by b bits"),
    **_whole("shr", "shr.s32", "a moved down by b bits, with its sign"),
    **{name: MapRow(arity, steps, doc) for name, (arity, steps, doc) in PROGRAMS.items()},
}
