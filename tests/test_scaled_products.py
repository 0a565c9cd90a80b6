"""`tc.matmul_mxfp8`, `tc.matmul_mxfp4` and `tc.matmul_nvfp4` on every target, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scaled_cases import operand

import tilecat as tc
from tilecat import e4m3, e5m2, formats, u8
from tilecat.dtypes import e8m0
from tilecat.errors import DTypeError, LayoutError

SCALED = ("sm_100a", "sm_103a", "sm_107a")
FORMATS = {
    "mxfp8": (tc.matmul_mxfp8, e4m3, e8m0, 32),
    "mxfp4": (tc.matmul_mxfp4, u8, e8m0, 32),
    "nvfp4": (tc.matmul_nvfp4, u8, e4m3, 16),
}  # fmt: skip
SHAPES = [(1, 16, 32), (130, 137, 288), (257, 392, 544), (64, 128, 1024), (300, 40, 64)]


def problem(name: str, m: int, n: int, k: int, seed: int = 0, *, a_type: Any = None):
    """A, B, their scales as the function takes them, and float64 operands [M, K], [N, K]."""
    _, dtype, scale, block = FORMATS[name]
    rng = np.random.default_rng([m, n, k, seed])
    a = operand(rng, m, k, a_type or dtype, scale, block)
    b = operand(rng, n, k, dtype, scale, block)
    plain = [formats.unpack_scales(x.packed.view(np.uint8), rows, k // block).view(scale.numpy)
             for x, rows in ((a, m), (b, n))]  # fmt: skip
    return (a.data, b.data.T, plain[0], plain[1].T), a.values, b.values


def check(c: np.ndarray, a: np.ndarray, b: np.ndarray, *, factor: float = 1.0) -> None:
    """f32 sums; one rounding of the output's dtype."""
    want, bound = factor * (a @ b.T), np.abs(a) @ np.abs(b.T) * abs(factor)
    half = {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(c.dtype.name, 0.0)
    allowed = (a.shape[1] + 3) * 2.0**-24 * bound + half * np.abs(want)
    assert (np.abs(c.astype(np.float64) - want) <= allowed).all()


def is_quick(index: int, target: str | None) -> bool:
    """Each shape on one target, and one on all but that which differs from another in i8 alone."""
    return target == (None, *SCALED)[index % 4] or index == 1 and target != "sm_103a"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("index", "target"),
    [pytest.param(i, t, marks=() if is_quick(i, t) else pytest.mark.full)
     for i in range(len(SHAPES)) for t in (None, *SCALED)],
)  # fmt: skip
def test_products_are_those_of_dequantised_operands(name: str, index: int, target: Any):
    for seed in range(1 + (index == 1 and target == "sm_100a")):
        args, a, b = problem(name, *SHAPES[index], seed)
        check(FORMATS[name][0](*args, out_dtype="f32", target=target), a, b)


@pytest.mark.parametrize("target", [None, "sm_100a"])
def test_operands_of_two_8_bit_types_mix(target: Any):
    args, a, b = problem("mxfp8", 100, 130, 160, a_type=e5m2)
    check(tc.matmul_mxfp8(*args, target=target), a, b)


@pytest.mark.parametrize("target", [None, "sm_100a", "sm_107a"])
def test_4_bit_weights_meet_8_bit_rows(target: Any):
    (a, _, scale_a, _), x, _ = problem("mxfp8", 130, 200, 384)
    (_, b, _, scale_b), _, y = problem("mxfp4", 130, 200, 384)
    check(tc.matmul_mxfp8(a, b, scale_a, scale_b, out_dtype="f32", target=target), x, y)
    with pytest.raises(LayoutError, match="K a multiple of 128, one may have 4-bit elements"):
        tc.matmul_mxfp8(a[:, :320], b[:160], scale_a[:, :10], scale_b[:10], target=target)


@pytest.mark.parametrize("target", [None, "sm_107a"])
@pytest.mark.parametrize("name", FORMATS)
def test_packed_scales_are_taken_as_they_are(name: str, target: Any):
    (a, b, scale_a, scale_b), *values = problem(name, 130, 200, 320)
    packed = formats.pack_scales(scale_a), formats.pack_scales(scale_b.T).T
    check(FORMATS[name][0](a, b, *packed, target=target), *values)


@pytest.mark.parametrize("target", [None, "sm_100a"])
@pytest.mark.parametrize(("name", "k"), [("mxfp8", 128), ("nvfp4", 64)])
def test_scales_whose_shape_that_of_packed_rows_is_too(name: str, k: int, target: Any):
    """4 blocks of 512 columns: packed, the same scales were [4, 512] as well."""
    (a, b, scale_a, scale_b), *values = problem(name, 16, 512, k)
    packed = formats.pack_scales(scale_b.T)
    assert scale_b.shape == packed.shape
    for scales in (scale_b, np.ascontiguousarray(scale_b), packed.T):
        check(FORMATS[name][0](a, b, scale_a, scales, target=target), *values)
    spread = np.repeat(packed, 2, axis=1)[:, ::2]
    check(FORMATS[name][0](a, b, scale_a, spread.T, target=target), *values)


@pytest.mark.parametrize("target", [None, "sm_100a"])
def test_factors_epilogues_batches_and_outputs(target: Any):
    (a, b, scale_a, scale_b), x, y = problem("nvfp4", 70, 144, 160)
    out = np.full((70, 144), 2.0, np.float32)
    rows = np.linspace(-1, 1, 144, dtype=np.float32)
    given = {"alpha": 0.5, "beta": 3.0, "epilogue": ((tc.epilogues.bias, rows), tc.epilogues.relu)}
    got = tc.matmul_nvfp4(a, b, scale_a, scale_b, out, target=target, **given)
    assert got is out
    want = np.maximum(0.5 * (x @ y.T) + 6 + rows, 0)
    np.testing.assert_allclose(out, want, atol=1e-5 * np.abs(want).max())
    several = [problem("mxfp8", 60, 130, 96, seed) for seed in range(2)]
    stacked = [np.stack([one[0][i] for one in several]) for i in (0, 2)]
    b = np.stack([one[0][1].T for one in several]).swapaxes(1, 2)
    scale_b = np.stack([one[0][3] for one in several])
    c = tc.matmul_mxfp8(stacked[0], b, stacked[1], scale_b, target=target)
    for index, (_, x, y) in enumerate(several):
        check(c[index], x, y)
    shared = tc.matmul_mxfp8(stacked[0], b[0], stacked[1], scale_b[0], target=target)
    check(shared[1], several[1][1], several[0][2])


@pytest.mark.parametrize("target", [None, "sm_100a"])
def test_operands_with_k_apart_are_copied(target: Any):
    (a, b, scale_a, scale_b), x, y = problem("mxfp4", 60, 80, 128)
    a, b = np.asfortranarray(a), np.ascontiguousarray(b)
    check(tc.matmul_mxfp4(a, b, scale_a, scale_b, target=target), x, y)


def test_k_of_half_a_unit_of_16_bytes():
    args, x, y = problem("nvfp4", 100, 90, 48)
    check(tc.matmul_nvfp4(*args, target="sm_100a"), x, y)


@pytest.mark.parametrize("target", [None, "sm_100a"])
@pytest.mark.parametrize("size", [(0, 16, 64), (16, 0, 64), (16, 16, 0)], ids=str)
def test_empty_products(size: tuple[int, int, int], target: Any):
    m, n, k = size
    x, w = np.ones((m, k), np.float32), np.ones((n, k), np.float32)
    (xq, xs), (wq, ws) = formats.quantize_mx(x), formats.quantize_mx(w)
    y = tc.matmul_mxfp8(xq, wq.T, xs, ws.T, target=target)
    assert y.shape == (m, n) and (y == 0).all()
    (xq, xs, _), (wq, ws, _) = formats.quantize_nvfp4(x), formats.quantize_nvfp4(w)
    y = tc.matmul_nvfp4(xq, wq.T, xs, ws.T, target=target)
    assert y.shape == (m, n) and (y == 0).all()


def test_quantised_matrices_multiply():
    rng = np.random.default_rng(4)
    x, w = (rng.standard_normal((n, 256)).astype(np.float32) for n in (100, 150))
    want = x.astype(np.float64) @ w.T
    for target in (None, "sm_107a"):
        (xq, xs), (wq, ws) = formats.quantize_mx(x), formats.quantize_mx(w)
        y = tc.matmul_mxfp8(xq, wq.T, xs, ws.T, out_dtype="f32", target=target)
        assert np.linalg.norm(y - want) / np.linalg.norm(want) < 0.05
        (xq, xs, xt), (wq, ws, wt) = formats.quantize_nvfp4(x), formats.quantize_nvfp4(w)
        alpha = float(xt * wt)
        y = tc.matmul_nvfp4(xq, wq.T, xs, ws.T, out_dtype="f32", alpha=alpha, target=target)
        assert np.linalg.norm(y - want) / np.linalg.norm(want) < 0.16
        mine = formats.dequantize_nvfp4(xq, xs, xt).astype(np.float64)
        other = formats.dequantize_nvfp4(wq, ws, wt).astype(np.float64)
        np.testing.assert_allclose(y, mine @ other.T, atol=1e-4)


PARAMS = (
    {"wide_k": True}, {"wide_k": True, "tile_n": 128}, {"cluster": 2},
    {"tile_m": 256, "tile_n": 128, "stages": 2}, {"tile_n": 128, "stages": 2, "order": "row"},
    {"cluster": 2, "pairs": True}, {"cluster": 2, "pairs": True, "wide_k": True, "tile_n": 128},
    {"tile_m": 256, "stacked": 2, "stages": 3, "cluster": 2, "pairs": True, "wide_k": True,
     "collectors": "b", "early_a": True, "exclusive": True, "oversized": True},
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "params"),
    [pytest.param(name, params, marks=() if i % 3 == j else pytest.mark.full,
                  id=f"{name} {params}")
     for i, params in enumerate(PARAMS) for j, name in enumerate(FORMATS)],
)  # fmt: skip
def test_parameters_of_the_kernel(name: str, params: dict):
    args, a, b = problem(name, 300, 392, 544)
    check(FORMATS[name][0](*args, target="sm_107a", **params), a, b)


def changed(**given: Any) -> dict[str, Any]:
    """Arguments of `matmul_mxfp8`, some of them others."""
    (a, b, scale_a, scale_b), *_ = problem("mxfp8", 64, 64, 64)
    return {"a": a, "b": b, "scale_a": scale_a, "scale_b": scale_b, **given}


ZEROS = {name: np.zeros((64, 64), d.numpy) for name, d in (("e4m3", e4m3), ("u8", u8))}
HALF = np.zeros((64, 40), e4m3.numpy)


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"a": ZEROS["u8"]}, DTypeError, "matmul_mxfp8: a is e4m3 or e5m2, got u8"),
        ({"a": HALF, "b": HALF.T}, LayoutError, "K is a multiple of 32, .* got K=40"),
        ({"a": HALF}, LayoutError, "extent K must agree, got a with K=40 and b with K=64"),
        ({"scale_a": np.zeros((64, 4), e8m0.numpy)}, LayoutError,
         r"a scale for each 32 of K, \(64, 2\), or is packed, \(1, 512\), got shape \(64, 4\)"),
        ({"scale_b": np.zeros((64, 2), e8m0.numpy)}, LayoutError, r"scale_b .* \(2, 64\), or is"),
        ({"scale_a": np.zeros((64, 2), np.float32)}, DTypeError, "scale_a is e8m0 or u8, got f32"),
        ({"a": np.zeros(64, e4m3.numpy)}, LayoutError, "a has 2 axes, or a batch in front"),
        ({"tile_n": 128}, LayoutError, "which sm_90a does not do, got tile_n"),
        ({"target": "sm_100a", "tile_n": 192}, LayoutError, "128 rows of A and columns of B share"),
        ({"target": "sm_100a", "tile_m": 64}, LayoutError, "128 rows of A and columns of B share"),
        ({"target": "sm_100a", "wide_k": True}, tc.ArchError, "sm_100a"),
        ({"target": "sm_80"}, tc.ArchError, "compiles for sm_90a, .* got 'sm_80'"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_what_does_not_fit_is_said(given: dict, kind: Any, text: str):
    with pytest.raises(kind, match=text):
        tc.matmul_mxfp8(**changed(**given))


def test_4_bit_operands_are_bytes():
    with pytest.raises(DTypeError, match="matmul_nvfp4: b is u8, two e2m1 a byte, got e4m3"):
        tc.matmul_nvfp4(ZEROS["u8"], ZEROS["e4m3"], None, None)
    with pytest.raises(DTypeError, match="scale_a is e4m3, got u8"):
        tc.matmul_nvfp4(ZEROS["u8"], ZEROS["u8"].T, np.zeros((64, 8), np.uint8), None)


@pytest.mark.parametrize(
    "target", [None, "sm_100a", pytest.param("sm_107a", marks=pytest.mark.full)]
)
def test_six_bits_are_multiplied_as_what_they_are(target: Any):
    e2m3, e3m2 = tc.dtypes.e2m3, tc.dtypes.e3m2
    rng = np.random.default_rng(6)
    for of_a, of_b in ((e2m3, e3m2), (e3m2, e3m2), (e2m3, e4m3)):
        x = rng.standard_normal((130, 96)).astype(np.float32)
        w = rng.standard_normal((72, 96)).astype(np.float32)
        (a, sa), (b, sb) = formats.quantize_mx(x, of_a), formats.quantize_mx(w, of_b)
        wide = [formats.dequantize_mx(q, s).astype(np.float64) for q, s in ((a, sa), (b, sb))]
        c = tc.matmul_mxfp6(a, b.T, sa, sb.T, out_dtype="f32", target=target)
        check(c, *wide)
        codes = a.view(np.uint8)
        again = tc.matmul_mxfp6(
            codes, b.T, sa, sb.T, dtype_a=of_a, out_dtype="f32", target=target
        )
        np.testing.assert_array_equal(again, c)
    with pytest.raises(DTypeError, match="as_e4m3: elements are e2m3 or e3m2"):
        tc.matmul_mxfp6(codes, b.T, sa, sb.T, target=target)
