"""Operands that consumers make of a step's sums: two products a step, on all four targets."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, f32, gl, rv, st
from tilecat.arch import ARCHS
from tilecat.errors import LayoutError, ScopeError, TileError

TARGETS = [arch.target for arch in ARCHS]
TENSOR = [arch.target for arch in ARCHS if "tcgen05" in arch.features]
DIM, KEYS = 64, 64
LOG2_E = 1.4426950408889634


@tc.kernel
def attention(
    Q: gl[bf16, "M", DIM], K: gl[bf16, "N", DIM], V: gl[bf16, "N", DIM], out: gl[f32, "M", DIM],
    *, consumers=2, stages=2, ahead=1, kind=bf16, options=None,
):  # fmt: skip
    """softmax(Q K^T / 8) V, of scores that need no maximum taken away."""
    options = dict(options or ())
    cluster = options.get("cluster", 1)
    tasks = tc.grouped(tc.cdiv(Q.rows, 64 * consumers), 1, rows=8, cluster=cluster)
    pipe = tc.lcf(consumers=consumers, stages=stages, tasks=tasks, steps=tc.cdiv(K.rows, KEYS),
                  **options)  # fmt: skip
    q = pipe.input(st[bf16, 64, DIM], count=consumers, ring="q", rate="task", stages=ahead)
    k = pipe.input(st[bf16, KEYS, DIM], ring="k")
    v = pipe.input(st[bf16, KEYS, DIM], ring="v")
    scores = pipe.accumulator(f32, 64, KEYS, rate="step")
    p = pipe.operand(kind, 64, KEYS)
    acc = pipe.accumulator(f32, 64, DIM)
    total = tc.empty(rv[f32, 64])
    shared = {"multicast": "col"} if options.get("pairs") else {}

    @pipe.begin
    def _(task):
        for i in range(consumers):
            tc.load_async(q[i], Q[task.row * consumers + i, 0])

    @pipe.load
    def _(task, step):
        tc.load_async(k, K[step, 0], **shared)
        tc.load_async(v, V[step, 0], **shared)

    @pipe.start
    def _(task):
        tc.fill(total, 0.0)

    @pipe.compute
    def _(task, step):
        tc.mma_ABt(scores, q[pipe.consumer], k)
        tc.mma_AB(acc, p, v)

    @pipe.transform
    def _(task, step):
        inside = tc.col_index(scores) + step * KEYS < K.rows
        x = tc.select(inside, tc.exp2(scores * (LOG2_E / 8)), 0.0)
        x = tc.cast(x, kind)
        tc.copy(total, tc.row_sum(tc.cast(x, f32), total))
        tc.store(p, x)

    @pipe.finish
    def _(task):
        tc.store(out[task.row * consumers + pipe.consumer, 0], acc / total)


def arrays(m: int, n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(m + n)
    made = [rng.standard_normal((rows, DIM)).astype(np.float32).astype(bf16.numpy)
            for rows in (m, n, n)]  # fmt: skip
    return [*made, np.full((m, DIM), np.nan, np.float32)]


def check(given: list[np.ndarray], kind: Any = bf16) -> None:
    """The output against float64: P has the operand's 8, 11 or 4 bits, sums f32."""
    q, k, v = (x.astype(np.float64) for x in given[:3])
    weights = np.exp((q @ k.T) / 8)
    want = weights @ v / weights.sum(1, keepdims=True)
    rounding = 2.0 ** -(kind.mantissa_bits + 1)
    bound = weights @ np.abs(v) / weights.sum(1, keepdims=True)
    assert (np.abs(given[3] - want) <= 2.5 * rounding * bound + 1e-5).all()


def run(target: str, m: int, n: int, grid: int = 2, seed: int = 0, **params: Any) -> None:
    given = arrays(m, n)
    result = attention.simulate(*given, target=target, grid=grid, seed=seed, **params)
    assert not result.reports, str(result.reports[0])
    check(given)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("m", "n"),
    [(200, 136), *(pytest.param(*n, marks=pytest.mark.full) for n in ((128, 64), (520, 200)))],
)
def test_one_source_multiplies_what_consumers_make(target: str, m: int, n: int):
    run(target, m, n, grid=1 if m > 500 else 2, seed=m % 7)


@pytest.mark.parametrize("consumers", [1, pytest.param(3, marks=pytest.mark.full), 4])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_any_number_of_consumers(target: str, consumers: int):
    run(target, 64 * consumers + 70, 200, consumers=consumers, stages=3, ahead=2)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2))]
)
@pytest.mark.parametrize("target", ["sm_100a", pytest.param("sm_107a", marks=pytest.mark.full)])
def test_pairs_of_ctas_take_operands_of_both(target: str, seed: int):
    run(target, 600, 136, grid=4, seed=seed, options=(("cluster", 2), ("pairs", True)))


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_tasks_without_steps_are_zeros(target: str):
    given = arrays(900, 0)
    result = attention.simulate(*given, target=target, grid=1)
    assert not result.reports, str(result.reports[0])
    assert np.isnan(given[3]).all()  # 0 / 0: no weights


@pytest.mark.parametrize(
    "options",
    [(("persistent", "launch-control"),), (("exclusive", True),), (("persistent", False),)],
)
def test_operands_go_with_other_parameters(options: tuple):
    run("sm_107a", 400, 136, grid=None, seed=2, options=options)


@pytest.mark.parametrize("target", TENSOR)
def test_products_take_the_operand_from_tensor_memory(target: str):
    made = attention.compile(*arrays(256, 256), target=target)
    assert made.resources.spill_bytes == 0
    stored = re.findall(r"tcgen05\.st\.sync\.aligned\.16x128b\.x8\.b32", made.ptx)
    from_memory = re.findall(r"tcgen05\.mma\S* \[\S+\], \[%\w+", made.ptx)
    assert len(stored) == 1 and len(from_memory) == KEYS // 16
    assert len(re.findall("UTCHMMA", made.sass)) == 8


def test_on_hopper_the_operand_is_registers():
    made = attention.compile(*arrays(256, 256), target="sm_90a")
    assert made.resources.spill_bytes == 0
    assert len(re.findall(r"wgmma\.mma_async\S* \{[^}]*\}, \{%", made.ptx)) == KEYS // 16


# ---- errors


def refused(kind: type[TileError], text: str, fill: Any, target: str = "sm_100a") -> None:
    """A kernel whose holes `fill` fills is refused with that text, at a line of this file."""

    @tc.kernel
    def wrong(A: gl[bf16, "M", "K"], B: gl[bf16, "N", "K"]):
        pipe = tc.lcf(consumers=2, stages=2, tasks=tc.row_major(1, 1), steps=2)
        a, b = pipe.input(st[bf16, 64, 64], count=2), pipe.input(st[bf16, 64, 64])

        @pipe.load
        def _(task, step):
            for i in range(2):
                tc.load_async(a[i], A[i, step])
            tc.load_async(b, B[0, step])

        @pipe.finish
        def _(task):
            pass

        fill(pipe, a, b)

    with pytest.raises(kind, match=re.escape(text)) as error:
        wrong.compile(target=target)
    assert "test_between.py" in str(error.value)


def holes(transform: Any = None, more: Any = None, rows: int = 64) -> Any:
    """Fills compute with two products, and transform."""

    def fill(pipe: Any, a: Any, b: Any) -> None:
        s, acc = pipe.accumulator(f32, 64, 64, rate="step"), pipe.accumulator(f32, 64, 64)
        p = pipe.operand(bf16, rows, 64)

        @pipe.compute
        def _(task, step):
            tc.mma_ABt(s, a[pipe.consumer], b)
            tc.mma_AB(acc, p, b)

        if transform is not None:

            @pipe.transform
            def _(task, step):
                transform(p, s)

        if more is not None:
            more(pipe, p, acc)

    return fill


ERRORS = [
    (ScopeError, "without the hole and 1 operand", holes()),
    (ScopeError, "transform: stores each operand once a step, got no store of p",
     holes(lambda p, s: None)),
    (LayoutError, "store: the operand p takes rt[bf16, 64, 64]",
     holes(lambda p, s: tc.store(p, s))),
    (ScopeError, "stored once a step, in transform, got another store",
     holes(lambda p, s: [tc.store(p, tc.cast(s, bf16)) for _ in range(2)])),
    (LayoutError, "a consumer's operand has 64 rows, got rows=128", holes(rows=128)),
]  # fmt: skip


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(("kind", "text", "fill"), ERRORS)
def test_operands_have_rules(kind: type[TileError], text: str, fill: Any, target: str):
    refused(kind, text, fill, target)


def test_transform_is_between_products():
    def fill(pipe: Any, a: Any, b: Any) -> None:
        acc = pipe.accumulator(f32, 64, 64)

        @pipe.compute
        def _(task, step):
            tc.mma_ABt(acc, a[pipe.consumer], b)

        @pipe.transform
        def _(task, step):
            pass

    refused(ScopeError, "transform: makes operands of sums of a step, got a pipeline with", fill)


def test_an_operand_is_read_by_products_of_compute_alone():
    def wrong(pipe: Any, p: Any, acc: Any) -> None:
        @pipe.start
        def _(task):
            tc.mma_AB(tc.zeros(tc.rt[f32, 64, 64]), p, tc.shared(st[bf16, 64, 64]))

    fill = holes(lambda p, s: tc.store(p, tc.cast(s, bf16)), wrong)
    refused(ScopeError, "p: an operand is A of the products in compute, got a use elsewhere", fill)
