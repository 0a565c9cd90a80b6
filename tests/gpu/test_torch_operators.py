"""tilecat.torch on a GPU: torch.compile, CUDA graphs, checkpoints and autocast against eager."""

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from torch_exact import causal, exact  # noqa: E402

import tilecat as tc  # noqa: E402
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


def attend(x, into, out, is_causal=False):
    """Attention with its two layers: 4 heads of 64 over 2 of keys and values, 2 sequences."""
    q, k, v = tt.linear(x, into).view(2, -1, 8, 64).transpose(1, 2).split((4, 2, 2), 1)
    heads = tt.sdpa(q, k, v, is_causal=is_causal, enable_gqa=True)
    return tt.linear(heads.transpose(1, 2).flatten(2), out)


def attention_layers(grad=True, rows=200, dtype=torch.bfloat16):
    shapes = (2, rows, 136), (512, 136), (136, 256)
    return [randn(*shape, dtype=dtype, grad=grad) for shape in shapes]


BLOCKS = pytest.mark.parametrize(
    ("block", "make"), [(mlp, layers), (attend, attention_layers)], ids=["mlp", "attention"]
)


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


@BLOCKS
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_as_one_graph_gives_what_eager_gives(mode, block, make):
    given = make()
    compiled = torch.compile(block, fullgraph=True, mode=mode)
    out, expected = gradients(block, given)
    for _ in range(3):  # the second and third of reduce-overhead record and replay
        torch.compiler.cudagraph_mark_step_begin()
        mine, found = gradients(compiled, given)
        close(mine, out, 2.0**-6)
        for got, other in zip(found, expected, strict=True):
            close(got, other, 2.0**-6)


@BLOCKS
def test_dynamic_shapes_compile_once(block, make):
    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    for rows in (200, 72, 333):
        given = make(rows=rows)
        out, expected = gradients(block, given)
        mine, found = gradients(compiled, given)
        close(mine, out, 2.0**-6)
        for got, other in zip(found, expected, strict=True):
            close(got, other, 2.0**-6)


@BLOCKS
def test_a_cuda_graph_replays_forward_and_backward(block, make):
    given = make()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            for x in given:
                x.grad = None
            block(*given).float().square().mean().backward()
    torch.cuda.current_stream().wait_stream(stream)
    for x in given:
        x.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = block(*given)
        out.float().square().mean().backward()
    with torch.no_grad():
        given[0].copy_(randn(*given[0].shape, seed=5))
    expected, wanted = gradients(block, given)
    poison(out, *(x.grad for x in given))
    graph.replay()
    close(out, expected, 2.0**-20)
    for x, other in zip(given, wanted, strict=True):
        close(x.grad, other, 2.0**-6)


@BLOCKS
def test_checkpoint_and_autocast(block, make):
    given = make(dtype=torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        out, expected = gradients(block, given)
        assert out.dtype == torch.bfloat16
        again, found = gradients(
            lambda *x: torch.utils.checkpoint.checkpoint(block, *x, use_reentrant=False), given
        )
    assert torch.equal(out, again)
    for mine, other in zip(found, expected, strict=True):
        assert mine.dtype == torch.float32
        close(mine, other, 2.0**-10)  # sums of dQ in any order


@pytest.mark.parametrize("dim", [32, 64, 128])
def test_sdpa_against_float64_and_in_the_layout_of_q(dim):
    q, k, v = (randn(2, 200, 4, dim, seed=i).transpose(1, 2) for i in range(3))
    out = tt.sdpa(q, k, v)
    wide = [x.double() for x in (q, k, v)]
    close(out, torch.nn.functional.scaled_dot_product_attention(*wide))
    compiled = torch.compile(lambda q, k, v: tt.sdpa(q, k, v) * 2, fullgraph=True)
    close(compiled(q, k, v), 2 * out, 2.0**-20)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("corner", [False, "top-left", "bottom-right"])
def test_attention_and_gradients_against_float64(dim, corner):
    shapes = ((2, 4, 200, dim), (2, 2, 333, dim), (2, 2, 333, dim))
    given = [randn(*shape, seed=i, grad=True) for i, shape in enumerate(shapes)]
    grad = randn(2, 4, 200, dim, seed=9)
    out = tt.attention(*given, causal=corner)
    seen = None if not corner else causal(200, 333, corner == "bottom-right").cuda()
    wide = [x.detach().double().requires_grad_() for x in given]
    expected = exact(*wide, seen=seen)
    close(out, expected)
    out.backward(grad)
    expected.backward(grad.double())
    for mine, other in zip(given, wide, strict=True):
        close(mine.grad, other.grad, 2 * BF16)


def test_sdpa_with_masks_against_float64():
    q, k, v = (randn(2, 4, length, 64, seed=i) for i, length in enumerate((200, 333, 333)))
    for shape in ((200, 333), (2, 1, 200, 333), (2, 1, 1, 333), (333,)):
        added, seen = randn(*shape, seed=4), randn(*shape, seed=5) > 0
        close(tt.sdpa(q, k, v, added), exact(q, k, v, added=added))
        close(tt.sdpa(q, k, v, seen), exact(q, k, v, seen=seen))


def test_functions_of_scores_compile():
    q, k, v = (randn(2, 4, length, 64, seed=i) for i, length in enumerate((200, 333, 333)))
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], device="cuda")

    @torch.compile(fullgraph=True)
    def biased(q, k, v, slopes):
        return tt.attention(q, k, v, score_mod=(tc.score_mods.alibi, slopes))

    distance = (torch.arange(200)[:, None] - torch.arange(333)).abs().cuda()
    close(biased(q, k, v, slopes), exact(q, k, v, added=-distance * slopes[:, None, None]))


def test_autocast_reaches_attention_in_a_stream_of_its_own():
    q = randn(2, 4, 200, 64, dtype=torch.float32)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.autocast("cuda", torch.float16):
        out = tt.sdpa(q, q, q)
    torch.cuda.current_stream().wait_stream(stream)
    assert out.dtype == torch.float16
    close(out, exact(q, q, q), 2.0**-9)
