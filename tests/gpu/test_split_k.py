"""split_k of the GEMM on a GPU: sums, equal bits from launch to launch, flags left down."""

import pytest
import reference

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from tilecat import bf16  # noqa: E402
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
