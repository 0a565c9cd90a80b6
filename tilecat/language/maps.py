"""Element-wise functions: what a kernel's author calls on tiles, vectors and scalars.

Every one takes register tiles and vectors of any float dtype (computed in f32, rounded once), and
`out`, the place to write instead of a new one; or run-time scalars, each thread's own.
`accurate=True` takes the form whose error is bounded in units of the last place for all inputs;
without it the hardware's approximation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..builder import add
from ..dtypes import DType, f32, s32
from ..errors import DTypeError, LayoutError
from ..ir import Value
from ..ops.conditions import Indices, SelectElements
from ..ops.elementwise import AllocRegisters, Spread, vector_of
from ..tiles import RegTileType, RegVecType
from .scalars import select as select_scalar
from .values import Registers, RegTile, RegVec, apply_map, registers_of, source_of, wrap

__all__ = [
    "absolute", "apply", "broadcast_col", "broadcast_row", "ceil", "clamp", "col_index", "cos",
    "div", "erf", "exp", "exp2", "floor", "fma", "gelu", "log", "log2", "maximum", "minimum", "mul",
    "pow", "rcp", "relu", "round", "row_index", "rsqrt", "select", "sigmoid", "silu", "sin",
    "softplus", "softsign", "sqrt", "tanh", "trunc", "vector_type",
]  # fmt: skip


def _chosen(name: str, accurate: bool, *sources: Any, out: Any) -> Any:
    if not isinstance(accurate, bool):
        raise DTypeError(f"{name}: accurate is True or False, got {accurate!r}")
    return apply_map(f"{name}_accurate" if accurate else name, *sources, out=out)


def exp2(x: Any, out: Any = None) -> Any:
    """`2**x` of a tile, vector or scalar; 2 ulp (`ex2.approx.ftz.f32`)."""
    return apply_map("exp2", x, out=out)


def exp(x: Any, out: Any = None, *, accurate: bool = False) -> Any:
    """`e**x`, as `2**(x log2 e)`: relative 2**-22 (1 + |x|) (`ex2.approx.ftz.f32`).

    `accurate=True`: 1 ulp for every x, results below 2**-126 included (18 instructions).
    """
    return _chosen("exp", accurate, x, out=out)


def log2(x: Any, out: Any = None) -> Any:
    """`log2 x` of a tile, vector or scalar: absolute 2**-22 near 1 (`lg2.approx.ftz.f32`)."""
    return apply_map("log2", x, out=out)


def log(x: Any, out: Any = None, *, accurate: bool = False) -> Any:
    """`ln x`: absolute 2**-22 near 1; `accurate=True`: 1 ulp (30 instructions)."""
    return _chosen("log", accurate, x, out=out)


def rcp(x: Any, out: Any = None, *, accurate: bool = False) -> Any:
    """`1/x` of a tile, vector or scalar; 1 ulp (`rcp.approx.ftz.f32`); accurate: `rcp.rn`."""
    return _chosen("rcp", accurate, x, out=out)


def sqrt(x: Any, out: Any = None, *, accurate: bool = False) -> Any:
    """Square root: relative 2**-23 (`sqrt.approx.ftz.f32`); accurate: `sqrt.rn`."""
    return _chosen("sqrt", accurate, x, out=out)


def rsqrt(x: Any, out: Any = None, *, accurate: bool = False) -> Any:
    """`1/sqrt(x)`: relative 2**-22.9 (`rsqrt.approx.ftz.f32`); accurate: 1 ulp."""
    return _chosen("rsqrt", accurate, x, out=out)


def tanh(x: Any, out: Any = None, *, accurate: bool = False) -> Any:
    """`tanh x`: relative 2**-11 (`tanh.approx.f32`); accurate: 3 ulp."""
    return _chosen("tanh", accurate, x, out=out)


def sin(x: Any, out: Any = None, *, accurate: bool = False) -> Any:
    """`sin x`: absolute 2**-20.5 for |x| <= pi (`sin.approx.ftz.f32`).

    `accurate=True`: absolute 2**-23 for |x| <= 2**16 (24 instructions).
    """
    return _chosen("sin", accurate, x, out=out)


def cos(x: Any, out: Any = None, *, accurate: bool = False) -> Any:
    """`cos x`: absolute 2**-20.5 for |x| <= pi (`cos.approx.ftz.f32`).

    `accurate=True`: absolute 2**-23 for |x| <= 2**16 (24 instructions).
    """
    return _chosen("cos", accurate, x, out=out)


def erf(x: Any, out: Any = None) -> Any:
    """The error function, 4 ulp."""
    return apply_map("erf", x, out=out)


GELU = {"none": "gelu_erf", "tanh": "gelu_tanh", "half": "gelu_half"}


def gelu(x: Any, out: Any = None, *, approximate: str = "none") -> Any:
    """`x (1 + erf(x / sqrt 2)) / 2`, or its tanh form with `approximate="tanh"`.

    Both keep the digits of the tail, where 1 + erf cancels. `approximate="half"` is the first in
    half the instructions, for results of 16 bits: relative 2**-13 for |x| < 5, absolute 2**-20
    beyond.
    """
    if approximate not in GELU:
        raise LayoutError(
            f"gelu: approximate is {', '.join(map(repr, GELU))}, got {approximate!r}"
        )
    return apply_map(GELU[approximate], x, out=out)


def sigmoid(x: Any, out: Any = None) -> Any:
    """`1 / (1 + e**-x)`: relative 2**-22 (1 + |x|)."""
    return apply_map("sigmoid", x, out=out)


def silu(x: Any, out: Any = None) -> Any:
    """`x / (1 + e**-x)`: relative 2**-22 (1 + |x|)."""
    return apply_map("silu", x, out=out)


def softplus(x: Any, out: Any = None) -> Any:
    """`ln(1 + e**x)`: relative 2**-22 (1 + |x|), tails included."""
    return apply_map("softplus", x, out=out)


def softsign(x: Any, out: Any = None) -> Any:
    """`x / (1 + |x|)`, 3 ulp; NaN for an infinite x.

    Example: `y = tc.softsign(x)`; after it `np.allclose(Y, X / (1 + abs(X)), rtol=1e-6)`
    """
    return apply_map("softsign", x, out=out)


def pow(x: Any, y: Any, out: Any = None) -> Any:
    """`x**y` for x > 0, as `2**(y log2 x)`: relative 2**-22 (1 + |y log2 x|)."""
    return apply_map("pow", x, y, out=out)


def floor(x: Any, out: Any = None) -> Any:
    """The largest whole number `<= x` (`cvt.rmi.f32.f32`)."""
    return apply_map("floor", x, out=out)


def ceil(x: Any, out: Any = None) -> Any:
    """The smallest whole number `>= x` (`cvt.rpi.f32.f32`)."""
    return apply_map("ceil", x, out=out)


def round(x: Any, out: Any = None) -> Any:
    """The nearest whole number, ties to even (`cvt.rni.f32.f32`)."""
    return apply_map("round", x, out=out)


def trunc(x: Any, out: Any = None) -> Any:
    """The whole part of x (`cvt.rzi.f32.f32`)."""
    return apply_map("trunc", x, out=out)


def absolute(x: Any, out: Any = None) -> Any:
    """`|x|` of a tile, vector or scalar."""
    return apply_map("abs", x, out=out)


def relu(x: Any, out: Any = None) -> Any:
    """`max(x, 0)`; 0 where x is NaN."""
    return apply_map("relu", x, out=out)


def maximum(a: Any, b: Any, out: Any = None, *, nan: bool = False) -> Any:
    """Element-wise larger; a NaN operand is ignored, or with `nan=True` the result."""
    return apply_map("maximum_nan" if nan is True else "maximum", a, b, out=out)


def minimum(a: Any, b: Any, out: Any = None, *, nan: bool = False) -> Any:
    """Element-wise smaller; a NaN operand is ignored, or with `nan=True` the result."""
    return apply_map("minimum_nan" if nan is True else "minimum", a, b, out=out)


def clamp(x: Any, low: Any, high: Any, out: Any = None) -> Any:
    """`min(max(x, low), high)`; `low` where x is NaN."""
    return apply_map("clamp", x, low, high, out=out)


def mul(a: Any, b: Any, out: Any = None) -> Any:
    """Element-wise `a * b`; the operator, with an `out`."""
    return apply_map("mul", a, b, out=out)


def div(a: Any, b: Any, out: Any = None, *, accurate: bool = False) -> Any:
    """Element-wise `a / b`: 2 ulp (`div.full.ftz.f32`); accurate: `div.rn`."""
    return _chosen("div", accurate, a, b, out=out)


def fma(a: Any, b: Any, c: Any, out: Any = None) -> Any:
    """`a * b + c`, rounded once; tiles, vectors and scalars broadcast."""
    return apply_map("fma", a, b, c, out=out)


def select(condition: Any, a: Any, b: Any, out: Any = None) -> Any:
    """`a if condition else b`, element by element, or of run-time scalars.

    Args:
        condition: a comparison of tiles, vectors or scalars: `tc.select(x < y, x, y)`.
        a: where it holds: a tile, vector or number.
        b: where it does not.
        out: the tile to write, instead of a new one.
    """
    if out is None and not any(isinstance(v, Registers) for v in (condition, a, b)):
        return select_scalar(condition, a, b)
    sources = [source_of(v, "select") for v in (condition, a, b)]
    target = None if out is None else registers_of(out, "select: out")
    if not isinstance(sources[0], Value):
        raise DTypeError(
            f"select: the first operand is conditions, got {condition!r}",
            hint="tc.select(x < y, x, y)",
        )
    if target is not None and not any(isinstance(v, Registers) for v in (condition, a, b)):
        raise LayoutError(f"select: wants a tile or vector besides out, got {condition!r}")
    op = add(SelectElements(sources[0], sources[1], sources[2], target))
    return out if out is not None else wrap(op.result)


def row_index(tile: RegTile) -> Any:
    """The row of each element, as an s32 vector with one value a row; it broadcasts.

    In a `tc.warps` block rows count from the warp's own tile. Of a vector (a row vector, or a plain
    one) the position of each element.
    """
    return _index("row", tile)


def col_index(tile: RegTile | RegVec) -> Any:
    """The column of each element, as an s32 vector with one value a column; it broadcasts.

    Of a plain vector: the place of each value.
    """
    kind = registers_of(tile, "col_index").type
    if isinstance(kind, RegVecType) and kind.axis == "plain":
        return wrap(add(Indices(kind.cast(s32), "col")).result)
    return _index("col", tile)


def _index(axis: str, tile: Any) -> Any:
    kind = registers_of(tile, f"{axis}_index").type
    if isinstance(kind, RegVecType) and kind.axis in (axis, "plain") and not kind.partial:
        return wrap(add(Indices(vector_of(kind, s32), axis)).result)
    if not isinstance(kind, RegTileType):
        raise LayoutError(f"{axis}_index: wanted a register tile, got {kind}")
    return wrap(add(Indices(vector_of(kind.vector(axis), s32), axis)).result)


def vector_type(tile: RegTile, axis: str, dtype: DType = f32) -> RegVecType:
    """The type of a vector that goes with a tile: one value a row (axis "row") or column ("col").

    For a row-order tile of a 16- or 32-bit type it is `rv[dtype, extent, axis]`.
    """
    kind = registers_of(tile, "vector_type").type
    if not isinstance(kind, RegTileType) or axis not in ("row", "col"):
        raise LayoutError(f'vector_type: of a tile and "row" or "col", got {kind}, {axis!r}')
    if not isinstance(dtype, DType) or dtype.bits != 32:
        raise DTypeError(f"vector_type: a register vector has 32-bit elements, got {dtype!r}")
    return vector_of(kind.vector(axis), dtype)


def apply(f: Callable[[Any, Any, Any], Any], tile: RegTile) -> Any:
    """`f(row, col, x)` on a tile: row and column as s32 vectors that broadcast, x the tile.

    For a column-order tile the rows come as a tile, so that both together are one of its order.

    Example: `tc.apply(lambda r, c, x: tc.select((r + c) % 2 == 0, x, 0.0), tile)`.
    """
    if not callable(f):
        raise LayoutError(
            f"apply: the first argument is a function of row, column and tile, got {f!r}",
            hint="tc.apply(lambda r, c, x: tc.select(r < c, x, 0.0), tile)",
        )
    row, kind = row_index(tile), registers_of(tile, "apply").type
    if isinstance(kind, RegTileType) and kind.order == "col":
        row = broadcast_row(wrap(add(AllocRegisters(kind.cast(s32))).result), row)
    result = f(row, col_index(tile), tile)
    if not isinstance(result, Registers):
        raise LayoutError(f"apply: the function gives a tile, got {result!r}")
    return result


def broadcast_row(tile: RegTile, vector: RegVec) -> RegTile:
    """`tile[r, c] = vector[r]`, in place: one value a row."""
    return _broadcast("row", tile, vector)


def broadcast_col(tile: RegTile, vector: RegVec) -> RegTile:
    """`tile[r, c] = vector[c]`, in place: one value a column."""
    return _broadcast("col", tile, vector)


def _broadcast(axis: str, tile: RegTile, vector: RegVec) -> RegTile:
    name = f"broadcast_{axis}"
    target, source = registers_of(tile, name), registers_of(vector, name)
    if not isinstance(target.type, RegTileType) or not isinstance(source.type, RegVecType):
        raise LayoutError(f"{name}: wanted a tile and a vector, got {target.type}, {source.type}")
    if source.type.axis != target.type.vector(axis).axis:
        raise LayoutError(f"{name}: wanted one value a {axis}, got {source.type}")
    add(Spread(source, target))
    return tile
