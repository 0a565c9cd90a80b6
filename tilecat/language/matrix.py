"""Matrix products, and the register layouts their operands want."""

from __future__ import annotations

from typing import Any

from ..builder import add, current
from ..dtypes import DType
from ..errors import LayoutError
from ..ir import Scope, Value
from ..layouts import column_order
from ..layouts.registers import fragment_of
from ..ops.convert import Cast
from ..ops.mma import MmaWait
from ..ops.relayout import ChangeLayout
from .complex import ComplexTile
from .functions import empty
from .products import record_mma
from .tensor import TensorScales, TensorTile, check_one_cta
from .values import RegTile, factor_of, predicate_of


def _mma(name: str, acc: Any, a: Any, b: Any, options: dict[str, Any]) -> None:
    if isinstance(acc, ComplexTile):
        _complex(name, acc, a, b, options)
        return
    if isinstance(acc, TensorTile):
        check_one_cta(name)
    acc = getattr(acc, "sums", acc)  # a pipeline's, where one thread issues products
    if not isinstance(acc, RegTile | TensorTile):
        raise LayoutError(
            f"{name}: the accumulator is a register tile, or one of tensor memory, got {acc!r}"
        )
    accumulate = options["accumulate"]
    flag = predicate_of(name, acc.accumulate if accumulate is None else accumulate)
    signs = tuple(-1 if options[key] else 1 for key in ("negate_a", "negate_b"))
    right = factor_of(name, b, name.endswith("Bt"))
    left = _left(name, a)
    scales = _scales(name, options.get("scale_a"), options.get("scale_b"))
    wide_k = isinstance(acc, TensorTile) and acc.wide_k
    more = bool(options["saturate"]), wide_k, scales
    record_mma(name, acc.value, left, right, flag, (signs[0], signs[1]), *more)


def _scales(name: str, *given: Any) -> tuple[Value, Value] | None:
    """Scales of A and B in tensor memory; those of a pipeline's inputs are copied there.

    Raises:
        LayoutError: of one operand alone, or no scales.
    """
    if all(scale is None for scale in given):
        return None
    found = []
    for which, scale in zip("ab", given, strict=True):
        inside = getattr(scale, "in_tensor_memory", None)
        value = scale if inside is None else inside(f"{name}: scale_{which}")
        if not isinstance(value, TensorScales):
            raise LayoutError(
                f"{name}: both operands have scales in tensor memory, or a pipeline's, got "
                f"scale_{which}={scale!r}",
                hint="scale_a=pipe.input(tc.sc[...]), or what tc.copy_scales wrote",
            )
        found.append(value.value)
    return found[0], found[1]


def _left(name: str, a: Any) -> Value:
    """A of a product; in tensor memory it is row by lane.

    Raises:
        LayoutError: its transpose there.
    """
    a = getattr(a, "left", a)  # what a pipeline's consumers compute
    if not isinstance(a, TensorTile):
        return factor_of(name, a, name.startswith("mma_At"))
    if name.startswith("mma_At"):
        raise LayoutError(
            f"{name}: A in tensor memory is M x K, row by lane, and has no transpose, got a={a}",
            hint=f"tc.{name.replace('At', 'A', 1)}, or a shared tile",
        )
    return a.value


def mma_AB(
    acc: RegTile,
    a: Any,
    b: Any,
    *,
    accumulate: Any = None,
    negate_a: bool = False,
    negate_b: bool = False,
    saturate: bool = False,
    scale_a: Any = None,
    scale_b: Any = None,
) -> None:
    """`acc += A @ B`: by a warpgroup asynchronous, `tc.mma_wait` completes it; by a warp at once.

    | A and B | acc | K is a multiple of | N by a warpgroup |
    |---|---|---|---|
    | bf16 | f32 | 16 | 8 to 256 in steps of 8 |
    | f16 | f32, f16 | 16 | the same |
    | tf32 | f32 | 8 | the same |
    | e4m3, e5m2, any two | f32, f16 | 32 | the same |
    | s8, u8, any two | s32 | 32 | 8, 16, 24, 32, then steps of 16 to 256 |

    Args:
        acc: M x N register tile; M a multiple of 64 by a warpgroup, of 16 by a warp.
        a: M x K tile. By a warpgroup in registers or shared memory, by a warp in registers; with
            sums in tensor memory in shared or tensor memory.
        b: K x N tile. By a warpgroup in shared memory, of either order for 16-bit types, else with
            K contiguous; by a warp in registers, column order (`tc.load(tile, order="col")`, or
            `tc.swap_layout`).
        accumulate: False to overwrite, or a run-time predicate; True unless the accumulator
            comes from a pipeline, which starts each task afresh.
        negate_a: subtract the product (by a warpgroup, floats). With negate_b, both are negated.
        negate_b: the same for B.
        saturate: s32 sums stay at the ends of their range, after each instruction; else they wrap.
        scale_a: scales of A, one for each block of K of a row, with sums in tensor memory:
            `tc.tmem(sc[dtype, rows, blocks])`, or a pipeline's input of that type. Blocks of 32
            with e8m0 and of 16 with e4m3 or e8m0; e4m3 and e5m2 have blocks of 32 with e8m0. A u8
            tile is two e2m1 a byte (MXFP4, NVFP4). Rows are those of A, here 128.
        scale_b: scales of B; rows are its columns.

    `acc += a @ b` and `acc -= a @ b` are the same, for tiles in hand.

    FP8 with f32 sums: the hardware keeps about 14 bits of the partial sums of one instruction.

    Scope: warpgroup or warp. PTX: `wgmma.mma_async` (ISA 9.7.15.5), `mma.sync` (9.7.14.5.14).
    """
    _mma("mma_AB", acc, a, b, _options(accumulate, negate_a, negate_b, saturate, scale_a, scale_b))


def mma_ABt(
    acc: RegTile,
    a: Any,
    b: Any,
    *,
    accumulate: Any = None,
    negate_a: bool = False,
    negate_b: bool = False,
    saturate: bool = False,
    scale_a: Any = None,
    scale_b: Any = None,
) -> None:
    """`acc += A @ B.T`, B being an N x K tile; else as `mma_AB`.

    Scope and PTX: those of `mma_AB`.
    """
    _mma("mma_ABt", acc, a, b, _options(accumulate, negate_a, negate_b, saturate, scale_a, scale_b))


def mma_AtB(
    acc: RegTile,
    a: Any,
    b: Any,
    *,
    accumulate: Any = None,
    negate_a: bool = False,
    negate_b: bool = False,
    saturate: bool = False,
    scale_a: Any = None,
    scale_b: Any = None,
) -> None:
    """`acc += A.T @ B`, A being a K x M tile; else as `mma_AB`.

    Scope and PTX: those of `mma_AB`.
    """
    _mma("mma_AtB", acc, a, b, _options(accumulate, negate_a, negate_b, saturate, scale_a, scale_b))


def mma_AtBt(
    acc: RegTile,
    a: Any,
    b: Any,
    *,
    accumulate: Any = None,
    negate_a: bool = False,
    negate_b: bool = False,
    saturate: bool = False,
    scale_a: Any = None,
    scale_b: Any = None,
) -> None:
    """`acc += A.T @ B.T`, A being a K x M tile and B N x K; else as `mma_AB`.

    Scope and PTX: those of `mma_AB`.
    """
    options = _options(accumulate, negate_a, negate_b, saturate, scale_a, scale_b)
    _mma("mma_AtBt", acc, a, b, options)


def _options(
    accumulate: Any, negate_a: bool, negate_b: bool, saturate: bool = False,
    scale_a: Any = None, scale_b: Any = None,
) -> dict[str, Any]:  # fmt: skip
    options = {"negate_a": negate_a, "negate_b": negate_b, "saturate": saturate}
    return {"accumulate": accumulate, "scale_a": scale_a, "scale_b": scale_b, **options}


def _complex(name: str, acc: ComplexTile, a: Any, b: Any, options: dict[str, Any]) -> None:
    """Four products of real tiles: re re - im im, and re im + im re."""
    _require_complex(name, a, b)
    negated = options["negate_a"] != options["negate_b"]
    signs = [-1 if tile.conjugate else 1 for tile in (a, b)]
    first = options["accumulate"]
    for part, left, right, sign, accumulate in (
        (acc.re, a.re, b.re, 1, first),
        (acc.re, a.im, b.im, -signs[0] * signs[1], True),
        (acc.im, a.re, b.im, signs[1], first),
        (acc.im, a.im, b.re, signs[0], True),
    ):
        minus = (sign < 0) != negated
        if minus and current().scope is Scope.WARP:
            left, minus = -left, False
        _mma(name, part, left, right, _options(accumulate, minus, False))


def _require_complex(name: str, *operands: Any) -> None:
    for value in operands:
        if not isinstance(value, ComplexTile):
            raise LayoutError(
                f"{name}: a complex accumulator takes complex operands, got {value!r} "
                f"({type(value).__name__})",
                hint="tc.complex_tile(re, im)",
            )


def complex_mma(
    acc: ComplexTile, a: ComplexTile, b: ComplexTile, *, form: str = "AB", products: int = 4
) -> None:
    """`acc += A @ B` on complex tiles, complete when it returns.

    Three products are `P = re re`, `Q = im im` and `R = (re + im)(re + im)`: `re += P - Q`,
    `im += R - P - Q`. They cost temporaries, and digits where re and im differ much in size, since
    the sums of the operands are rounded to their dtype.

    Args:
        acc: registers.
        a: registers (or, by a warpgroup, shared, made with `sum=` for three products).
        b: registers by a warp; shared by a warpgroup, made with `sum=` for three products.
        form: "AB", "ABt", "AtB" or "AtBt".
        products: 4 or 3.

    Scope: warpgroup or warp.

    PTX: that of `mma_AB`, 4 or 3 times.
    """
    functions = {"AB": mma_AB, "ABt": mma_ABt, "AtB": mma_AtB, "AtBt": mma_AtBt}
    if form not in functions or products not in (3, 4):
        raise LayoutError(
            f"complex_mma: form is one of {', '.join(functions)} and products 3 or 4, "
            f"got form={form!r}, products={products!r}"
        )
    mma, waits = functions[form], current().scope is not Scope.WARP
    _require_complex("complex_mma", acc, a, b)
    if products == 4:
        mma(acc, a, b)  # type: ignore[arg-type]
        if waits:
            mma_wait()
        return
    p, q, r = (empty(acc.re.type) for _ in range(3))
    for target, left, right in ((p, a.re, b.re), (q, a.im, b.im), (r, _sum(a), _sum(b))):
        mma(target, left, right, accumulate=False)
    if waits:
        mma_wait()
    acc.re.__iadd__(p - q)
    acc.im.__iadd__(r - (p + q))


def _sum(tile: ComplexTile) -> Any:
    if isinstance(tile.re, RegTile):
        return tile.re + tile.im
    if tile.sum is None or tile.conjugate:
        raise LayoutError(
            f"complex_mma: three products take shared operands with their sum, got {tile!r}",
            hint="tc.complex_tile(re, im, sum=re_plus_im), or products=4",
        )
    return tile.sum


def mma_wait(pending: int = 0) -> None:
    """Waits until at most `pending` of this warpgroup's mma calls are under way.

    Their accumulators and register operands may be touched after it, their shared operands written.
    Scope: warpgroup; a warp's products are complete at once. PTX: `wgmma.wait_group.sync.aligned`.
    """
    if isinstance(pending, bool) or not isinstance(pending, int) or pending < 0:
        raise LayoutError(f"mma_wait: pending is a compile-time int >= 0, got {pending!r}")
    add(MmaWait(pending))


def _tile(value: Any, name: str) -> RegTile:
    if not isinstance(value, RegTile):
        raise LayoutError(
            f"{name}: wanted a register tile, got {value!r} ({type(value).__name__})",
            hint="tc.load(tile) brings a shared tile into registers",
        )
    return value


def swap_layout(tile: RegTile) -> RegTile:
    """The same tile in the other order of registers: row to column, or column to row.

    Row order is an accumulator and A of a warp's mma, column order its B. 16-bit tiles take one
    `movmatrix` for two registers; others a shuffle a register and selections around it.

    Scope: warp (a warpgroup's tile would cross warps: pass it through shared memory).

    PTX: `movmatrix.sync.aligned.m8n8.trans.b16`; `shfl.sync`, `selp`.
    """
    kind = _tile(tile, "swap_layout").type
    order = "col" if kind.order == "row" else "row"
    return RegTile(add(ChangeLayout(tile.value, "swap_layout", order)).result)


def transpose(tile: RegTile) -> RegTile:
    """`tile.T` in the order of the tile, which takes the moves of `swap_layout`.

    `tile.T` itself is free: the same registers, rows and columns exchanged, in the other order.

    Scope and PTX: those of `swap_layout`.
    """
    return swap_layout(_tile(tile, "transpose")).T


def regroup(tile: RegTile) -> RegTile:
    """A converted tile in its own dtype's fragment, as mma wants it: shuffles between lanes.

    A conversion leaves every element in its lane, where another width of element may want it in
    another one: e4m3 from f32, f32 from s8. A tile that is right is returned as it is.

    Scope: warpgroup or warp. PTX: `shfl.sync`, `prmt`.
    """
    kind = _tile(tile, "regroup").type
    if kind.layout.fragment == fragment_of(kind.dtype):
        return tile
    return RegTile(add(ChangeLayout(tile.value, "regroup", kind.order)).result)


def as_a(acc: RegTile, dtype: DType | None = None) -> RegTile:
    """An accumulator as the A operand of a further mma: nothing moves between lanes.

    Args:
        acc: a register tile in row order; f16 of f16 sums is its own registers.
        dtype: what A is multiplied as, bf16 or f16 for f32 sums; None for the tile's.

    Raises:
        LayoutError: elements would have to change lanes; the hint names what does it.

    Scope: warpgroup, warp. PTX: `cvt`, one a register; none where the dtype stays.
    """
    kind, wanted = _tile(acc, "as_a").type, dtype or acc.dtype
    if kind.order != "row":
        raise LayoutError(
            f"as_a: A has row order, got {kind}", hint="tc.swap_layout(x) moves it, at its cost"
        )
    if kind.layout.fragment != fragment_of(wanted):
        held, run = kind.layout.fragment.run, fragment_of(wanted).run
        raise LayoutError(
            f"as_a: a lane of A holds {run} adjacent columns of {wanted.name} and of {kind} {held}"
            ": elements would change lanes",
            hint=f"tc.permuted_k(x, tc.{wanted.name}) permutes K of both operands instead; "
            f"tc.regroup(tc.cast(x, tc.{wanted.name})) moves them",
        )
    if wanted == kind.dtype:
        return acc
    return RegTile(add(Cast(acc.value, wanted)).result)


def permuted_k(tile: RegTile, dtype: DType) -> RegTile:
    """`dtype(tile)` as an operand with permuted K: no element changes its lane.

    Column c of the result (row, in column order) holds column `k_order(tile.dtype, dtype)[c]` of
    the tile, repeated over the columns. A sum over K does not mind, if both operands are permuted
    alike. FP8 from f32 or bf16: 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15 in each 16 columns.

    Args:
        tile: A in row order, or B in column order, in the fragment of its dtype.
        dtype: of the result, whose fragment may be another.

    Scope: warpgroup, warp. PTX: `cvt`.
    """
    return RegTile(add(Cast(_tile(tile, "permuted_k").value, dtype, None, True)).result)


def k_order(held: DType, wanted: DType) -> tuple[int, ...]:
    """The order of columns that `permuted_k` gives, from a tile of one dtype to another.

    For an operand that is permuted beforehand: element c of each period of K is element
    `k_order(...)[c]` of what was.

    Returns a tuple of ints while tracing. Scope: any. PTX: none.
    """
    return column_order(fragment_of(held), fragment_of(wanted))
