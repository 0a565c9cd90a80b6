"""Rubin's controls as parameters of a pipeline: on the PTX machine, and assembled."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, f32, gl, sim, st
from tilecat.binding import bind
from tilecat.errors import ArchError, LayoutError, ResourceError, ScopeError, TileError
from tilecat.kernels import epilogues
from tilecat.kernels.gemm import matmul
from tilecat.runtime import machine
from tilecat.runtime.arrays import view

from .test_tensor import TYPES, arrays, check

BYTES = ("e4m3", "e5m2")
USES = (r"\.B_KEEP", r"\.B_REUSE")  # of a collector of B: fill and lastuse, in machine code


def run(*args: Any, grid: int = 2, seed: int = 0, **params: Any) -> None:
    result = matmul.simulate(*args, target="sm_107a", grid=grid, seed=seed, **params)
    assert not result.reports, str(result.reports[0])


def compiled(name: str = "e4m3", target: str = "sm_107a", **params: Any) -> Any:
    """The GEMM for operands of a type; no spills."""
    made = matmul.compile(*arrays(256, 256, 256, TYPES[name]), target=target, **params)
    assert made.resources.spill_bytes == 0
    return made


# ---- wide K


QUICK = [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2))]


@pytest.mark.parametrize("seed", QUICK)
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
    tiles = {"tile_m": 256, "tile_n": 144, "stacked": 2, "stages": 3}
    made, plain = compiled(exclusive=True, **tiles), compiled(**tiles)
    facts = [x.kernel.facts for x in (made, plain)]
    assert [f["tensor_columns"] for f in facts] == [576, 512]
    assert [f["accumulator_buffers"] for f in facts] == [2, 1]
    assert "tcgen05.dealloc.exclusive.cta_group::1.sync.aligned.b32 %tmem, 576;" in made.ptx
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


# ---- several tiles of a consumer, collectors, early A


STACKED = {"tile_m": 256, "tile_n": 256, "stacked": 2, "stages": 2}
TWO_PAIRS = {"tile_m": 256, "tile_n": 128, "stages": 3}


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_107a"])
@pytest.mark.parametrize("shape", [(300, 264, 136), (257, 8, 8), (600, 520, 136), (256, 256, 0)])
def test_tiles_of_a_consumer_share_b(target: str, shape: tuple[int, int, int]):
    a, b, c = arrays(*shape, TYPES["bf16"])
    tiles = {**STACKED, "tile_n": 128}
    result = matmul.simulate(a, b, c, target=target, grid=2, **tiles)
    assert not result.reports, str(result.reports[0])
    check(c, a, b)


def test_tiles_of_a_consumer_take_the_same_registers():
    made = compiled("bf16", **STACKED)
    assert made.kernel.facts["tensor_columns"] == 512 and "registers" not in made.kernel.facts
    assert "M=128 N=256" in made.ptx
    first, second = (match.start() for match in re.finditer("tcgen05.ld.sync", made.ptx))
    stored = [match.start() for match in re.finditer("cp.async.bulk.tensor.2d.global", made.ptx)]
    freed = made.ptx.index("mbarrier.arrive.shared::cta.b64 _, [%", second)
    assert first < stored[0] < second < freed < stored[-1]


@pytest.mark.parametrize("seed", QUICK)
@pytest.mark.parametrize("name", ["bf16", "f32", *BYTES])
@pytest.mark.parametrize("params", [STACKED, TWO_PAIRS], ids=["stacked", "pairs"])
def test_a_collector_of_b_changes_no_number(name: str, params: dict, seed: int):
    a, b, c = arrays(300, 392, 272, TYPES[name])
    controls = {"collectors": "b", "early_a": True, "wide_k": name in BYTES}
    run(a, b, c, seed=seed, **params, **controls)
    check(c, a, b, name)


PAIRS = {"cluster": 2, "pairs": True, "tile_m": 256, "stacked": 2, "stages": 2}


@pytest.mark.parametrize("seed", QUICK)
@pytest.mark.parametrize("name", ["bf16", "e4m3"])
def test_two_tiles_of_256_rows_and_columns_share_b_in_a_pair(name: str, seed: int):
    a, b, c = arrays(600, 392, 272, TYPES[name])
    controls = {"collectors": "b", "early_a": True, "wide_k": name in BYTES}
    run(a, b, c, seed=seed, **PAIRS, **controls)
    check(c, a, b, name)


@pytest.mark.parametrize("oversized", [False, True])
@pytest.mark.parametrize("name", ["bf16", "e4m3"])
@pytest.mark.parametrize("params", [STACKED, PAIRS], ids=["a CTA", "pairs"])
def test_all_controls_assemble_without_spills(name: str, params: dict, oversized: bool):
    stages = {"stages": 4} if oversized else {}
    made = compiled(name, **{**params, **stages}, oversized=oversized, exclusive=True,
                    collectors="b", early_a=True, wide_k=name in BYTES)  # fmt: skip
    assert (made.resources.shared_bytes > 232448) == oversized
    machine_code = made.sass
    assert len(re.findall(r"UTCBAR\S*MMA_READ_SHM_A", machine_code)) == 1
    keep, reuse = (len(re.findall(rf"UTC\wMMA\S* .*{word}", machine_code)) for word in USES)
    assert keep == reuse == (2 if name in BYTES else 4)


def uses(made: Any) -> list[str]:
    """What the collectors of a text's products do."""
    found = re.findall(r"tcgen05\.mma\S*?kind::\w+?((?:\.collector\S+)?) \[", made.ptx)
    return [" ".join(re.findall(r"[ab]::\w+", use)) for use in found]


def test_products_that_share_b_take_k_steps_in_turn():
    for params in (STACKED, TWO_PAIRS):
        made = compiled("bf16", collectors="b", **params)
        assert uses(made) == ["b::fill", "b::lastuse"] * 4
        descriptors = re.findall(r"tcgen05\.mma\S* \[\S+, (\S+), (\S+),", made.ptx)
        assert [b for _, b in descriptors][::2] == [b for _, b in descriptors][1::2]
        assert len({a for a, _ in descriptors}) == 8
    assert uses(compiled("bf16", **TWO_PAIRS)) == [""] * 8


def test_products_that_share_a_have_its_collector_on_every_chip():
    second = {"second": True, "tile_n": 128, "collectors": "a"}
    steps = (epilogues.Step(lambda x, y, at: x - y, 0),)
    a, b, c = arrays(200, 264, 136, TYPES["bf16"])
    other = np.asfortranarray(b[:, ::-1])
    for target in ("sm_100a", "sm_107a"):
        made = matmul.compile(a, b, c, other, target=target, epilogue=steps, **second)
        assert uses(made) == ["a::fill", "a::lastuse"] * 4 and made.resources.spill_bytes == 0
        c.fill(np.nan)
        result = matmul.simulate(a, b, c, other, target=target, epilogue=steps, **second)
        assert not result.reports, str(result.reports[0])
        want = a.astype(np.float64) @ (b.astype(np.float64) - other.astype(np.float64))
        np.testing.assert_allclose(c, want, atol=2e-3)


def test_two_by_two_products_read_five_operands_not_eight():
    @tc.kernel
    def square(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[f32, "M", "N"]):
        tasks = tc.row_major(tc.cdiv(A.rows, 256), tc.cdiv(B.cols, 128))
        pipe = tc.lcf(consumers=2, stages=2, tasks=tasks, steps=tc.cdiv(A.cols, 32),
                      collectors="ab")  # fmt: skip
        a = pipe.input(st[bf16, 64, 32], count=4)
        b = pipe.input(st[bf16, 32, 64, "col"], count=2)
        c = pipe.output(st[f32, 64, 64])
        acc00 = pipe.accumulator(f32, 64, 64)
        acc01 = pipe.accumulator(f32, 64, 64)
        acc11 = pipe.accumulator(f32, 64, 64)
        acc10 = pipe.accumulator(f32, 64, 64)
        places = ((acc00, 0, 0), (acc01, 0, 1), (acc11, 1, 1), (acc10, 1, 0))

        @pipe.load
        def _(task, k):
            for i in range(4):
                tc.load_async(a[i], A[task.row * 4 + i, k])
            for i in range(2):
                tc.load_async(b[i], B[k, task.col * 2 + i])

        @pipe.compute
        def _(task, k):
            for acc, row, col in places:
                tc.mma_AB(acc, a[pipe.consumer + 2 * row], b[col])

        @pipe.finish
        def _(task):
            for acc, row, col in places:
                c.store(C[task.row * 4 + pipe.consumer + 2 * row, task.col * 2 + col], acc)

    a, b, c = arrays(300, 200, 136, TYPES["bf16"])
    made = square.compile(a, b, c, target="sm_107a")
    turn = ["a::fill", "a::lastuse b::fill", "a::fill b::lastuse", "a::lastuse"]
    assert uses(made) == turn * 2
    for seed in range(3):
        result = square.simulate(a, b, c, target="sm_107a", grid=2, seed=seed)
        assert not result.reports, str(result.reports[0])
        check(c, a, b)


def changed(pattern: str, text: Any, seed: int, **params: Any) -> set[str]:
    """Kinds of reports where the GEMM's text is changed."""
    args = arrays(256, 128, 400, TYPES["bf16"])
    views = [view(x) for x in args]
    bound = bind(matmul.signature, views, params)  # traced once
    module = matmul.specialize(bound.specialization, "sm_107a").module
    wrong, count = re.subn(pattern, text, module.text)
    assert count
    result = sim.run(
        wrong, grid=1, args=[machine.argument(p, views, np.zeros(0)) for p in module.params],
        smem_bytes=module.smem_bytes, table=module.table, seed=seed,
    )  # fmt: skip
    return {report.kind for report in result.reports}


EARLY = ".sync_restrict::shared::read::mma::a"
COMMIT = r"(tcgen05\.commit\S*arrive::one)(\.shared)"


@pytest.mark.parametrize(
    ("pattern", "text", "wanted"),
    [
        (COMMIT, rf"\1{EARLY}\2", "race"),  # B back when A has been read
        (r"collector::b::lastuse", "collector::b::use", ""),  # keeps it: nobody takes it
        (r"collector::b::fill", "collector::b::discard", "tcgen05"),
        (r"(lastuse \[\S+, )(%desc\d+), %desc\d+", r"\1\2, \2", "tcgen05"),  # another tile
    ],
)
def test_a_wrong_use_of_what_is_shared_is_reported(pattern: str, text: str, wanted: str):
    params = {**TWO_PAIRS, "collectors": "b", "early_a": True}
    found = set().union(*(changed(pattern, text, seed, **params) for seed in range(2)))
    assert wanted in found if wanted else not found


def test_early_a_has_a_ring_and_a_commit_of_its_own():
    made = compiled("bf16", early_a=True)
    assert len(re.findall(re.escape(EARLY), made.ptx)) == 1
    assert re.search(r"UTCBAR\S*MMA_READ_SHM_A", made.sass)
    assert len(re.findall("UTCBAR", made.sass)) == 3  # A, B, sums
    assert EARLY not in compiled("bf16").ptx


@pytest.mark.parametrize("seed", QUICK)
@pytest.mark.parametrize("params", [{"cluster": 2}, {"stages": 1}, {"tile_m": 192}, {}], ids=str)
def test_early_a_is_right(params: dict, seed: int):
    a, b, c = arrays(520, 264, 392, TYPES["f16"])
    run(a, b, c, seed=seed, early_a=True, tile_n=128, **params)
    check(c, a, b)


@pytest.mark.parametrize("early_a", [True, False])
@pytest.mark.parametrize(
    ("stages", "a_stages"),
    [(2, 3), *(pytest.param(*n, marks=pytest.mark.full) for n in ((3, 1), (2, 5)))],
)
def test_a_has_a_depth_of_its_own(stages: int, a_stages: int, early_a: bool):
    a, b, c = arrays(300, 264, 392, TYPES["f16"])
    params = {"early_a": early_a, "stages": (a_stages, stages)}
    run(a, b, c, seed=stages, tile_n=128, **params)
    check(c, a, b)
    text = compiled("f16", tile_n=128, **params).ptx
    assert len(re.findall(r"mbarrier\.init", text)) == 2 * (stages + a_stages) + 4
    assert (EARLY in text) == early_a


def test_the_inputs_of_a_ring_have_one_depth():
    @tc.kernel
    def product(A: gl[bf16, "M", "K"], *, depth):
        pipe = tc.lcf(consumers=1, stages=2, tasks=tc.row_major(1, 1), steps=1)
        pipe.input(st[bf16, 64, 64], ring="a", stages=3)
        pipe.input(st[bf16, 64, 64], ring="a")
        pipe.input(st[bf16, 64, 64], ring="a" if depth else "b", stages=depth)

    for depth, text in (
        (2, "the ring a has 3 stages, as its first input says, got stages=2"),
        (0, "stages is a compile-time int from 1 to 32, got stages=0"),
    ):
        with pytest.raises(ResourceError, match=re.escape(text)) as error:
            product.compile(target="sm_107a", depth=depth)
        assert "test_rubin.py" in str(error.value)


@pytest.mark.parametrize(
    ("kind", "text", "params"),
    [
        (LayoutError, "products of a step that share a tile as B, one after the other, got 1",
         {"collectors": "b"}),
        (LayoutError, "share a tile as A, one after the other, got 2 that share none",
         {"collectors": "a", **TWO_PAIRS}),
        (ResourceError, "collectors is '' or 'a' or 'b' or 'ab', got collectors='c'",
         {"collectors": "c"}),
        (TileError, "tile_m is a multiple of 64 rows times stacked, got tile_m=192, stacked=2",
         {"tile_m": 192, "stacked": 2}),
    ],
)  # fmt: skip
def test_what_shares_nothing_is_refused(kind: type, text: str, params: dict):
    with pytest.raises(kind, match=re.escape(text)):
        compiled("bf16", **params)


def test_early_a_wants_a_ring_of_its_own():
    @tc.kernel
    def product(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"]):
        pipe = tc.lcf(consumers=1, stages=2, tasks=tc.row_major(1, 1), steps=1, early_a=True)
        a = pipe.input(st[bf16, 64, 64])
        b = pipe.input(st[bf16, 64, 64])
        acc = pipe.accumulator(f32, 64, 64)

        @pipe.load
        def _(task, k):
            tc.load_async(a, A[0, 0])
            tc.load_async(b, B[0, 0])

        @pipe.compute
        def _(task, k):
            tc.mma_AB(acc, a, b)

        @pipe.finish
        def _(task):
            tc.relu(acc)

    with pytest.raises(ScopeError, match="got A and B in the ring stage") as error:
        product.compile(target="sm_107a")
    assert 'a = pipe.input(..., ring="a")' in str(error.value)


# ---- where they are refused


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_103a"])
@pytest.mark.parametrize(
    ("name", "what", "hint"),
    [
        ("wide_k", "a K step of 64 bytes", "wide_k=False: K steps of 32 bytes"),
        ("exclusive", "576 columns of tensor memory", "exclusive=False: 512 columns"),
        ("early_a", "a commit when A has been read", "early_a=False: A comes back with B"),
        ("oversized", "327 KiB of shared memory a CTA", "oversized=False: 227 KiB"),
    ],
)
def test_chips_before_rubin_have_none_of_them(target: str, name: str, what: str, hint: str):
    text = f"lcf: {name}=True, {what}, needs sm_107a, got {target}"
    with pytest.raises(ArchError, match=re.escape(text)) as error:
        compiled(target=target, **{name: True})
    assert hint in str(error.value) and "gemm.py" in str(error.value)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_103a"])
@pytest.mark.parametrize("which", ["b", "ab"])
def test_chips_before_rubin_have_no_collector_of_b(target: str, which: str):
    text = f"lcf: collectors='{which}', a collector of B, needs sm_107a, got {target}"
    with pytest.raises(ArchError, match=re.escape(text)) as error:
        compiled(target=target, collectors=which, **TWO_PAIRS)
    assert 'collectors="a" where products share A' in str(error.value)


def test_controls_of_products_need_an_accumulator():
    @tc.kernel
    def copy(A: gl[bf16, "M", "K"], B: gl[bf16, "M", "K"]):
        tasks = tc.row_major(tc.cdiv(A.rows, 64), 1)
        pipe = tc.lcf(consumers=1, stages=2, tasks=tasks, steps=1, wide_k=True)
        a = pipe.input(st[bf16, 64, 64])
        b = pipe.output(st[bf16, 64, 64])

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
    def example(A: gl[bf16, "M", "K"]):
        tc.lcf(
            consumers=1, stages=2, tasks=tc.row_major(1, 1), steps=1, exclusive=True,
            blocks_per_sm=2,
        )  # fmt: skip

    with pytest.raises(ResourceError, match="got exclusive=True and blocks_per_sm=2"):
        example.compile(target="sm_107a")
