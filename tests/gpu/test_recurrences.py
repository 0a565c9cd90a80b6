"""Linear recurrences on a GPU against float64: outputs, states, gradients, packed sequences."""

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from recurrence_checks import (  # noqa: E402
    close,
    exact_gla,
    exact_mamba,
    normal,
)
from recurrences import poison_calls  # noqa: E402

import tilecat as tc  # noqa: E402
from tilecat import (  # noqa: E402
    linear_attention_backward_call,
    linear_attention_call,
    scan_call,
    scan_segments,
)
from tilecat.kernels.linear_attention import linear_attention as kernel  # noqa: E402
from tilecat.kernels.ssd import ssd as mamba_kernel  # noqa: E402

LIMIT, STATE_LIMIT, GRAD = 4e-3, 2.5e-3, 4e-3


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What the calls allocate is NaN until it is written."""
    torch.manual_seed(0)
    poison_calls(
        monkeypatch, linear_attention_call, linear_attention_backward_call, scan_call, scan_segments
    )


def inputs(batch, length, heads, dim, dim_v):
    q, k = (normal(batch, length, heads, dim) for _ in range(2))
    g = -0.2 * torch.rand(batch, length, heads, device="cuda")
    state = normal(batch, heads, dim, dim_v, dtype=torch.float32)
    return q, k, normal(batch, length, heads, dim_v), g, state


SIZES = (
    (2, 1000, 4, 64, 64), (2, 300, 3, 128, 128), (16, 65, 16, 64, 64), (16, 130, 16, 128, 128),
    (1, 1200, 2, 256, 256), (1, 127, 5, 96, 32), (1, 1, 1, 64, 64), (2, 70, 3, 50, 30),
)  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_outputs_states_and_gradients(size):
    q, k, v, g, state = inputs(*size)
    do, d_last = normal(*v.shape), normal(*state.shape, dtype=torch.float32)
    wide = [x.double().requires_grad_() for x in (q, k, v, g, state)]
    exact, last = exact_gla(*wide, 0.1)
    torch.autograd.backward([exact, last], [do.double(), d_last.double()])
    for _ in range(2):  # the second time by launches at hand
        got, end = tc.simple_gla(q, k, v, g, scale=0.1, initial_state=state,
                                 output_final_state=True)  # fmt: skip
        close(got, exact, LIMIT)
        close(end, last, STATE_LIMIT)
        made = tc.simple_gla_backward(do, q, k, v, g, scale=0.1, initial_state=state,
                                      d_final_state=d_last)  # fmt: skip
        for mine, other in zip((*made[:4], made[5]), wide, strict=True):
            close(mine, other.grad, 2 * GRAD if other is wide[3] else GRAD)


@pytest.mark.parametrize("length", [1024, 8000])
def test_gradients_of_gates_do_not_lose_accuracy_along_a_sequence(length):
    q, k, v, g, state = inputs(2, length, 3, 64, 64)
    do, gamma = normal(*v.shape), torch.tensor([-0.04, -0.01, 0.0], device="cuda")
    zero, g = torch.zeros_like(state).double(), 0.1 * g
    wide = [x.double().requires_grad_() for x in (q, k, v, g, gamma)]
    exact, _ = exact_gla(*wide[:3], wide[3] + wide[4], zero, 0.1)
    exact.backward(do.double())
    made = tc.simple_gla_backward(do, q, k, v, g, gamma, 0.1, wants_d_gamma=True)
    close(made[3], wide[3].grad, 2 * GRAD)
    alike = 512**0.5  # errors of a block's tokens
    error = (made[4].double() - wide[4].grad).abs()
    assert (error <= 2 * alike * GRAD * wide[3].grad.norm(dim=(0, 1))).all(), error


@pytest.mark.parametrize("dim", [64, 128])
def test_plain_and_lightning(dim):
    q, k, v, g, state = inputs(8, 500, 16, dim, dim)
    none, zero = torch.zeros_like(g).double(), torch.zeros_like(state).double()
    wide = [x.double() for x in (q, k, v)]
    close(tc.linear_attention(q, k, v)[0], exact_gla(*wide, none, zero, dim**-0.5)[0], LIMIT)
    decays = -0.5 * 0.75 * torch.arange(16, device="cuda").double().expand(8, 500, 16)
    got = tc.lightning_attn(q, k, v, layer_idx=2, num_layers=8)[0]
    close(got, exact_gla(*wide, decays, zero, dim**-0.5)[0], LIMIT)


@pytest.mark.parametrize("dim", [64, 128])
def test_packed_sequences(dim):
    lengths = (0, 1, 64, 65, 100, 200, 63)
    q, k, v, g, _ = inputs(1, sum(lengths), 4, dim, dim)
    starts = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    state = normal(len(lengths), 4, dim, dim, dtype=torch.float32)
    got, end = tc.simple_gla(q, k, v, g, initial_state=state, output_final_state=True,
                             cu_seqlens=starts)  # fmt: skip
    for i, length in enumerate(lengths):
        first = sum(lengths[:i])
        cut = [x[:, first : first + length].double() for x in (q, k, v, g)]
        if not length:
            assert torch.equal(end[i], state[i])
            continue
        exact, last = exact_gla(*cut, state[i : i + 1].double(), dim**-0.5)
        close(got[:, first : first + length], exact, LIMIT)
        close(end[i : i + 1], last, STATE_LIMIT)


LONG = (1, 4500, 2, 64, 64), (1, 8192, 3, 128, 128), (2, 4096, 1, 96, 30)


@pytest.mark.parametrize("size", LONG, ids=str)
def test_segments(size):
    q, k, v, g, state = inputs(*size)
    options = {"initial_state": state, "output_final_state": True}
    assert scan_segments.cut(q, size[0] * size[2], *size[3:], size[1]).tokens
    for gates, limit in ((g, STATE_LIMIT), (None, 1e-5)):
        got, end = tc.simple_gla(q, k, v, gates, **options)
        wide = [x.double() for x in (q, k, v, torch.zeros_like(g) if gates is None else g, state)]
        exact, last = exact_gla(*wide, size[3] ** -0.5)
        close(got, exact, LIMIT)
        close(end, last, limit)
        if size[0] == 1:  # packed sequences are not cut
            starts = torch.tensor([0, size[1]], device="cuda", dtype=torch.int32)
            whole = tc.simple_gla(q, k, v, gates, cu_seqlens=starts, **options)
            # Without decay tensor cores, which cut sums off, are off by 1e-7 a chunk.
            close(whole[1], end.double(), 1e-6 if gates is not None else 2e-7 * size[1] / 64)
    do = normal(*v.shape)
    leaves = [x.double().requires_grad_() for x in (q, k, v, g, state)]
    exact, _ = exact_gla(*leaves, size[3] ** -0.5)
    exact.backward(do.double())
    made = tc.simple_gla_backward(do, q, k, v, g, initial_state=state)
    for mine, other in zip((*made[:4], made[5]), leaves, strict=True):
        close(mine, other.grad, 2 * GRAD if other is leaves[3] else GRAD)


def test_segments_of_mamba():
    given = mamba_inputs(1, 5000, 4, 2, 64)
    x, dt, a, b, c, skip, z, bias = given
    assert scan_segments.cut(x, 4, 64, 64, 5000).tokens
    got, end = tc.ssd(x, dt, a, b, c, D=skip, z=z, dt_bias=bias, dt_softplus=True,
                      return_final_states=True)  # fmt: skip
    exact, last = exact_mamba(*(y.double() for y in given))
    close(got, exact, LIMIT)
    close(end, last, STATE_LIMIT)


def mamba_inputs(batch, length, heads, groups, size):
    x, z = (normal(batch, length, heads, 64) for _ in range(2))
    b, c = (normal(batch, length, groups, size) for _ in range(2))
    dt, rest = torch.randn(batch, length, heads, device="cuda") - 2, torch.randn(3, heads).cuda()
    return x, dt, -torch.exp(rest[0]), b, c, rest[1], z, rest[2]


@pytest.mark.parametrize(
    "size", [(2, 1000, 4, 2, 64), (16, 130, 16, 1, 64), (2, 300, 6, 1, 128), (8, 130, 80, 1, 128),
             (1, 100, 2, 1, 256), (1, 100, 3, 3, 16)], ids=str,
)  # fmt: skip
def test_mamba(size):
    x, dt, a, b, c, skip, z, bias = given = mamba_inputs(*size)
    got, end = tc.ssd(x, dt, a, b, c, D=skip, z=z, dt_bias=bias, dt_softplus=True,
                      return_final_states=True)  # fmt: skip
    exact, last = exact_mamba(*(y.double() for y in given))
    close(got, exact, LIMIT)
    close(end, last, STATE_LIMIT)


@pytest.mark.parametrize(
    "params",
    [{"heads": 2, "stages": 3, "registers": (88, 136)}, {"heads": 1, "stages": 4}], ids=str,
)  # fmt: skip
def test_scores_by_warpgroups_in_turn(params):
    x, dt, a, b, c, *_ = mamba_inputs(2, 1000, 4, 1, 64)
    out = torch.full_like(x, float("nan"))
    arrays = [y.transpose(1, 2) for y in (x, dt, b, c, out)]
    mamba_kernel(*arrays[:2], a, *arrays[2:], 0.0, 0.0, softplus=True, turns=2, **params)
    exact, _ = exact_mamba(*(y.double() for y in (x, dt, a, b, c)))
    close(out, exact, LIMIT)
    q, k, v, g, state = inputs(2, 1000, 4, 64, 64)
    out = torch.full_like(v, float("nan"))
    arrays = [y.transpose(1, 2) for y in (q, k, v, out)]
    kernel(*arrays, 0.1, g.transpose(1, 2), g=True, turns=2, **params)
    wide = [y.double() for y in (q, k, v, g)]
    close(out, exact_gla(*wide, torch.zeros_like(state).double(), 0.1)[0], LIMIT)


def test_tokens_one_by_one():
    q, k, v, g, state = inputs(2, 4, 3, 100, 80)
    exact, last = exact_gla(*(x.double() for x in (q, k, v, g, state)), 0.1)
    for t in range(4):
        got = tc.simple_gla_step(q[:, t], k[:, t], v[:, t], state, g[:, t], scale=0.1)
        close(got, exact[:, t], LIMIT)
    close(state, last, 1e-5)
    x, dt, a, b, c, skip, z, bias = given = mamba_inputs(2, 4, 4, 2, 128)
    exact, last = exact_mamba(*(y.double() for y in given))
    state = torch.zeros(2, 4, 64, 128, device="cuda")
    for t in range(4):
        got = tc.ssd_step(x[:, t], dt[:, t], a, b[:, t], c[:, t], state, skip, z[:, t], bias, True)
        close(got, exact[:, t], LIMIT)
    close(state, last, 1e-5)
