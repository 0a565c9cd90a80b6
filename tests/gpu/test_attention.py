"""tc.attention on a GPU against float64: over 100 problems, layouts, and what numbers do."""

import math
import random

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from arrays import assert_margin_untouched, blank, normal  # noqa: E402
from exact import assert_close, attention  # noqa: E402

import tilecat as tc  # noqa: E402
from tilecat import ready  # noqa: E402
from tilecat.kernels import KERNELS  # noqa: E402
from tilecat.kernels.attention import attention as kernel  # noqa: E402
from tilecat.testing import poison  # noqa: E402

DIMS = (32, 64, 128)
# B, H, Hkv, Lq, Lk
SIZES = (
    (1, 1, 1, 1, 1), (2, 4, 4, 128, 128), (1, 8, 2, 100, 300), (3, 6, 1, 257, 65),
    (1, 2, 2, 1, 777), (2, 3, 3, 777, 1), (1, 16, 4, 1024, 1024), (2, 8, 8, 63, 129),
    (1, 4, 4, 129, 63), (1, 5, 5, 500, 500),
)  # fmt: skip
EMPTY = ((0, 2, 2, 8, 8), (1, 2, 2, 0, 8), (2, 2, 1, 8, 0))
VIEWS = ("heads", "packed", "shifted", "odd", "sliced", "spread")


@pytest.fixture(autouse=True)
def poisoned_outputs(monkeypatch):
    """What an operator allocates is NaN until it is written."""
    allocator = ready.allocator

    def poisoned(*args):
        make = allocator(*args)

        def made():
            array = make()
            poison(array)
            return array

        return made

    monkeypatch.setattr(ready, "allocator", poisoned)


def random_problems(count, seed=2026):
    """Lengths spread evenly over their logarithms, 1 to 1500."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        heads, group = rng.randint(1, 4), rng.choice((1, 1, 2, 3))
        lengths = [round(1500 ** rng.random()) for _ in range(2)]
        dtype = "f16" if rng.random() < 0.25 else "bf16"
        found.append((rng.randint(1, 3), heads * group, heads, *lengths, rng.choice(DIMS), dtype))
    return found


def tensors(size, dim, dtype="bf16", layouts=("row", "row", "row"), seed=0):
    batch, heads, groups, queries, keys = size
    q = normal((batch, heads, queries, dim), layouts[0], dtype, seed)
    k = normal((batch, groups, keys, dim), layouts[1], dtype, seed + 1)
    v = normal((batch, groups, keys, dim), layouts[2], dtype, seed + 2)
    return q, k, v


def check(q, k, v, scale=None):
    """Output and log-sum-exp of the operator, every element."""
    out, lse = tc.attention(q, k, v, scale=scale, return_lse=True)
    expected, expected_lse = attention(q, k, v, scale)
    assert out.dtype == q.dtype and lse.dtype == torch.float32
    assert_close(out, expected, f"output of {tuple(q.shape)} {tuple(k.shape)} {q.dtype}")
    assert_close(lse, expected_lse, f"lse of {tuple(q.shape)} {tuple(k.shape)} {q.dtype}")
    return out


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_attention_is_right(size, dim, dtype):
    check(*tensors(size, dim, dtype))


@pytest.mark.parametrize("problem", random_problems(40), ids=str)
def test_attention_of_random_sizes(problem):
    *size, dim, dtype = problem
    check(*tensors(size, dim, dtype))


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("view", VIEWS)
def test_attention_of_views(view, dim):
    size = (2, 4, 2, 150, 200)
    check(*tensors(size, dim, layouts=(view, "row", "row")))
    check(*tensors(size, dim, layouts=("row", view, view)))


@pytest.mark.parametrize("view", ["row", *VIEWS])
def test_attention_writes_views_and_nothing_beside_them(view):
    q, k, v = tensors((2, 4, 2, 150, 200), 64)
    out, base = blank(q.shape, view)
    lse = torch.full(q.shape[:3], float("nan"), device="cuda")
    kernel(q, k, v, out, lse, 0.125, consumers=3, pingpong=True)
    assert_close(out, attention(q, k, v)[0], view)
    assert_margin_untouched(base, out)


@pytest.mark.parametrize("config", KERNELS[1].configs, ids=lambda config: config.name)
def test_every_configuration_is_right(config):
    dim = config.params["D"]
    q, k, v = tensors((1, 4, 2, 300, 500), dim)
    out, _ = blank(q.shape)
    lse = torch.full(q.shape[:3], float("nan"), device="cuda")
    kernel(q, k, v, out, lse, dim**-0.5, **config.params)
    assert_close(out, attention(q, k, v)[0], config.name)


@pytest.mark.parametrize("size", EMPTY, ids=str)
def test_attention_of_empty_tensors(size):
    q, k, v = tensors(size, 64)
    out, lse = tc.attention(q, k, v, return_lse=True)
    assert out.shape == q.shape and bool((out == 0).all())
    assert lse.shape == q.shape[:3] and bool((lse == -math.inf).all())


@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0])
def test_attention_with_a_scale(scale):
    check(*tensors((1, 2, 2, 200, 300), 64), scale)


def test_large_scores_do_not_overflow():
    q, k, v = tensors((1, 2, 2, 200, 300), 128)
    out = check(q * 30, k * 30, v)
    assert bool(torch.isfinite(out).all())


def test_equal_scores_average_the_values():
    q, k, v = tensors((1, 2, 2, 100, 257), 64)
    out = check(torch.zeros_like(q), k, v)
    assert bool((out[:, :, 0] == out[:, :, 50]).all())


@pytest.mark.parametrize("dim", [64, 128])
def test_long_sequences(dim):
    check(*tensors((1, 2, 1, 4000, 8200), dim))


def test_attention_is_deterministic():
    q, k, v = tensors((2, 4, 2, 500, 700), 128)
    first = tc.attention(q, k, v)
    assert all(torch.equal(first, tc.attention(q, k, v)) for _ in range(20))


def test_nan_and_infinity_propagate_as_in_torch():
    q, k, v = tensors((2, 4, 4, 150, 200), 64)
    q[0, 0, 5, 3] = float("nan")  # one query's row
    k[0, 1, 150, 0] = float("nan")  # every row of a head
    v[0, 2, 7, 9] = float("nan")  # one column of a head
    v[0, 3, 199, 1] = float("inf")
    q[1, 0, 149, 0] = float("inf")
    k[1, 1, 0, 5] = -float("inf")
    ours = tc.attention(q, k, v)
    theirs = torch.softmax(q.double() @ k.double().mT * 0.125, -1) @ v.double()
    assert torch.equal(torch.isnan(ours), torch.isnan(theirs))
    assert torch.equal(torch.isinf(ours), torch.isinf(theirs))
