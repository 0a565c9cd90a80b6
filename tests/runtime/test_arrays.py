"""Views of callers' arrays: address, shape, strides, dtype, and what is refused."""

import sys
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from tilecat.errors import DTypeError, ResourceError
from tilecat.runtime import arrays, deferred


class Producer:
    """DLPack and nothing else."""

    def __init__(self, array, device=None):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device or self.array.__dlpack_device__()


@pytest.mark.parametrize(
    ("numpy_dtype", "name"),
    [
        (np.float32, "f32"),
        (np.float16, "f16"),
        (ml_dtypes.bfloat16, "bf16"),
        (ml_dtypes.float8_e4m3fn, "e4m3"),
        (ml_dtypes.float8_e5m2, "e5m2"),
        (ml_dtypes.float8_e8m0fnu, "e8m0"),
        (np.int8, "s8"),
        (np.uint8, "u8"),
        (np.int32, "s32"),
        (np.uint32, "u32"),
        (np.int64, "s64"),
    ],
)
def test_view_names_numpy_dtypes(numpy_dtype, name):
    x = np.zeros((3, 5), numpy_dtype)
    seen = arrays.view(x)
    assert (seen.device, seen.dtype, seen.shape, seen.strides) == ("cpu", name, (3, 5), (5, 1))
    assert seen.ptr == x.ctypes.data
    assert not seen.readonly
    assert seen.array is x


def test_view_counts_strides_in_elements():
    x = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
    seen = arrays.view(x.transpose(2, 0, 1)[::-2, 1:])
    assert seen.shape == (3, 3, 5)
    assert seen.strides == (-2, 30, 6)
    assert seen.ptr == x.ctypes.data + 4 * (5 + 30)


def test_view_keeps_readonly():
    x = np.zeros(4, np.float32)
    x.flags.writeable = False
    assert arrays.view(x).readonly


def test_view_shares_memory_with_a_dlpack_producer():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    seen = arrays.view(Producer(x))
    assert (seen.device, seen.ptr, seen.dtype) == ("cpu", x.ctypes.data, "f32")
    seen.array[1, 2] = 50
    assert x[1, 2] == 50


def test_view_of_dlpack_on_the_gpu_goes_through_the_driver(monkeypatch):
    found = SimpleNamespace(
        ptr=4096, shape=(2, 8), strides=None, dtype=np.dtype(np.float16), readonly=True
    )
    monkeypatch.setattr(deferred, "driver", lambda: SimpleNamespace(view_dlpack=lambda x: found))
    seen = arrays.view(Producer(None, device=(2, 3)))
    assert (seen.device, seen.ptr, seen.strides, seen.dtype) == ("cuda:3", 4096, (8, 1), "f16")
    assert seen.readonly


def test_view_refuses_other_devices():
    with pytest.raises(ResourceError, match="must be in CPU or CUDA memory"):
        arrays.view(Producer(None, device=(8, 0)))


@pytest.mark.parametrize("x", [[1.0], 3.0, None, "text", memoryview(b"abc")])
def test_view_refuses_what_is_no_array(x):
    with pytest.raises(DTypeError, match="an argument must be a torch tensor, a NumPy") as caught:
        arrays.view(x)
    assert type(x).__name__ in str(caught.value)


@pytest.mark.parametrize("dtype", [np.complex64, np.bool_, ml_dtypes.float4_e2m1fn, "U4", object])
def test_view_refuses_other_element_types(dtype):
    with pytest.raises(DTypeError, match="no tilecat dtype") as caught:
        arrays.view(np.zeros(4, dtype))
    assert f"got dtype={np.dtype(dtype)}" in str(caught.value)


def test_view_refuses_strides_of_part_elements():
    records = np.zeros(4, np.dtype([("tag", "u1"), ("value", "f4")]))
    with pytest.raises(DTypeError, match="strides must be whole elements"):
        arrays.view(records["value"])


def interface(**facts):
    return SimpleNamespace(__cuda_array_interface__=dict(version=3, **facts))


def test_view_reads_the_cuda_array_interface(monkeypatch):
    monkeypatch.setattr(
        deferred, "driver", lambda: SimpleNamespace(device_of_pointer=lambda pointer: 1)
    )
    plain = arrays.view(interface(shape=(2, 3, 4), typestr="<f4", data=(256, False)))
    assert (plain.device, plain.ptr, plain.strides) == ("cuda:1", 256, (12, 4, 1))
    assert (plain.dtype, plain.readonly) == ("f32", False)
    other = arrays.view(
        interface(shape=(2, 4), typestr="<i4", data=(256, True), strides=(4, 16), stream=1)
    )
    assert (other.strides, other.dtype, other.readonly) == ((1, 4), "s32", True)


def test_view_takes_bf16_from_the_dtype_beside_the_interface(monkeypatch):
    monkeypatch.setattr(
        deferred, "driver", lambda: SimpleNamespace(device_of_pointer=lambda pointer: 0)
    )
    x = interface(shape=(8,), typestr="<V2", data=(512, False))
    with pytest.raises(DTypeError, match="no tilecat dtype"):
        arrays.view(x)
    x.dtype = np.dtype(ml_dtypes.bfloat16)
    assert arrays.view(x).dtype == "bf16"


class FakeTensor:
    """What `view` asks of a torch tensor in CUDA memory."""

    is_cuda, dtype, shape = True, "torch.bfloat16", (4, 8)

    def get_device(self):
        return 2

    def is_neg(self):
        return False

    def data_ptr(self):
        return 1 << 40

    def stride(self):
        return (8, 1)


def test_view_asks_torch_tensors_directly(monkeypatch):
    torch = SimpleNamespace(Tensor=FakeTensor, bfloat16="torch.bfloat16")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(arrays, "_torch_table", {})
    monkeypatch.setattr(arrays, "_viewers", {})
    x = FakeTensor()
    seen = arrays.view(x)
    assert (seen.device, seen.ptr, seen.dtype) == ("cuda:2", 1 << 40, "bf16")
    assert (seen.shape, seen.strides, seen.array) == ((4, 8), (8, 1), x)


@pytest.mark.parametrize(
    ("name", "numpy_dtype"),
    [
        ("float32", np.float32),
        ("bfloat16", ml_dtypes.bfloat16),
        ("float16", np.float16),
        ("float8_e4m3fn", ml_dtypes.float8_e4m3fn),
        ("float8_e5m2", ml_dtypes.float8_e5m2),
        ("int32", np.int32),
    ],
)
def test_view_of_a_cpu_tensor_shares_its_memory(name, numpy_dtype):
    torch = pytest.importorskip("torch")
    x = torch.arange(12).reshape(3, 4).to(getattr(torch, name)).t().requires_grad_(False)
    seen = arrays.view(x)
    assert (seen.device, seen.ptr, seen.strides) == ("cpu", x.data_ptr(), (1, 4))
    assert seen.array.dtype == numpy_dtype
    seen.array[1, 2] = 3
    assert float(x[1, 2].float()) == 3


def test_view_of_a_cpu_tensor_that_wants_gradients():
    torch = pytest.importorskip("torch")
    assert arrays.view(torch.zeros(3, requires_grad=True)).array.shape == (3,)
    with pytest.raises(ResourceError, match="must be in CPU or CUDA memory"):
        arrays.view(torch.zeros(3, device="meta"))


def test_overlaps_tells_interleaved_slices_from_shared_ones():
    x = np.zeros((8, 128), ml_dtypes.bfloat16)
    whole = arrays.view(x)
    left, right = arrays.view(x[:, :64]), arrays.view(x[:, 64:])
    assert not arrays.overlaps(left, right)
    assert arrays.overlaps(left, arrays.view(x[:, 63:]))
    assert arrays.overlaps(whole, arrays.view(x[3:4, 5:6]))
    assert not arrays.overlaps(whole, arrays.view(np.zeros(4, np.float32)))
    assert not arrays.overlaps(whole, arrays.view(x[:0]))
    assert arrays.overlaps(arrays.view(x[::-1]), arrays.view(x[:1]))
    flipped, below = arrays.view(x[4:][::-1]), arrays.view(x[:4])
    assert not arrays.overlaps(flipped, below) and not arrays.overlaps(below, flipped)
    assert arrays.overlaps(flipped, arrays.view(x[3:5]))


def tensor(shape, strides, ptr=1024, dtype="bf16"):
    return arrays.ArrayView("cuda:0", ptr, shape, strides, dtype, False, None)


@pytest.mark.parametrize(
    ("array", "dims", "reason"),
    [
        (tensor((64, 64), (64, 1)), (1, 0), None),
        (tensor((64, 64), (1, 64)), (0, 1), None),
        (tensor((1, 3), (7, 1)), (1, 0), None),
        (tensor((64, 1), (8, 5)), (1, 0), None),
        (tensor((4, 2, 8), (32, 8, 1)), (2, 1, 0), None),
        (tensor((64, 64), (64, 1), ptr=1032), (1, 0), "address must be a multiple of 16"),
        (tensor((64, 64), (1, 64)), (1, 0), "innermost axis must be contiguous, got stride 64"),
        (tensor((64, 60), (60, 1)), (1, 0), "multiples of 16 bytes below 2^40, got 120 bytes"),
        (tensor((64, 64), (0, 1)), (1, 0), "got 0 bytes for axis 0"),
        (tensor((64, 64), (-64, 1)), (1, 0), "got -128 bytes for axis 0"),
        (tensor((0, 64), (64, 1)), (1, 0), "extents must be 1 to 2\\^31, got 0 for axis 0"),
        (tensor((2,) * 6, (8,) * 6), (5, 4, 3, 2, 1, 0), "1 to 5 axes, got 6"),
    ],
)
def test_tma_ok_gives_the_reason(array, dims, reason):
    found = arrays.tma_ok(array, dims)
    if reason is None:
        assert found is None
    else:
        assert found is not None and reason.replace("\\", "") in found
