"""tc.matmul on a GPU against float64: over 200 shapes, layouts, dtypes, and what numbers do."""

import random

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from arrays import assert_margin_untouched, blank, normal  # noqa: E402
from exact import assert_close, matmul  # noqa: E402

import tilecat as tc  # noqa: E402
from tilecat.kernels import KERNELS  # noqa: E402
from tilecat.kernels.gemm import matmul as kernel  # noqa: E402

ORDERS = {"N": "row", "T": "col"}
LAYOUTS = ("NN", "NT", "TN", "TT")
PLAIN = ((128, 256, 64), (256, 512, 192), (200, 136, 72), (1000, 1016, 520))
TINY = (
    (1, 1, 1), (1, 8, 8), (8, 1, 8), (1, 1, 1000), (3, 5, 7), (16, 16, 16), (17, 33, 65),
    (64, 64, 1), (2, 2048, 2), (127, 129, 63), (65, 255, 257), (128, 8, 8192), (1, 8192, 8192),
    (8192, 1, 64), (4096, 8, 16),
)  # fmt: skip
BIG = (
    (4096, 4096, 4096, "NN"), (8192, 8192, 512, "NT"), (4352, 4352, 4352, "TN"),
    (8192, 1024, 8192, "TT"), (16384, 256, 128, "NN"), (8448, 8448, 4096, "NT"),
)  # fmt: skip
EMPTY = ((0, 16, 16), (16, 0, 16), (16, 16, 0), (0, 0, 0), (300, 520, 0))
VIEWS = ("sliced", "skipped", "shifted", "odd", "spread")


def random_problems(count, seed=2026):
    """Sizes spread evenly over their logarithms, 1 to 3000; half of them multiples of 8."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        sizes = [round(3000 ** rng.random()) for _ in range(3)]
        if rng.random() < 0.5:
            sizes = [-(-size // 8) * 8 for size in sizes]
        found.append((*sizes, rng.choice(LAYOUTS), "f16" if rng.random() < 0.25 else "bf16"))
    return found


def check(m, n, k, a="row", b="row", c="row", dtype="bf16"):
    """One product: poisoned output, every element, and nothing beside it."""
    left, right = normal((m, k), a, dtype, seed=1), normal((k, n), b, dtype, seed=2)
    out, base = blank((m, n), c, dtype)
    assert tc.matmul(left, right, out=out) is out
    assert_close(out, matmul(left, right), f"{m}x{n}x{k} {a} {b} {c} {dtype}")
    assert_margin_untouched(base, out)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", PLAIN, ids=str)
def test_matmul_in_each_layout(size, layout, dtype):
    check(*size, ORDERS[layout[0]], ORDERS[layout[1]], dtype=dtype)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("size", TINY, ids=str)
def test_matmul_of_tiny_and_thin_sizes(size, dtype):
    check(*size, dtype=dtype)


@pytest.mark.parametrize("problem", random_problems(120), ids=str)
def test_matmul_of_random_sizes(problem):
    *size, layout, dtype = problem
    check(*size, ORDERS[layout[0]], ORDERS[layout[1]], dtype=dtype)


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("size", [(200, 136, 72), (513, 264, 200)], ids=str)
def test_matmul_of_views(size, view, which):
    layouts = ["row", "row", "row"]
    layouts[which] = view
    check(*size, *layouts)


@pytest.mark.parametrize("problem", BIG, ids=str)
def test_matmul_of_big_sizes(problem):
    *size, layout = problem
    check(*size, ORDERS[layout[0]], ORDERS[layout[1]])


@pytest.mark.parametrize("size", EMPTY, ids=str)
def test_matmul_of_empty_tensors(size):
    m, n, k = size
    out = tc.matmul(normal((m, k)), normal((k, n)))
    assert out.shape == (m, n) and bool((out == 0).all())


def test_matmul_into_a_transposed_output():
    check(200, 136, 72, c="col")
    check(512, 768, 256, a="col", b="col", c="col", dtype="f16")


@pytest.mark.parametrize("config", KERNELS[0].configs, ids=lambda config: config.name)
@pytest.mark.parametrize("size", [(128, 256, 64), (1000, 1016, 520), (2048, 2048, 72)], ids=str)
def test_every_configuration_is_right(size, config):
    m, n, k = size
    left, right = normal((m, k), seed=3), normal((k, n), seed=4)
    out, _ = blank((m, n))
    kernel(left, right, out, **config.params)
    assert_close(out, matmul(left, right), config.name)


@pytest.mark.parametrize("group", [1, 3, 8, 100])
def test_every_order_covers_all_tiles(group):
    left, right = normal((1300, 64), seed=5), normal((64, 2100), seed=6)
    out, _ = blank((1300, 2100))
    kernel(left, right, out, group=group)
    assert_close(out, matmul(left, right), f"groups of {group}")


@pytest.mark.parametrize("grid", [1, 3, 131, 1000])
def test_any_grid_covers_all_tiles(grid):
    left, right = normal((700, 200), seed=5), normal((200, 900), seed=6)
    out, _ = blank((700, 904), "odd")
    out = out[:, :900]
    kernel(left, right, out, grid=grid)
    assert_close(out, matmul(left, right), f"{grid} CTAs")


def test_matmul_is_deterministic():
    left, right = normal((1000, 520), seed=7), normal((520, 1016), seed=8)
    first = tc.matmul(left, right)
    assert all(torch.equal(first, tc.matmul(left, right)) for _ in range(20))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("k", [64, 65], ids=["by TMA", "by threads"])
def test_nan_and_infinity_propagate_as_in_torch(dtype, k):
    left, right = normal((200, k), dtype=dtype), normal((k, 256), dtype=dtype, seed=1)
    left[3, 5], left[70, 0], left[130, k - 1] = float("nan"), float("inf"), -float("inf")
    right[7, 9], right[k - 1, 200] = float("inf"), float("nan")
    ours, theirs = tc.matmul(left, right), left.double() @ right.double()
    assert torch.equal(torch.isnan(ours), torch.isnan(theirs))
    assert torch.equal(torch.isposinf(ours), torch.isposinf(theirs))
    assert torch.equal(torch.isneginf(ours), torch.isneginf(theirs))
    assert bool(torch.isfinite(ours[0, 0]))


def test_f16_overflows_to_infinity_as_in_torch():
    left = torch.full((128, 64), 60.0, device="cuda", dtype=torch.float16)
    right = torch.full((64, 128), 60.0, device="cuda", dtype=torch.float16)
    right[:, ::2] = -60.0
    assert torch.equal(tc.matmul(left, right), torch.mm(left, right))


def test_whole_numbers_are_exact():
    generator = torch.Generator(device="cuda").manual_seed(0)
    left, right = (
        torch.randint(-2, 3, shape, device="cuda", generator=generator).to(torch.bfloat16)
        for shape in ((1000, 512), (512, 1016))
    )
    exact = (left.double() @ right.double()).to(torch.bfloat16)
    assert torch.equal(tc.matmul(left, right), exact)
