"""Scales of operands: from shared to tensor memory, and which product takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..arch import ARCHS, TensorForm
from ..errors import DTypeError, LayoutError
from ..ir import Access, Effect, Op, Scope, Value, operand
from ..ptx import tensor as ptx_tensor
from ..tiles import (
    SCALE_CHUNK_BYTES,
    SCALE_CHUNK_COLUMNS,
    SCALE_ROWS,
    SCALE_WORD,
    ScalesType,
    SharedTileType,
    TensorScalesType,
    TensorTileType,
    TileType,
)

SCALED_FORMS: tuple[TensorForm, ...] = tuple(
    {f.key: f for a in ARCHS for f in a.tensor_forms if f.block}.values()
)
FP4 = "e2m1"
PADDED = "b4x16_p64"  # the same with gaps, beside 8-bit elements
_FOUR_BITS = ("mxf4", "mxf4nvf4")


def per_byte(form: TensorForm) -> int:
    """Elements of K in a byte of a tile."""
    return 2 if form.kind in _FOUR_BITS else 1


@dataclass(eq=False)
class CopyScales(Op):
    """`target = source`, asynchronous: products issued behind it by the same thread find it.

    It may overwrite what products before it read: a tensor core executes both in the order of
    their issue. The manual says so of a copy and the product behind it (9.7.16.6.2); of the other
    order CUTLASS (sm100 block-scaled main loop) and Triton make use, whose loops copy each step's
    scales to one place.

    Args:
        target: in tensor memory.
        source: in shared memory.
    """

    verb: ClassVar[str] = "copy_scales"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.THREAD, Scope.WARP)
    target: Value = operand()
    source: Value = operand()

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; both are the same scales."""
        to, kind = self.target.type, self.source.type
        if not isinstance(to, TensorScalesType) or not isinstance(kind, ScalesType):
            raise LayoutError(
                f"copy_scales: from scales in shared memory to scales in tensor memory, got {kind} "
                f"to {to}",
                hint="t, s = tc.tmem(kind), tc.shared(kind), of kind = tc.sc[e8m0, 128, 4]",
            )
        if (to.dtype, to.rows, to.blocks) != (kind.dtype, kind.tile_rows, kind.blocks):
            raise LayoutError(f"copy_scales: both have one type, got {kind} to {to}")
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads shared and writes tensor memory, until a commit's arrival."""
        return (
            Effect(Access.ASYNC_READ, self.source, "async"),
            Effect(Access.ASYNC_WRITE, self.target, "async"),
        )

    def emit(self, w: Any) -> None:
        """One `tcgen05.cp` a chunk."""
        kind, to = self.source.type, self.target.type
        assert isinstance(kind, ScalesType) and isinstance(to, TensorScalesType), "checked"
        rows, words = kind.chunks
        base, target = w.scales_base(self.source), w.address(self.target)
        issuer = w.issuer(self.scope)
        for row in range(rows):
            for word in range(words):
                column = word * to.word_columns + row * SCALE_CHUNK_COLUMNS
                source = w.scales(base, (row * words + word) * SCALE_CHUNK_BYTES)
                text = ptx_tensor.copy_scales(w.text(target, column), source, ctas=w.cta_group)
                w.line(text, issuer)


def scaled_form(
    name: str, a: SharedTileType, b: SharedTileType, acc: TensorTileType, scales: tuple[Any, Any]
) -> TensorForm:
    """The instruction that multiplies these tiles with these scales.

    Raises:
        DTypeError: types that are not multiplied, or whose scales are others.
        LayoutError: scales of other rows, or of blocks of another size.
    """
    if acc.rows != SCALE_ROWS:
        raise LayoutError(
            f"{name}: M of a product with scales is {SCALE_ROWS}, got M={acc.rows}",
            hint=f"a tile of {SCALE_ROWS} rows; in a pipeline an even number of consumers",
        )
    for which, kind in zip("ab", scales, strict=True):
        if not isinstance(kind, TensorScalesType):
            raise LayoutError(
                f"{name}: scales lie in tensor memory, got scale_{which}={kind}",
                hint="t = tc.tmem(tc.sc[e8m0, 128, 4]); tc.copy_scales(t, s)",
            )
    names = a.dtype.name, b.dtype.name
    left, right = (FP4 if name in ("u8", PADDED) else name for name in names)
    of_a, of_b = scales
    if of_a.dtype != of_b.dtype:
        raise DTypeError(
            f"{name}: scales of A and B have one dtype, got {of_a.dtype} and {of_b.dtype}"
        )
    _check_types(name, names, of_a.dtype.name)
    depth = a.cols * (1 + (names == ("u8", "u8")))
    mine = [f for f in SCALED_FORMS if (f.a, f.b, f.accumulator) == (left, right, acc.dtype.name)]
    if not mine:
        raise DTypeError(f"{name}: sums of scaled products are f32, got acc={acc.dtype}")
    mine = [f for f in mine if (f.kind in _FOUR_BITS) == (names == ("u8", "u8"))]
    scale = {"e8m0": "ue8m0", "e4m3": "ue4m3"}[of_a.dtype.name]
    mine = [f for f in mine if f.scale == scale]
    for which, kind, rows in (("A", of_a, acc.rows), ("B", of_b, acc.cols)):
        if kind.rows != rows:
            raise LayoutError(
                f"{name}: {which} has {rows} {'rows' if which == 'A' else 'columns'}, each with "
                f"its scales, got scales of {kind.rows}",
                hint=f"tc.sc[tc.dtypes.{kind.dtype}, {rows}, {kind.blocks}]",
            )
        fits = [f for f in mine if f.block * kind.blocks == depth]
        if not fits:
            legal = sorted({f.block for f in mine}, reverse=True)
            listing = " or ".join(f"{depth // block} blocks of {block}" for block in legal)
            raise LayoutError(
                f"{name}: K={depth} of {left} has {listing} with scales in {kind.dtype}, got "
                f"{kind.blocks} of {which}",
                hint=f"tc.sc[tc.dtypes.{kind.dtype}, {rows}, {depth // legal[0]}]",
            )
        mine = fits
    return mine[0]


def _check_types(name: str, types: tuple[str, str], scale: str) -> None:
    shown, known = " x ".join(types), ("e4m3", "e5m2", "u8", PADDED)
    if not set(types) <= set(known):
        raise DTypeError(
            f"{name}: products with scales are of e4m3 and e5m2, or of two e2m1 in each byte (u8), "
            f"got {shown}",
            hint="tc.formats.quantize_mx(x, tc.e4m3)",
        )
    if "u8" in types and types != ("u8", "u8"):
        raise DTypeError(
            f"{name}: 4-bit elements beside 8-bit ones have gaps in shared memory, got {shown}",
            hint=f"st[tc.dtypes.{PADDED}, ...] for u8, which TMA loads from the same tensor",
        )
    if "u8" not in types and scale != "e8m0":
        raise DTypeError(
            f"{name}: scales of {shown} are e8m0, got {scale}",
            hint="tc.formats.quantize_mx(x, tc.e4m3)",
        )


def check_k_contiguous(name: str, a: SharedTileType, b: SharedTileType) -> None:
    """Two e2m1 share a byte along K: neither M nor N can be contiguous.

    Raises:
        LayoutError: one is.
    """
    for which, kind, order in (("A", a, "row"), ("B", b, "col")):
        if kind.dtype.name == "u8" and kind.order != order:
            raise LayoutError(
                f"{name}: e2m1 operands cannot be transposed: two elements of a byte lie "
                f"along K, got {which} with {'M' if which == 'A' else 'N'} contiguous, "
                f"{which.lower()}={kind}",
                hint="quantise the transposed matrix: tc.formats.quantize_nvfp4(x.T)",
            )


def check_wide_scales(name: str, form: TensorForm, acc: TensorTileType) -> None:
    """Of a step with 8 scales a row the second word lies right behind the columns of the first.

    Raises:
        LayoutError: N that is no multiple of 128, whose copies leave a gap between them.
    """
    if form.block and form.wide_k // form.block > SCALE_WORD and acc.cols % SCALE_ROWS:
        raise LayoutError(
            f"{name}: a wide K step with blocks of {form.block} takes two words of scales, and N a "
            f"multiple of {SCALE_ROWS}, got N={acc.cols}",
            hint=f"nearest legal: {max(1, round(acc.cols / SCALE_ROWS)) * SCALE_ROWS}, or "
            "wide_k=False",
        )


def place_of(form: TensorForm, step: int) -> tuple[int, int]:
    """Word, and byte in it, of a row's first scale in a K step of 32 bytes."""
    return divmod(step * (form.k // form.block), SCALE_WORD)
