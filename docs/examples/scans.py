"""Scans and vectors: examples of the reference."""

from __future__ import annotations

from .frame import Family
from .maps import FRAME, E

SCANS = Family(
    "scans",
    "Scans, vectors, positions of extrema",
    """
A scan runs along an axis of a tile or along a vector. A vector has one of three layouts: one value
a row (aligned), one a column (orthogonal), both copied where a tile of that shape has its elements,
or plain, without copies.
""",
    tuple(
        "cumsum cumprod cummax cummin decay_tile to_row_vector to_col_vector to_plain "
        "register_order from_register_order hasnan "
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
        E("register_order from_register_order", """
room = tc.shared(sv[f32, 4096])
tc.store(room, tc.register_order(x))
y = tc.from_register_order(tc.load(room, rv[f32, 4096, "plain", 4]), rt[f32, 64, 64])
""".strip(), "np.array_equal(Y, X)"),
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

NARROW = Family(
    "quantisation",
    "Quantisation, narrow floats, random tiles, triangular inverses, maps of shared tiles",
    """
A quantised tile comes with its scales: `tile` is `q * scale` within half a unit of q. Codes of 4-
and 6-bit floats lie one a byte in u8 tiles, or packed: two a byte by `tc.pack4`, four in three
bytes by `tc.pack6`.

Arrays are quantised on the host by [`tc.formats`](formats.md): MX and NVFP4, rounded alike.

Random numbers depend on the seed, the stream and the element's position alone (Philox 4x32-10), not
on the layout, the scope or the chip.
""",
    tuple(
        "quantize dequantize quantize_mx quantize_nvfp4 scale_codes scale_values encode decode "
        "pack4 unpack4 pack6 unpack6 packed6_type random_bits uniform dropout tril_inverse "
        "taylor_features taylor_gradient taylor_order map_shared".split()
    ),
    (
        E("quantize",
          "q, scale = tc.quantize(x, tc.e4m3, per=\"row\")\ny = tc.cast(q, f32) * scale",
          "np.allclose(Y, X, rtol=2**-4, atol=1e-2)"),
        E("quantize_mx dequantize scale_codes scale_values",
          "codes, scales = tc.quantize_mx(x, tc.dtypes.e2m1)\n"
          "stored = [tc.scale_codes(scale) for scale in scales]   # e8m0, what u8 memory takes\n"
          "scales = tuple(tc.scale_values(code) for code in stored)\n"
          "y = tc.dequantize(codes, scales, tc.dtypes.e2m1)",
          "abs(Y - X).max() <= abs(X).max() / 4"),
        E("quantize_nvfp4",
          "codes, scales, whole = tc.quantize_nvfp4(x)\n"
          "y = tc.dequantize(codes, scales, tc.dtypes.e2m1) * whole",
          "abs(Y - X).max() <= abs(X).max() / 5"),
        E("encode decode", "y = tc.decode(tc.encode(x, tc.dtypes.e2m1), tc.dtypes.e2m1)",
          "set(np.unique(abs(Y))) <= {0, 0.5, 1, 1.5, 2, 3, 4, 6}"),
        E("pack4 unpack4",
          "pairs = tc.pack4(tc.encode(x, tc.dtypes.e2m1))   # u8, 64 x 32\n"
          "y = tc.decode(tc.unpack4(pairs), tc.dtypes.e2m1)",
          "set(np.unique(abs(Y))) <= {0, 0.5, 1, 1.5, 2, 3, 4, 6}"),
        E("pack6 unpack6 packed6_type",
          "codes = tc.regroup(tc.encode(x, tc.dtypes.e2m3))\n"
          "packed = tc.pack6(codes)   # three bytes for four columns, as packed6_type loads them\n"
          "y = tc.decode(tc.unpack6(packed), tc.dtypes.e2m3)",
          "abs(Y).max() <= 7.5"),
        E("random_bits", "y = tc.cast(tc.random_bits(x, seed=7) >> 31, f32)  # coins",
          "abs(Y.mean() - 0.5) < 0.05"),
        E("uniform", "y = tc.uniform(x, 7, row=64, offset=n)", "((0 <= Y) & (Y < 1)).all()"),
        E("dropout", "y = tc.dropout(x, 0.25, 7)", "abs((Y == 0).mean() - 0.25) < 0.03"),
        E("map_shared",
          "tile = tc.shared(st[f32, 64, 64])\ntc.store(tile, x)\n"
          "tc.map_shared(lambda v: v - tc.row_max(v), tile, tile)\ny = tc.load(tile)",
          "np.array_equal(Y, X - X.max(1, keepdims=True))"),
        E("tril_inverse", "y = tc.tril_inverse(x * 0.125)",
          "np.allclose(Y @ (np.tril(X / 8, -1) + np.eye(64)), np.eye(64), atol=1e-4)"),
        E("taylor_gradient",
          "features = tc.taylor_features(tc.cast(x[:, :16], tc.bf16))\n"
          "y = tc.taylor_gradient(tc.zeros(rt[f32, 64, 160]) + 1.0, tc.cast(x[:, :16], tc.bf16))",
          "np.allclose(Y[:, :16], 1 + X[:, :16].sum(1, keepdims=True) + 0.414 * X[:, :16], "
          "atol=0.1)"),
        E("taylor_features taylor_order",
          "features = tc.taylor_features(tc.cast(x[:, :16], tc.bf16), 0.5)   # 64 x 160\n"
          "assert tc.taylor_order()[1] == (0, 1)   # column 1 is x_0 x_1\n"
          "y = tc.cast(features[:, :64], f32)",
          "np.allclose(Y[:, 1], X[:, 0] * X[:, 1] / 4, rtol=0.02, atol=1e-6)"),
    ),
    FRAME,
)  # fmt: skip
