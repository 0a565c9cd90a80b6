"""tc.attention_decode on a GPU against float64: 150 random calls, graphs, calls seen before."""

import math

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import numpy as np  # noqa: E402
from cases import to_torch  # noqa: E402
from decode_cases import Decode, random_decode  # noqa: E402

import tilecat as tc  # noqa: E402

RANDOM = 150


def on_gpu(x):
    if not isinstance(x, np.ndarray):
        return x
    return to_torch(x, "cuda") if x.dtype.kind not in "i" else torch.as_tensor(x, device="cuda")


def back(array, tensor):
    array[...] = tensor.float().cpu().numpy().astype(array.dtype)


def run(q, k, v, out, lse, **options):
    """Several times: the last calls are ready ones, at other addresses."""
    arguments = [on_gpu(x) for x in (q, k, v)]
    options = {name: on_gpu(x) for name, x in options.items()}
    tc.attention_decode(*arguments, **options)
    found, sums = (torch.full_like(on_gpu(x), math.nan) for x in (out, lse))
    tc.attention_decode(*arguments, **options, out=found, lse=sums)
    back(out, found)
    back(lse, sums)
    for _ in range(3):
        again = tc.attention_decode(*[x.clone() for x in arguments], **options)
        assert torch.equal(again, found)


@pytest.mark.parametrize("number", range(RANDOM))
def test_random_decodes(number):
    random_decode(number, 5000, wide=True).check(run, gpu=True)


@pytest.mark.parametrize("page", [0, 16, 128])
def test_long_caches(page):
    Decode(1, 8, 2, 40960, 128, (40960, 1, 7777), page=page).check(run, gpu=True)


def test_graphs_read_lengths_when_they_run():
    case = Decode(1, 8, 2, 4096, 128, (4000, 100))
    (q, k, v), options = case.call()
    q, k, v = (on_gpu(x) for x in (q, k, v))
    lengths = torch.zeros(2, dtype=torch.int32, device="cuda")
    wanted = tc.attention_decode(q, k, v, cache_seqlens=on_gpu(options["cache_seqlens"]))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            tc.attention_decode(q, k, v, cache_seqlens=lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = tc.attention_decode(q, k, v, cache_seqlens=lengths)
    for _ in range(2):
        lengths.zero_()
        graph.replay()
        assert not out.float().any()
        lengths.copy_(on_gpu(options["cache_seqlens"]))
        graph.replay()
        assert torch.equal(out, wanted)


def test_streams_have_memory_of_their_own():
    (q, k, v), _ = Decode(1, 8, 1, 8192, 64, (8192,)).call()
    q, k, v = (on_gpu(x) for x in (q, k, v))
    wanted = tc.attention_decode(q, k, v)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    found = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(tc.attention_decode(q, k, v))
    torch.cuda.synchronize()
    assert all(torch.equal(x, wanted) for x in found)
