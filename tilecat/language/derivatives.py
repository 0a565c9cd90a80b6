"""Derivatives of element-wise functions, by the chain rule over the ops that they record."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..builder import current
from ..errors import LayoutError
from ..ir import Access, Op, Value
from ..ops.conditions import CompareElements, SelectElements
from ..ops.convert import Cast
from ..ops.elementwise import Map
from .functions import cast
from .maps import select
from .values import Registers, RegTile, apply_map, wrap

Tangent = Any  # a tile, or the number that all of its elements are


def derivative(f: Callable[[Any], Any], x: RegTile) -> tuple[Any, Any]:
    """`y = f(x)` and `dy / dx`, element by element, for an element-wise function f.

    The derivative is a tile, or a number where it is the same everywhere (1.0 of `x + bias`). At
    a kink (abs, relu, a selection by x) it is that of one side.

    Args:
        f: a function of a tile, made of arithmetic, maps, `tc.select` and `tc.cast`; it writes
            nothing in place.
        x: f32 registers.

    Raises:
        LayoutError: f is no function, or does something else with x; x is no f32 tile.

    Scope: warpgroup, warp. PTX: that of f and of the rules' maps.

    Example: `y, slope = tc.derivative(lambda s: 30.0 * tc.tanh(s * (1 / 30)), scores)`
    """
    if not callable(f) or not isinstance(x, RegTile):
        raise LayoutError(
            f"derivative: of a function at a register tile, got {f!r} and {x!r}",
            hint="y, slope = tc.derivative(lambda s: tc.exp2(s), x)",
        )
    ops = current().block.ops
    start = len(ops)
    y = f(x)
    if not isinstance(y, Registers):
        raise LayoutError(f"derivative: f gives registers, got {y!r}")
    tangents: dict[int, Tangent] = {id(x.value): 1.0}
    for op in tuple(ops[start:]):
        _follow(op, tangents)
    return y, tangents.get(id(y.value), 0.0)


def _follow(op: Op, tangents: dict[int, Tangent]) -> None:
    """The tangent of an op's result, where an operand has one."""
    touched = [v for v in op.operands() if id(v) in tangents]
    if not touched or isinstance(op, CompareElements):
        return
    writes = [e.value for e in op.effects() if e.access is Access.WRITE and e.value in touched]
    if writes or not op.results or op.blocks():
        _refuse(op, "it writes in place" if writes else "there is no rule for it")
    if isinstance(op, Cast):
        made = _tangent(tangents, op.tile)
        found = made if isinstance(made, float) else cast(made, op.dtype)
    elif isinstance(op, SelectElements):
        found = _select(wrap_of(op.p), _tangent(tangents, op.a), _tangent(tangents, op.b))
    elif isinstance(op, Map) and (op.name in _RULES or op.name in _FLAT):
        sources = [wrap_of(v) for v in op.sources]
        slopes = [_tangent(tangents, v) for v in op.sources]
        rule = _RULES.get(op.name)
        found = 0.0 if rule is None else rule(wrap(op.result), sources, slopes)
    else:
        _refuse(op, "there is no rule for it")
    tangents[id(op.result)] = found


def _refuse(op: Op, why: str) -> None:
    raise LayoutError(
        f"derivative: {op.label} is not differentiated: {why}", loc=op.loc,
        hint=f"f is made of {', '.join(sorted(_RULES))}, tc.select and tc.cast",
    )  # fmt: skip


def wrap_of(operand: Any) -> Any:
    """An operand as users hold it."""
    return wrap(operand) if isinstance(operand, Value) else operand


def _tangent(tangents: dict[int, Tangent], operand: Any) -> Tangent:
    return tangents.get(id(operand), 0.0) if isinstance(operand, Value) else 0.0


def _mul(a: Tangent, b: Any) -> Tangent:
    if isinstance(a, float) and a in (0.0, 1.0):
        return a * 1.0 if a == 0.0 else b
    return a * b


def _add(a: Tangent, b: Tangent) -> Tangent:
    if isinstance(a, float) and a == 0.0:
        return b
    return a if isinstance(b, float) and b == 0.0 else a + b


def _neg(a: Tangent) -> Tangent:
    return -a


def _select(condition: Any, a: Tangent, b: Tangent) -> Tangent:
    if isinstance(a, float) and isinstance(b, float) and a == b:
        return a
    return select(condition, a, b)


def _product(y: Any, v: list[Any], t: list[Tangent]) -> Tangent:
    return _add(_mul(t[0], v[1]), _mul(t[1], v[0]))


_Rule = Callable[[Any, list[Any], list[Tangent]], Tangent]
# Of y = f(v[0], ...), whose operands have the tangents t. Those of approximations are the same.
_RULES: dict[str, _Rule] = {
    "copy": lambda y, v, t: t[0],
    "neg": lambda y, v, t: _neg(t[0]),
    "add": lambda y, v, t: _add(t[0], t[1]),
    "sub": lambda y, v, t: _add(t[0], _neg(t[1])),
    "mul": _product,
    "fma": lambda y, v, t: _add(_product(y, v, t), t[2]),
    "div": lambda y, v, t: _mul(_add(t[0], _neg(_mul(t[1], y))), apply_map("rcp", v[1])),
    "abs": lambda y, v, t: _select(v[0] < 0.0, _neg(t[0]), t[0]),
    "relu": lambda y, v, t: _select(v[0] > 0.0, t[0], 0.0),
    "maximum": lambda y, v, t: _select(v[0] >= v[1], t[0], t[1]),
    "minimum": lambda y, v, t: _select(v[0] <= v[1], t[0], t[1]),
    "exp": lambda y, v, t: _mul(t[0], y),
    "exp2": lambda y, v, t: _mul(t[0], y * math.log(2.0)),
    "log": lambda y, v, t: _mul(t[0], apply_map("rcp", v[0])),
    "log2": lambda y, v, t: _mul(t[0], apply_map("rcp", v[0] * math.log(2.0))),
    "rcp": lambda y, v, t: _mul(t[0], -(y * y)),
    "sqrt": lambda y, v, t: _mul(t[0], apply_map("rcp", y + y)),
    "rsqrt": lambda y, v, t: _mul(t[0], y * y * y * -0.5),
    "tanh": lambda y, v, t: _mul(t[0], 1.0 - y * y),
    "sigmoid": lambda y, v, t: _mul(t[0], y * (1.0 - y)),
    "softplus": lambda y, v, t: _mul(t[0], apply_map("sigmoid", v[0])),
    "sin": lambda y, v, t: _mul(t[0], apply_map("cos", v[0])),
    "cos": lambda y, v, t: _mul(t[0], -apply_map("sin", v[0])),
}
for _name in ("div", "exp", "log", "rcp", "sqrt", "rsqrt", "tanh", "sin", "cos"):
    _RULES[f"{_name}_accurate"] = _RULES[_name]
_FLAT = ("floor", "ceil", "round", "trunc")
