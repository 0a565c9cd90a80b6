"""The launcher against a driver that records: no GPU needed."""

import ctypes
import struct
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cuda.bindings import driver as real

import tilecat as tc
from runtime.fake_cuda import FakeCuda, forget, installed, map_bytes
from runtime.ptx_texts import copy_tile, scale
from tilecat import bf16, gl, st
from tilecat.codegen.module import PointerParam, ScalarParam
from tilecat.errors import DTypeError, LayoutError, ResourceError
from tilecat.runtime import arrays, driver, launch


@pytest.fixture
def cuda(monkeypatch):
    yield installed(monkeypatch)
    forget()


def tensor(shape, strides, ptr=4096, dtype="f32", device="cuda:0", array=None):
    return arrays.ArrayView(device, ptr, shape, strides, dtype, False, array)


def parameters(address, formats):
    """The values behind the `void**` that a launch was given."""
    pointers = (ctypes.c_void_p * len(formats)).from_address(address)
    sizes = [struct.calcsize(code) for code in formats]
    return [
        struct.unpack(code, ctypes.string_at(pointer, size))[0]
        for code, pointer, size in zip(formats, pointers, sizes, strict=True)
    ]


def test_launch_packs_parameters_and_takes_the_grid_from_the_device(cuda):
    module = replace(scale(), min_blocks=2, smem_bytes=5000)
    launcher = launch.Launcher(module, b"cubin")
    launcher([tensor((100,), (3,)), 2.5])
    ((args, context),) = cuda.launches
    assert args[:8] == (b"scale", 264, 1, 1, 128, 1, 1, 5000)
    assert args[8] == 0 and args[10] == 0 and context == 1000
    assert parameters(args[9], "QIqf") == [4096, 100, 3, 2.5]


def test_launch_prepares_once_for_arguments_seen_before(cuda):
    launcher = launch.Launcher(copy_tile(), b"cubin")
    args = [tensor((64, 64), (64, 1), 4096, "bf16"), tensor((64, 64), (64, 1), 65536, "bf16")]
    launcher(args)
    launcher([replace(arg) for arg in args])
    assert (cuda.loads, len(cuda.maps), len(cuda.launches)) == (1, 2, 2)
    assert cuda.launches[0] == cuda.launches[1]
    launcher([args[0], tensor((64, 64), (64, 1), 131072, "bf16")])
    assert (cuda.loads, len(cuda.maps)) == (1, 3)


def test_tensor_maps_are_encoded_as_the_driver_wants_them(cuda):
    launcher = launch.Launcher(copy_tile(rows=32, cols=16, swizzle_bytes=32), b"cubin")
    launcher([tensor((50, 40), (48, 1), 4096, "bf16"), tensor((1, 40), (7, 1), 65536, "e4m3")])
    (kind, rank, pointer, extents, strides, box, *rest), second = cuda.maps
    assert kind.name.endswith("BFLOAT16") and (rank, pointer) == (2, 4096)
    assert [int(x) for x in extents] == [40, 50]
    assert [int(x) for x in strides] == [96]
    assert [int(x) for x in box] == [16, 32]
    assert [x.name.rsplit("_", 1)[1] for x in rest[1:]] == ["NONE", "32B", "128B", "NONE"]
    assert second[0].name.endswith("UINT8")
    assert [int(x) for x in second[4]] == [48]  # any stride goes with extent 1: 40 bytes, rounded
    maps = (ctypes.c_void_p * 2).from_address(cuda.launches[0][0][9])
    assert [pointer % 64 for pointer in maps] == [0, 0]
    found = [ctypes.string_at(pointer, 128) for pointer in maps]
    assert found == [map_bytes(args) for args in cuda.maps]


@pytest.mark.parametrize(("step", "fetched"), [(128, "256B"), (384, "256B"), (192, "128B")])
def test_rows_of_whole_256_bytes_are_fetched_by_as_many(cuda, step, fetched):
    launcher = launch.Launcher(copy_tile(rows=32, cols=16, swizzle_bytes=32), b"cubin")
    launcher([tensor((50, 40), (step, 1), 4096, "bf16"), tensor((50, 40), (48, 1), 65536, "e4m3")])
    names = [args[-2].name.rsplit("_", 1)[1] for args in cuda.maps]
    assert names == [fetched, "128B"]


@pytest.mark.parametrize(("num_bytes", "fetched"), [(256, "256B"), (128, "128B")])
def test_a_kernel_says_what_a_miss_fetches(cuda, num_bytes, fetched):
    @tc.kernel
    def loaded(X: gl[bf16, "M", 128]):
        X.T.fetch(num_bytes)
        full = tc.barrier()
        with tc.warpgroup():
            tile = tc.shared(st[bf16, 64, 128])
            full.expect(tile)
            tc.load_async(tile, X[0, 0], full)
            full.wait(0)

    compiled = loaded.compile()
    launch.Launcher(compiled.module, b"cubin")([tensor((64, 128), (128, 1), 4096, "bf16")])
    assert [args[-2].name.rsplit("_", 1)[1] for args in cuda.maps] == [fetched]


def test_a_miss_fetches_128_or_256_bytes():
    @tc.kernel
    def loaded(X: gl[bf16, "M", 128]):
        X.fetch(64)

    with pytest.raises(LayoutError, match="X.fetch: 128 or 256 bytes, got 64"):
        loaded.compile()


def test_outer_strides_of_extent_one_axes():
    assert driver.outer_strides((64, 1, 8), (1, 3, 64), 2) == (128, 128)
    assert driver.outer_strides((5, 1, 1), (1, 1, 1), 2) == (16, 16)
    assert driver.outer_strides((64,), (1,), 2) == ()


def test_launch_refuses_what_tma_cannot_reach(cuda):
    launcher = launch.Launcher(copy_tile(), b"cubin")
    good = tensor((64, 64), (64, 1), 4096, "bf16")
    with pytest.raises(LayoutError, match="address must be a multiple of 16"):
        launcher([good, tensor((64, 64), (64, 1), 4098, "bf16")])
    assert not cuda.launches


def test_scalars_that_are_equal_but_differ_are_not_confused(cuda):
    launcher = launch.Launcher(scale(), b"cubin")
    for factor in (0.0, -0.0, 0):
        launcher([tensor((4,), (1,)), factor])
    found = [parameters(args[9], "QIqf")[3] for args, _ in cuda.launches]
    assert [str(value) for value in found] == ["0.0", "-0.0", "0.0"]


def test_scalars_out_of_range_are_refused(cuda):
    module = replace(scale(), params=(PointerParam("x", 0), ScalarParam("n", 1, "s32")))
    with pytest.raises(DTypeError, match="launch: n must fit s32, got 2147483648"):
        launch.Launcher(module, b"cubin")([tensor((4,), (1,)), 1 << 31])


def test_bf16_scalars_are_packed_as_their_two_bytes(cuda):
    module = replace(scale(), params=(PointerParam("x", 0), ScalarParam("n", 1, "bf16")))
    launcher = launch.Launcher(module, b"cubin")
    launcher([tensor((4,), (1,)), 1.0])
    assert parameters(cuda.launches[0][0][9], "QH") == [4096, 0x3F80]


class Stream:
    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return (0, self.handle)


@pytest.mark.parametrize(
    ("stream", "handle"), [(None, 0), (77, 77), (Stream(88), 88), (SimpleNamespace(ptr=99), 99)]
)
def test_launch_takes_streams_of_any_kind(cuda, stream, handle):
    launch.Launcher(scale(), b"cubin")([tensor((4,), (1,)), 1.0], stream)
    assert cuda.launches[0][0][8] == handle


def test_launch_refuses_what_is_no_stream(cuda):
    with pytest.raises(ResourceError, match="a stream must be a handle"):
        launch.Launcher(scale(), b"cubin")([tensor((4,), (1,)), 1.0], "side")


def test_launch_takes_the_current_stream_of_torch(cuda, monkeypatch):
    class Tensor:
        pass

    raw = SimpleNamespace(_cuda_getCurrentRawStream=lambda index: 500 + index)
    monkeypatch.setitem(launch.sys.modules, "torch", SimpleNamespace(Tensor=Tensor, _C=raw))
    monkeypatch.setattr(launch, "_stream_getters", {})
    launch.Launcher(scale(), b"cubin")([tensor((4,), (1,), device="cuda:1", array=Tensor()), 1.0])
    args, context = cuda.launches[0]
    assert args[8] == 501


def test_launch_makes_the_arrays_device_current_and_puts_the_old_one_back(cuda):
    launcher = launch.Launcher(scale(), b"cubin")
    for _ in range(2):
        launcher([tensor((4,), (1,), device="cuda:1"), 1.0])
    assert [context for _, context in cuda.launches] == [1001, 1001]
    assert cuda.context == 1000 and not cuda.pushed
    launcher([tensor((4,), (1,)), 1.0])
    assert cuda.loads == 2


def test_launch_refuses_mixed_devices(cuda):
    module = copy_tile()
    for other in ("cuda:1", "cpu"):
        with pytest.raises(ResourceError, match=f"all arrays must be on one GPU.*on {other}"):
            launch.Launcher(module, b"cubin")(
                [tensor((64, 64), (64, 1)), tensor((64, 64), (64, 1), device=other)]
            )


def test_launch_of_a_cluster_goes_through_launch_kernel_ex(cuda):
    launcher = launch.Launcher(scale(cluster=2), b"cubin")
    for stream in (0, 9, 0):
        launcher([tensor((4,), (1,)), 1.0], stream)
    assert [args[:6] for args, _ in cuda.launches] == [
        (b"scale", 120, 1, 1, 2, 0),
        (b"scale", 120, 1, 1, 2, 9),
        (b"scale", 120, 1, 1, 2, 0),
    ]
    with pytest.raises(LayoutError, match="whole clusters, got grid=3"):
        launcher([tensor((4,), (1,)), 1.0], grid=3)


def test_launch_takes_an_explicit_grid(cuda):
    launcher = launch.Launcher(scale(), b"cubin")
    x = tensor((4,), (1,))
    launcher([x, 1.0], grid=7)
    launcher([x, 1.0], grid=(7, 3))
    launcher([x, 1.0], grid=0)  # nothing to do
    assert [args[1:4] for args, _ in cuda.launches] == [(7, 1, 1), (7, 3, 1)]
    with pytest.raises(LayoutError, match="one to three extents"):
        launcher([x, 1.0], grid=(1, 2, 3, 4))


def test_launch_error_names_the_kernel_and_the_cuda_error(cuda):
    cuda.status = real.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(ResourceError) as caught:
        launch.Launcher(scale(), b"cubin")([tensor((4,), (1,)), 1.0])
    text = str(caught.value)
    assert "launch scale on cuda:0" in text and "CUDA_ERROR_ILLEGAL_ADDRESS (700: words)" in text
    assert "PTX machine" in text


def test_launch_refuses_too_much_shared_memory(cuda):
    with pytest.raises(ResourceError, match="got 232449 bytes a CTA, NVIDIA H200 has 232448"):
        launch.Launcher(replace(scale(), smem_bytes=232449), b"cubin")([tensor((4,), (1,)), 1.0])


@pytest.mark.parametrize(("num_bytes", "mode"), [(232448, None), (232449, 3), (334848, 3)])
def test_oversized_shared_memory_is_a_mode_of_the_function(cuda, num_bytes, mode):
    cuda.oversized = 334848
    module = replace(scale(), smem_bytes=num_bytes)
    launch.Launcher(module, b"cubin")([tensor((4,), (1,)), 1.0])
    assert cuda.attributes.get("CU_FUNC_ATTRIBUTE_SHARED_MEMORY_MODE") == mode
    size = cuda.attributes.get("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES")
    assert size == (num_bytes if mode is None else None)  # which cannot reach it
    assert cuda.launches[0][0][7] == num_bytes
    with pytest.raises(ResourceError, match="got 334849 bytes a CTA, NVIDIA H200 has 334848"):
        launch.Launcher(replace(module, smem_bytes=334849), b"c")([tensor((4,), (1,)), 1.0])


def test_a_launch_is_moved_to_other_addresses(cuda):
    module = copy_tile(rows=32, cols=16, swizzle_bytes=32)
    pointer = PointerParam("c", 2)
    module = replace(module, params=(*module.params, pointer, ScalarParam("n", 3, "s32")))
    layout = [((50, 40), (48, 1), "bf16"), ((1, 40), (7, 1), "e4m3"), ((3,), (1,), "f32")]

    def args(*addresses):
        return [*(tensor(s, d, p, t) for (s, d, t), p in zip(layout, addresses, strict=True)), 7]

    launcher = launch.Launcher(module, b"cubin")
    at = launcher.movable(args(4096, 65536, 8192))
    moved = at((16384, 32768, 49152, 0))
    encoded = len(cuda.maps)
    moved(5)
    back = at((4096, 65536, 8192, 0))
    back(5)
    assert (len(cuda.maps), cuda.replaced) == (encoded, 4)
    fresh = launch.Launcher(module, b"cubin")
    fresh(args(16384, 32768, 49152), 5)
    fresh(args(4096, 65536, 8192), 5)
    taken = [parameters(call[9], ["128s", "128s", "Q", "i"]) for call, _ in cuda.launches]
    assert taken[:2] == taken[2:] and taken[0] != taken[1]
    places = (ctypes.c_void_p * 2).from_address(cuda.launches[0][0][9])
    assert {place % 64 for place in places} == {0}


def test_a_prepared_launch_shows_what_the_kernel_prints_each_time(cuda, monkeypatch):
    shown = []
    buffer = SimpleNamespace(address=64, show=shown.append)
    monkeypatch.setattr(launch, "DebugBuffer", lambda module: buffer)
    launcher = launch.Launcher(replace(scale(), sites=("a line",)), b"cubin")
    call = launcher.prepare([tensor((100,), (3,)), 2.5])
    call(5)
    call(7)
    assert shown == [5, 7] and len(cuda.launches) == 2
    cuda.status = real.CUresult.CUDA_ERROR_LAUNCH_FAILED
    with pytest.raises(ResourceError):
        call(9)
    assert shown == [5, 7]


def test_prepared_blocks_are_bounded(cuda, monkeypatch):
    monkeypatch.setattr(launch, "_BLOCKS_KEPT", 4)
    launcher = launch.Launcher(scale(), b"cubin")
    for index in range(10):
        launcher([tensor((4,), (1,), ptr=4096 * (index + 1)), 1.0])
    assert len(launcher._blocks) == 4


def test_no_driver_is_an_error_that_says_so(monkeypatch):
    fake = FakeCuda()

    def missing(flags):
        raise RuntimeError("libcuda was not found")

    monkeypatch.setattr(fake, "cuInit", missing, raising=False)
    monkeypatch.setattr(driver, "cuda", fake)
    driver.start.cache_clear()
    with pytest.raises(ResourceError, match="needs the NVIDIA driver, got none") as caught:
        driver.num_devices()
    assert "PTX machine" in str(caught.value)
    driver.start.cache_clear()
