"""float64 references on the GPU, in chunks, and the interval that a right result lies in.

The formulas are those of `tests/reference.py`, whose page derives them, in torch: a reference of
thousands of products takes milliseconds here. `test_exact.py` holds the two together.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from reference import DEVIATIONS, EXP2_ERROR, TRUNCATION, accumulation, half_ulp

from tilecat.dtypes import by_name

CHUNK_ELEMS = 1 << 25  # float64 elements of a temporary: 256 MB
_LOG2_E = 1.0 / 0.6931471805599453


def matmul(a: Any, b: Any) -> tuple[Any, Any]:
    """A @ B and the error before its one rounding, both [M, N] in float64."""
    wide_b = b.double()
    size_b = wide_b.abs()
    rows = max(CHUNK_ELEMS // max(a.shape[1], b.shape[1], 1), 1)
    values, sizes = [], []
    for part in a.split(rows) if a.shape[0] else (a,):
        wide = part.double()
        values.append(wide @ wide_b)
        sizes.append(wide.abs() @ size_b)
    return torch.cat(values), accumulation(a.shape[1]) * torch.cat(sizes)


def attention(
    q: Any, k: Any, v: Any, scale: float | None = None, change: Any = None
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """((out, error), (lse, error)) of softmax(scale Q K^T) V in float64; heads may be grouped.

    Args:
        q, k, v, scale: as in `reference.attention`.
        change: `f(scores, entry, head, first)` makes scores of some rows, from `first` on, of the
            scaled products, -inf of hidden keys.
    """
    scale = q.shape[3] ** -0.5 if scale is None else scale
    group = q.shape[1] // k.shape[1]
    found = [
        _head(
            q[entry, head], k[entry, head // group], v[entry, head // group], scale,
            None if change is None else partial(change, entry=entry, head=head),
        )
        for entry in range(q.shape[0])
        for head in range(q.shape[1])
    ]
    stacked = [torch.stack(parts) for parts in zip(*found, strict=True)]
    out, out_error, lse, lse_error = (
        x.reshape(q.shape[0], q.shape[1], *x.shape[1:]) for x in stacked
    )
    return (out, out_error), (lse, lse_error)


def _head(q: Any, k: Any, v: Any, scale: float, change: Any) -> tuple[Any, Any, Any, Any]:
    rows = max(CHUNK_ELEMS // max(k.shape[0], 1), 1)
    parts = [
        _rows(part.double(), k.double(), v, scale, change and partial(change, first=n * rows))
        for n, part in enumerate(q.split(rows))
    ]
    out, out_error, lse, lse_error = (torch.cat(x) for x in zip(*parts, strict=True))
    return out, out_error, lse, lse_error


def _rows(q: Any, k: Any, v: Any, scale: float, change: Any) -> tuple[Any, Any, Any, Any]:
    wide_v, half = v.double(), half_ulp(_numpy_dtype(v.dtype))
    scores = scale * (q @ k.t())
    scores = scores if change is None else change(scores)
    hidden = scores == -torch.inf
    largest = scores.amax(1, keepdim=True)
    weights = torch.exp(scores - largest).masked_fill(hidden, 0)
    total = weights.sum(1, keepdim=True)
    shares = (weights / total).masked_fill(total == 0, 0)
    products = abs(scale) * (q.abs() @ k.abs().t())
    exponent = accumulation(q.shape[1]) * products + 3 * TRUNCATION * scores.abs()
    if change is not None:  # a few more roundings of what is at most so large
        exponent = (exponent + 8 * TRUNCATION * products).masked_fill(hidden, 0)
    score_error = 2 * _LOG2_E * exponent.amax(1) + EXP2_ERROR
    size = shares @ wide_v.abs()
    spread = DEVIATIONS * torch.sqrt(shares.square() @ wide_v.square())
    relative = 2 * score_error[:, None] + 2 * accumulation(k.shape[0])
    out_error = relative * size + half * torch.minimum(size, spread)
    lse = (largest + total.log())[:, 0]
    terms = (largest.abs() + total.log().abs())[:, 0]
    lse_error = score_error + accumulation(k.shape[0]) + 4 * TRUNCATION * (1 + terms)
    return shares @ wide_v, out_error, lse, lse_error


def assert_close(actual: Any, expected: tuple[Any, Any], what: str = "") -> None:
    """Every element lies in [round(value - error), round(value + error)], NaN where NaN is.

    torch rounds float64 to 16 bits by way of fp32. Both roundings are monotone and the kernel's
    own result is an fp32 number, so the interval holds as it stands.

    Raises:
        AssertionError: says how many elements are wrong and the worst.
    """
    value, error = expected
    assert actual.shape == value.shape, f"{what}: shape {actual.shape}, expected {value.shape}"
    error = torch.where(torch.isfinite(value), error, torch.zeros_like(error))
    low = (value - error).to(actual.dtype).double()
    high = (value + error).to(actual.dtype).double()
    got = actual.double()
    right = (got >= low) & (got <= high) | torch.isnan(got) & torch.isnan(value)
    if bool(right.all()):
        return
    wrong = ~right
    distance = torch.nan_to_num(torch.maximum(low - got, got - high), nan=float("inf"))
    worst = int(torch.where(wrong, distance, torch.full_like(distance, -1.0)).argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), got.shape))
    raise AssertionError(
        f"{what}: {int(wrong.sum())} of {wrong.numel()} elements wrong, worst at {place}: got "
        f"{float(got[place])!r}, expected {float(value[place])!r}, allowed "
        f"[{float(low[place])!r}, {float(high[place])!r}]"
    )


def _numpy_dtype(dtype: Any) -> Any:
    return by_name({"bfloat16": "bf16", "float16": "f16"}[str(dtype).rpartition(".")[2]]).numpy
