"""Hedgehog on a GPU against float64: outputs and states, heads that share keys, odd lengths."""

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from recurrence_checks import BF16, close  # noqa: E402
from recurrences import poison_calls  # noqa: E402
from torch_exact import exact_hedgehog  # noqa: E402

import tilecat as tc  # noqa: E402
import tilecat.torch as tt  # noqa: E402
from tilecat import hedgehog_call  # noqa: E402

LIMIT, STATE_LIMIT, SUM_LIMIT = 2.6e-3, 2.5e-3, 5e-4  # tests/test_hedgehog.py
GRAD = 8e-3  # three scans of 16-bit operands, and a rounding
FACTORS = 5e-2  # of alpha and beta: sums over tokens that cancel


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What the calls allocate is NaN until it is written."""
    torch.manual_seed(0)
    poison_calls(monkeypatch, hedgehog_call)


def inputs(batch, length, heads, groups, dim, dtype=BF16, size=1.0, map_size=None):
    """q, k, v (tokens before heads in memory), qmap, kmap, alpha, beta."""
    q, k, v = (
        (factor * torch.randn(batch, length, n, dim, device="cuda")).to(dtype).transpose(1, 2)
        for n, factor in ((heads, size), (groups, size), (groups, 1.0))
    )
    factor = dim**-0.5 if map_size is None else map_size
    maps = ((factor * torch.randn(heads, dim, 64, device="cuda")).to(dtype) for _ in range(2))
    return q, k, v, *maps, *(0.2 + 0.8 * torch.rand(heads, device="cuda") for _ in range(2))


SIZES = (
    (2, 1000, 4, 4, 128), (1, 1, 1, 1, 128), (16, 130, 16, 16, 128), (2, 65, 3, 3, 64),
    (3, 127, 6, 2, 128), (1, 4097, 3, 1, 128), (2, 200, 131, 131, 64), (1, 64, 2, 1, 128),
)  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_outputs_and_states(size):
    given = inputs(*size)
    for _ in range(2):  # the second time by launches at hand
        for mine, wanted, limit in zip(tc.hedgehog(*given), exact_hedgehog(*given),
                                       (LIMIT, STATE_LIMIT, SUM_LIMIT), strict=True):  # fmt: skip
            if wanted.any() or wanted.numel() == 0:
                close(mine, wanted, limit)
            else:  # of a sequence of one block nothing is in the states
                assert not mine.any()


@pytest.mark.parametrize(("dim", "dtype"), [(128, BF16), (64, torch.float16)], ids=str)
def test_states_before_and_large_scores(dim, dtype):
    for size, map_size in ((1.0, None), (4.5, 1.2)):
        given = inputs(2, 300, 4, 2, dim, dtype, size, map_size)
        first = torch.randn(2, 4, 128, dim, device="cuda"), 1 + torch.rand(2, 4, 128).cuda()
        made = tc.hedgehog(*given, initial_state=first)
        wanted = exact_hedgehog(*given, first)
        for mine, other, limit in zip(made, wanted, (LIMIT, STATE_LIMIT, SUM_LIMIT), strict=True):
            close(mine, other, limit)


def test_a_sequence_goes_on_from_its_states():
    """Its last block is repeated."""
    q, k, v, *rest = inputs(2, 500, 4, 4, 128)
    o, kv, ks = tc.hedgehog(q, k, v, *rest)
    _, *states = tc.hedgehog(*(x[:, :, :192] for x in (q, k, v)), *rest)
    again, kv2, ks2 = tc.hedgehog(*(x[:, :, 128:] for x in (q, k, v)), *rest, initial_state=states)
    close(again[:, :, 64:], o[:, :, 192:].double(), 2 * LIMIT)
    close(kv2, kv.double(), STATE_LIMIT)
    close(ks2, ks.double(), SUM_LIMIT)


@pytest.mark.parametrize("size", [(2, 1000, 4, 4, 128), (1, 65, 6, 2, 64), (2, 4097, 2, 1, 128)],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("states", [False, True])
def test_gradients(size, states):
    """Of everything, those of the states too, which are the next call's first ones."""
    given = inputs(*size)
    if states:
        batch, _, heads, _, dim = size
        sums = torch.rand(batch, heads, 128, device="cuda")
        given += torch.randn(batch, heads, 128, dim, device="cuda"), 1 + sums
    leaves = [x.detach().requires_grad_() for x in given]
    made = tt.hedgehog(*leaves[:7], initial_state=leaves[7:] or None)
    grads = [torch.randn_like(x) for x in made]
    found = torch.autograd.grad(made, leaves, grads)
    wide = [x.detach().double().requires_grad_() for x in given]
    exact = exact_hedgehog(*wide[:7], wide[7:] or None)
    wanted = torch.autograd.grad(exact, wide, [x.double() for x in grads])
    least = 1e-3 * wanted[2].norm() / wanted[2].numel() ** 0.5
    for mine, other in zip(found, wanted, strict=True):
        if mine.ndim == 1 and other.abs().max() < least:
            # Without anything far, beta scales o's two sums: what is left is of NORM_EPS.
            assert mine.abs().max() < least
        elif other.any():
            close(mine, other, FACTORS if mine.ndim == 1 else GRAD)
        else:  # of two blocks and no states: features of queries change nothing
            assert not mine.any()
