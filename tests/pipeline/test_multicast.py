"""Clusters whose CTAs share tiles of A, of B, or of both; and what once went wrong in them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import reference

import tilecat as tc
from pipeline.schedules import NO_OUTPUT, check_schedules, silent
from tilecat import bf16, f32, gl, sim, st
from tilecat.errors import LayoutError
from tilecat.runtime import compile as runtime_compile
from tilecat.runtime import machine
from tilecat.runtime.arrays import view
from tilecat.runtime.disassemble import disassemble

BF16 = bf16.numpy


def product(shape: tuple[int, int], of_a: Any, of_b: Any, stages: int = 2) -> tc.KernelFunction:
    """C = A B by clusters of `shape` blocks of 64 x 128."""

    @tc.kernel
    def gemm(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"]):
        tasks = tc.grouped(tc.cdiv(A.rows, 64), tc.cdiv(B.cols, 128), rows=4, cluster=shape)
        pipe = tc.lcf(consumers=1, stages=stages, steps=tc.cdiv(A.cols, 64), tasks=tasks,
                      cluster=shape[0] * shape[1])  # fmt: skip
        a, b = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 128])
        c = pipe.output(st[bf16, 64, 128])
        acc = pipe.accumulator(f32, 64, 128)

        @pipe.load
        def _(task, k):
            tc.load_async(a, A[task.row, k], multicast=of_a)
            tc.load_async(b, B[k, task.col], multicast=of_b)

        @pipe.compute
        def _(task, k):
            tc.mma_AB(acc, a, b)

        @pipe.finish
        def _(task):
            c.store(C[task.row, task.col], acc)

    return gemm


def arrays(m: int, k: int, n: int) -> Any:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(BF16) for s in ((m, k), (k, n)))

    def check(args: list[Any]) -> None:
        reference.assert_close(args[2], reference.matmul(a, b), BF16)

    return lambda: [a, b, np.full((m, n), np.nan, BF16)], check


CASES = {  # shape of the cluster, A and B for whom
    "B by two rows": ((2, 1), False, True),
    "A by two columns": ((1, 2), True, False),
    "A by name": ((1, 2), "row", "col"),
    "both": ((2, 2), "row", "col"),
    "A of four": ((2, 2), "row", False),
    "B of four": ((2, 2), False, "col"),
    "B by four rows": ((4, 1), False, "col"),
}


@pytest.mark.parametrize("name", CASES)
def test_ctas_of_a_cluster_share_tiles(name: str):
    make, check = arrays(328, 200, 392)
    check_schedules(product(*CASES[name]), make, check, grid=4)


def test_every_synchronisation_is_needed():
    """Apart from waits at the end that others imply, as stages are given back in order.

    And the first of two groups of stores that are waited for together.
    """
    make, check = arrays(256, 328, 256)
    left = silent(product((1, 2), True, False, 3), make, check, grid=4)
    waits = [name for name in left if name.startswith("producer: mbarrier.try_wait")]
    assert len(waits) <= 2 and set(left) - set(waits) == {"consumer: cp.async.bulk.commit_group #1"}


def test_machine_finds_a_shared_address_that_keeps_the_rank():
    """In a cluster a shared address is `rank << 24 | offset`: descriptors take 18 bits of it."""
    make, _ = arrays(128, 64, 128)
    kernel = product((2, 1), False, True)
    module = kernel.compile().module
    mask = r"(and\.b32 (%\w+), (%\w+), )0x3FFFF;|(and\.b32 (%\w+), (%\w+), )262143;"
    text, count = re.subn(mask, lambda m: f"mov.b32 {m[2] or m[5]}, {m[3] or m[6]};", module.text)
    assert count, "descriptors are made from masked addresses"
    args = [view(x) for x in make()]
    result = sim.run(
        text, grid=2, smem_bytes=module.smem_bytes, table=module.table,
        args=[machine.argument(p, args, NO_OUTPUT) for p in module.params],
    )  # fmt: skip
    assert {report.kind for report in result.reports} & {"uninitialised", "race", "wgmma"}


def fences(text: str, module: Any) -> int:
    cubin = runtime_compile.assemble(replace(module, text=text)).cubin
    return sum("MEMBAR" in line for line in disassemble(cubin).splitlines())


def test_remote_arrives_are_not_fenced():
    """`.release.cluster` on a remote arrive makes ptxas fence the whole GPU, once a step."""
    module = product((2, 1), False, True).compile().module
    plain = "mbarrier.arrive.shared::cluster.b64"
    assert plain in module.text and "mbarrier.arrive.release" not in module.text
    fenced = module.text.replace(plain, "mbarrier.arrive.release.cluster.shared::cluster.b64")
    assert fences(fenced, module) > fences(module.text, module)


def test_multicast_names_whom():
    error = pytest.raises(LayoutError, product((2, 1), False, "all").compile).value
    assert error.message == (
        "load_async: a pipeline's tile goes to every CTA of its cluster or to one, or to those "
        "in its row or column, got multicast='all'"
    )


@pytest.mark.parametrize(("shape", "of_a", "of_b", "text"), [
    ((2, 1), True, None, "multicast=True sends one tile to CTAs of other block rows"),
    ((2, 1), "col", None, "multicast='col' sends one tile to CTAs of other block rows"),
    ((1, 2), None, "row", "multicast='row' sends one tile to CTAs of other block columns"),
    ((2, 2), "row", True, "multicast=True sends one tile to CTAs of other block columns"),
    ((2, 2), "col", "col", "multicast='col' sends one tile to CTAs of other block rows"),
])  # fmt: skip
def test_a_tile_that_each_cta_has_elsewhere_is_not_shared(shape, of_a, of_b, text):
    """Each CTA would load its share from its own place: rows of several tiles mixed."""
    with pytest.raises(LayoutError) as caught:
        product(shape, of_a, of_b).compile()
    assert text in str(caught.value)
