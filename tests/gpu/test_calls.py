"""Calls of the operators on a GPU: streams, graphs, no waiting, no compiling, kinds of arrays."""

import time

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from arrays import blank, normal  # noqa: E402
from exact import assert_close, attention, matmul  # noqa: E402

import tilecat as tc  # noqa: E402
from tilecat.errors import LayoutError, ResourceError, TileError  # noqa: E402
from tilecat.kernels.attention import attention as attention_kernel  # noqa: E402
from tilecat.kernels.gemm import matmul as matmul_kernel  # noqa: E402
from tilecat.runtime.arrays import view  # noqa: E402

LONG_CYCLES = 500_000_000  # a quarter of a second at 2 GHz
SHORT_CYCLES = 50_000_000


def heads(*shape, seed=0):
    return tuple(normal(shape, seed=seed + index) for index in range(3))


class OnlyDlpack:
    """A tensor seen through DLPack alone."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class OnlyInterface:
    """A tensor seen through `__cuda_array_interface__` alone."""

    def __init__(self, tensor):
        self.tensor = tensor

    @property
    def __cuda_array_interface__(self):
        return self.tensor.__cuda_array_interface__


# ---- streams


def test_calls_keep_the_order_of_a_side_stream():
    a, b = normal((300, 200)), normal((200, 304), seed=1)
    q, k, v = heads(1, 2, 200, 64)
    later = normal((300, 200), seed=7)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(SHORT_CYCLES)
        a.copy_(later)
        q.mul_(2)
        product, mixed = tc.matmul(a, b), tc.attention(q, k, v)
    side.synchronize()
    assert_close(product, matmul(later, b))
    assert_close(mixed, attention(q, k, v)[0])


@pytest.mark.parametrize("how", ["object", "handle"])
def test_a_kernel_takes_a_stream(how):
    a, b = normal((300, 200)), normal((200, 304), seed=1)
    out, _ = blank((300, 304))
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SHORT_CYCLES)
        a.mul_(2)
    matmul_kernel(a, b, out, stream=side if how == "object" else side.cuda_stream)
    side.synchronize()
    assert_close(out, matmul(a, b))


@pytest.mark.parametrize("name", ["matmul", "attention"])
def test_a_call_does_not_wait_for_the_device(name):
    a, b = normal((512, 512)), normal((512, 512), seed=1)
    q, k, v = heads(1, 2, 512, 64)
    call = {"matmul": lambda: tc.matmul(a, b), "attention": lambda: tc.attention(q, k, v)}[name]
    call()
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG_CYCLES)
    start = time.perf_counter()
    for _ in range(3):
        call()
    seconds = time.perf_counter() - start
    busy = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert busy and seconds < 0.05, f"{seconds:.3f} s, device busy: {busy}"


# ---- graphs


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "new arrays"])
def test_matmul_is_captured_in_a_graph(warm):
    a, b = normal((1000, 520)), normal((520, 1016), seed=1)
    before = tc.matmul(a, b)
    tc.matmul(before.t(), before)  # modules are loaded before a capture
    kept = (a, b)
    if not warm:
        a, b = (x.clone() for x in kept)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tc.matmul(a, b)
        twice = tc.matmul(out.t(), out)
    for seed in (10, 20):
        a.copy_(normal(a.shape, seed=seed))
        b.copy_(normal(b.shape, seed=seed + 1))
        out.fill_(float("nan"))
        graph.replay()
        assert_close(out, matmul(a, b))
        assert_close(twice, matmul(out.t(), out))


def test_attention_is_captured_in_a_graph():
    q, k, v = heads(2, 4, 300, 64)
    tc.attention(q, k, v)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = tc.attention(q, k, v, return_lse=True)
    for seed in (10, 20):
        for index, tensor in enumerate((q, k, v)):
            tensor.copy_(normal(tensor.shape, seed=seed + index))
        lse.fill_(float("nan"))
        graph.replay()
        expected, expected_lse = attention(q, k, v)
        assert_close(out, expected)
        assert_close(lse, expected_lse)


def test_graphs_of_cupy_keep_what_they_write_to():
    """They have no memory of their own, as torch's have: nothing of it goes back to the pool."""
    cupy = pytest.importorskip("cupy")
    generator = cupy.random.default_rng(0)
    a, b = (
        generator.standard_normal(shape, dtype=cupy.float32).astype(cupy.float16)
        for shape in ((512, 16384), (16384, 512))
    )
    wanted = tc.matmul(a, b)  # parts of K: sums in memory of the stream; modules are loaded
    stream = cupy.cuda.Stream(non_blocking=True)
    graphs = []
    with stream:
        for _ in range(2):  # what the first capture was given is let go when the second asks
            stream.begin_capture()
            out = tc.matmul(a, b)
            graphs.append((stream.end_capture(), out))
        others = [cupy.full(1 << size, 7, cupy.float32) for size in range(8, 24) for _ in range(2)]
        for graph, out in graphs:
            out[...] = cupy.nan
            graph.launch(stream)
            stream.synchronize()
            assert bool((out == wanted).all())
        assert all(bool((x == 7).all()) for x in others)


# ---- compiling


def test_a_new_shape_compiles_nothing():
    def product(m, n, k):
        a, b = normal((m, k)), normal((k, n), seed=1)
        out, _ = blank((m, n))
        matmul_kernel(a, b, out, tile_m=128, tile_n=128, stages=6)
        assert_close(out, matmul(a, b))

    def softmax(batch, count, queries, keys):
        q = normal((batch, count, queries, 64))
        k, v = (normal((batch, count, keys, 64), seed=s) for s in (1, 2))
        out, _ = blank(q.shape)
        lse = torch.empty(q.shape[:3], device="cuda")
        attention_kernel(q, k, v, out, lse, 0.125, consumers=3, pingpong=True)
        assert_close(out, attention(q, k, v)[0])

    product(64, 64, 64)
    softmax(1, 1, 64, 64)
    before = matmul_kernel.compiles, attention_kernel.compiles
    for size in ((8, 8, 8), (72, 200, 1000), (1000, 16, 8), (2048, 2048, 64), (1, 8, 8)):
        product(*size)
    for size in ((1, 2, 3, 4), (3, 1, 200, 7), (2, 4, 65, 900)):
        softmax(*size)
    assert (matmul_kernel.compiles, attention_kernel.compiles) == before


def test_a_second_call_of_a_shape_prepares_nothing():
    a, b = normal((256, 256)), normal((256, 256), seed=1)
    tc.matmul(a, b)
    before = len(matmul_kernel._prepared), matmul_kernel.compiles
    tc.matmul(a, b)
    assert (len(matmul_kernel._prepared), matmul_kernel.compiles) == before


# ---- kinds of arrays


def test_cupy_arrays_give_a_cupy_array():
    cupy = pytest.importorskip("cupy")
    generator = cupy.random.default_rng(0)
    a, b = (
        generator.standard_normal(shape, dtype=cupy.float32).astype(cupy.float16)
        for shape in ((200, 72), (72, 136))
    )
    out = tc.matmul(a, b)
    assert isinstance(out, cupy.ndarray) and out.dtype == cupy.float16
    mine, *inputs = (torch.from_dlpack(x) for x in (out, a, b))
    assert_close(mine, matmul(*inputs))
    transposed = tc.matmul(b.T, a.T)
    assert_close(torch.from_dlpack(transposed), matmul(inputs[1].t(), inputs[0].t()))


@pytest.mark.parametrize(
    ("kind", "dtype"), [(OnlyDlpack, "bf16"), (OnlyDlpack, "f16"), (OnlyInterface, "f16")]
)
def test_interchange_protocols(kind, dtype):
    a, b = normal((200, 72), dtype=dtype), normal((72, 136), dtype=dtype, seed=1)
    out, _ = blank((200, 136), dtype=dtype)
    torch.cuda.synchronize()
    tc.matmul(kind(a), kind(b), out=kind(out))
    torch.cuda.synchronize()
    assert_close(out, matmul(a, b))


def ordered(tensor):
    """bf16 bits as integers in the order of the numbers: neighbours differ by one."""
    bits = tensor.cpu().view(torch.int16).to(torch.int32)
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def test_cpu_tensors_run_on_the_machine_and_equal_the_gpu():
    a, b = normal((200, 72)), normal((72, 136), seed=1)
    q, k, v = heads(1, 2, 100, 64)
    for gpu, cpu in (
        (tc.matmul(a, b), tc.matmul(a.cpu(), b.cpu())),
        (tc.attention(q, k, v), tc.attention(q.cpu(), k.cpu(), v.cpu())),
    ):
        assert cpu.device.type == "cpu" and gpu.is_cuda
        different = (ordered(gpu) != ordered(cpu)).double().mean()
        assert float(different) <= 0.01
        torch.testing.assert_close(gpu.cpu().double(), cpu.double(), rtol=2**-7, atol=1e-4)


def test_tensors_that_need_gradients_and_expanded_ones():
    a = normal((64, 72)).requires_grad_()
    for b in (normal((72, 1), seed=1).expand(72, 136), normal((1, 136), seed=1).expand(72, 136)):
        with torch.no_grad():
            assert_close(tc.matmul(a, b), matmul(a, b))


# ---- errors


def test_arrays_on_two_devices_are_refused():
    a, b = normal((64, 64)), normal((64, 64))
    with pytest.raises(ResourceError, match="one device"):
        tc.matmul(a, b.cpu())
    with pytest.raises(ResourceError, match="one device"):
        tc.matmul(a.cpu(), b)
    q, k, v = heads(1, 2, 100, 64)
    with pytest.raises(ResourceError, match="one device"):
        tc.attention(q, k.cpu(), v)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus():
    a, b = normal((64, 64)), normal((64, 64))
    with pytest.raises(ResourceError, match="cuda:0.*cuda:1"):
        tc.matmul(a, b.to("cuda:1"))
    there = tc.matmul(a.to("cuda:1"), b.to("cuda:1"))
    assert there.device.index == 1 and torch.equal(there.cpu(), tc.matmul(a, b).cpu())


def test_an_output_that_overlaps_an_input_is_refused():
    a = normal((128, 128))
    with pytest.raises(LayoutError, match="share no memory"):
        tc.matmul(a, a, out=a)
    base = normal((128, 256))
    left, right = base[:, :128], base[:, 128:]
    tc.matmul(a, left.clone(), out=right)  # beside an input is not over it
    assert_close(right, matmul(a, left))


@pytest.mark.parametrize("shapes", [((64, 64), (72, 64)), ((64,), (64, 64))])
def test_wrong_shapes_are_refused_before_a_launch(shapes):
    a, b = (torch.ones(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    with pytest.raises(TileError, match="matmul"):
        tc.matmul(a, b)


def test_the_device_survived_everything():
    torch.cuda.synchronize()
    assert view(normal((2, 2))).device.startswith("cuda")
    assert np.isfinite(float(tc.matmul(normal((64, 64)), normal((64, 64))).double().sum()))
