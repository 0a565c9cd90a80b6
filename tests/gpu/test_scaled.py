"""Products of quantised tensors on a GPU, and their formats, beside those of NumPy arrays."""

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import tilecat as tc  # noqa: E402
from tilecat import e4m3, e5m2, formats  # noqa: E402
from tilecat.dtypes import e2m1  # noqa: E402
from tilecat.testing import poison  # noqa: E402

SHAPES = ((1, 16, 32), (130, 137, 288), (257, 392, 544), (1000, 1016, 512), (4096, 4096, 4096))
NAMES = ("mxfp8", "mxfp4", "nvfp4")


def same_bytes(tensor: Any, array: np.ndarray) -> None:
    np.testing.assert_array_equal(tensor.cpu().view(torch.uint8).numpy(), array.view(np.uint8))


@pytest.mark.parametrize("rows", [1, 130, 1000])
def test_formats_of_tensors_are_those_of_arrays(rows: int):
    x = np.random.default_rng(rows).standard_normal((rows, 544)).astype(np.float32)
    x *= 2.0 ** np.linspace(-40, 40, rows, dtype=np.float32)[:, None]
    y = torch.tensor(x, device="cuda")
    for dtype in (e4m3, e5m2, e2m1):
        wanted, mine = formats.quantize_mx(x, dtype), formats.quantize_mx(y, dtype)
        same_bytes(mine[0], wanted[0])
        same_bytes(mine[1], wanted[1])
        back = formats.dequantize_mx(*mine).cpu().numpy()
        np.testing.assert_array_equal(back, formats.dequantize_mx(*wanted))
        packed = formats.pack_scales(mine[1])
        same_bytes(packed, formats.pack_scales(wanted[1]))
        same_bytes(formats.unpack_scales(packed, *mine[1].shape), wanted[1])
    whole = np.float32(0.01)
    wanted, mine = formats.quantize_nvfp4(x, whole), formats.quantize_nvfp4(y, float(whole))
    same_bytes(mine[1], wanted[1])
    same_bytes(mine[0], wanted[0])


def quantised(name: str, x: Any) -> tuple[Any, Any, Any]:
    """Elements, scales, and the value of each element, float64."""
    if name == "nvfp4":
        q, s, _ = formats.quantize_nvfp4(x, 1.0)
        return q, s, formats.dequantize_nvfp4(q, s).double()
    q, s = formats.quantize_mx(x, e4m3 if name == "mxfp8" else e2m1)
    return q, s, formats.dequantize_mx(q, s).double()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SHAPES, ids=str)
def test_product_of_quantised_tensors(name: str, size: tuple[int, int, int]):
    m, n, k = size
    generator = torch.Generator(device="cuda").manual_seed(m + n)
    x, w = (torch.randn(rows, k, device="cuda", generator=generator) for rows in (m, n))
    (xq, xs, xv), (wq, ws, wv) = quantised(name, x), quantised(name, w)
    out = torch.empty(m, n, device="cuda", dtype=torch.float32)
    poison(out)
    multiply = getattr(tc, f"matmul_{name}")
    assert multiply(xq, wq.T, xs, ws.T, out) is out
    want, bound = xv @ wv.T, xv.abs() @ wv.abs().T
    assert bool(((out.double() - want).abs() <= (k + 3) * 2.0**-23 * bound).all())
    packed = formats.pack_scales(xs), formats.pack_scales(ws).T
    again = multiply(xq, wq.T, *packed, out_dtype="f32")
    assert torch.equal(again, out)
    half = multiply(xq, wq.T, xs, ws.T, alpha=0.5)
    assert half.dtype == torch.bfloat16 and torch.equal(half, (0.5 * out).bfloat16())


def test_tensors_on_the_cpu_run_on_the_machine():
    x, w = torch.randn(70, 64), torch.randn(40, 64)
    for name in NAMES:
        (xq, xs, xv), (wq, ws, wv) = quantised(name, x), quantised(name, w)
        if name != "mxfp8":
            xq = xq.view(torch.float4_e2m1fn_x2)
        for target in (None, "sm_100a", "sm_107a"):
            y = getattr(tc, f"matmul_{name}")(xq, wq.T, xs, ws.T, out_dtype="f32", target=target)
            torch.testing.assert_close(y.double(), xv @ wv.T, rtol=1e-5, atol=1e-5)


def test_a_target_without_a_chip_wants_arrays_in_cpu_memory():
    x = torch.randn(70, 64, device="cuda")
    q, s = formats.quantize_mx(x)
    with pytest.raises(tc.ResourceError, match="runs on the PTX machine, on arrays in CPU memory"):
        tc.matmul_mxfp8(q, q.T, s, s.T, target="sm_100a")
