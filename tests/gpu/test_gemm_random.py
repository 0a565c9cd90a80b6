"""Random calls of tc.matmul on a GPU, those of `gemm_cases`: dtypes, orders, batches, epilogues."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import gemm_cases  # noqa: E402
import numpy as np  # noqa: E402

import tilecat as tc  # noqa: E402
from tilecat.dtypes import from_numpy  # noqa: E402

COUNT, A_TEST = 500, 25
LONGEST = 700


def on_gpu(value: object) -> object:
    """The same array with the same strides on the GPU; tuples of them; other things as they are."""
    if isinstance(value, tuple):
        return tuple(map(on_gpu, value))
    if not isinstance(value, np.ndarray):
        return value
    dtype = getattr(torch, from_numpy(value.dtype).torch)
    order = np.argsort([-stride for stride in value.strides], kind="stable")
    steps = [stride // value.itemsize for stride in value.strides]
    span = 1 + sum(step * (size - 1) for step, size in zip(steps, value.shape, strict=True))
    base = torch.zeros(max(span, 1), dtype=dtype, device="cuda")
    made = base.as_strided(value.shape, steps)
    packed = np.ascontiguousarray(value.transpose(order)).view(f"u{value.itemsize}")
    raw = torch.from_numpy(packed.astype(f"i{value.itemsize}", copy=False).copy()).cuda()
    made.permute(*map(int, order)).copy_(raw.view(dtype))
    return made


def back(tensor: object, like: np.ndarray) -> np.ndarray:
    """A tensor of the GPU in NumPy."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[like.itemsize]
    return tensor.contiguous().view(whole).cpu().numpy().view(like.dtype)


@pytest.mark.parametrize("first", range(0, COUNT, A_TEST))
def test_random_calls(first):
    for seed in range(first, first + A_TEST):
        given = gemm_cases.problem(seed, LONGEST, gpu=True)
        out = on_gpu(given.out)
        options = {name: on_gpu(value) for name, value in given.options.items()}
        tc.matmul(on_gpu(given.a), on_gpu(given.b), out, **options)
        gemm_cases.check(given, back(out, given.out))


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_random_calls_repeat_bit_for_bit(seed):
    given = gemm_cases.problem(seed, LONGEST, gpu=True)
    a, b = on_gpu(given.a), on_gpu(given.b)
    options = {name: on_gpu(value) for name, value in given.options.items()}
    found = []
    for _ in range(5):
        out = on_gpu(given.out)
        tc.matmul(a, b, out, **options)
        found.append(back(out, given.out))
    assert all(np.array_equal(x, found[0], equal_nan=True) for x in found)
