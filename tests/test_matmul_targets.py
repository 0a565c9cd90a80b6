"""`tc.matmul(..., target=...)`: every target's text and configuration, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilecat as tc
from tilecat import gemm_choice, operators
from tilecat.arch import ARCHS
from tilecat.errors import ArchError
from tilecat.kernels.gemm import matmul as kernel
from tilecat.model.gemm import standing_for

TARGETS = [arch.target for arch in ARCHS]
TENSOR = [arch.target for arch in ARCHS if "tcgen05" in arch.features]
TYPES = {
    "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
LARGE = gemm_choice.Problem(
    4096, 4096, 4096, "NN", 1, 148, "bf16", target="sm_100a"
)  # fmt: skip


def operands(m: int, n: int, k: int, name: str = "bf16") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (n, k)))
    return a.astype(TYPES[name]), b.astype(TYPES[name]).T


def check(c: np.ndarray, a: np.ndarray, b: np.ndarray, name: str = "bf16") -> None:
    """f32 results: sums, and tf32's 10 bits of each operand."""
    want = a.astype(np.float64) @ b.astype(np.float64)
    bound = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    relative = (2.0**-9 if name == "f32" else 0) + (a.shape[1] + 1) * 2.0**-24
    assert (np.abs(c - want) <= relative * bound).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", TYPES)
def test_products_of_each_type_are_right_on_each_target(target: str, name: str):
    a, b = operands(100, 136, 96, name)
    check(tc.matmul(a, b, out_dtype="f32", target=target), a, b, name)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 200, 75), (3, 7, 5), (129, 65, 33)])
@pytest.mark.parametrize("target", ["sm_90a", "sm_107a"])
def test_odd_extents_are_right(target: str, m: int, n: int, k: int):
    a, b = operands(m, n, k)
    check(tc.matmul(a, b, out_dtype="f32", target=target), a, b)


def test_large_tiles_are_of_pairs(monkeypatch: Any):
    few = replace(standing_for("sm_107a"), sms=4)
    monkeypatch.setattr(operators, "standing_for", lambda target: few)
    asked = []
    choose = lambda problem: asked.append(gemm_choice.choose(problem)) or asked[-1]  # noqa: E731
    monkeypatch.setattr(operators, "choose", choose)
    a, b = operands(600, 520, 136)
    check(tc.matmul(a, b, out_dtype="f32", target="sm_107a"), a, b)
    a, b = operands(600, 264, 75)  # rows that TMA does not reach
    check(tc.matmul(a, b, out_dtype="f32", target="sm_107a"), a, b)
    assert [params.get("pairs") for params in asked] == [True, None]


@pytest.mark.parametrize("target", TENSOR)
def test_pairs_are_chosen_where_their_tiles_fill_the_device(target: str):
    large = replace(LARGE, target=target)
    found = gemm_choice.choose(large)
    assert (found["tile_m"], found["tile_n"], found["pairs"]) == (128, 256, True)
    assert gemm_choice.choose(replace(large, widest=128))["tile_n"] == 128
    small = replace(large, m=512, n=512)
    for other in (small, replace(large, reached=False), replace(large, grouped=True)):
        assert "pairs" not in gemm_choice.choose(other), other
    assert "pairs" not in gemm_choice.choose(replace(LARGE, sms=132, target="sm_90a"))


CASES = [
    pytest.param(params, name, out, marks=() if "pairs" in params else pytest.mark.full)
    for params in gemm_choice.TENSOR_TILES
    for name, out in (("bf16", "bf16"), ("f32", "f32"), ("e4m3", "f32"))
]


@pytest.mark.parametrize(("params", "name", "out"), CASES)
def test_tiles_assemble_without_spills(params: dict[str, Any], name: str, out: str):
    a, b = np.zeros((256, 256), TYPES[name]), np.zeros((256, 256), TYPES[name]).T
    c = np.zeros((256, 256), TYPES[out])
    for target in TENSOR[::2]:
        made = kernel.compile(a, b, c, target=target, **params)
        assert made.resources.spill_bytes == 0


def test_factors_and_steps_go_with_a_target():
    a, b = operands(70, 144, 160)
    bias = np.linspace(-1, 1, 144, dtype=np.float32)
    c = np.ones((70, 144), np.float32)
    tc.matmul(a, b, c, alpha=0.5, beta=2.0, epilogue=((tc.epilogues.bias, bias),), target="sm_100a")
    want = 0.5 * (a.astype(np.float64) @ b.astype(np.float64)) + 2 + bias
    np.testing.assert_allclose(c, want, atol=1e-4)
    both = tc.matmul(a, b, second=b, epilogue=lambda x, y, at: x - y, out_dtype="f32",
                     target="sm_107a")  # fmt: skip
    assert (both == 0).all()


def test_another_target_is_refused():
    with pytest.raises(ArchError, match="sm_80"):
        tc.matmul(*operands(8, 8, 8), target="sm_80")
