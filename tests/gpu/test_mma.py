"""Every matrix instruction, at every legal N, on a GPU; the cases of the PTX machine."""

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from mma_cases import CASES, MmaCase, arrays, check, run  # noqa: E402

# torch has no arrays of these in NumPy: they travel as bytes, and are seen as what they are.
VIEWS = {
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}


def on_gpu(array: np.ndarray) -> "torch.Tensor":
    """The array on the GPU, with its strides."""
    turned = not array.flags.c_contiguous
    plain = array.T if turned else array
    raw = plain.view(f"i{plain.itemsize}") if plain.dtype.name in VIEWS else plain
    tensor = torch.from_numpy(raw.copy()).cuda()
    tensor = tensor.view(VIEWS[plain.dtype.name]) if plain.dtype.name in VIEWS else tensor
    return tensor.T if turned else tensor


def launched(kernel, *args) -> None:
    """Runs on the GPU; the output, the last array, comes back in place."""
    tensors = [on_gpu(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
    kernel(*tensors, grid=1)
    out = max(i for i, arg in enumerate(args) if isinstance(arg, np.ndarray))
    back = tensors[out].cpu().contiguous()
    raw = back.view(torch.uint8) if args[out].dtype.name in VIEWS else back
    args[out][...] = raw.numpy().view(args[out].dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_product_on_the_gpu_is_right(case: MmaCase):
    given = arrays(case)
    check(case, run(case, given, launched), given, gpu=True)
