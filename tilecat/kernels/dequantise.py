"""Elements with scales of blocks, as bf16: what Hopper multiplies."""

from __future__ import annotations

import tilecat as tc
from tilecat import DTypeVar, bf16, e4m3, e5m2, f32, gl, rt, rv, s32, u8

TQ = DTypeVar("TQ", e4m3, e5m2, u8)
TS = DTypeVar("TS", u8, f32)
ROWS, COLS = 64, 128  # elements of a CTA
HELD = 32  # columns that four lanes hold together of unpacked codes


@tc.kernel
def dequantise(Q: gl[TQ, "R", "B"], S: gl[TS, "R", "S"], Y: gl[bf16, "R", "K"], *, block=32):
    """Y = Q * S, block by block: a CTA has 64 rows and 128 columns.

    Args:
        Q: e4m3, e5m2, or two e2m1 a byte.
        S: a scale for each `block` elements of a row: e8m0 codes, or f32.
        Y: the result, rounded to nearest; exact but for the ends of e8m0's range.
        block: 32, or 16.
    """
    tiles = tc.cdiv(Y.cols, COLS)
    with tc.warpgroup():
        row, col = tc.cta_id() // tiles, tc.cta_id() % tiles
        codes = Q.dtype == u8
        q = tc.load(Q[row, col], rt[Q.dtype, ROWS, COLS // 2 if codes else COLS])
        kind, scales = rv[s32 if S.dtype == u8 else f32, ROWS], []
        for first in range(0, COLS, block):
            scale = tc.load(S.T.at((col * COLS + first) // block, row * ROWS), kind)
            scales.append(tc.scale_values(scale) if S.dtype == u8 else scale)
        wide = tc.decode(tc.unpack4(q), tc.dtypes.e2m1) if codes else tc.cast(q, f32)
        wide = tc.regroup(wide) if block < HELD else wide  # a lane holds 8 columns of 4-bit codes
        tc.store(Y[row, col], tc.cast(tc.dequantize(wide, tuple(scales)), bf16))
