"""tilecat.torch on a GPU: torch.compile, CUDA graphs, checkpoints and autocast against eager."""

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import tilecat.torch as tt  # noqa: E402
from tilecat.testing import poison  # noqa: E402

BF16 = 2.0**-7


def randn(*shape, dtype=torch.bfloat16, grad=False, seed=0):
    generator = torch.Generator("cuda").manual_seed(sum(shape) + seed)
    made = torch.randn(*shape, generator=generator, device="cuda")
    return made.to(dtype).requires_grad_(grad)


def close(got, expected, rounding=BF16):
    got, expected = got.detach().double(), expected.detach().double()
    assert (got - expected).norm() <= rounding * expected.norm()  # false of NaN


def mlp(x, up, bias, down):
    """Two layers, a softmax between heads in torch's own operators around ours."""
    hidden = torch.nn.functional.silu(tt.linear(x, up, bias))
    return tt.matmul(hidden, down)


def layers(grad=True, rows=200, dtype=torch.bfloat16):
    shapes = (rows, 136), (272, 136), (272,), (272, 136)
    return [randn(*shape, dtype=dtype, grad=grad) for shape in shapes]


def gradients(function, given):
    leaves = [x.detach().clone().requires_grad_() for x in given]
    out = function(*leaves)
    out.float().square().mean().backward()
    return out, [x.grad for x in leaves]


def test_products_and_gradients_against_float64():
    given = layers()
    out, found = gradients(mlp, given)

    def exact(x, up, bias, down):
        hidden = torch.nn.functional.silu(torch.nn.functional.linear(x, up, bias))
        return hidden @ down

    wide, expected = gradients(exact, [x.double() for x in given])
    close(out, wide)
    for mine, other in zip(found, expected, strict=True):
        close(mine, other, 2 * BF16)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_as_one_graph_gives_what_eager_gives(mode):
    given = layers()
    compiled = torch.compile(mlp, fullgraph=True, mode=mode)
    out, expected = gradients(mlp, given)
    for _ in range(3):  # the second and third of reduce-overhead record and replay
        torch.compiler.cudagraph_mark_step_begin()
        mine, found = gradients(compiled, given)
        close(mine, out, 2.0**-6)
        for got, other in zip(found, expected, strict=True):
            close(got, other, 2.0**-6)


def test_dynamic_shapes_compile_once():
    compiled = torch.compile(mlp, fullgraph=True, dynamic=True)
    for rows in (200, 72, 333):
        given = layers(rows=rows)
        out, expected = gradients(mlp, given)
        mine, found = gradients(compiled, given)
        close(mine, out, 2.0**-6)
        for got, other in zip(found, expected, strict=True):
            close(got, other, 2.0**-6)


def test_a_cuda_graph_replays_forward_and_backward():
    given = layers()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            for x in given:
                x.grad = None
            mlp(*given).float().square().mean().backward()
    torch.cuda.current_stream().wait_stream(stream)
    for x in given:
        x.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mlp(*given)
        out.float().square().mean().backward()
    with torch.no_grad():
        given[0].copy_(randn(200, 136, seed=5))
    expected, wanted = gradients(mlp, given)
    poison(out, *(x.grad for x in given))
    graph.replay()
    close(out, expected, 2.0**-20)
    for x, other in zip(given, wanted, strict=True):
        close(x.grad, other, 2.0**-6)


def test_checkpoint_and_autocast():
    given = layers(dtype=torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        out, expected = gradients(mlp, given)
        assert out.dtype == torch.bfloat16
        again, found = gradients(
            lambda *x: torch.utils.checkpoint.checkpoint(mlp, *x, use_reentrant=False), given
        )
    assert torch.equal(out, again)
    for mine, other in zip(found, expected, strict=True):
        assert mine.dtype == torch.float32 and torch.equal(mine, other)


@pytest.mark.parametrize("dim", [32, 64, 128])
def test_sdpa_against_float64_and_in_the_layout_of_q(dim):
    q, k, v = (randn(2, 200, 4, dim, seed=i).transpose(1, 2) for i in range(3))
    out = tt.sdpa(q, k, v)
    wide = [x.double() for x in (q, k, v)]
    close(out, torch.nn.functional.scaled_dot_product_attention(*wide))
    compiled = torch.compile(lambda q, k, v: tt.sdpa(q, k, v) * 2, fullgraph=True)
    close(compiled(q, k, v), 2 * out, 2.0**-20)
