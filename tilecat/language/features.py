"""Features of rows."""

from __future__ import annotations

from typing import Any

from ..builder import add
from ..ops.features import TaylorFeatures, TaylorGradient, feature_order
from .scalars import operand_of
from .values import RegTile, registers_of, wrap


def taylor_features(tile: RegTile, factor: Any = 1.0) -> RegTile:
    """`f(c x)` of each row x of 16 elements: `f(x).f(y) = 1 + x.y + (x.y)^2 / 2`, exp to degree 2.

    160 columns: 1, `x_i`, `x_i^2 / sqrt 2`, `x_i x_j` for i < j, and 7 of zeros, computed in f32,
    rounded once. Each of the four lanes that hold a row makes 34 products, so the columns' order is
    theirs (`tc.taylor_order`); products of features do not mind.

    Args:
        tile: bf16 or f16, 16 columns.
        factor: c, an f32 scalar or a number.

    Scope: warpgroup, warp. PTX: 6 `shfl.sync.bfly` a row of a lane, `mul`, `cvt`.
    """
    source = registers_of(tile, "taylor_features")
    op = TaylorFeatures(source, operand_of(factor, "taylor_features: factor"))
    return wrap(add(op).result)  # type: ignore[no-any-return]


def taylor_gradient(gradient: RegTile, tile: RegTile, factor: Any = 1.0) -> RegTile:
    """The gradient of rows x, given that of `tc.taylor_features(x, c)`: `sum of g_f df_f(c x)/dx`.

    In f32, 16 columns as the rows have. Sums of a lane's own features and, from the other lanes of
    its quad, of those that have one of its elements.

    Args:
        gradient: f32, 160 columns in the order of `tc.taylor_order`.
        tile: the rows x, bf16 or f16, 16 columns.
        factor: c, an f32 scalar or a number.

    Scope: warpgroup, warp. PTX: 18 `shfl.sync.bfly` a row of a lane, `fma`, `mul`, `selp`.
    """
    what = "taylor_gradient"
    given, source = (registers_of(x, what) for x in (gradient, tile))
    op = TaylorGradient(given, source, operand_of(factor, f"{what}: factor"))
    return wrap(add(op).result)  # type: ignore[no-any-return]


def taylor_order() -> tuple[tuple[int, ...], ...]:
    """What each column of `tc.taylor_features` is: () one, (i,), (i, j) with i <= j, (-1,) zero.

    Returns a tuple of 160 while tracing, or anywhere. Scope: any. PTX: none.
    """
    return feature_order()
