"""The templates' kernels on a GPU: those that the PTX machine runs, with the same references."""

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from pipeline import (  # noqa: E402
    test_grids,
    test_lcsf,
    test_multicast,
    test_overlay,
    test_ragged,
    test_roles,
    test_rows,
)

from tilecat import bf16  # noqa: E402

TYPES = {np.dtype(np.float32): torch.float32, np.dtype(np.int32): torch.int32}
WIDE = {torch.bfloat16: torch.float32}


def on_gpu(value):
    """A NumPy array as a CUDA tensor; numbers as they are."""
    if not isinstance(value, np.ndarray):
        return value
    dtype = TYPES.get(value.dtype, torch.bfloat16)
    wide = value.astype(np.float32) if dtype is torch.bfloat16 else value
    return torch.tensor(wide).to("cuda", dtype)


def back(value):
    """A tensor as the array that the reference compares."""
    if not isinstance(value, torch.Tensor):
        return value
    found = value.to(WIDE.get(value.dtype, value.dtype)).cpu().numpy()
    return found.astype(bf16.numpy) if value.dtype is torch.bfloat16 else found


def check_on_gpu(kernel, make, check, **params):
    args = [on_gpu(value) for value in make()]
    for _ in range(3):  # timing differs from call to call
        kernel(*args, **params)
    torch.cuda.synchronize()
    check([back(value) for value in args])


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_storing_thread(consumers):
    check_on_gpu(test_lcsf.streamed(consumers), *test_lcsf.arrays(4096, 1032))


@pytest.mark.parametrize(("stages", "depth"), [(1, 1), (2, 2), (3, 2)])
def test_roles_and_rings_between_them(stages, depth):
    check_on_gpu(test_roles.scan(stages, depth), *test_roles.arrays(200, 520))


@pytest.mark.parametrize("name", test_overlay.CASES)
def test_outputs_in_free_stages(name):
    kernel = test_overlay.product(*test_overlay.CASES[name])
    check_on_gpu(kernel, *test_overlay.arrays(2048, 1032, 1536))


@pytest.mark.parametrize("name", test_multicast.CASES)
def test_clusters_share_tiles(name):
    kernel = test_multicast.product(*test_multicast.CASES[name])
    check_on_gpu(kernel, *test_multicast.arrays(2056, 1032, 1544))


def test_rows_and_packed_batches_run():
    x = torch.randn(5000, 1024, device="cuda").bfloat16()
    w, y = torch.rand(1024, device="cuda").bfloat16(), torch.empty(5000, 1024, device="cuda")
    test_rows.rms_norm(x, w, y, 1e-5, D=1024, warps=8, blocks=2)
    exact = torch.nn.functional.rms_norm(x.double(), (1024,), w.double(), 1e-5)
    torch.testing.assert_close(y.double(), exact, rtol=2e-4, atol=1e-6)
    lengths = torch.randint(0, 300, (100,))
    starts = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).int().cuda()
    total = int(lengths.sum())
    x = torch.randn(total, 128, device="cuda").bfloat16()
    weights = torch.randn(100, 128, 64, device="cuda").bfloat16()
    out = torch.full((total + 70, 64), float("nan"), device="cuda").bfloat16()
    test_ragged.by_sequence(x, weights, starts, out)
    rows = torch.repeat_interleave(torch.arange(100), lengths).cuda()
    exact = torch.einsum("tk,tkn->tn", x.double(), weights.double()[rows])
    torch.testing.assert_close(out[:total].double(), exact, rtol=2**-7, atol=2**-7)
    assert out[total:].isnan().all()


@pytest.mark.parametrize("name", test_grids.SCHEDULES)
def test_each_cta_has_one_task(name):
    schedule, tasks = test_grids.SCHEDULES[name]
    kernel = test_grids.visits(schedule, persistent=False)
    x = torch.zeros(188, 64, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):  # the first call prepares those after it
        who = torch.zeros(tasks + 3, 2, device="cuda", dtype=torch.int32)
        kernel(x, who, 4)
        assert who[:tasks, 0].tolist() == list(range(1, tasks + 1))
        assert who[:tasks, 1].eq(tasks).all() and not who[tasks:].any()


def test_a_persistent_grid_has_the_ctas_that_the_gpu_holds():
    schedule, tasks = test_grids.SCHEDULES["extents"]
    who = torch.zeros(tasks, 2, device="cuda", dtype=torch.int32)
    x = torch.zeros(188, 64, device="cuda", dtype=torch.bfloat16)
    test_grids.visits(schedule)(x, who, 4)
    assert who[:, 1].eq(torch.cuda.get_device_properties(0).multi_processor_count).all()
