"""Rubin's controls as parameters of a pipeline: on the PTX machine, and assembled."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilecat as tc
from tilecat.binding import default_specialization
from tilecat.errors import ArchError, LayoutError, ResourceError, ScopeError, TileError
from tilecat.kernels.gemm import matmul

from .test_tensor import TYPES, arrays, check

BYTES = ("e4m3", "e5m2")


def run(*args: Any, grid: int = 2, seed: int = 0, **params: Any) -> None:
    result = matmul.simulate(*args, target="sm_107a", grid=grid, seed=seed, **params)
    assert not result.reports, str(result.reports[0])


def compiled(name: str = "e4m3", target: str = "sm_107a", **params: Any) -> Any:
    """The GEMM for operands of a type; no spills."""
    made = matmul.compile(*arrays(256, 256, 256, TYPES[name]), target=target, **params)
    assert made.resources.spill_bytes == 0
    return made


def traced(**params: Any) -> Any:
    """The GEMM, not assembled."""
    wanted = default_specialization(matmul.signature, params, None)
    return matmul.specialize(wanted, "sm_107a")


# ---- wide K


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize(
    ("shape", "params"),
    [
        ((200, 264, 160), {"tile_n": 128}),
        ((1, 8, 16), {}),
        ((300, 520, 272), {"tile_n": 96, "stages": 2}),
        ((136, 72, 400), {"tile_n": 64, "tile_k": 64}),  # 64-byte swizzle
        ((300, 264, 144), {"tile_m": 256, "tile_n": 128, "stages": 3}),  # two pairs
    ],
    ids=str,
)
def test_wide_k_is_right(name: str, shape: tuple[int, int, int], params: dict, seed: int):
    a, b, c = arrays(*shape, TYPES[name])
    run(a, b, c, seed=seed, wide_k=True, **params)
    check(c, a, b, name)


def test_types_of_bytes_may_differ_at_a_wide_k():
    a, b, c = arrays(200, 264, 160, TYPES["e4m3"])
    b = np.asfortranarray(b.astype(np.float32).astype(TYPES["e5m2"]))
    run(a, b, c, tile_n=128, wide_k=True)
    check(c, a, b)


def test_wide_k_is_a_bit_and_half_the_products():
    plain, wide = compiled(), compiled(wide_k=True)
    assert [len(re.findall("tcgen05.mma", x.ptx)) for x in (plain, wide)] == [4, 2]
    assert "M=128 N=256, wide K" in wide.ptx and "0x28400010" in wide.ptx  # bit 29
    assert len(re.findall("UTCQMMA", wide.sass)) == 2


@pytest.mark.parametrize(
    ("kind", "text", "name", "params"),
    [
        (LayoutError, "with a wide K step M is 128, got M=64", "e4m3", {"tile_m": 64}),
        (LayoutError, "with a wide K step M is 128, got M=64", "e4m3",
         {"tile_m": 192, "tile_n": 128}),
        (TileError, "a wide K step is for e4m3 and e5m2, got a=bf16", "bf16", {}),
        (TileError, "a wide K step is for e4m3 and e5m2, got a=tf32", "f32", {"tile_n": 128}),
        (LayoutError, "K is a multiple of 64, got K=96", "e4m3", {"tile_k": 96, "tile_n": 128}),
        (LayoutError, "K is a multiple of 64, got K=32", "e4m3", {"tile_k": 32}),
        (ResourceError, "wide_k is False or True, got wide_k=1", "e4m3", {"wide_k": 1}),
    ],
)  # fmt: skip
def test_wide_k_has_limits(kind: type, text: str, name: str, params: dict):
    with pytest.raises(kind, match=re.escape(text)):
        compiled(name, **{"wide_k": True, **params})


# ---- columns and shared memory


def test_exclusive_columns_hold_two_tasks_sums():
    tiles = {"tile_m": 256, "tile_n": 144, "stages": 2}
    made = traced(exclusive=True, **tiles)
    assert made.kernel.facts["tensor_columns"] == 576
    assert made.kernel.facts["accumulator_buffers"] == 2
    assert "tcgen05.dealloc.exclusive.cta_group::1.sync.aligned.b32 %tmem, 576;" in made.ptx
    plain = traced(**tiles)
    assert plain.kernel.facts["accumulator_buffers"] == 1
    a, b, c = arrays(520, 300, 144, TYPES["e5m2"])
    run(a, b, c, grid=1, exclusive=True, **tiles)
    check(c, a, b)


@pytest.mark.parametrize("seed", range(3))
def test_rings_of_oversized_memory_pass_256_kib(seed: int):
    """Stages beyond 256 KiB need the 15th bit of a descriptor's address."""
    made = compiled("bf16", oversized=True, stages=6)
    assert made.resources.shared_bytes > 256 << 10
    a, b, c = arrays(200, 264, 520, ml_dtypes.bfloat16)
    run(a, b, c, grid=1, seed=seed, oversized=True, stages=6)
    check(c, a, b)


def test_shared_memory_has_the_size_of_its_mode():
    with pytest.raises(ResourceError, match="on sm_107a is 232448 bytes, got") as error:
        compiled("bf16", stages=6)
    assert "stages=4 is the largest ring that fits" in str(error.value)
    assert "tc.lcf(..., oversized=True) gives 334848" in str(error.value)
    with pytest.raises(ResourceError, match="on sm_107a is 334848 bytes, got") as error:
        compiled("bf16", stages=7, oversized=True)
    assert "stages=6 is the largest ring that fits" in str(error.value)
    assert "oversized" not in str(error.value)


# ---- where they are refused


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_103a"])
@pytest.mark.parametrize(
    ("name", "what", "hint"),
    [
        ("wide_k", "a K step of 64 bytes", "wide_k=False: K steps of 32 bytes"),
        ("exclusive", "576 columns of tensor memory", "exclusive=False: 512 columns"),
        ("oversized", "327 KiB of shared memory a CTA", "oversized=False: 227 KiB"),
    ],
)
def test_chips_before_rubin_have_none_of_them(target: str, name: str, what: str, hint: str):
    text = f"lcf: {name}=True, {what}, needs sm_107a, got {target}"
    with pytest.raises(ArchError, match=re.escape(text)) as error:
        compiled(target=target, **{name: True})
    assert hint in str(error.value) and "gemm.py" in str(error.value)


def test_controls_of_products_need_an_accumulator():
    @tc.kernel
    def copy(A: tc.gl[tc.bf16, "M", "K"], B: tc.gl[tc.bf16, "M", "K"]):
        tasks = tc.row_major(tc.cdiv(A.rows, 64), 1)
        pipe = tc.lcf(consumers=1, stages=2, tasks=tasks, steps=1, wide_k=True)
        a = pipe.input(tc.st[tc.bf16, 64, 64])
        b = pipe.output(tc.st[tc.bf16, 64, 64])

        @pipe.load
        def _(task, step):
            tc.load_async(a, A[task.row, 0])

        @pipe.compute
        def _(task, step):
            b.store(B[task.row, 0], tc.load(a))

    with pytest.raises(ScopeError, match="wide_k is of products with sums in tensor memory"):
        copy.compile(target="sm_107a")


def test_exclusive_columns_are_of_one_cta_an_sm():
    @tc.kernel
    def example(A: tc.gl[tc.bf16, "M", "K"]):
        tc.lcf(
            consumers=1, stages=2, tasks=tc.row_major(1, 1), steps=1, exclusive=True,
            blocks_per_sm=2,
        )  # fmt: skip

    with pytest.raises(ResourceError, match="got exclusive=True and blocks_per_sm=2"):
        example.compile(target="sm_107a")
