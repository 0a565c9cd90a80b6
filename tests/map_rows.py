"""Rows of the table: element-wise functions, conditions and masks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from table import EVERY, INTEGERS, MORE_SHAPES, SCOPES, Row

import tilecat as tc
from tilecat import f32, s32, u8
from tilecat.dtypes import bf16, f16

erf = np.vectorize(math.erf, otypes=[np.float64])
erfc = np.vectorize(math.erfc, otypes=[np.float64])


def log1p_exp(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


MAPS = (
    Row("copy", lambda k: k.x, lambda k: k.x, EVERY, shapes=MORE_SHAPES),
    Row("neg", lambda k: -k.x, lambda k: -k.x, EVERY),
    Row("absolute", lambda k: tc.absolute(k.x), lambda k: abs(k.x), EVERY),
    Row("relu", lambda k: tc.relu(k.x), lambda k: np.maximum(k.x, 0), EVERY),
    Row("exp2", lambda k: tc.exp2(k.x), lambda k: 2**k.x, ulps=4),
    Row("exp", lambda k: tc.exp(k.x), lambda k: np.exp(k.x), ulps=12),
    Row("exp accurate", lambda k: tc.exp(k.x, accurate=True), lambda k: np.exp(k.x), ulps=2),
    Row("log2", lambda k: tc.log2(k.y), lambda k: np.log2(k.y), ulps=4, floor=1,
        data="positive"),
    Row("log", lambda k: tc.log(k.y), lambda k: np.log(k.y), ulps=4, floor=1, data="positive"),
    Row("log accurate", lambda k: tc.log(k.y, accurate=True), lambda k: np.log(k.y), ulps=2,
        data="positive"),
    Row("rcp", lambda k: tc.rcp(k.y), lambda k: 1 / k.y, ulps=2, data="positive"),
    Row("rcp accurate", lambda k: tc.rcp(k.y, accurate=True), lambda k: 1 / k.y, ulps=0.5,
        data="positive"),
    Row("sqrt", lambda k: tc.sqrt(k.y), lambda k: np.sqrt(k.y), ulps=2, data="positive"),
    Row("sqrt accurate", lambda k: tc.sqrt(k.y, accurate=True), lambda k: np.sqrt(k.y), ulps=0.5,
        data="positive"),
    Row("rsqrt", lambda k: tc.rsqrt(k.y), lambda k: k.y**-0.5, ulps=2, data="positive"),
    Row("rsqrt accurate", lambda k: tc.rsqrt(k.y, accurate=True), lambda k: k.y**-0.5, ulps=1.5,
        data="positive"),
    Row("tanh", lambda k: tc.tanh(k.x), lambda k: np.tanh(k.x), ulps=2.0**12),
    Row("tanh accurate", lambda k: tc.tanh(k.x, accurate=True), lambda k: np.tanh(k.x), ulps=4),
    Row("sin", lambda k: tc.sin(k.x), lambda k: np.sin(k.x), ulps=16, floor=1),
    Row("cos", lambda k: tc.cos(k.x), lambda k: np.cos(k.x), ulps=16, floor=1),
    Row("sin accurate", lambda k: tc.sin(k.x * 64.0, accurate=True), lambda k: np.sin(k.x * 64),
        (f32,), ulps=1, floor=1),
    Row("cos accurate", lambda k: tc.cos(k.x * 64.0, accurate=True), lambda k: np.cos(k.x * 64),
        (f32,), ulps=1, floor=1),
    Row("erf", lambda k: tc.erf(k.x), lambda k: erf(k.x), ulps=4),
    Row("gelu", lambda k: tc.gelu(k.x), lambda k: k.x * erfc(-k.x / 2**0.5) / 2, ulps=16),
    Row("gelu half", lambda k: tc.gelu(k.x, approximate="half"),
        lambda k: k.x * erfc(-k.x / 2**0.5) / 2, ulps=2**11),
    Row("gelu tanh", lambda k: tc.gelu(k.x, approximate="tanh"),
        lambda k: k.x / (1 + np.exp(-2 * (2 / np.pi) ** 0.5 * (k.x + 0.044715 * k.x**3))),
        ulps=24),
    Row("sigmoid", lambda k: tc.sigmoid(k.x), lambda k: 1 / (1 + np.exp(-k.x)), ulps=12),
    Row("silu", lambda k: tc.silu(k.x), lambda k: k.x / (1 + np.exp(-k.x)), ulps=12),
    Row("softplus", lambda k: tc.softplus(k.x), lambda k: log1p_exp(k.x), ulps=12),
    Row("softsign", lambda k: tc.softsign(k.x), lambda k: k.x / (1 + abs(k.x)), ulps=3),
    Row("pow", lambda k: tc.pow(k.y, k.x), lambda k: k.y**k.x, ulps=24, data="positive"),
    Row("floor", lambda k: tc.floor(k.x), lambda k: np.floor(k.x), EVERY),
    Row("ceil", lambda k: tc.ceil(k.x), lambda k: np.ceil(k.x), EVERY),
    Row("round", lambda k: tc.round(k.x), lambda k: np.rint(k.x), EVERY),
    Row("trunc", lambda k: tc.trunc(k.x), lambda k: np.trunc(k.x), EVERY),
    Row("add", lambda k: k.x + k.y, lambda k: k.x + k.y, EVERY, ulps=0.5, shapes=MORE_SHAPES),
    Row("sub", lambda k: 3 - k.y, lambda k: 3 - k.y, EVERY, ulps=0.5),
    Row("mul", lambda k: k.x * k.y, lambda k: k.x * k.y, EVERY, ulps=0.5),
    Row("div", lambda k: k.x / k.y, lambda k: k.x / k.y, ulps=4, data="positive"),
    Row("div accurate", lambda k: tc.div(k.x, k.y, accurate=True), lambda k: k.x / k.y, ulps=0.5,
        data="positive"),
    Row("maximum", lambda k: tc.maximum(k.x, k.y), lambda k: np.fmax(k.x, k.y), EVERY,
        data="special"),
    Row("minimum", lambda k: tc.minimum(k.x, k.y), lambda k: np.fmin(k.x, k.y), EVERY,
        data="special"),
    Row("maximum nan", lambda k: tc.maximum(k.x, k.y, nan=True), lambda k: np.maximum(k.x, k.y),
        EVERY, data="special"),
    Row("minimum nan", lambda k: tc.minimum(k.x, k.y, nan=True), lambda k: np.minimum(k.x, k.y),
        EVERY, data="special"),
    Row("clamp", lambda k: tc.clamp(k.x, -1, 1), lambda k: np.clip(k.x, -1, 1), EVERY),
    Row("fma", lambda k: tc.fma(k.x, k.y, k.x), lambda k: k.x * k.y + k.x, EVERY, ulps=0.5),
    Row("fma vectors", lambda k: tc.fma(k.x, k.r, k.c), lambda k: k.x * k.r + k.c, EVERY,
        ulps=0.5),
    Row("add row", lambda k: k.x + k.r, lambda k: k.x + k.r, EVERY, ulps=0.5, shapes=MORE_SHAPES),
    Row("mul col", lambda k: k.c * k.x, lambda k: k.c * k.x, EVERY, ulps=0.5, shapes=MORE_SHAPES),
    Row("outer", lambda k: k.r * k.c, lambda k: k.r * k.c, (f32, s32), ulps=0.5, orders=("row",)),
    Row("broadcast_row", lambda k: tc.broadcast_row(k.x, k.r), lambda k: k.r + 0 * k.x, EVERY),
    Row("broadcast_col", lambda k: tc.broadcast_col(k.x, k.c), lambda k: k.c + 0 * k.x, EVERY),
    Row("bits", lambda k: (k.x & 6 | k.y) ^ 3,
        lambda k: (k.x.astype(int) & 6 | k.y.astype(int)) ^ 3,
        INTEGERS),
    Row("shifts", lambda k: (k.x << 3) >> 1, lambda k: (k.x.astype(int) << 3) >> 1, INTEGERS),
    Row("not", lambda k: ~k.x & 15, lambda k: ~k.x.astype(int) & 15, INTEGERS),
)  # fmt: skip

NOT_OF_SCALARS = {
    "fma vectors", "add row", "mul col", "outer", "broadcast_row", "broadcast_col", "not",
}  # fmt: skip
CONDITIONS = (
    *(Row(name, body, body, EVERY, out=u8, data="special") for name, body in (
        ("eq", lambda k: k.x == k.y), ("ne", lambda k: k.x != k.y), ("lt", lambda k: k.x < k.y),
        ("le", lambda k: k.x <= k.y), ("gt", lambda k: k.x > k.y), ("ge", lambda k: k.x >= k.y),
    )),
    Row("cast of conditions", lambda k: tc.cast(k.x < k.y, f32), lambda k: k.x < k.y, EVERY,
        out=f32),
    Row("logic", lambda k: ~((k.x < k.y) & (k.y < 1)) ^ (k.x < 0),
        lambda k: ~((k.x < k.y) & (k.y < 1)) ^ (k.x < 0), EVERY, out=u8),
    Row("select", lambda k: tc.select(k.x < k.y, k.x, k.y), lambda k: np.where(k.x < k.y, k.x, k.y),
        EVERY),
    Row("select vector", lambda k: tc.select(k.r < 0, k.x, k.c),
        lambda k: np.where(k.r < 0, k.x, k.c),
        EVERY),
    Row("select number", lambda k: tc.select(k.x > k.r, k.x, 2),
        lambda k: np.where(k.x > k.r, k.x, 2),
        EVERY),
    Row("apply", lambda k: tc.apply(lambda r, c, x: tc.select((r ^ c) & 1 == 0, x, 1), k.x),
        lambda k: np.where((k.rows ^ k.cols) & 1 == 0, k.x, 1), EVERY),
    Row("row_index", lambda k: tc.row_index(k.x), lambda k: k.rows, EVERY, out=s32),
    Row("col_index", lambda k: tc.col_index(k.x), lambda k: k.cols, EVERY, out=s32),
    Row("bool in memory", lambda k: tc.select(k.x != 0, k.y, 0),
        lambda k: np.where(k.x != 0, k.y, 0),
        (u8,)),
)  # fmt: skip

MASKS = (
    Row("mask_cols", lambda k: tc.mask_cols(k.x, k.n, 2), lambda k: np.where(k.cols >= 5, 2, k.x),
        EVERY),
    Row("mask_rows", lambda k: tc.mask_rows(k.x, k.n, 2), lambda k: np.where(k.rows >= 5, 2, k.x),
        EVERY),
    Row("left_fill", lambda k: tc.left_fill(k.x, 19),
        lambda k: np.where(k.cols < 19, 0, k.x), EVERY),
    Row("right_fill", lambda k: tc.right_fill(k.x, 19), lambda k: np.where(k.cols >= 19, 0, k.x),
        EVERY),
    Row("upper_fill", lambda k: tc.upper_fill(k.x, 9),
        lambda k: np.where(k.rows < 9, 0, k.x), EVERY),
    Row("lower_fill", lambda k: tc.lower_fill(k.x, 9),
        lambda k: np.where(k.rows >= 9, 0, k.x), EVERY),
    Row("tril", lambda k: tc.tril(k.x, -1), lambda k: np.tril(k.x, -1), EVERY,
        shapes=MORE_SHAPES),
    Row("triu", lambda k: tc.triu(k.x, k.n), lambda k: np.triu(k.x, 5), EVERY),
    Row("make_causal", lambda k: tc.make_causal(k.x, row=k.n, col=3),
        lambda k: np.where(k.cols + 3 > k.rows + 5, -np.inf, k.x), (f32, bf16, f16)),
    Row("make_causal transposed", lambda k: tc.make_causal(k.x, 7, col=k.n, transposed=True),
        lambda k: np.where(k.rows > k.cols + 5, 7, k.x), EVERY),
    Row("make_window", lambda k: tc.make_window(k.x, k.n, 2, 1, row=4),
        lambda k: np.where((k.cols - k.rows - 4 < -5) | (k.cols - k.rows - 4 > 2), 1, k.x), EVERY),
)  # fmt: skip

# Maps run on one thread's scalars too, but for those of vectors, and `~`, which negates conditions.
OF_SCALARS = tuple(
    row if row.name in NOT_OF_SCALARS else replace(row, scopes=(*SCOPES, "thread")) for row in MAPS
)
ROWS = OF_SCALARS + CONDITIONS + MASKS
