"""Random tensors on the GPU in every layout of `cases.LAYOUTS`, their margins poisoned."""

from __future__ import annotations

from typing import Any

import torch
from cases import LAYOUTS

from tilecat.testing import poison

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
DEVICE = "cuda"


def blank(shape: tuple[int, ...], layout: str = "row", dtype: str = "bf16") -> tuple[Any, Any]:
    """A tensor of NaN and its base, NaN too."""
    plan = LAYOUTS[layout]
    base = torch.empty(plan.base(shape), device=DEVICE, dtype=DTYPES[dtype])
    poison(base)
    return plan.view(base, shape), base


def normal(shape: tuple[int, ...], layout: str = "row", dtype: str = "bf16", seed: int = 0) -> Any:
    """Normal random numbers; what surrounds them is NaN, so that a read beside them shows."""
    found, _ = blank(shape, layout, dtype)
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    found.copy_(torch.randn(shape, device=DEVICE, generator=generator))
    return found


def assert_margin_untouched(base: Any, tensor: Any) -> None:
    """Only the tensor's own elements of its base were written: the rest is still NaN."""
    written = int((~torch.isnan(base)).sum())
    inside = int((~torch.isnan(tensor)).sum())
    assert written == inside, f"{written - inside} elements written outside the output"
