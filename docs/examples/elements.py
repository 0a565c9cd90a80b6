"""Element-wise functions, conditions, masks, scans and vectors: examples of the reference."""

from __future__ import annotations

from .frame import Family
from .maps import FRAME, E

FUNCTIONS = Family(
    "functions",
    "Functions: exponentials, rounding, activations",
    """
Of tiles and vectors of every float dtype, computed in f32 and rounded once; `out=` is the place to
write. With `accurate=True` the error is bounded in units of the last place for every argument;
without it the hardware approximates. The bounds are of the f32 value, before the one rounding to
the dtype; where an entry names instructions, the bound is that of the PTX ISA.
""",
    tuple("sin cos erf gelu sigmoid silu softplus pow floor ceil round trunc clamp div".split()),
    (
        E("sin", "y = tc.sin(x)", "np.allclose(Y, np.sin(X), atol=2**-20)"),
        E("cos", "y = tc.cos(x * 1000.0, accurate=True)",
          "np.allclose(Y, np.cos(np.float64(X * np.float32(1000))), atol=2**-23)"),
        E("erf", "y = tc.erf(x)", "abs(Y).max() < 1"),
        E("gelu", "y = tc.gelu(x, approximate=\"tanh\")", "(Y[X > 3] > 2.9).all()"),
        E("sigmoid", "y = tc.sigmoid(x)", "np.allclose(Y, 1 / (1 + np.exp(-X)), rtol=1e-5)"),
        E("silu", "y = tc.silu(x)", "np.allclose(Y, X / (1 + np.exp(-X)), rtol=1e-5)"),
        E("softplus", "y = tc.softplus(x)", "np.allclose(Y, np.log1p(np.exp(X)), rtol=1e-5)"),
        E("pow", "y = tc.pow(tc.absolute(x), 1.5)", "np.allclose(Y, abs(X)**1.5, rtol=1e-5)"),
        E("floor", "y = tc.floor(x)", "np.array_equal(Y, np.floor(X))"),
        E("ceil", "y = tc.ceil(x)", "np.array_equal(Y, np.ceil(X))"),
        E("round", "y = tc.round(x)", "np.array_equal(Y, np.rint(X))"),
        E("trunc", "y = tc.trunc(x)", "np.array_equal(Y, np.trunc(X))"),
        E("clamp", "y = tc.clamp(x, -s, s)", "np.array_equal(Y, np.clip(X, -0.5, 0.5))"),
        E("div", "y = tc.div(x, x + 3.0, accurate=True)  # rounded as the division of NumPy",
          "np.array_equal(Y, X / (X + np.float32(3)))"),
    ),
    FRAME,
)  # fmt: skip

CONDITIONS = Family(
    "conditions",
    "Conditions, indices and masks",
    """
A comparison of tiles or vectors is a tile or vector of conditions: `x < y`, `x == 0.0`. They are
combined with `& | ^ ~` and used by `tc.select`; in memory they are u8 tiles, by
`tc.select(p, 1, 0)` and `flags != 0`. A comparison with NaN is false, but for `!=`.

Masks write in place and return the tile. Limits and offsets are ints or s32 scalars; masks that
take nothing or everything are fine. In a `tc.warps` block rows count from the warp's own tile.
""",
    tuple(
        "select row_index col_index apply broadcast_row broadcast_col vector_type make_causal "
        "make_window tril triu left_fill right_fill upper_fill lower_fill".split()
    ),
    (
        E("select", "y = tc.select((x > 0.0) & (x < s), x, -1.0)",
          "np.array_equal(Y, np.where((X > 0) & (X < 0.5), X, -1))"),
        E("row_index col_index",
          "y = tc.select(tc.row_index(x) == tc.col_index(x), 1.0, 0.0)",
          "np.array_equal(Y, np.eye(64))"),
        E("apply", "y = tc.apply(lambda r, c, v: tc.select((r ^ c) & 1 == 0, v, 0.0), x)",
          "np.array_equal(Y[0, ::2], X[0, ::2])"),
        E("broadcast_row", "y = tc.broadcast_row(tc.empty(rt[f32, 64, 64]), tc.row_max(x))",
          "np.array_equal(Y[:, 7], X.max(1))"),
        E("broadcast_col", "y = tc.broadcast_col(tc.empty(rt[f32, 64, 64]), tc.col_max(x))",
          "np.array_equal(Y[7], X.max(0))"),
        E("vector_type",
          "scale = tc.load(X[0, 0], tc.vector_type(x, \"col\"))  # the first row of X\n"
          "y = x * scale", "np.allclose(Y, X * X[0])"),
        E("make_causal", "y = tc.make_causal(x, 0.0)  # -inf before a softmax",
          "np.array_equal(Y, np.tril(X))"),
        E("make_window", "y = tc.make_window(x, left=3, right=0, value=0.0)",
          "np.array_equal(Y, np.triu(np.tril(X), -3))"),
        E("tril triu", "y = tc.triu(tc.tril(x, 2), -2)  # a band",
          "np.array_equal(Y, np.triu(np.tril(X, 2), -2))"),
        E("left_fill right_fill", "y = tc.right_fill(tc.left_fill(x, n), 60)",
          ("not Y[:, :5].any()", "not Y[:, 60:].any()")),
        E("upper_fill lower_fill", "y = tc.lower_fill(tc.upper_fill(x, n), 60)",
          ("not Y[:5].any()", "not Y[60:].any()")),
    ),
    FRAME,
)  # fmt: skip

SCANS = Family(
    "scans",
    "Scans, vectors, positions of extrema",
    """
A scan runs along an axis of a tile or along a vector. A vector has one of three layouts: one value
a row (aligned), one a column (orthogonal), both copied where a tile of that shape has its elements,
or plain, without copies.
""",
    tuple(
        "cumsum cumprod cummax cummin decay_tile to_row_vector to_col_vector to_plain hasnan "
        "row_argmax row_argmin col_argmax col_argmin".split()
    ),
    (
        E("cumsum", "y = tc.cumsum(x, \"col\", starts=x > 2.0)  # along rows, anew at large values",
          "np.isfinite(Y).all()"),
        E("cumprod", "y = tc.cumprod(tc.sigmoid(x), \"col\")", "(Y[:, 9] < 1).all()"),
        E("cummax", "y = tc.cummax(x, \"row\")", "np.array_equal(Y, np.maximum.accumulate(X, 0))"),
        E("cummin", "y = tc.cummin(x, \"col\", reverse=True)",
          "np.array_equal(Y[:, 0], X.min(1))"),
        E("decay_tile", "y = tc.decay_tile(-tc.row_absmax(x))  # log-decays of 64 steps",
          ("np.allclose(np.diag(Y), 1)", "not np.triu(Y, 1).any()")),
        E("to_row_vector to_col_vector", "y = x + tc.to_col_vector(tc.row_max(x))",
          "np.allclose(Y, X + X.max(1))"),
        E("to_plain", "v = tc.to_plain(tc.row_max(x))  # one value a thread\n"
          "y = x + tc.to_row_vector(v)", "np.allclose(Y, X + X.max(1, keepdims=True))"),
        E("hasnan", "y = tc.full(rt[f32, 64, 64], tc.select(tc.hasnan(x), 1.0, 0.0))",
          "not Y.any()"),
        E("row_argmax row_argmin",
          "y = tc.zeros(rt[f32, 64, 64]) + tc.cast(tc.row_argmax(x) - tc.row_argmin(x), f32)",
          "np.array_equal(Y[:, 0], X.argmax(1) - X.argmin(1))"),
        E("col_argmax col_argmin",
          "y = tc.zeros(rt[f32, 64, 64]) + tc.cast(tc.col_argmax(x) - tc.col_argmin(x), f32)",
          "np.array_equal(Y[0], X.argmax(0) - X.argmin(0))"),
    ),
    FRAME,
)  # fmt: skip
