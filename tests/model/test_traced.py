"""What the replay takes from a traced kernel, and the command that prints it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tilecat as tc
from tilecat import bf16, f32, gl, st
from tilecat.cli import find, main
from tilecat.errors import ScopeError
from tilecat.kernels.attention import attention
from tilecat.kernels.gemm import matmul
from tilecat.model.l2 import Problem
from tilecat.model.rates import B200, H200
from tilecat.model.replay import Config, predict
from tilecat.model.tensor import Shape, predict_tensor
from tilecat.model.traced import Ring, predict_traced, traced


def of(target: str, **params: Any):
    return traced(find.traced(matmul, params, "bf16", target))


def test_rings_roles_and_instructions_are_those_of_the_trace():
    found = of("sm_90a", tile_m=192, tile_n=128, stages=3, group=4)
    assert found.rings == (Ring("a", 3, 3 * 64 * 64 * 2), Ring("b", 3, 64 * 128 * 2))
    assert (found.tile_m, found.tile_n, found.tile_k, found.consumers) == (192, 128, 64, 3)
    assert found.instruction == "wgmma bf16 x bf16 -> f32, m64n128k16"
    assert found.config == Config(3, 4, "grouped")
    problem = Problem(2048, 2048, 512, 192, 128, 64)
    assert predict_traced(found, 2048, 2048, 512) == predict(problem, found.config, H200)


def test_consumers_in_turn_and_one_task_a_cta_are_seen():
    found = of("sm_90a", tile_m=128, tile_n=64, stages=3, pingpong=True, order="snake")
    assert found.config == Config(3, 8, "snake", pingpong=True)
    assert (found.tile_m, found.consumers) == (128, 2)
    assert of("sm_90a", stages=2, persistent=False).config == Config(2, persistent=False)


@pytest.mark.parametrize(("rows", "tile_m", "buffers"), [(64, 64, 2), (128, 128, 2)])
def test_sums_in_tensor_memory_are_a_shape(rows: int, tile_m: int, buffers: int):
    found = of("sm_100a", tile_m=tile_m, tile_n=256, stages=4)
    assert found.config is None
    assert found.shape == Shape("f16", rows=rows, stages=4, buffers=buffers)
    assert f"m{rows}n256k16" in found.instruction
    assert found.shape.a_bytes + found.shape.b_bytes == found.stage_bytes
    assert predict_traced(found, 512, 512, 512) == predict_tensor(512, 512, 512, found.shape, B200)


def test_a_kernel_that_is_no_product_is_refused_at_its_line():
    other = find.traced(attention, {"D": 64}, "bf16", "sm_90a")
    with pytest.raises(ScopeError, match="model: products of one shape are replayed") as error:
        traced(other)
    assert error.value.loc is not None and error.value.loc.file.endswith("attention.py")


@tc.kernel
def two_products(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], D: gl[bf16, "K", "N"],
                 C: tc.inout[bf16, "M", "N"]):  # fmt: skip
    """C = (A @ B) + (A @ D)."""
    tasks = tc.row_major(tc.cdiv(A.rows, 64), tc.cdiv(B.cols, 64))
    pipe = tc.lcf(consumers=1, stages=2, tasks=tasks, steps=tc.cdiv(A.cols, 64))
    a = pipe.input(st[bf16, 64, 64])
    b = pipe.input(st[bf16, 64, 64])
    d = pipe.input(st[bf16, 64, 64])
    c = pipe.output(st[bf16, 64, 64])
    acc = pipe.accumulator(f32, 64, 64)

    @pipe.load
    def _(task, k):
        tc.load_async(a, A[task.row, k])
        tc.load_async(b, B[k, task.col])
        tc.load_async(d, D[k, task.col])

    @pipe.compute
    def _(task, k):
        tc.mma_AB(acc, a, b)
        tc.mma_AB(acc, a, d)

    @pipe.finish
    def _(task):
        c.store(C[task.row, task.col], acc)


def test_a_step_that_loads_more_than_a_product_s_operands_is_refused():
    with pytest.raises(ScopeError, match="one product, 16,384 bytes, got 24,576 in a, b, d"):
        traced(find.traced(two_products, {}, "bf16", "sm_90a"))


def test_the_command_prints_a_prediction_and_writes_a_timeline(tmp_path: Path):
    path = tmp_path / "timeline.json"
    words = ["model", "matmul", "--target", "sm_100a", "--shape", "M=512,N=512", "--shape",
             "K=256", "-p", "stages=3", "--rates", "--trace", str(path)]  # fmt: skip
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 0, found.output
    for text in ("512 x 512 x 256 on B200 (sm_100a), modelled", "3 of 49,152 bytes", "announced",
                 "assumed", "kind::f16"):  # fmt: skip
        assert text in found.output
    assert len(json.loads(path.read_text())["traceEvents"]) > 10
    assert CliRunner().invoke(main, ["model", "--target", "sm_103a"]).exit_code == 2
    assert "there are M, N, K" in CliRunner().invoke(main, ["model", "--shape", "Q=1"]).output
