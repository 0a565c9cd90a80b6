"""What GPU tests of recurrences share: poisoned memory, random operands, how far off one is."""

from __future__ import annotations

from typing import Any

import torch

BF16 = torch.bfloat16


def poison_calls(monkeypatch: Any, *modules: Any) -> None:
    """What calls of these modules allocate is NaN until it is written."""
    for module in modules:
        allocate = module.allocator
        monkeypatch.setattr(
            module, "allocator",
            lambda *args, allocate=allocate: lambda: allocate(*args)().fill_(float("nan")),
        )  # fmt: skip


def normal(*shape: int, dtype: Any = BF16) -> Any:
    """Normal random numbers."""
    return torch.randn(*shape, device="cuda").to(dtype)


def close(got: Any, exact: Any, limit: float, size: Any = None) -> None:
    """Root mean square of the error, relative to that of the exact tensor (or of `size`).

    The worst row, along the last axis, may be 16 times as far off; NaN fails.
    """
    assert got.shape == exact.shape, (tuple(got.shape), tuple(exact.shape))
    if not exact.numel():
        return
    squares = (got.double() - exact) ** 2
    scale = ((exact if size is None else size).double() ** 2).mean().sqrt()
    error = squares.mean().sqrt() / scale
    assert error <= limit, f"error {float(error):.2g}, limit {limit:.2g}"
    worst = squares.mean(-1).max().sqrt() / scale
    assert worst <= 16 * limit, f"worst row {float(worst):.2g}, limit {16 * limit:.2g}"
