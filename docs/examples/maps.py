"""Arithmetic on register tiles: maps, reductions, products of matrices, complex tiles."""

from __future__ import annotations

import tilecat as tc
from tilecat.language import maps

from .frame import Example, Family, from_docstrings

FRAME = """
@tc.kernel
def example(X: gl[f32, 64, 64], Y: gl[f32, 64, 64], n: s32, s: f32):
    with tc.warpgroup():
        x = tc.load(X[0, 0], rt[f32, 64, 64])
        BODY
        tc.store(Y[0, 0], y)
"""
WARP_FRAME = """
@tc.kernel
def example(X: gl[f32, 64, 64], Y: gl[f32, 64, 64]):
    with tc.warpgroup(), tc.warps():
        with tc.when(tc.warp_id() == 0):
            BODY

X = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
Y = np.zeros_like(X)
example(X, Y, grid=1)
"""


def E(names: str, code: str, check: str | tuple[str, ...] = "") -> Example:
    """An example of names separated by blanks."""
    return Example(tuple(names.split()), code, check)


MAPS = Family(
    "maps",
    "Maps: values, arithmetic, conversions, selection",
    """
Element by element: the result has the type of the tile. A vector is broadcast along the other
axis of the tile it goes with, a scalar or a number over all of it. `+ - * /`, unary `-` and
`abs()` are operators of tiles and vectors; `+= -= *= /=` write in place. `out=` writes the result
to a tile that is there, which may be an operand.

Unless an entry says otherwise, scope: warpgroup or warp, and PTX: the instruction of that name,
one a register (`add`, `max`, `ex2.approx.ftz`, ...). A conversion leaves every element in its
thread.
""",
    ("full", "zeros", "empty", "fill", "cast", *maps.__all__, "derivative"),
    (
        *from_docstrings(tc, maps.__all__),
        E("full", "y = x + tc.full(rt[f32, 64, 64], s)", "np.array_equal(Y, X + np.float32(0.5))"),
        E("zeros", "y = tc.zeros(rt[f32, 64, 64])", "not Y.any()"),
        E("empty fill",
          "y = tc.empty(rt[f32, 64, 64])\ntc.copy(y, x)\ntc.fill(x, 3.0)\ny += x",
          "np.array_equal(Y, X + 3)"),
        E("absolute", "y = tc.absolute(x)", "np.array_equal(Y, abs(X))"),
        E("exp", "y = tc.exp(x)", "np.allclose(Y, np.exp(X), rtol=2e-6)"),
        E("exp2", "y = tc.exp2(x)", "np.allclose(Y, np.exp2(X), rtol=5e-7)"),
        E("log", "y = tc.log(x * x + 1.0)", "np.allclose(Y, np.log(X * X + 1), atol=1e-6)"),
        E("log2", "y = tc.log2(x * x + 1.0)", "np.allclose(Y, np.log2(X * X + 1), atol=1e-6)"),
        E("rcp", "y = tc.rcp(x)", "np.allclose(Y, 1 / X, rtol=2e-7)"),
        E("sqrt", "y = tc.sqrt(x * x)", "np.allclose(Y, abs(X), rtol=5e-7)"),
        E("rsqrt", "y = tc.rsqrt(x * x + 1.0)",
          "np.allclose(Y, 1 / np.sqrt(X * X + 1), rtol=5e-7)"),
        E("tanh", "y = tc.tanh(x)", "np.allclose(Y, np.tanh(X), rtol=2**-10)"),
        E("relu", "y = tc.relu(x)", "np.array_equal(Y, np.maximum(X, 0))"),
        E("maximum minimum", "y = tc.minimum(tc.maximum(x, -1.0), 1.0)",
          "np.array_equal(Y, np.clip(X, -1, 1))"),
        E("mul", "y = tc.mul(x, s, out=x)  # in place", "np.array_equal(Y, X * np.float32(0.5))"),
        E("fma", "c = tc.load(X[0, 0], rv[f32, 64, \"col\"])  # the first row, over all rows\n"
                 "y = tc.fma(x, 2.0, c)", "np.allclose(Y, 2 * X + X[0], rtol=1e-6, atol=1e-6)"),
        E("clamp", "y = tc.clamp(x, -1.0, 1.0)", "np.array_equal(Y, np.clip(X, -1, 1))"),
        E("div", "y = tc.div(x, 3.0, accurate=True)", "np.array_equal(Y, X / np.float32(3))"),
        E("pow", "y = tc.pow(tc.absolute(x), 1.5)", "np.allclose(Y, abs(X) ** 1.5, rtol=3e-6)"),
        E("sin cos", "y = tc.sin(x) * tc.sin(x) + tc.cos(x) * tc.cos(x)",
          "np.allclose(Y, 1, rtol=1e-5)"),
        E("erf gelu", "y = tc.gelu(x) * 2.0 - x * tc.erf(x * 2**-0.5)",
          "np.allclose(Y, X, atol=1e-5)"),
        E("sigmoid silu", "y = tc.silu(x) / tc.sigmoid(x)", "np.allclose(Y, X, rtol=1e-5)"),
        E("softplus", "y = tc.softplus(x)", "np.allclose(Y, np.log1p(np.exp(X)), rtol=1e-5)"),
        E("floor ceil", "y = tc.ceil(x) - tc.floor(x)", "(Y == 1).all()"),
        E("round trunc", "y = tc.round(x) - tc.trunc(x)",
          "np.array_equal(Y, np.rint(X) - np.trunc(X))"),
        E("select", "y = tc.select(x < s, x, s)",
          "np.array_equal(Y, np.minimum(X, np.float32(0.5)))"),
        E("apply", "y = tc.apply(lambda r, c, v: tc.select(r == c, v, 0.0), x)",
          "np.array_equal(Y, np.diag(np.diag(X)))"),
        E("derivative", "_, y = tc.derivative(lambda v: v * v * 0.5 + s, x)",
          "np.allclose(Y, X, rtol=1e-6)"),
        E("row_index col_index", "y = tc.select(tc.col_index(x) > tc.row_index(x), 0.0, x)",
          "np.array_equal(Y, np.tril(X))"),
        E("vector_type broadcast_row broadcast_col",
          "first = tc.load(X[0, 0], tc.vector_type(x, \"col\"))  # 64 values, one a column\n"
          "y = tc.broadcast_col(x, first)\ny += tc.broadcast_row(tc.empty(y.type), tc.row_max(y))",
          "np.array_equal(Y, X[0] + np.full((64, 64), X[0].max()))"),
        E("cast", "y = tc.cast(tc.cast(x, bf16), f32)", "np.allclose(Y, X, rtol=2**-8)"),
    ),
    FRAME,
)  # fmt: skip

MASKS = Family(
    "masks",
    "Masks: rows, columns, diagonals, windows",
    """
A mask writes in place, and gives the tile. Limits and offsets are ints or run-time s32 scalars,
and may lie anywhere. Scope: warpgroup or warp. PTX: a comparison and a selection an element.
""",
    tuple("mask_cols mask_rows left_fill right_fill upper_fill lower_fill tril triu make_causal "
          "make_window".split()),
    (
        E("mask_cols mask_rows", "tc.mask_cols(x, n, 0.0)\ntc.mask_rows(x, 60, -1.0)\ny = x",
          ("not Y[:60, 5:].any()", "(Y[60:] == -1).all()")),
        E("left_fill right_fill", "y = tc.right_fill(tc.left_fill(x, n), 60)",
          ("not Y[:, :5].any() and not Y[:, 60:].any()", "np.array_equal(Y[:, 5:60], X[:, 5:60])")),
        E("upper_fill lower_fill", "y = tc.lower_fill(tc.upper_fill(x, n), 60)",
          ("not Y[:5].any() and not Y[60:].any()", "np.array_equal(Y[5:60], X[5:60])")),
        E("tril", "y = tc.tril(x, -1)", "np.array_equal(Y, np.tril(X, -1))"),
        E("triu", "y = tc.triu(x, n)", "np.array_equal(Y, np.triu(X, 5))"),
        E("make_causal", "y = tc.make_causal(x, 0.0, row=n)  # the tile begins at query 5, key 0",
          "np.array_equal(Y, np.tril(X, 5))"),
        E("make_window", "y = tc.make_window(x, 2, 0, 0.0)  # the query's key and two before",
          "np.array_equal(Y, np.triu(np.tril(X), -2))"),
    ),
    FRAME,
)  # fmt: skip

REDUCTIONS = Family(
    "reductions",
    "Reductions: rows, columns, vectors, tiles",
    """
A fold along the rows of a tile gives a row vector (`rv[f32, rows]`), along the columns a column
vector (`rv[f32, cols, "col"]`), of f32 or s32. `initial` is a vector that takes part.

Unless an entry says otherwise, scope: warpgroup or warp. PTX: the arithmetic instruction and
`shfl.sync.bfly`; columns and whole tiles of a warpgroup exchange through shared memory between two
`bar.sync`, so that every thread of the warpgroup must execute them.
""",
    tuple(
        "row_max row_min row_sum row_prod row_absmax col_max col_min col_sum col_prod col_absmax "
        "total reduce_vector tile_max tile_min tile_sum tile_prod tile_absmax cta_reduce cta_map "
        "cta_sync".split()
    ),
    (
        E("row_max", "y = x - tc.row_max(x)", "np.array_equal(Y, X - X.max(1, keepdims=True))"),
        E("row_min", "y = x - tc.row_min(x)", "np.array_equal(Y, X - X.min(1, keepdims=True))"),
        E("row_sum", "y = x - tc.row_sum(x)",
          "np.allclose(Y, X - X.sum(1, keepdims=True), atol=1e-4)"),
        E("row_sum total",
          "shares = tc.row_sum(x, partial=True)   # each lane its own\n"
          "shares = tc.row_sum(x, shares, partial=True)\n"
          "y = tc.zeros(rt[f32, 64, 64]) + tc.total(shares)",
          "np.allclose(Y, 2 * X.sum(1, keepdims=True), atol=1e-4)"),
        E("row_prod", "y = tc.zeros(rt[f32, 64, 64]) + tc.row_prod(x)",
          "np.allclose(Y, X.astype(float).prod(1, keepdims=True), rtol=1e-4)"),
        E("row_absmax", "y = x / tc.row_absmax(x)", "np.isclose(abs(Y).max(1), 1).all()"),
        E("col_max", "y = x - tc.col_max(x)", "np.array_equal(Y, X - X.max(0))"),
        E("col_min", "y = x - tc.col_min(x)", "np.array_equal(Y, X - X.min(0))"),
        E("col_sum", "y = tc.zeros(rt[f32, 64, 64]) + tc.col_sum(x)",
          "np.allclose(Y, X.sum(0), atol=1e-4)"),
        E("col_prod", "y = tc.zeros(rt[f32, 64, 64]) + tc.col_prod(x)",
          "np.allclose(Y, X.astype(float).prod(0), rtol=1e-4)"),
        E("col_absmax", "y = x / tc.col_absmax(x)", "np.isclose(abs(Y).max(0), 1).all()"),
        E("reduce_vector", "y = x - tc.reduce_vector(\"sum\", tc.row_max(x))",
          "np.allclose(Y, X - X.max(1).sum(), atol=1e-4)"),
        E("tile_max tile_min", "y = (x - tc.tile_min(x)) / (tc.tile_max(x) - tc.tile_min(x))",
          ("Y.min() == 0", "np.isclose(Y.max(), 1)")),
        E("tile_sum", "y = x - tc.tile_sum(x) * (1 / 4096)", "abs(Y.mean()) < 1e-6"),
        E("tile_prod", "y = tc.full(rt[f32, 64, 64], tc.tile_prod(x * 0.0 + 1.0))",
          "(Y == 1).all()"),
        E("tile_absmax", "y = x / tc.full(rt[f32, 64, 64], tc.tile_absmax(x))",
          "np.isclose(abs(Y).max(), 1)"),
        E("cta_reduce", "y = x - tc.cta_reduce(\"max\", tc.tile_max(x))  # of one warpgroup here",
          "np.array_equal(Y, X - X.max())"),
        E("cta_map cta_sync",
          "tile = tc.shared(st[f32, 64, 64])\ntc.store(tile, x)\ntc.cta_sync()\n"
          "tc.cta_map(lambda v: v - tc.row_max(v), tile, tile)\ny = tc.load(tile)",
          "np.array_equal(Y, X - X.max(1, keepdims=True))"),
    ),
    FRAME,
)  # fmt: skip

SHARED_B = "b = tc.shared(st[bf16, 64, 64])\ntc.store(b, tc.cast(x, bf16))\ntc.sync()\n"
PRODUCTS = Family(
    "products",
    "Products of matrices, and layouts of their operands",
    """
By a warpgroup a product is asynchronous (`wgmma`): its registers are under way until `tc.mma_wait`.
By a warp it is complete at once (`mma.sync`), and its operands are registers. `acc += a @ b` is
`tc.mma_AB(acc, a, b)`. Which dtypes, shapes and orders are legal is data, of the architecture; see
[operands of matrix products](../design/matrix-operands.md).

In the checks `bf(X)` and `fp8(X)` are X rounded to bf16 and e4m3.
""",
    tuple(
        "mma_AB mma_ABt mma_AtB mma_AtBt mma_wait as_a swap_layout transpose regroup permuted_k "
        "k_order".split()
    ),
    (
        E("mma_AB mma_wait",
          SHARED_B + "y = tc.empty(rt[f32, 64, 64])\n"
          "tc.mma_AB(y, tc.cast(x, bf16), b, accumulate=False)  # A from registers\ntc.mma_wait()",
          "np.allclose(Y, bf(X) @ bf(X), atol=1e-3)"),
        E("mma_ABt", SHARED_B + "y = tc.zeros(rt[f32, 64, 64])\ntc.mma_ABt(y, b, b)\ntc.mma_wait()",
          "np.allclose(Y, bf(X) @ bf(X).T, atol=1e-3)"),
        E("mma_AtB", SHARED_B + "y = tc.zeros(rt[f32, 64, 64])\ntc.mma_AtB(y, b, b)\ntc.mma_wait()",
          "np.allclose(Y, bf(X).T @ bf(X), atol=1e-3)"),
        E("mma_AtBt",
          SHARED_B + "y = tc.zeros(rt[f32, 64, 64])\ntc.mma_AtBt(y, b, b, negate_a=True)\n"
          "tc.mma_wait()", "np.allclose(Y, -(bf(X).T @ bf(X).T), atol=1e-3)"),
        E("as_a",
          SHARED_B + "y = tc.zeros(rt[f32, 64, 64])\n"
          "y += tc.as_a(x, bf16) @ b  # f32 sums as a bf16 operand: nothing moves\ntc.mma_wait()",
          "np.allclose(Y, bf(X) @ bf(X), atol=1e-3)"),
        E("swap_layout", WARP_FRAME.replace("BODY", (
            "x = tc.cast(tc.load(X[0, 0], rt[f32, 16, 16]), bf16)\n"
            "            y = tc.zeros(rt[f32, 16, 16])\n"
            "            tc.mma_AB(y, x, tc.swap_layout(x))\n"
            "            tc.store(Y[0, 0], y)")),
          "np.allclose(Y[:16, :16], bf(X[:16, :16]) @ bf(X[:16, :16]), atol=1e-3)"),
        E("transpose", WARP_FRAME.replace("BODY", (
            "x = tc.load(X[0, 0], rt[f32, 16, 16])\n"
            "            tc.store(Y[0, 0], tc.transpose(x))")),
          "np.array_equal(Y[:16, :16], X[:16, :16].T)"),
        E("regroup",
          "b = tc.shared(st[tc.e4m3, 64, 64])\n"
          "a = tc.regroup(tc.cast(x, tc.e4m3))  # e4m3 from f32: lanes exchange\n"
          "tc.store(b, a)\ntc.sync()\ny = tc.zeros(rt[f32, 64, 64])\n"
          "tc.mma_ABt(y, a, b)\ntc.mma_wait()",
          "np.allclose(Y, fp8(X) @ fp8(X).T, atol=1e-2)"),
        E("permuted_k k_order",
          "order = tc.k_order(f32, tc.e4m3)\n"
          "a = tc.permuted_k(x, tc.e4m3)  # nothing moves: K is permuted\n"
          "b = tc.shared(st[tc.e4m3, 64, 64])\ntc.store(b, a)  # B as well: the sum is the same\n"
          "tc.sync()\ny = tc.zeros(rt[f32, 64, 64])\ntc.mma_ABt(y, a, b)\ntc.mma_wait()",
          "np.allclose(Y, fp8(X) @ fp8(X).T, atol=1e-2)"),
    ),
    FRAME,
)  # fmt: skip

COMPLEX = Family(
    "complex",
    "Complex tiles",
    "A complex tile is a pair of real ones; sums, products and `mma_*` take them as real ones.",
    ("ComplexTile", "complex_tile", "complex_pairs", "complex_rows", "complex_mma",
     "ComplexTile.conj", "ComplexTile.abs2", "ComplexTile.exp", "ComplexTile.map",
     "ComplexTile.cast"),
    (
        E("ComplexTile complex_tile", "z = tc.complex_tile(x, x * 2.0)\ny = (z * z).im",
          "np.allclose(Y, 4 * X * X)"),
        E("ComplexTile.exp",
          "z = tc.complex_tile(x, x).exp(accurate=True)\ny = z.im",
          "np.allclose(Y, np.exp(X) * np.sin(X), atol=1e-5)"),
        E("ComplexTile.conj ComplexTile.abs2",
          "z = tc.complex_tile(x, x)\ny = (z * z.conj()).re - z.abs2()", "abs(Y).max() < 1e-5"),
        E("ComplexTile.map ComplexTile.cast",
          "z = tc.complex_tile(x, x).cast(bf16)\ny = z.map(lambda part: tc.cast(part, f32)).re",
          "np.allclose(Y, X, rtol=2**-8)"),
        E("complex_pairs",
          "z = tc.complex_pairs(x)  # columns re, im, re, im, ...\nim = z.im\n"
          "im *= -1.0  # written in x\ny = x",
          ("np.array_equal(Y[:, ::2], X[:, ::2])", "np.array_equal(Y[:, 1::2], -X[:, 1::2])")),
        E("complex_rows",
          "z = tc.complex_rows(x)  # of 16 rows 8 are real, 8 imaginary\nim = z.im\n"
          "im *= -1.0  # written in x\ny = x",
          ("np.array_equal(Y[0:8], X[0:8])", "np.array_equal(Y[8:16], -X[8:16])")),
        E("complex_mma",
          SHARED_B + "a, b = tc.complex_tile(b, b), tc.complex_tile(b, b)\n"
          "acc = tc.complex_tile(tc.zeros(rt[f32, 64, 64]), tc.zeros(rt[f32, 64, 64]))\n"
          "tc.complex_mma(acc, a, b)  # (1 + i)(1 + i) = 2i\ny = acc.im",
          "np.allclose(Y, 2 * bf(X) @ bf(X), atol=2e-3)"),
    ),
    FRAME,
    {"ComplexTile": tc.ComplexTile},
)  # fmt: skip
