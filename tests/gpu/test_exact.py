"""The references on the GPU are those of tests/reference.py."""

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import exact  # noqa: E402
import reference  # noqa: E402
from arrays import normal  # noqa: E402


def same(ours, theirs):
    """(value, error) of exact.py against a Reference."""
    for mine, other in zip(ours, (theirs.value, theirs.error), strict=True):
        np.testing.assert_allclose(mine.cpu().numpy(), other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_references_agree(dtype, monkeypatch):
    monkeypatch.setattr(exact, "CHUNK_ELEMS", 1000)  # several chunks
    a, b = normal((70, 40), dtype=dtype), normal((40, 50), dtype=dtype, seed=1)
    same(exact.matmul(a, b), reference.matmul(a, b))
    q = normal((2, 4, 60, 32), dtype=dtype, seed=2)
    k, v = (normal((2, 2, 90, 32), dtype=dtype, seed=seed) for seed in (3, 4))
    for ours, theirs in zip(exact.attention(q, k, v), reference.attention(q, k, v), strict=True):
        same(ours, theirs)


def test_wrong_results_fail():
    a, b = normal((70, 40)), normal((40, 50), seed=1)
    expected = exact.matmul(a, b)
    right = expected[0].to(torch.bfloat16)
    exact.assert_close(right, expected)
    for value in (float("nan"), float("inf"), 1000.0):
        wrong = right.clone()
        wrong[3, 4] = value
        with pytest.raises(AssertionError, match=r"1 of 3500 elements wrong, worst at \(3, 4\)"):
            exact.assert_close(wrong, expected)
    with pytest.raises(AssertionError, match="shape"):
        exact.assert_close(right[1:], expected)
