"""Random calls of tc.matmul on a GPU, those of `gemm_cases`: dtypes, orders, batches, epilogues."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import gemm_cases  # noqa: E402
import numpy as np  # noqa: E402
import reference  # noqa: E402

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


def problem_of_groups(seed):
    """a, b, rows, whether rows are ends, and for each group its rows of a and of the output."""
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(["bf16", "f16", "e4m3"]))
    n, k = (int(16 * rng.integers(1, 60)) for _ in range(2))
    counts = rng.integers(0, 400, rng.integers(1, 70)) * (rng.random() < 0.9)
    counts[0] += 1
    ends = bool(rng.random() < 0.5)
    last = np.cumsum(counts)
    lead = (int(last[-1]),) if ends else (len(counts), int(counts.max()) + 5)
    a = gemm_cases.numbers(rng, (*lead, k), dtype, "row")
    b = gemm_cases.numbers(rng, (len(counts), k, n), dtype, "col")
    where = [
        slice(end - count, end) if ends else (group, slice(0, count))
        for group, (count, end) in enumerate(zip(counts, last, strict=True))
    ]
    return a, b, (last if ends else counts).astype(np.int32), ends, where


@pytest.mark.parametrize("seed", range(40))
def test_random_groups(seed):
    a, b, rows, ends, where = problem_of_groups(seed)
    blank = np.full((*a.shape[:-1], b.shape[-1]), np.nan).astype(tc.bf16.numpy)
    out = on_gpu(blank)
    tc.grouped_matmul(on_gpu(a), on_gpu(b), out, **{"ends" if ends else "counts": on_gpu(rows)})
    made, written = back(out, blank), 0
    for group, place in enumerate(where):
        chain = gemm_cases.product(a[place], b[group], gpu=True)
        exact = reference.Reference(chain.value, chain.error)
        reference.assert_close(made[place], exact, made.dtype)
        written += made[place].size
    assert int((~np.isnan(made.astype(np.float32))).sum()) == written


@pytest.mark.parametrize("seed", range(12))
def test_random_scales_of_blocks(seed):
    rng = np.random.default_rng(seed)
    m, n, k = (int(rng.integers(1, 700)) for _ in range(3))
    a = gemm_cases.numbers(rng, (m, k), "e4m3", "row")
    b = gemm_cases.numbers(rng, (k, n), "e4m3", "col")
    blocks, wide = -(-k // 128), -(-n // 128)
    scale_a = rng.uniform(0.5, 2, (m, blocks)).astype(np.float32)
    scale_b = rng.uniform(0.5, 2, (blocks, wide)).astype(np.float32)
    blank = np.full((m, n), np.nan).astype(tc.bf16.numpy)
    out = on_gpu(blank)
    tc.matmul(on_gpu(a), on_gpu(b), out, scale_a=on_gpu(scale_a), scale_b=on_gpu(scale_b))
    total = gemm_cases.scaled_by_blocks(a, b, scale_a, scale_b, gpu=True)
    reference.assert_close(
        back(out, blank), reference.Reference(total.value, total.error), blank.dtype
    )


@pytest.mark.parametrize("dtype", ["bf16", "f16", "e4m3"])
@pytest.mark.parametrize("size", [(200, 136, 72), (1000, 520, 256), (64, 2048, 1024)], ids=str)
def test_gated_product(size, dtype):
    m, n, k = size
    rng = np.random.default_rng(0)
    a = gemm_cases.numbers(rng, (m, k), dtype, "row")
    b, c = (gemm_cases.numbers(rng, (k, n), dtype, "col") for _ in range(2))
    blank = np.full((m, n), np.nan, np.float32)
    out = on_gpu(blank)
    tc.matmul(on_gpu(a), on_gpu(b), out, second=on_gpu(c), epilogue=tc.epilogues.swiglu)
    wanted = gemm_cases.gated(a, b, c, gpu=True)
    reference.assert_close(
        back(out, blank), reference.Reference(wanted.value, wanted.error), blank.dtype
    )


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
