"""Products of operands with scales: MXFP8, MXFP6, MXFP4, NVFP4, on every target.

Where the tensor cores apply scales (sm_100a, sm_103a, sm_107a) the scales are packed in their order
and the kernels of `kernels/gemm_scaled.py` multiply. Elsewhere a kernel dequantises operands to
bf16, which holds every product of an element and its scale exactly, but for the ends of e8m0's
range, and `tc.matmul` multiplies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from . import formats
from .arch import DEFAULT_TARGET, arch_of
from .driver import raise_reports
from .errors import DTypeError, LayoutError, ResourceError
from .gemm_call import Options, prepare
from .kernels import dequantise
from .kernels import gemm_scaled as kernels
from .kernels.tensor_scales import FORMATS, ROWS, Format
from .operators import matmul
from .runtime.arrays import empty, view
from .tiles import SCALE_CHUNK_BYTES, SCALE_WORD

FP8 = ("e4m3", "e5m2")
GAPS = 128  # 4-bit elements that TMA gives gaps to at a time (cuda.h, 16U4_ALIGN16B)
NARROW = 128  # columns up to which tiles have as many
TILES = {True: {"tile_n": 128, "stages": 5}, False: {"tile_n": 256, "stages": 3}}


def matmul_mxfp8(
    a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any = None, *, out_dtype: Any = None,
    alpha: Any = 1.0, beta: Any = 0.0, epilogue: Any = (), target: str | None = None,
    **params: Any,
) -> Any:  # fmt: skip
    """`epilogue(alpha (scale_a a) @ (scale_b b) + beta out)`, a power of two for each 32 of K.

    Operands and scales as `tc.formats.quantize_mx` makes them: of `w` [N, K] with `q, s` the
    operand b is `q.T` and its scales `s.T`.

    Args:
        a: [..., M, K], e4m3 or e5m2; at most one leading axis. K is a multiple of 32.
        b: [..., K, N], e4m3 or e5m2; or [K/2, N] of MXFP4 (`matmul_mxfp4`), K a multiple of 128.
            K is contiguous in both: other operands are copied.
        scale_a: e8m0 (or its codes as u8) [..., M, K/32]; or `tc.formats.pack_scales` of it, which
            saves packing in each call.
        scale_b: e8m0 [..., K/32, N]; or `tc.formats.pack_scales(scale_b.T).T`, as `s.T` is of s.
        out: [..., M, N], or None to allocate it.
        out_dtype: bf16, f16 or f32; None: that of out, or bf16.
        alpha: a number, or an f32 array of one element.
        beta: the same, for what out holds; 0 does not read it.
        epilogue: steps, as for `tc.matmul`.
        target: whose text the PTX machine runs, for arrays in CPU memory: "sm_100a", "sm_103a" or
            "sm_107a" multiply with scales; None is "sm_90a", which dequantises to bf16 first.
        params: compile-time parameters of the kernel of such a target (`tile_n`, `wide_k`, ...).

    Returns:
        out.

    Raises:
        LayoutError: shapes that do not fit, K that is no multiple of the block.
        DTypeError: other dtypes.

    Example: `y = tc.matmul_mxfp8(xq, wq.T, xs, ws.T, target="sm_100a")`
    """
    options = Options(out_dtype, alpha, beta, (None, None), None, epilogue)
    return _product("mxfp8", (a, b), (scale_a, scale_b), out, options, target, params)


def matmul_mxfp6(
    a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any = None, *, dtype_a: Any = None,
    dtype_b: Any = None, out_dtype: Any = None, alpha: Any = 1.0, beta: Any = 0.0,
    epilogue: Any = (), target: str | None = None, **params: Any,
) -> Any:  # fmt: skip
    """The product of MXFP6 operands: `matmul_mxfp8` of e2m3 and e3m2, one a byte.

    The elements become e4m3, which has all their values, so nothing is rounded, and the tensor
    core multiplies as fast as 6-bit elements (one rate for all of kind::mxf8f6f4).

    Args:
        a: [..., M, K], e2m3 or e3m2 (ml_dtypes' types), or their codes as u8, as
            `tc.formats.quantize_mx(x, tc.dtypes.e2m3)` makes them; e4m3 and e5m2 too.
        b: the same [..., K, N].
        scale_a: as for `matmul_mxfp8`.
        scale_b: as for `matmul_mxfp8`.
        dtype_a: of u8 codes: `tc.dtypes.e2m3` or `tc.dtypes.e3m2`.
        dtype_b: the same for b.

    All else, and errors, as for `matmul_mxfp8`.

    Example: `y = tc.matmul_mxfp6(xq, wq.T, xs, ws.T, target="sm_100a")`
    """
    options = Options(out_dtype, alpha, beta, (None, None), None, epilogue)
    pair = formats.as_e4m3(a, dtype_a), formats.as_e4m3(b, dtype_b)
    return _product("mxfp8", pair, (scale_a, scale_b), out, options, target, params)


def matmul_mxfp4(
    a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any = None, *, out_dtype: Any = None,
    alpha: Any = 1.0, beta: Any = 0.0, epilogue: Any = (), target: str | None = None,
    **params: Any,
) -> Any:  # fmt: skip
    """The product of MXFP4 operands: `matmul_mxfp8` of two e2m1 a byte.

    Args:
        a: u8 (or torch's `float4_e2m1fn_x2`) [..., M, K/2], two elements of K a byte, the first in
            the low half, as `tc.formats.quantize_mx(x, tc.dtypes.e2m1)` makes them.
        b: the same [..., K/2, N], the transpose of such a matrix: 4-bit operands have K contiguous.
        scale_a: as for `matmul_mxfp8`.
        scale_b: as for `matmul_mxfp8`.

    All else, and errors, as for `matmul_mxfp8`.
    """
    options = Options(out_dtype, alpha, beta, (None, None), None, epilogue)
    return _product("mxfp4", (a, b), (scale_a, scale_b), out, options, target, params)


def matmul_nvfp4(
    a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any = None, *, out_dtype: Any = None,
    alpha: Any = 1.0, beta: Any = 0.0, epilogue: Any = (), target: str | None = None,
    **params: Any,
) -> Any:  # fmt: skip
    """The product of NVFP4 operands: two e2m1 a byte, an e4m3 scale for each 16 of K.

    Args:
        a: u8 (or torch's `float4_e2m1fn_x2`) [..., M, K/2], of `tc.formats.quantize_nvfp4`.
        b: the same [..., K/2, N], the transpose of such a matrix.
        scale_a: e4m3 [..., M, K/16], or packed.
        scale_b: e4m3 [..., K/16, N], or packed.
        alpha: the product of both tensor scales, a number or an f32 array of one element.

    All else, and errors, as for `matmul_mxfp8`.

    Example: `y = tc.matmul_nvfp4(xq, wq.T, xs, ws.T, alpha=float(xt * wt), target="sm_107a")`
    """
    options = Options(out_dtype, alpha, beta, (None, None), None, epilogue)
    return _product("nvfp4", (a, b), (scale_a, scale_b), out, options, target, params)


@dataclass(frozen=True)
class Side:
    """One operand, K along its rows.

    Args:
        name: a or b.
        data: [..., rows, K] elements, or bytes of two.
        scales: [..., rows, blocks], or packed.
        packed: whether the scales are packed.
        blocks: scales of a row.
        per_byte: elements in a byte of the data.
    """

    name: str
    data: Any
    scales: Any
    packed: bool
    blocks: int
    per_byte: int

    def dequantised(self, form: Format) -> Any:
        """bf16, exact but for the ends of e8m0's range."""
        scales, (*lead, rows, held) = self.scales, view(self.data).shape
        if self.packed:
            scales = formats.unpack_scales(scales, rows, self.blocks)
        if form.scale.name == "e4m3":
            wide = empty(scales, tuple(scales.shape), "f32")
            wide[...] = scales
            scales = wide
        else:
            scales = _viewed(scales, "u8")
        k, planes = held * self.per_byte, math.prod(lead)
        out = empty(self.data, (planes * rows, k), "bf16")
        flat = self.data.reshape(planes * rows, held), scales.reshape(planes * rows, self.blocks)
        tiles = -(-planes * rows // dequantise.ROWS) * -(-k // dequantise.COLS)
        if tiles:
            dequantise.dequantise(*flat, out, grid=tiles, block=form.block)
        return out.reshape(*lead, rows, k)

    def words(self) -> Any:
        """Scales as the kernels take them."""
        codes = _viewed(self.scales, "u8")
        if not self.packed:
            return formats.scale_words(formats.pack_scales(codes))
        if view(codes).strides[-1] != 1:
            given, codes = codes, empty(codes, tuple(codes.shape), "u8")
            codes[...] = given
        return formats.scale_words(codes)


def _product(
    name: str, operands: tuple[Any, Any], scales: tuple[Any, Any], out: Any, options: Options,
    target: str | None, params: dict[str, Any],
) -> Any:  # fmt: skip
    form, arch = FORMATS[name], arch_of(target or DEFAULT_TARGET)
    sides = _sides(form, operands, scales)
    scaled = "tcgen05" in arch.features
    if scaled and sides[0].blocks:  # without any K there is nothing to scale, nor to load
        return _scaled(form, arch.target, sides, out, options, params)
    if params and not scaled:
        raise LayoutError(
            f"matmul_{name}: parameters are those of a kernel that multiplies with scales, which "
            f"{arch.target} does not do, got {', '.join(params)}",
            hint='target="sm_100a"',
        )
    a, b = (side.dequantised(form) for side in sides)
    rest = {"out_dtype": options.out_dtype, "alpha": options.alpha, "beta": options.beta}
    return matmul(a, b.swapaxes(-1, -2), out, epilogue=options.epilogue, **rest)


def _scaled(
    form: Format, target: str, sides: tuple[Side, Side], out: Any, options: Options,
    params: dict[str, Any],
) -> Any:  # fmt: skip
    """By the instructions with scales, on the PTX machine."""
    name, pairs = f"matmul_{form.name}", form.per_byte > 1
    if (device := view(sides[0].data).device) != "cpu":
        raise ResourceError(
            f"{name}: the text of {target} runs on the PTX machine, on arrays in CPU memory, got "
            f"arrays on {device}",
            hint="a.cpu(), or target=None",
        )
    # Bytes of two elements pass as e4m3, where only their places count.
    a, b = (_viewed(x.data, "e4m3") if x.per_byte > 1 else x.data for x in sides)
    mixed = sides[0].per_byte != sides[1].per_byte
    call = prepare(a[..., : view(b).shape[-1]] if mixed else a, b.swapaxes(-1, -2), out, options)
    if 0 in view(call.out).shape:
        return call.out
    left, right, result = call.arrays
    left, right = a if mixed else left, right.swapaxes(-1, -2)
    chosen = {**TILES[call.extents[1] <= NARROW], "epilogue": call.params["epilogue"]}
    if pairs:
        left, chosen["form"] = _viewed(left, "u8"), form.name
    if sides[1].per_byte > 1:
        right = _viewed(right, "u8")
    kernel = kernels.matmul_fp4 if pairs else kernels.matmul_mxfp8
    words = [side.words() for side in sides]
    with call.naming():
        ran = kernel.simulate(left, right, result, *words, *call.args, target=target,
                              **{**chosen, **params})  # fmt: skip
    raise_reports(name, ran)
    return call.out


def _viewed(x: Any, dtype: str) -> Any:
    """The same bytes as another dtype of one byte."""
    return x.view(empty(x, (0,), dtype).dtype)


def _sides(
    form: Format, operands: tuple[Any, Any], scales: tuple[Any, Any]
) -> tuple[Side, Side]:
    """Both operands, checked.

    Raises:
        LayoutError: shapes that do not fit.
        DTypeError: other dtypes than those of the format.
    """
    name = f"matmul_{form.name}"
    a, b = (_elements(name, which, x, form) for which, x in zip("ab", operands, strict=True))
    left, right = view(a), view(b)
    per_a, per_b = (1 + (x.dtype == "u8") for x in (left, right))
    k, other = left.shape[-1] * per_a, right.shape[-2] * per_b
    if k != other:
        raise LayoutError(
            f"{name}: extent K must agree, got a with K={k} and b with K={other} (shapes "
            f"{tuple(left.shape)} and {tuple(right.shape)}, u8 with two elements a byte)",
            hint="a is [..., M, K] and b is [..., K, N]",
        )
    if per_a != per_b and (k % GAPS or len(left.shape) + len(right.shape) > 4):
        raise LayoutError(
            f"{name}: of two matrices, K a multiple of {GAPS}, one may have 4-bit elements, got "
            f"shapes {tuple(left.shape)} and {tuple(right.shape)}",
            hint="pad K with zeros, or convert the 4-bit matrix to e4m3, exactly",
        )
    if k % form.block:
        raise LayoutError(
            f"{name}: K is a multiple of {form.block}, elements that share a scale, got K={k}",
            hint=f"pad both operands with zeros to K={-(-k // form.block) * form.block}",
        )
    of_a = _side(name, "a", a, scales[0], form, k // form.block)
    of_b = _side(name, "b", b.swapaxes(-1, -2), scales[1], form, k // form.block)
    return of_a, of_b


def _elements(name: str, which: str, x: Any, form: Format) -> Any:
    """An operand as the kernels take it: e4m3, e5m2, or bytes of two e2m1."""
    if str(getattr(x, "dtype", "")) == "torch.float4_e2m1fn_x2":
        x = _viewed(x, "u8")
    array, eight = view(x), form.per_byte == 1
    wanted = FP8 if eight and which == "a" else (*FP8, "u8") if eight else ("u8",)
    if array.dtype not in wanted:
        listing = "e4m3 or e5m2" if eight else "u8, two e2m1 a byte"
        raise DTypeError(
            f"{name}: {which} is {listing}, got {array.dtype}",
            hint="tc.formats.quantize_nvfp4(x)" if form.name == "nvfp4"
            else f"tc.formats.quantize_mx(x, {'tc.e4m3' if eight else 'e2m1'})",
        )
    if not 2 <= len(array.shape) <= 3:
        raise LayoutError(
            f"{name}: {which} has 2 axes, or a batch in front, got shape {tuple(array.shape)}",
            hint="x.reshape(-1, *x.shape[-2:])",
        )
    return x


def _side(name: str, which: str, data: Any, given: Any, form: Format, blocks: int) -> Side:
    """An operand with its scales, which are packed if their shape says so.

    As packed scales of b are transposed too, no shape is that of both.
    """
    scales = view(given)
    legal = ("e4m3",) if form.scale.name == "e4m3" else ("e8m0", "u8")
    if scales.dtype not in legal:
        raise DTypeError(
            f"{name}: scale_{which} is {' or '.join(legal)}, got {scales.dtype}",
            hint="tc.formats.quantize_nvfp4(x)" if form.name == "nvfp4"
            else "tc.formats.quantize_mx(x, ...)",
        )
    *lead, rows, _ = view(data).shape
    turn = 1 if which == "a" else -1
    packed = (*lead, *(-(-rows // ROWS), -(-blocks // SCALE_WORD) * SCALE_CHUNK_BYTES)[::turn])
    plain = (*lead, *(rows, blocks)[::turn])
    if tuple(scales.shape) not in (packed, plain):
        raise LayoutError(
            f"{name}: scale_{which} has a scale for each {form.block} of K, {plain}, or is packed, "
            f"{packed}, got shape {tuple(scales.shape)}",
            hint="tc.formats.pack_scales(scales)" if which == "a"
            else "of w [N, K] with q, s: b is q.T, and scale_b is s.T or pack_scales(s).T",
        )
    of_rows = given if which == "a" else given.swapaxes(-1, -2)
    per_byte = 1 + (view(data).dtype == "u8")
    return Side(which, data, of_rows, tuple(scales.shape) == packed, blocks, per_byte)
