"""Gradients of Based on a GPU against float64 autograd of its definition."""

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from recurrence_checks import BF16, close  # noqa: E402
from recurrences import poison_calls  # noqa: E402

import tilecat as tc  # noqa: E402
import tilecat.torch as tct  # noqa: E402
from tilecat import based_backward_call  # noqa: E402

LIMIT, DIVIDED, STATE_LIMIT = 4e-3, 8e-3, 2.5e-3  # tests/test_based_gradients.py


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What the calls allocate is NaN until it is written."""
    torch.manual_seed(0)
    poison_calls(monkeypatch, based_backward_call)


def features(x):
    """Columns of `tc.taylor_order`, of x / 2."""
    columns = []
    for what in tc.taylor_order():
        square = len(what) == 2 and what[0] == what[1]
        one = torch.full_like(x[..., 0], 0.5**0.5 if square else 1.0)
        chosen = [x[..., i] / 2 for i in what if i >= 0]
        columns.append(0 * one if -1 in what else torch.stack([one, *chosen]).prod(0))
    return torch.stack(columns, -1)


def exact(q, k, v, state, norm):
    """The output, and the last state."""
    s = q @ k.mT / 4
    w = torch.tril(1 + s + s * s / 2)
    out = w @ v
    if norm:
        out = out / (w.sum(-1, keepdim=True) + 1e-6)
    last = features(k).mT @ v
    return (out, last) if state is None else (out + features(q) @ state, last + state)


def tensors(batch, length, heads, columns, dtype=BF16):
    """q, k, v, do, tokens before heads in memory; states."""
    made = [
        torch.randn(batch, length, heads, d, device="cuda").to(dtype).transpose(1, 2)
        for d in (16, 16, columns, columns)
    ]
    return made, [torch.randn(batch, heads, 160, columns, device="cuda") for _ in range(2)]


SIZES = (
    (2, 1000, 4, 64), (1, 1, 1, 64), (16, 130, 16, 64), (1, 127, 3, 112), (2, 64, 2, 30),
    (1, 65, 131, 64),
)  # fmt: skip


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_gradients(size, norm):
    (q, k, v, do), (first, d_last) = tensors(*size)
    first = None if norm else first
    wide = [x.double().requires_grad_() for x in (q, k, v, *([] if norm else [first]))]
    out, last = exact(*wide[:3], None if norm else wide[3], norm)
    torch.autograd.backward([out, last], [do.double(), d_last.double()])
    for _ in range(2):  # the second time by launches at hand
        made = tc.based_backward(do, q, k, v, None, norm, initial_state=first,
                                 d_final_state=d_last)  # fmt: skip
        for mine, other, limit in zip(made, wide, (*[DIVIDED if norm else LIMIT] * 3, STATE_LIMIT),
                                      strict=False):  # fmt: skip
            flat = norm and size[1] == 1  # a mean of one value, whatever its weight
            close(mine, other.grad, limit, do.double() if flat else None)


@pytest.mark.parametrize("norm", [False, True])
def test_autograd(norm):
    (q, k, v, do), _ = tensors(2, 300, 4, 64, torch.float16)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    tct.parallel_based(*leaves, use_norm=norm).backward(do)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    exact(*wide, None, norm)[0].backward(do.double())
    for mine, other in zip(leaves, wide, strict=True):
        close(mine.grad, other.grad, DIVIDED / 4)
