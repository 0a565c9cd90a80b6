"""Every op alone on the GPU: the cases, and the text, that the PTX machine runs."""

from __future__ import annotations

import pytest
from ops_cases import CASES, COLS, ROWS, N, OpCase, S, check, kernel_of, operands

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", CASES, ids=str)
def test_op_on_the_gpu_is_numpy(case: OpCase):
    arrays = operands()
    on_gpu = [torch.from_numpy(a).cuda() for a in (arrays.X, arrays.Y, arrays.R, arrays.C)]
    out = torch.full((ROWS, COLS), float("nan"), device="cuda")
    kernel_of(case)(*on_gpu, out, N, S, grid=1)
    check(case, out.cpu().numpy(), arrays)
