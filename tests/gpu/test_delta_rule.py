"""The delta rule and Based on a GPU against float64: outputs, states, packed sequences, steps."""

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from recurrence_checks import close, exact_based, exact_delta, normal  # noqa: E402
from recurrences import poison_calls  # noqa: E402

import tilecat as tc  # noqa: E402
import tilecat.torch as tct  # noqa: E402
from tilecat import delta_rule_backward_call, delta_rule_call, scan_call  # noqa: E402

LIMIT = 6.3e-3  # as on the PTX machine


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What the calls allocate is NaN until it is written."""
    torch.manual_seed(0)
    poison_calls(monkeypatch, delta_rule_call, delta_rule_backward_call, scan_call)


def inputs(batch, length, groups, heads, dim, columns):
    """q, k, v, g, beta."""
    gates = torch.rand(2, batch, length, heads, device="cuda")
    q, k = normal(batch, length, groups, dim), normal(batch, length, groups, dim)
    return q, k, normal(batch, length, heads, columns), -0.1 * gates[0], gates[1]


def exact(*given):
    """Outputs and states in float64."""
    return exact_delta(*(x.double() for x in given))


@pytest.mark.parametrize(
    "shape",
    [(2, 300, 2, 4, 128, 128), (1, 130, 1, 2, 20, 9), (1, 1, 1, 131, 64, 64),
     (1, 8192, 16, 64, 128, 128)],
    ids=str,
)
def test_delta_rule_and_its_step(shape):
    given = inputs(*shape)
    options = {"use_qk_l2norm_in_kernel": True}
    for _ in range(2):  # the second call is one seen before
        o, state = tc.gated_delta_rule(*given, output_final_state=True, **options)
        wanted, last = exact(*given)
        close(o, wanted, LIMIT)
        close(state, last, LIMIT)
    one = inputs(shape[0], 1, *shape[2:])
    wanted, last = exact(*one, state)
    o = tc.gated_delta_rule_step(*(x[:, 0] for x in one), state, **options)
    close(o, wanted[:, 0], LIMIT)
    close(state, last, 1e-5)


def test_packed_sequences():
    given = inputs(1, 300, 2, 4, 128, 128)
    starts = torch.tensor([0, 0, 1, 65, 130, 300], dtype=torch.int32, device="cuda")
    o, state = tc.gated_delta_rule(*given, cu_seqlens=starts, output_final_state=True,
                                   use_qk_l2norm_in_kernel=True)  # fmt: skip
    ends = starts.tolist()
    assert not state[0].any()
    for i, (a, z) in enumerate(zip(ends[1:], ends[2:], strict=False), 1):
        wanted, last = exact(*(x[:, a:z] for x in given))
        close(o[:, a:z], wanted, LIMIT)
        close(state[i : i + 1], last, LIMIT)


@pytest.mark.parametrize(
    ("shape", "starts"),
    [((2, 300, 2, 4, 128, 128), None), ((1, 130, 1, 2, 20, 9), None), ((1, 1, 1, 3, 64, 64), None),
     ((1, 300, 2, 4, 128, 128), (0, 0, 1, 65, 130, 300)), ((1, 1000, 1, 2, 128, 64), None)],
    ids=str,
)  # fmt: skip
def test_gradients(shape, starts):
    leaves = [x.requires_grad_() for x in inputs(*shape)]
    count = shape[0] if starts is None else len(starts) - 1
    states = torch.randn(2, count, shape[3], *shape[4:], device="cuda")
    leaves.append(states[0].clone().requires_grad_())
    packed = None if starts is None else torch.tensor(starts, dtype=torch.int32, device="cuda")
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True, "cu_seqlens": packed}
    do = normal(*leaves[2].shape)
    for _ in range(2):  # the second call is one seen before
        o, last = tct.chunk_gated_delta_rule(*leaves[:5], None, leaves[5], **options)
        made = torch.autograd.grad([o, last], leaves, [do, states[1]])
    wide = [x.detach().double().requires_grad_() for x in leaves]
    ends, outs = starts or (0, shape[1]), []
    for i, (a, z) in enumerate(zip(ends, ends[1:], strict=False)):
        part = slice(None) if starts is None else slice(i, i + 1)
        if z > a:
            outs.append((exact(*(x[:, a:z] for x in wide[:5]), wide[5][part]), a, z, part))
    grads = [(do[:, a:z].double(), states[1][part].double()) for _, a, z, part in outs]
    pairs = [y for (pair, *_), both in zip(outs, grads, strict=True)
             for y in zip(pair, both, strict=True)]  # fmt: skip
    wanted = torch.autograd.grad([x for x, _ in pairs], wide, [y for _, y in pairs])
    for name, mine, other in zip("qkvgbs", made, wanted, strict=True):
        if name == "s" and starts:  # a sequence without tokens gives its gradient on
            assert torch.equal(mine[0], states[1][0])
            mine, other = mine[1:], other[1:]
        close(mine, other, 5e-2 if name in "gb" else 1e-2)  # they all but cancel


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("heads", "length", "columns"), [(1, 1, 64), (131, 300, 64), (2, 1000, 112)]
)
def test_based(heads, length, columns, norm):
    q, k, v = (normal(1, heads, length, d) for d in (16, 16, columns))
    wanted = exact_based(*(x.double() for x in (q, k, v)), norm)
    close(tc.based(q, k, v, use_norm=norm)[0], wanted, LIMIT)


def test_graphs_replay_the_operators():
    given = inputs(1, 300, 2, 4, 64, 64)

    def call():
        return tct.chunk_gated_delta_rule(*given, use_qk_l2norm_in_kernel=True)[0]

    wanted, graph = call(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = call()
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, wanted)
