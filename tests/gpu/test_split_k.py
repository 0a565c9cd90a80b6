"""split_k of the GEMM on a GPU: sums, equal bits from launch to launch, flags left down."""

import pytest
import reference

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import tilecat as tc  # noqa: E402
from tilecat import bf16, gemm_choice, operators  # noqa: E402
from tilecat.kernels.gemm import matmul  # noqa: E402


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("tile", [(64, 128), (128, 256)], ids=str)
@pytest.mark.parametrize("parts", [2, 5, 16])
@pytest.mark.parametrize("shape", [(70, 1000, 4096), (1000, 1016, 520), (2048, 2048, 8192)])
def test_parts_add_up_the_same_each_time(shape, parts, tile, cluster):
    m, n, k = shape
    torch.manual_seed(0)
    a = torch.randn(m, k, device="cuda").bfloat16()
    b = torch.randn(k, n, device="cuda").bfloat16()
    places = parts * (m // 64 + 4) * (n // tile[1] + 1)
    sums = torch.full((places * 64, tile[1]), float("nan"), device="cuda")
    flags = torch.zeros(places, dtype=torch.int32, device="cuda")
    found = []
    for _ in range(5):
        c = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
        matmul(a, b, c, sums, flags, tile_m=tile[0], tile_n=tile[1], stages=3, split_k=parts,
               cluster=cluster)  # fmt: skip
        found.append(c)
    torch.cuda.synchronize()
    assert not flags.any()
    assert all(torch.equal(c, found[0]) for c in found)
    reference.assert_close(found[0], reference.matmul(a, b), bf16.numpy)


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("parts", [2, 4, 9])
@pytest.mark.parametrize("shape", [(128 * 19, 256 * 7, 4096), (70, 1000, 4096), (8448, 8448, 520)])
def test_the_last_wave_is_shared_the_same_each_time(shape, parts, cluster):
    m, n, k = shape
    torch.manual_seed(0)
    a = torch.randn(m, k, device="cuda").bfloat16()
    b = torch.randn(k, n, device="cuda").bfloat16()
    places = 2 * torch.cuda.get_device_properties(0).multi_processor_count
    sums = torch.full((places * 64, 256), float("nan"), device="cuda")
    flags = torch.zeros(places, dtype=torch.int32, device="cuda")
    found = []
    for _ in range(5):
        c = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
        matmul(a, b, c, sums, flags, tile_m=128, tile_n=256, stages=3, stream_k=parts,
               cluster=cluster)  # fmt: skip
        found.append(c)
    torch.cuda.synchronize()
    assert not flags.any()
    assert all(torch.equal(c, found[0]) for c in found)
    reference.assert_close(found[0], reference.matmul(a, b), bf16.numpy)


# Few tiles, a wave and one, one row; all of them are split by themselves.
SHAPES = [(512, 512, 16384), (128 * 9, 256 * 5, 8192), (3, 512, 16384)]


def operands(m, n, k):
    torch.manual_seed(1)
    a = torch.randn(m, k, device="cuda").bfloat16()
    return a, torch.randn(n, k, device="cuda").bfloat16().t()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matmul_splits_by_itself(shape, monkeypatch):
    chosen = []

    def choose(problem):
        chosen.append(gemm_choice.choose(problem))
        return chosen[-1]

    monkeypatch.setattr(operators, "choose", choose)
    a, b = operands(*shape)
    found = [tc.matmul(a, b) for _ in range(5)]
    found.append(tc.matmul(a, b, epilogue=lambda x, at: x))
    reference.assert_close(found[0], reference.matmul(a, b), bf16.numpy)
    assert all(torch.equal(c, found[0]) for c in found[:5])
    if torch.cuda.get_device_properties(0).multi_processor_count == 132:
        assert set(chosen[0]) & set(gemm_choice.PARTS)


def test_streams_have_sums_of_their_own():
    calls = [(operands(*shape), shape) for shape in SHAPES]
    wanted = [tc.matmul(*given) for given, _ in calls]
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    found = []
    for turn in range(30):
        stream = streams[turn % 3]
        with torch.cuda.stream(stream):
            found += [(tc.matmul(*calls[at][0]), at) for at in range(3)]
    torch.cuda.synchronize()
    assert all(torch.equal(c, wanted[at]) for c, at in found)


def test_graphs_have_sums_of_their_own():
    a, b = operands(*SHAPES[0])
    wanted = tc.matmul(a, b)
    made = []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs = [tc.matmul(a, b) for _ in range(3)]
        made.append((graph, outs))
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(10):
        for (graph, _), stream in zip(made, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        eager = tc.matmul(a, b)
    torch.cuda.synchronize()
    assert torch.equal(eager, wanted)
    assert all(torch.equal(c, wanted) for _, outs in made for c in outs)
