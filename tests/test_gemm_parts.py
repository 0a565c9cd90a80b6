"""Parts of K that `tc.matmul` chooses by itself: results, and the memory they share."""

from __future__ import annotations

import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import gemm_cases
import gemm_random
import numpy as np
import pytest
import reference

import tilecat as tc
from tilecat import gemm_choice, operators
from tilecat.gemm_parts import places_of
from tilecat.gemm_winners import Winner
from tilecat.runtime import arrays, workspace

PROBLEM = gemm_choice.Problem(
    512, 512, 16384, layout="TT", planes=1, sms=132, dtype="bf16", splits=True,
)  # fmt: skip
SPLIT = {"tile_m": 64, "tile_n": 64, "stages": 2, "split_k": 3}
STREAM = {"tile_m": 64, "tile_n": 64, "stages": 2, "stream_k": 2}


def test_few_tiles_and_a_long_k_are_split():
    for m, n in ((512, 512), (256, 128), (300, 500)):
        found = gemm_choice.choose(replace(PROBLEM, m=m, n=n))
        rows, cols = -(-m // found["tile_m"]), -(-n // found["tile_n"])
        assert found["split_k"] > 1 and rows * cols * found["split_k"] <= 132
    tail = gemm_choice.choose(replace(PROBLEM, m=128 * 9, n=256 * 5, depth=8192))
    assert tail["stream_k"] > 1
    thin = gemm_choice.choose(replace(PROBLEM, m=3, n=512))
    assert thin["tile_n"] == 16 and thin["split_k"] > 1


@pytest.mark.parametrize("extents", [
    {"depth": 64}, {"m": 4096, "n": 4096, "depth": 4096}, {"m": 8192, "n": 8192},
    {"splits": False}, {"m": 3, "n": 8192}, {"n": 0}, {"depth": 0},
])  # fmt: skip
def test_others_keep_whole_tiles(extents):
    found = gemm_choice.choose(replace(PROBLEM, **extents))
    assert not set(found) & set(gemm_choice.PARTS)


def test_a_measured_split_is_taken_where_k_may_be_split(monkeypatch):
    winner = Winner("bf16", "TT", 520, 512, 72, SPLIT)
    monkeypatch.setattr(gemm_choice, "measured", lambda sms: (winner,))
    gemm_choice._choose.cache_clear()
    problem = replace(PROBLEM, m=520, depth=72)
    assert gemm_choice.choose(problem) == SPLIT
    whole = gemm_choice.choose(replace(problem, splits=False))
    assert whole == {"tile_m": 64, "tile_n": 64, "stages": 2}
    gemm_choice._choose.cache_clear()


@pytest.fixture(params=[SPLIT, STREAM, {**STREAM, "cluster": 2}], ids=str)
def chosen(request, monkeypatch):
    """`tc.matmul` takes this configuration, and shows the problem it is for."""
    problems = []

    def choose(problem):
        problems.append(problem)
        whole = {**gemm_choice.without_parts(request.param), "cluster": 1}
        return request.param if problem.splits else whole

    monkeypatch.setattr(operators, "choose", choose)
    return problems


def near(out, chain):
    reference.assert_close(out, reference.Reference(chain.value, chain.error), out.dtype)


@pytest.mark.parametrize("dtype, out_dtype", [
    ("bf16", "bf16"), ("f16", "f32"), ("f32", "f32"), ("e4m3", "bf16"), ("s8", "s32"),
    ("s8", "f32"),
])  # fmt: skip
def test_matmul_with_parts(chosen, dtype, out_dtype):
    rng = np.random.default_rng(0)
    a = gemm_cases.numbers(rng, (130, 200), dtype, "row")
    b = gemm_cases.numbers(rng, (200, 72), dtype, "col")
    out = tc.matmul(a, b, gemm_cases.poisoned((130, 72), out_dtype))
    assert chosen[0].splits
    chain = gemm_cases.product(a, b)
    if out_dtype == "s32":
        np.testing.assert_array_equal(out, chain.value)
    else:
        near(out, chain)


@pytest.mark.parametrize("seed", [
    pytest.param(seed, marks=() if seed < 4 else pytest.mark.full) for seed in range(16)
])  # fmt: skip
def test_random_calls_with_parts(chosen, seed):
    given = gemm_random.problem(seed)
    given.check(given.on_cpu())


def test_turned_products_with_parts(monkeypatch):
    rng = np.random.default_rng(1)
    a = gemm_cases.numbers(rng, (2, 5, 4200), "f16", "row")
    b = gemm_cases.numbers(rng, (2, 4200, 40), "f16", "col")
    problem = replace(PROBLEM, m=5, n=40, depth=4200, planes=2, sms=8)
    assert problem.turned and gemm_choice.choose(problem)["split_k"] == 4
    monkeypatch.setattr(operators, "num_sms", lambda device: 8)
    near(tc.matmul(a, b, gemm_cases.poisoned((2, 5, 40), "f16")), gemm_cases.product(a, b))


def test_two_products_and_blocks_of_scales_keep_whole_tiles(chosen):
    x = np.ones((70, 40), np.float16)
    y = tc.matmul(x, x.T, second=x.T, epilogue=tc.epilogues.swiglu)
    assert (y == 1600).all() and not chosen[0].splits


def test_parts_that_would_spill_give_way_to_whole_tiles(monkeypatch):
    tried = []

    def kernel(*args, **params):
        tried.append(params)
        if "split_k" in params:
            raise tc.ResourceError("assemble: registers must not spill to local memory")

    monkeypatch.setattr(operators, "matmul_kernel", kernel)
    monkeypatch.setattr(operators, "num_sms", lambda device: 132)
    a = np.zeros((256, 16384), np.float16)
    tc.matmul(a, a.T, epilogue=tc.epilogues.relu)
    assert [("split_k" in params) for params in tried] == [True, False]
    tc.matmul(a, a.T, epilogue=tc.epilogues.relu)
    assert "split_k" not in tried[2] and len(tried) == 3


def test_places_are_as_many_as_the_kernel_has():
    shapes = (3, 130, 8), (3, 8, 100), (3, 130, 100)
    arrays = tuple(np.zeros(shape, np.int8) for shape in shapes)
    found = places_of(arrays, {"tile_m": 128, "tile_n": 64, "split_k": 4, "cluster": 2}, 132)
    assert (found.count, found.cols, found.dtype) == (3 * 2 * 2 * 3 * 2, 64, "s32")
    found = places_of(arrays, {"tile_m": 192, "tile_n": 64, "stream_k": 4}, 132)
    assert (found.count, found.dtype) == (132 * 3, "s32")
    wide = {"tile_m": 64, "tile_n": 64, "cluster": (1, 2), "split_k": 3}
    assert places_of(arrays, wide, 132).count == 3 * 3 * 1 * 2 * 2
    assert places_of(arrays, {**wide, "cluster": (2, 2)}, 132).count == 3 * 2 * 1 * 2 * 4
    assert places_of(arrays, {**wide, "stream_k": 4}, 132).count == 66 * 2
    whole = places_of(arrays, {"tile_m": 128, "tile_n": 64}, 132)
    assert whole.count == 0 and whole.arguments(arrays[0]) == ()


@pytest.fixture
def streams(monkeypatch):
    """NumPy arrays as if in a GPU's memory: (stream, capture) of the next call."""
    now = {"stream": 7, "capture": 0}
    fake = SimpleNamespace(
        capture_relaxed=nullcontext, capture_id=lambda stream: now["capture"],
        current_stream=lambda array: now["stream"],
    )  # fmt: skip
    monkeypatch.setattr(workspace, "deferred",
                        SimpleNamespace(driver=lambda: fake, launch=lambda: fake))
    monkeypatch.setattr(workspace, "view", lambda x: SimpleNamespace(device="cuda:0"))
    monkeypatch.setattr(workspace, "_memories", {})
    return now


def given(places=3, cols=64, dtype="f32"):
    return workspace.workspace(np.zeros(1), places, 64, cols, dtype)


def test_launches_of_one_stream_share_memory_and_no_others(streams):
    sums, flags = given()
    assert sums.shape[1] == 64 and sums.shape[0] >= 3 * 64 and not flags.any()
    flags[0] = 5
    again, other = given(cols=128, dtype="s32"), given(places=2)
    assert again[1] is flags and other[1] is flags and other[0] is sums
    assert again[0].dtype == np.int32 and np.shares_memory(again[0], sums)
    streams["stream"] = 8
    assert not np.shares_memory(given()[0], sums) and not given()[1].any()
    streams["stream"] = workspace.PER_THREAD
    mine = given()[1]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(given).result()[1] is not mine


def test_memory_grows_and_its_flags_are_zero(streams):
    sums, flags = given()
    flags[:] = 1
    many = workspace.LEAST_FLAGS + 1
    more, zeros = given(places=many)
    assert more.shape[0] >= 64 * many and zeros.shape[0] >= many and not zeros.any()
    assert given()[1] is zeros


def test_memory_that_nobody_reads_outlives_its_growth(streams, monkeypatch):
    monkeypatch.setattr(workspace, "_unread", {})
    monkeypatch.setattr(workspace, "_outgrown", [])
    first = workspace.unread(np.zeros(1), 8)
    again = weakref.ref(first)  # a captured graph knows its address alone
    assert workspace.unread(np.zeros(1), 16) is first
    more = workspace.unread(np.zeros(1), first.size + 1)
    assert more.size >= 2 * first.size
    del first
    assert again() is not None


def test_a_captured_graph_has_memory_of_its_own(streams):
    eager = given()
    streams["capture"] = 1
    first = given()
    assert first[1] is not eager[1] and given()[1] is first[1]
    streams["capture"] = 2
    assert given()[1] is not first[1]
    streams["capture"] = 0
    assert given()[1] is eager[1]


def test_arrays_of_cupy_that_a_graph_writes_to_are_kept(monkeypatch):
    """CuPy's graphs have no memory of their own: what is freed would be given to others."""
    now = SimpleNamespace(capture=0)
    fake = SimpleNamespace(capture_relaxed=nullcontext, capture_id=lambda stream: now.capture)
    stream = SimpleNamespace(ptr=7)
    cupy = SimpleNamespace(empty=lambda shape, dtype: np.zeros(shape, dtype).view(OfCupy),
                           cuda=SimpleNamespace(get_current_stream=lambda: stream))  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(arrays, "deferred", SimpleNamespace(driver=lambda: fake))
    monkeypatch.setattr(OfCupy, "__module__", "cupy")
    like = np.zeros(1).view(OfCupy)
    for now.capture, kept in ((0, False), (3, True)):
        made = arrays.empty(like, (4,), "f32")
        again = weakref.ref(made)
        del made
        assert (again() is not None) is kept


class OfCupy(np.ndarray):
    """Stands for an array of CuPy's."""


def test_arrays_that_cannot_be_allocated_are_not_split():
    assert workspace.allocates(np.zeros(1)) and not workspace.allocates(object())
