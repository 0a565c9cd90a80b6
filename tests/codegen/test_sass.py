"""The main loops as machine code: what must stay out of them."""

import re

import pytest

from tilecat.kernels.attention import attention
from tilecat.kernels.gemm import matmul


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
