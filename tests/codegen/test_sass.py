"""The main loops as machine code: what must stay out of them."""

import re

import numpy as np
import pytest

from tilecat import bf16, e4m3
from tilecat.kernels.attention import attention
from tilecat.kernels.gemm import matmul
from tilecat.kernels.gemm_scaled import matmul_fp4, matmul_mxfp8


def main_loop(sass, marker):
    """Instructions of the smallest loop that holds `marker`."""
    labels, instructions, loops = {}, [], []
    for line in sass.splitlines():
        if label := re.match(r"^(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.search(r"/\*[0-9a-f]{4,5}\*/\s+(.*?);", line):
            instructions.append(found[1])
    for index, text in enumerate(instructions):
        target = re.search(r"BRA.*`\((\.L_x_\d+)\)", text)
        if target and labels[target[1]] <= index:
            loops.append(instructions[labels[target[1]] : index + 1])
    return min((loop for loop in loops if any(marker in i for i in loop)), key=len)


@pytest.mark.parametrize(
    ("kernel", "params", "marker", "mma", "most"),
    [
        (matmul, {}, "HGMMA", 4, 55),
        (attention, {"D": 128}, "MUFU.EX2", 16, 490),
        (attention, {"D": 64, "consumers": 3, "pingpong": True}, "MUFU.EX2", 12, 470),
    ],
)
def test_descriptors_of_the_main_loop_stay_in_uniform_registers(kernel, params, marker, mma, most):
    loop = main_loop(kernel.compile(**params).sass, marker)
    assert sum("HGMMA" in i for i in loop) == mma
    assert sum(i.split()[0] == "R2UR" or " R2UR " in f" {i} " for i in loop) == 0
    assert len(loop) <= most


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a", "sm_107a"])
def test_operands_of_tcgen05_stay_in_uniform_registers(target):
    loop = main_loop(matmul.compile(target=target).sass, "UTCHMMA")
    assert sum("UTCHMMA" in i for i in loop) == 4
    assert not any("R2UR" in i or "ELECT" in i for i in loop)
    assert len(loop) <= 48


@pytest.mark.parametrize(
    ("kernel", "target", "machine", "copies", "most"),
    [(matmul_mxfp8, "sm_100a", "UTCQMMA", 3, 72), (matmul_fp4, "sm_103a", "UTCOMMA", 12, 100),
     (matmul_fp4, "sm_107a", "UTCOMMA", 12, 100)],
)  # fmt: skip
def test_scales_are_copied_from_uniform_registers(kernel, target, machine, copies, most):
    made = kernel.compile(target=target)
    loop = main_loop(made.sass, machine)
    assert sum(machine in i for i in loop) == 4 and sum("UTCCP" in i for i in loop) == copies
    assert not any("R2UR" in i or "ELECT" in i for i in loop)
    assert len(loop) <= most and made.resources.spill_bytes == 0


@pytest.mark.parametrize(("tile_n", "stages", "most"), [(128, 5, 130), (256, 4, 206)])
def test_scales_of_blocks_cost_one_fma_an_element(tile_n, stages, most):
    """And a step's scales come from shared memory: of two rows, and of the blocks of columns."""
    a, b = np.zeros((256, 512), e4m3.numpy), np.zeros((512, 512), e4m3.numpy).T
    c = np.zeros((256, 512), bf16.numpy)
    scales = np.ones((4, 256), np.float32), np.ones((4, 4), np.float32)
    made = matmul.compile(a, b, c, *scales, block_scales=True, tile_n=tile_n, stages=stages)
    loop = main_loop(made.sass, "QGMMA")
    names = [re.sub(r"^@\S+ ", "", text).split()[0].partition(".")[0] for text in loop]
    blocks = tile_n // 128
    wanted = {"QGMMA": 4 * blocks, "FFMA": 64 * blocks, "FMUL": 2 * blocks, "LDS": 3}
    assert {name: names.count(name) for name in wanted} == wanted
    assert not {"LDG", "R2UR", "MEMBAR", "FENCE"} & set(names)
    assert len(loop) <= most
