"""Rotary, norms and cross-entropy on arrays, against float64: odd widths, strides, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from convert_rows import philox

import tilecat as tc
from tilecat import bf16, f16
from tilecat.check.access import shared_accesses
from tilecat.errors import DTypeError, LayoutError
from tilecat.kernels.cross_entropy import cross_entropy
from tilecat.kernels.norm import column_sums, norm_backward

BF16, F16 = bf16.numpy, f16.numpy
WIDTHS = (1, 7, 100, 1000, 1023, 4096, *(pytest.param(n, marks=pytest.mark.slow)
                                         for n in (8192, 16384, 20000)))  # fmt: skip


def randn(*shape: int, dtype: Any = BF16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(got: np.ndarray, exact: np.ndarray, roundings: float = 1.0) -> None:
    """Within roundings of its dtype, of each row's largest element; a NaN is never close."""
    eps = {2: 2.0**-8 if got.dtype == BF16 else 2.0**-11}.get(got.dtype.itemsize, 2.0**-19)
    limit = roundings * eps * np.maximum(abs(exact).max(-1, keepdims=True), 1e-3)
    assert (abs(got.astype(np.float64) - exact) <= limit).all()


def test_no_bank_conflicts():
    x, stats, sums = randn(8, 1000), np.zeros(8, np.float32), np.zeros((1, 1000), np.float32)
    kernels = (
        cross_entropy.compile(V=40960, W=2, cluster=2, blocks=1),
        norm_backward.compile(x, x, x, stats, 0, 1.0, sums, D=1000, given=("of_bias",), rms=True,
                              warps=4), column_sums.compile(),
    )  # fmt: skip
    for compiled in kernels:
        accesses = shared_accesses(compiled.kernel)
        assert accesses and all(access.ways == 1 for access in accesses), accesses


# ---- rotary


def turned(x: Any, cos: Any, sin: Any, interleaved: bool, first: int = 0) -> np.ndarray:
    y, half = x.astype(np.float64), cos.shape[1]
    c, s = (v[first : first + x.shape[-3], None].astype(np.float64) for v in (cos, sin))
    parts = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (
        slice(0, half), slice(half, 2 * half))  # fmt: skip
    a, b = (y[..., part].copy() for part in parts)
    y[..., parts[0]], y[..., parts[1]] = a * c - b * s, b * c + a * s
    return y


def angles(positions: int, pairs: int, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    angle = randn(positions, pairs, dtype=np.float64, seed=9) * 3
    return np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)


@pytest.mark.parametrize(("dim", "pairs", "interleaved", "dtype", "table"), [
    (128, 64, False, BF16, np.float32), (64, 32, True, BF16, np.float32),
    (96, 48, True, F16, F16), (80, 20, False, np.float32, np.float32),
    (24, 1, True, BF16, BF16), (33, 7, False, BF16, np.float32), (256, 128, False, BF16, BF16),
])  # fmt: skip
def test_rotary_of_queries_and_keys(
    dim: int, pairs: int, interleaved: bool, dtype: Any, table: Any
):
    q, k = randn(2, 21, 3, dim, dtype=dtype), randn(2, 21, 2, dim, dtype=dtype, seed=1)
    cos, sin = angles(25, pairs, table)
    got = tc.apply_rotary_qk(q, k, cos, sin, interleaved, seqlen_offsets=3)
    for x, y in zip((q, k), got, strict=True):
        close(y, turned(x, cos, sin, interleaved, 3))
        assert (y[..., 2 * pairs :] == x[..., 2 * pairs :]).all()
    back = tc.apply_rotary(got[0], cos, sin, interleaved, seqlen_offsets=3, conjugate=True)
    exact = turned(turned(q, cos, sin, interleaved, 3), cos, -sin, interleaved, 3)
    close(back, exact, 3)


def test_rotary_in_place_of_views_and_by_offsets_of_each_sequence():
    whole = randn(2, 4, 40, 64)
    x = whole.transpose(0, 2, 1, 3)[:, 5:30]  # B x H x N x D in memory, some tokens
    cos, sin = angles(60, 32)
    moved = np.array([0, 33], np.int32)
    exact = [turned(x[i], cos, sin, False, int(moved[i])) for i in range(2)]
    before = whole.copy()
    assert tc.apply_rotary(x, cos, sin, inplace=True, seqlen_offsets=moved) is x
    for i in range(2):
        close(x[i], exact[i])
    assert (whole[:, :, :5] == before[:, :, :5]).all()
    assert (whole[:, :, 30:] == before[:, :, 30:]).all()


def test_rotary_of_a_packed_batch_touches_its_sequences_alone():
    x, starts = randn(70, 2, 48), np.array([0, 0, 17, 18, 70], np.int32)
    cos, sin = angles(60, 24)
    y = tc.apply_rotary(x, cos, sin, cu_seqlens=starts, max_seqlen=52, seqlen_offsets=1)
    for first, last in zip(starts, starts[1:], strict=False):
        close(y[first:last], turned(x[first:last], cos, sin, False, 1)[: last - first])


def test_positions_beyond_the_table_are_not_numbers():
    x, (cos, sin) = randn(1, 20, 1, 32), angles(18, 16)
    y = tc.apply_rotary(x, cos, sin, seqlen_offsets=np.array([0], np.int32))
    assert np.isnan(y[0, 18:].astype(float)).all() and not np.isnan(y[0, :18].astype(float)).any()


@pytest.mark.parametrize(("change", "message"), [
    ({"cos": np.zeros((9, 20), np.float32)}, "cos is positions x R, 2 R at most D = 32"),
    ({"sin": np.zeros((9, 15), np.float32)}, "sin has the shape of cos = "),
    ({"seqlen_offsets": 5}, "positions 5 to 12 are not all of cos and sin, which have 9"),
    ({"cu_seqlens": np.array([0, 8], np.int32)}, "x has 3 axes"),
    ({"x": np.zeros((1, 8, 32), BF16)}, "x has 4 axes"),
])  # fmt: skip
def test_rotary_refuses(change: dict[str, Any], message: str):
    cos, sin = angles(9, 16)
    with pytest.raises(LayoutError, match=message.replace("(", r"\(")):
        tc.apply_rotary(**{"x": randn(1, 8, 2, 32), "cos": cos, "sin": sin, **change})


def test_rotary_refuses_other_dtypes():
    with pytest.raises(DTypeError, match="seqlen_offsets is s32, got f32"):
        tc.apply_rotary(randn(1, 8, 2, 32), *angles(9, 16), seqlen_offsets=np.zeros(1, np.float32))


# ---- norms


def normed(h: Any, w: Any, b: Any, rms: bool, eps: float = 1e-5) -> np.ndarray:
    centred = h if rms else h - h.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    y = y if w is None else y * w
    return y if b is None else y + b


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rms", [False, True])
def test_norm_of_odd_widths(width: int, rms: bool):
    x, r = randn(5, width + 3)[:, :width], randn(5, width, seed=1)  # rows of another stride
    x[1] = x[1] * 0.1 + 30  # a mean that one pass would lose
    w, b = randn(width, dtype=np.float32, seed=2), randn(width, dtype=np.float32, seed=3)
    y, h = tc.layer_norm_fn(x, w, b, r, 1e-5, prenorm=True, is_rms_norm=rms)
    exact = x.astype(float) + r.astype(float)
    close(h, exact)
    close(y, normed(exact, w.astype(float), b.astype(float), rms), 1.1)


def test_norm_of_what_there_is():
    x = randn(2, 3, 96, dtype=np.float32) + 100
    y, h = tc.layer_norm_fn(x, prenorm=True)
    assert h is x
    close(y, normed(x.astype(float), None, None, False, 1e-6), 16)  # 100 of which 1 varies
    y, h = tc.layer_norm_fn(x.astype(BF16), prenorm=True, residual_in_fp32=True)
    assert h.dtype == np.float32 and y.dtype == BF16
    scale = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = tc.layer_norm_fn(x, rowscale=scale, eps=1.0)
    close(y, normed(x.astype(float) * scale[..., None], None, None, False, 1.0), 16)


@pytest.mark.parametrize(("width", "p"), [(512, 0.1), (300, 0.75)])
def test_dropout_keeps_its_rate_and_its_bits(width: int, p: float):
    x = np.ones((200, width), np.float32)
    y, h = tc.layer_norm_fn(x, dropout_p=p, prenorm=True, seed=(7 << 32) + 5)
    row, col = np.indices(x.shape)
    words = np.choose(col % 4, philox((col // 4, row, 0 * row + 7, 0 * row), (5, 0)))
    kept = words >= int(p * 2**32)
    np.testing.assert_array_equal(h, np.where(kept, np.float32(1 / (1 - p)), 0))
    assert abs(kept.mean() - (1 - p)) < 4 * np.sqrt(p * (1 - p) / x.size)
    again = tc.layer_norm_fn(x, dropout_p=p, seed=np.array([5, 7], np.int32))
    np.testing.assert_array_equal(y, again)


@pytest.mark.parametrize(("change", "message"), [
    ({"weight": randn(9)}, r"weight has the shape \[D\] = \(8,\) here, got \(9,\)"),
    ({"residual": randn(2, 8)}, "residual has the shape of x"),
    ({"dropout_p": 1.0}, "dropout_p is a number, at least 0 and below 1, got 1.0"),
    ({"dropout_p": 0.5}, "dropout wants a seed, got None"),
    ({"eps": -1}, "eps is a number, at least 0"),
])  # fmt: skip
def test_norm_refuses(change: dict[str, Any], message: str):
    with pytest.raises(LayoutError, match=message):
        tc.layer_norm_fn(**{"x": randn(3, 8), **change})


# ---- cross-entropy


def losses(x: Any, target: Any, smoothing: float = 0.0, z: float = 0.0) -> Any:
    """Losses and their gradient, a label of -100 ignored."""
    x = x.astype(np.float64)
    lse = np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1)) + x.max(-1)
    ignored, at = target == -100, np.maximum(target, 0)[..., None]
    found = lse - (1 - smoothing) * np.take_along_axis(x, at, -1)[..., 0]
    found += z * lse**2
    found -= smoothing * x.mean(-1) if smoothing else 0
    grad = np.exp(x - lse[..., None]) * (1 + 2 * z * lse)[..., None] - smoothing / x.shape[-1]
    np.put_along_axis(grad, at, np.take_along_axis(grad, at, -1) - (1 - smoothing), -1)
    grad[ignored] = 0
    return np.where(ignored, 0, found), grad


@pytest.mark.parametrize("width", WIDTHS)
def test_cross_entropy_of_odd_widths(width: int):
    x = np.concatenate([randn(6, width) * 3, randn(6, 3)], 1)[:, :width]  # rows lie further apart
    target = np.random.default_rng(0).integers(0, width, 6)
    target[2] = -100
    exact, grad = losses(x, target)
    loss, dx = tc.cross_entropy_grad(x, target.astype(np.int32), reduction="none")
    np.testing.assert_allclose(loss, exact, atol=4e-6)
    close(dx, grad)
    np.testing.assert_allclose(tc.cross_entropy(x, target), exact.sum() / 5, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("width", "dtype"), [(2048, BF16), (1001, np.float32), (40960, F16)])
def test_cross_entropy_in_place_with_options(width: int, dtype: Any):
    x = randn(4, width, dtype=dtype)
    target = np.array([0, width - 1, -100, 5])
    exact, grad = losses(x, target, 0.125, 1e-3)
    loss, dx = tc.cross_entropy_grad(x, target, label_smoothing=0.125, z_loss=1e-3, inplace=True)
    assert dx is x
    np.testing.assert_allclose(loss, exact.sum() / 3, rtol=2e-6)
    close(dx, grad / 3)


def test_labels_outside_the_vocabulary_are_not_numbers():
    x = randn(4, 64)
    target = np.array([3, 64, -1, (1 << 32) + 3])
    loss, dx = tc.cross_entropy_grad(x, target, reduction="none")
    assert np.isnan(loss).tolist() == np.isnan(dx.astype(float)).all(1).tolist() == [0, 1, 1, 1]
    assert not np.isnan(dx[0].astype(float)).any()


@pytest.mark.filterwarnings("error")
def test_a_mean_of_no_rows_is_no_number():
    x, target = randn(2, 64), np.full(2, -100)
    assert np.isnan(tc.cross_entropy(x, target)) and tc.cross_entropy(x, target, -100, "sum") == 0
    loss, dx = tc.cross_entropy_grad(x, target)
    assert np.isnan(loss) and not dx.astype(float).any()


def test_logits_that_are_masked_and_logits_that_are_large():
    x = randn(3, 600, dtype=np.float32)
    x[0, 10:] = -np.inf
    x[1] *= 1e4
    target = np.array([3, int(x[1].argmax()), 0])
    exact, grad = losses(x, target)
    loss, dx = tc.cross_entropy_grad(x, target, reduction="none")
    np.testing.assert_allclose(loss, exact, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(dx, grad, atol=2e-6)


@pytest.mark.parametrize(("width", "dtype", "config"), [
    (3000, BF16, {"cluster": 1, "chunks": 2, "stages": 6, "keep": True}),
    (5000, BF16, {"cluster": 4, "chunks": 1, "stages": 2, "keep": True}),
    (3000, np.float32, {"cluster": 2, "chunks": 2, "stages": 3, "keep": True}),
    (5000, F16, {"cluster": 2, "chunks": 3, "stages": 4}),
    (5000, BF16, {"cluster": 1, "chunks": 5, "stages": 3, "gradient": False}),
    (5000, BF16, {"cluster": 1, "chunks": 5, "stages": 3, "forward": False}),
])  # fmt: skip
def test_schedules_of_cross_entropy(width: int, dtype: Any, config: dict[str, Any]):
    x, target = randn(5, width, dtype=dtype), np.array([0, width - 1, -100, width - 2, 700])
    x[1, : width // 2] = x[2, 5:] = -np.inf  # all of some warps' chunks
    x[3] = x[1].astype(np.float32) - 400
    exact, grad = losses(x, target, 0.0, 1e-3)
    got, loss, lse = np.full_like(x, np.nan), *(np.full(5, np.nan, np.float32) for _ in range(2))
    if not config.get("forward", True):
        lse[:] = np.log(np.exp(x.astype(float)).sum(1))
    cross_entropy(x, got, target.view(np.int32).reshape(5, 2), loss, lse, np.ones(1, np.float32),
                  -100, 0.0, 1e-3, V=width, W=2, z=True, warps=4, blocks=1, piece=256,
                  **config)  # fmt: skip
    if config.get("forward", True):
        np.testing.assert_allclose(loss, exact, rtol=1e-6, atol=4e-6)
    if config.get("gradient", True):
        close(got, grad)


@pytest.mark.parametrize(("change", "message"), [
    ({"target": np.zeros(4, np.int64)}, "target has the shape of x without V"),
    ({"reduction": "max"}, "reduction is mean, sum, none, got 'max'"),
    ({"label_smoothing": 2}, "label_smoothing is a number, at least 0 and at most 1"),
])  # fmt: skip
def test_cross_entropy_refuses(change: dict[str, Any], message: str):
    given = {"x": randn(3, 8), "target": np.zeros(3, np.int64), **change}
    with pytest.raises(LayoutError, match=message):
        tc.cross_entropy(**given)


def test_cross_entropy_refuses_labels_of_other_dtypes():
    with pytest.raises(DTypeError, match="target is s64 or s32, got f32"):
        tc.cross_entropy(randn(3, 8), np.zeros(3, np.float32))
