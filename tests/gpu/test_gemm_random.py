"""Random calls of tc.matmul and tc.grouped_matmul on a GPU, each twice: right, and equal bits.

The 500 problems of `gemm_random`, larger than on the PTX machine. A failure names its seed:
`gemm_random.problem(SEED, 700, gpu=True)`.
"""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import gemm_random  # noqa: E402
import numpy as np  # noqa: E402
from on_gpu import OnGpu  # noqa: E402

COUNT, A_TEST = 500, 10
LONGEST = 700


def moved(value: Any) -> Any:
    """Arrays on the GPU, with their strides; tuples of them; other things as they are."""
    if isinstance(value, tuple):
        return tuple(map(moved, value))
    return OnGpu(value).tensor if isinstance(value, np.ndarray) else value


def run(given: gemm_random.Problem) -> tuple[np.ndarray, np.ndarray]:
    """Two calls on the same operands; the memory of out after each."""
    a, b = moved(given.a), moved(given.b)
    options = {name: moved(value) for name, value in given.options.items()}
    outs = [OnGpu(given.out) for _ in range(2)]
    for out in outs:
        given.run(a, b, out.tensor, options)
    first, second = (out.bytes.cpu().numpy() for out in outs)
    return first, second


@pytest.mark.parametrize("first", range(0, COUNT, A_TEST))
def test_random_calls_are_right_and_repeat(first: int):
    for seed in range(first, first + A_TEST):
        given = gemm_random.problem(seed, LONGEST, gpu=True)
        print(given)  # shown where a test fails, also where it ends by a fault of the GPU
        one, two = run(given)
        given.check(one)
        assert (one == two).all(), f"{given}: other bits the second time"
