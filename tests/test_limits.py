"""What the hardware limits: tiles, stages, registers. Up to there results are right."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import reference
from failures import fails

from tilecat.errors import LayoutError, ResourceError
from tilecat.kernels.attention import attention as attention_kernel
from tilecat.kernels.gemm import matmul

BF16 = ml_dtypes.bfloat16


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16)


def test_too_many_stages_say_the_largest_ring_that_fits():
    fails(
        lambda: matmul.compile(stages=8),
        ResourceError,
        "matmul: shared memory of a CTA on sm_90a is 232448 bytes, got 394368 bytes "
        "(a=131072, b=262144)",
        at="pipe.input(",
        hint="stages=4 is the largest ring that fits (a stage is 49152 bytes)",
    )
    assert matmul.compile(stages=4).resources.spill_bytes == 0


@pytest.mark.parametrize("stages", [0, 33, -1, 2.0])
def test_stages_are_one_to_thirty_two(stages):
    fails(
        lambda: matmul.compile(stages=stages),
        ResourceError,
        f"lcf: stages is a compile-time int from 1 to 32, got stages={stages!r}",
        at="tc.lcf(",
    )


@pytest.mark.parametrize("tile_m", [0, 32, 100, -64])
def test_tile_m_is_a_multiple_of_64(tile_m: int):
    fails(
        lambda: matmul.compile(tile_m=tile_m),
        LayoutError,
        f"matmul: tile_m is a multiple of 64, got {tile_m=}",
        at="tc.require(",
    )


def test_tile_m_of_eight_consumers_is_too_much():
    fails(
        lambda: matmul.compile(tile_m=512),
        ResourceError,
        "lcf: consumers is a compile-time int from 1 to 7, got consumers=8",
        at="tc.lcf(",
    )


@pytest.mark.parametrize(("tile_n", "nearest"), [(100, 96), (8, 16), (264, 272), (24, 32)])
def test_tile_width_is_a_multiple_of_16(tile_n: int, nearest: int):
    fails(
        lambda: matmul.compile(tile_n=tile_n),
        LayoutError,
        "shared tile: cols must be a multiple of 16 for bf16 in row order, "
        f"got cols={tile_n} (int)",
        at="st[multiplied_as(",
        hint=f"the nearest legal cols is {nearest}",
    )


def test_tile_width_beyond_the_instruction_is_refused():
    fails(
        lambda: matmul.compile(tile_n=512, stages=1),
        LayoutError,
        "mma_AB: N of a warpgroup's mma is at most 256, got N=512",
        at="tc.mma_AB(",
        hint="split the tile into columns of 256",
    )


@pytest.mark.parametrize("group", [0, -1, 2.5, True])
def test_groups_have_a_row_at_least(group):
    fails(
        lambda: matmul.compile(group=group),
        LayoutError,
        f"grouped: rows is a compile-time int from 1 up, got rows={group!r}",
        at="make(tc.cdiv(",
    )


def test_too_many_registers_say_which_tiles():
    fails(
        lambda: attention_kernel.compile(D=128, consumers=3, tile_k=208, stages=1),
        ResourceError,
        "attention: a thread of the consumer has 160 registers, got 168 in the tiles of its mma "
        "alone (o: rt[f32, 64, 128] = 64, s: rt[f32, 64, 208] = 104)",
        at="tc.empty(rt[f32, 64, D])",
        hint="use a smaller tile_n, or more consumers with smaller tiles",
    )


def test_too_many_registers_for_ptxas_name_the_line():
    with pytest.raises(ResourceError, match="insufficient register resources") as caught:
        attention_kernel.compile(D=128, consumers=3, tile_k=128, stages=1)
    assert caught.value.loc is not None
    assert "tc.mma_ABt(s, q, k" in caught.value.loc.text


@pytest.mark.parametrize("tile_m", [64, 128, 192])
@pytest.mark.parametrize("tile_n", [16, 96, 144, 176, 256])
def test_legal_tiles_are_right(tile_m: int, tile_n: int):
    a, b = normal(70, 72), normal(72, 200, seed=1)
    out = np.zeros((70, 200), BF16)
    matmul(a, b, out, tile_m=tile_m, tile_n=tile_n, stages=2)
    reference.assert_close(out, reference.matmul(a, b), BF16)


@pytest.mark.parametrize("stages", range(1, 9))
def test_every_depth_is_right(stages: int):
    a, b = normal(64, 600), normal(600, 64, seed=1)
    out = np.zeros((64, 64), BF16)
    matmul(a, b, out, tile_m=64, tile_n=64, stages=stages)
    reference.assert_close(out, reference.matmul(a, b), BF16)


@pytest.mark.parametrize("tile_k", [16, 32, 48, 64, 80, 128])
def test_every_step_width_is_right(tile_k: int):
    a, b = normal(64, 200), normal(200, 64, seed=1)
    out = np.zeros((64, 64), BF16)
    matmul(a, b, out, tile_m=64, tile_n=64, tile_k=tile_k, stages=3)
    reference.assert_close(out, reference.matmul(a, b), BF16)
