"""Launches on a GPU: every kind of array, streams, graphs, threads, and the host time of a call."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from runtime.ptx_texts import copy_tile, scale, three_maps

from tilecat.errors import ResourceError
from tilecat.runtime import deferred
from tilecat.runtime.arrays import view
from tilecat.runtime.compile import assemble

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)


def launcher(module):
    return deferred.launch().Launcher(module, assemble(module).cubin)


@pytest.fixture(scope="module")
def scaled():
    """x *= factor, as a launcher."""
    return launcher(scale())


class OnlyInterface:
    """A tensor seen through `__cuda_array_interface__` alone."""

    def __init__(self, tensor, stream=None):
        self.tensor, self.stream = tensor, stream

    @property
    def __cuda_array_interface__(self):
        return {**self.tensor.__cuda_array_interface__, "stream": self.stream}


class OnlyDlpack:
    """A tensor seen through DLPack alone."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_launch_on_torch_tensors_contiguous_and_strided(scaled):
    x = torch.arange(100_003, device="cuda", dtype=torch.float32)
    expected = x.clone()
    scaled([view(x), 3.0])
    expected *= 3
    assert torch.equal(x, expected)
    scaled([view(x[1::3]), 0.5])
    expected[1::3] *= 0.5
    assert torch.equal(x, expected)


def test_launch_takes_one_cta_an_sm(scaled):
    scaled([view(torch.zeros(8, device="cuda")), 1.0])
    loaded = scaled._loaded[torch.cuda.current_device()]
    assert loaded.grid == (torch.cuda.get_device_properties().multi_processor_count, 1, 1)


@pytest.mark.parametrize("grid", [1, 7, (2, 1, 1)])
def test_launch_with_an_explicit_grid(scaled, grid):
    x = torch.ones(1000, device="cuda")
    scaled([view(x), 2.0], grid=grid)
    assert torch.equal(x, torch.full_like(x, 2))


@pytest.mark.parametrize("cluster", [2, 4])
def test_launch_of_clusters(cluster):
    x = torch.ones(100_003, device="cuda")
    run = launcher(scale(cluster=cluster))
    for _ in range(2):
        run([view(x), 2.0])
    assert torch.equal(x, torch.full_like(x, 4))
    grid = run._loaded[torch.cuda.current_device()].grid[0]
    assert grid % cluster == 0 and 0 < grid <= 132 * cluster


@pytest.mark.parametrize("kind", [OnlyInterface, OnlyDlpack])
def test_launch_through_interchange_protocols(scaled, kind):
    x = torch.arange(64, device="cuda", dtype=torch.float32).reshape(8, 8)
    seen = view(kind(x[:, 3]))
    assert (seen.device, seen.ptr, seen.shape, seen.strides) == (
        f"cuda:{x.get_device()}",
        x[:, 3].data_ptr(),
        (8,),
        (8,),
    )
    expected = x.clone()
    expected[:, 3] *= 5
    torch.cuda.synchronize()
    scaled([seen, 5.0])
    torch.cuda.synchronize()
    assert torch.equal(x, expected)


def test_launch_on_cupy_arrays_and_their_stream(scaled):
    cupy = pytest.importorskip("cupy")
    x = cupy.arange(1000, dtype=cupy.float32)
    scaled([view(x), 2.0])
    assert bool((x == 2 * cupy.arange(1000, dtype=cupy.float32)).all())
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        y = cupy.full(1000, 3, dtype=cupy.float32)
        scaled([view(y), 2.0])
        total = y.sum()
    stream.synchronize()
    assert float(total) == 6000


def slow_fill(x, value):
    """Work on the current stream that ends long after its launch."""
    torch.cuda._sleep(50_000_000)
    x.fill_(value)


@pytest.mark.parametrize("how", ["current", "object", "handle"])
def test_launch_keeps_the_order_of_a_side_stream(scaled, how):
    x = torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        slow_fill(x, 3)
        if how == "current":
            scaled([view(x), 2.0])
    if how == "object":
        scaled([view(x), 2.0], side)
    if how == "handle":
        scaled([view(x), 2.0], side.cuda_stream)
    side.synchronize()
    assert torch.equal(x, torch.full_like(x, 6))


def test_launch_does_not_wait(scaled):
    x = torch.zeros(1000, device="cuda")
    scaled([view(x), 1.0])
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)
    start = time.perf_counter()
    scaled([view(x), 1.0])
    assert time.perf_counter() - start < 0.05
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "first call inside"])
def test_launch_is_captured_in_a_graph(warm):
    run = launcher(scale())
    x = torch.ones(1000, device="cuda")
    if warm:
        run([view(x), 1.0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run([view(x), 2.0])
        run([view(x), 3.0])
    assert torch.equal(x, torch.ones_like(x))
    for _ in range(2):
        graph.replay()
    assert torch.equal(x, torch.full_like(x, 36))


def test_launch_of_clusters_is_captured_in_a_graph():
    run = launcher(scale(cluster=2))
    x = torch.ones(1000, device="cuda")
    run([view(x), 1.0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run([view(x), 2.0])
    graph.replay()
    assert torch.equal(x, torch.full_like(x, 2))


def test_launch_from_a_thread_without_a_context(scaled):
    x = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    failures = []

    def work():
        try:
            for _ in range(50):
                scaled([view(x), 1.0])
            scaled([view(x), 2.0])
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failures
    assert torch.equal(x, torch.full_like(x, 2))


def test_launch_from_many_threads(scaled):
    xs = [torch.ones(1000 + i, device="cuda") for i in range(8)]
    torch.cuda.synchronize()

    def work(x):
        for _ in range(100):
            scaled([view(x), 2.0])
            scaled([view(x), 0.5])

    threads = [threading.Thread(target=work, args=(x,)) for x in xs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert all(torch.equal(x, torch.ones_like(x)) for x in xs)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_launch_on_the_tensors_device_not_the_current_one(scaled):
    x = torch.ones(1000, device="cuda:1")
    with torch.cuda.device(0):
        scaled([view(x), 2.0])
        assert torch.cuda.current_device() == 0
    torch.cuda.synchronize("cuda:1")
    assert torch.equal(x, torch.full_like(x, 2))


@pytest.mark.parametrize(("rows", "cols"), [(64, 64), (50, 40), (1, 64), (64, 8)])
@pytest.mark.parametrize(("swizzle_bytes", "box_cols"), [(128, 64), (64, 32), (32, 16), (0, 64)])
def test_tensor_maps_copy_a_tile_and_clip_its_edges(rows, cols, swizzle_bytes, box_cols):
    run = launcher(copy_tile(cols=box_cols, swizzle_bytes=swizzle_bytes))
    src = torch.randn(rows, 72, device="cuda").to(torch.bfloat16)[:, :cols]
    dst = torch.full((rows + 1, 72), -1, device="cuda", dtype=torch.bfloat16)
    run([view(src), view(dst[:rows, :cols])])
    torch.cuda.synchronize()
    width = min(cols, box_cols)
    assert torch.equal(dst[:rows, :width], src[:, :width])
    assert torch.all(dst[rows:] == -1) and torch.all(dst[:, width:] == -1)


START = """
import torch
from runtime.ptx_texts import copy_tile
from tilecat.runtime import deferred
from tilecat.runtime.arrays import view
from tilecat.runtime.compile import assemble

what, start, swizzle_bytes = "{what}", {start}, {swizzle_bytes}
cols = (swizzle_bytes or 128) // 2
at = {{"load": "start", "store": "to", "prefetch": "prefetch"}}[what]
module = copy_tile(cols=cols, swizzle_bytes=swizzle_bytes, **{{at: start}})
src = torch.randn(64, 128, device="cuda").to(torch.bfloat16)
dst = torch.zeros_like(src)
deferred.launch().Launcher(module, assemble(module).cubin)([view(src), view(dst)])
torch.cuda.synchronize()
start, to = (start if what == "load" else 0), (start if what == "store" else 0)
first = max(start, 0)
assert torch.equal(dst[:, to + first - start : to + cols], src[:, first : start + cols])
"""
# Measured on an H200, 2026-11-30, maps of 1-, 2- and 4-byte elements: loads, stores and prefetches
# at -8 to 250 bytes that are no multiple of 16, and stores at -16 bytes, fault; loads and
# prefetches at -16, and all three at 16 and 1024 bytes, are right.
PLACES = (*((what, n) for what in ("load", "store", "prefetch") for n in (8, -8, 4, -1)),
          ("load", 1), ("store", 2), ("prefetch", 1))  # fmt: skip


@pytest.mark.parametrize("swizzle_bytes", [0, 32, 64, 128])
@pytest.mark.parametrize(("what", "start"), PLACES)
def test_a_box_begins_at_a_multiple_of_16_bytes(what, start, swizzle_bytes):
    program = START.format(what=what, start=start, swizzle_bytes=swizzle_bytes)
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])},
    )  # fmt: skip
    if start % 8 or what == "store" and start < 0:
        assert "illegal instruction" in done.stderr
    else:
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("swizzle_bytes", [0, 128])
@pytest.mark.parametrize("kept", [64, 63, 60, 57, 56, 33, 1])
def test_a_store_writes_whole_16_bytes_at_the_end_of_a_row(kept, swizzle_bytes):
    """Why tensors that end elsewhere are stored by threads: the 16 bytes of the last element, all.

    Beyond them nothing is written. What is behind the end is printed: what the tile holds there,
    or zeros. Found on an H200, 2026-11-30, by test_gemm_random.py.
    """
    src = torch.randint(1, 1000, (64, 128), device="cuda").to(torch.bfloat16)
    held = torch.full((64, 128), -1.0, device="cuda", dtype=torch.bfloat16)
    launcher(copy_tile(swizzle_bytes=swizzle_bytes))([view(src), view(held[:, :kept])])
    torch.cuda.synchronize()
    end = -(-kept // 8) * 8
    assert torch.equal(held[:, :kept], src[:, :kept])
    behind = held[:, kept:end]
    same = [("the tile's", src[:, kept:end]), ("zeros", behind * 0), ("kept", behind * 0 - 1)]
    print(kept, "behind:", [name for name, x in same if torch.equal(behind, x)], behind[0])
    assert kept == end or (behind != -1).all()
    assert (held[:, end:] == -1).all()


def test_tensor_maps_follow_new_addresses():
    run = launcher(copy_tile())
    for value in range(5):
        src = torch.full((64, 64), value, device="cuda", dtype=torch.bfloat16)
        dst = torch.empty_like(src)
        run([view(src), view(dst)])
        assert torch.equal(src, dst)


def test_a_cubin_for_another_gpu_is_refused_by_name():
    module = scale()
    other = "sm_100a" if torch.cuda.get_device_capability() == (9, 0) else "sm_90a"
    module = replace(module, target=other, text=module.text.replace("sm_90a", other))
    with pytest.raises(ResourceError) as caught:
        launcher(module)([view(torch.ones(8, device="cuda")), 1.0])
    text = str(caught.value)
    assert f"load scale for {other}" in text and "CUDA_ERROR" in text
    assert torch.equal(torch.ones(8, device="cuda") * 2, torch.full((8,), 2.0, device="cuda"))


def test_host_time_of_a_call(capsys):
    run = launcher(three_maps())
    tensors = [torch.zeros(256, 256, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    spare = torch.zeros(64, 256, 256, device="cuda", dtype=torch.bfloat16)

    def microseconds(call, count=2000, repeats=7):
        best = []
        for _ in range(repeats):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for index in range(count):
                call(index)
            best.append((time.perf_counter() - start) / count * 1e6)
        return sorted(best)[repeats // 2]

    views = [view(x) for x in tensors]
    run(views, grid=1)
    times = {
        "launch, views kept": microseconds(lambda i: run(views, grid=1)),
        "launch, views made": microseconds(lambda i: run([view(x) for x in tensors], grid=1)),
        "three views": microseconds(lambda i: [view(x) for x in tensors]),
    }
    pairs = [view(x) for x in spare]
    fresh = [[pairs[a], pairs[b], pairs[(a + b) % 64]] for a in range(40) for b in range(50)]
    run([pairs[0]] * 3, grid=1)
    times["launch, new addresses"] = microseconds(lambda i: run(fresh[i], grid=1), repeats=3)
    with capsys.disabled():
        print("\n" + "\n".join(f"{name}: {value:.2f} us" for name, value in times.items()))
    assert times["launch, views made"] < 20
