"""Accesses to shared memory: what the layouts' maps say is what the PTX machine measures."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from memory.registers import CASES as MEMORY
from memory_cases import MemoryCase, run_on_machine
from ops_cases import CASES as OPS
from ops_cases import COLS, ROWS, TILE, N, OpCase, S, check, kernel_of, operands

import tilecat as tc
from tilecat import bf16, f16, f32, rt, st
from tilecat.binding import bind
from tilecat.check import shared_accesses
from tilecat.driver import Compiled, KernelFunction
from tilecat.kernels.attention import attention
from tilecat.kernels.attention_forward import attention_forward
from tilecat.kernels.gemm import matmul
from tilecat.tiles import SharedTileType

BF16 = bf16.numpy


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(BF16)


def gemm_arrays(odd: int = 0) -> tuple[Any, ...]:
    return normal(128, 64 + odd)[:, :64], normal(64, 64), np.zeros((128, 64), BF16)


def attention_arrays(dim: int) -> tuple[Any, ...]:
    q = normal(1, 1, 64, dim)
    return q, q, q, np.zeros_like(q), np.zeros((1, 1, 64), np.float32), 0.125


def compiled_of(kernel: KernelFunction, *args: Any, **params: Any) -> Compiled:
    """What a call with these arrays ran; without any, the last one traced."""
    if not args:
        return list(kernel._compiled.values())[-1]
    bound = bind(kernel.signature, [kernel._view(a) for a in args], params)
    return kernel.specialize(bound.specialization, "sm_90a")


def static(compiled: Compiled) -> Counter[tuple[str, int, int, int]]:
    """(instruction, user's line, wavefronts, ideal) of each instruction."""
    found: Counter[tuple[str, int, int, int]] = Counter()
    for access in shared_accesses(compiled.kernel):
        assert access.loc is not None
        for r in access.requests:
            found[r.instruction, access.loc.line, r.wavefronts, r.ideal] += 1
    return found


def measured(result: Any) -> Counter[tuple[str, int, int, int]]:
    """The same as the machine saw it."""
    found: Counter[tuple[str, int, int, int]] = Counter()
    for item in result.conflicts:
        name = next(w for w in item.text.split() if not w.startswith("@"))
        short = name.split(".")[0] if "matrix" in name else ".".join(name.split(".")[:2])
        found[short, item.source.line, item.wavefronts, item.ideal] += 1
    return found


CASES = {
    "gemm": (matmul, gemm_arrays(), {"tile_m": 128, "tile_n": 64}),
    "gemm by threads": (matmul, gemm_arrays(odd=1), {"tile_m": 64, "tile_n": 64, "tile_k": 16}),
    "attention 64": (attention, attention_arrays(64), {"consumers": 1}),
    "attention 128": (attention, attention_arrays(128), {"consumers": 1}),
    **{
        f"forward {dim}": (
            attention_forward, attention_arrays(dim),
            {"dim": dim, "dim_v": dim, "tile_k": 80, "consumers": 1},
        )
        for dim in (64, 96, 128, 192, 256)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_static_accesses_are_those_the_machine_measures(name: str):
    kernel, args, params = CASES[name]
    result = kernel.simulate(*args, grid=1, **params)
    assert not result.reports
    wanted = static(compiled_of(kernel, *args, **params))
    assert wanted and wanted == measured(result)


@pytest.mark.parametrize("name", CASES)
def test_swizzled_tiles_of_the_kernels_have_no_conflict(name: str):
    kernel, args, params = CASES[name]
    kernel.simulate(*args, grid=1, **params)
    accesses = shared_accesses(compiled_of(kernel, *args, **params).kernel)
    assert {access.ways for access in accesses} == {1.0}
    assert {access.name for access in accesses} <= {"a", "b", "c", "q", "k", "v", "out"}
    widths = {a.width_bytes for a in accesses if a.op == "StoreShared"}
    assert widths == {16}


ATOMICS = [case for case in MEMORY if case.name.startswith("atomic shared")]


@pytest.mark.parametrize("case", ATOMICS, ids=str)
def test_atomics_of_shared_tiles_are_listed_as_measured(case: MemoryCase):
    result = run_on_machine(case)
    assert static(compiled_of(case.kernel, *case.arrays().values())) == measured(result)


BETWEEN_WARPS = (
    OpCase("col_sum", lambda k: tc.zeros(TILE) + tc.col_sum(k.x), lambda k: k.x.sum(0)),
    OpCase("tile_sum", lambda k: tc.full(TILE, tc.tile_sum(k.x)), lambda k: k.x.sum()),
)


@pytest.mark.parametrize("case", BETWEEN_WARPS, ids=str)
def test_exchanges_between_warps_are_listed_as_measured(case: OpCase):
    arrays = operands()
    out = np.zeros((ROWS, COLS), np.float32)
    kernel = kernel_of(case)
    result = kernel.simulate(arrays.X, arrays.Y, arrays.R, arrays.C, out, N, S, grid=1)
    check(OpCase("", case.body, case.reference, 2.0**-20), out, arrays)
    compiled = compiled_of(kernel)
    assert static(compiled) == measured(result)
    assert {(a.name, a.ways) for a in shared_accesses(compiled.kernel)} == {("scratch", 1.0)}


@pytest.mark.parametrize(
    "case", [c for c in (*OPS, *BETWEEN_WARPS) if "inline" not in c.name], ids=str
)
def test_every_access_in_the_text_is_listed(case: OpCase):
    compiled = kernel_of(case).compile()
    pattern = r"^\s+(?:@\S+ )?((?:ld|st)\.shared|(?:ld|st)matrix)\."
    written = Counter(re.findall(pattern, compiled.ptx, re.M))
    listed = Counter(
        r.instruction for access in shared_accesses(compiled.kernel) for r in access.requests
    )
    assert listed == written


def roundtrip(kind: SharedTileType) -> KernelFunction:
    @tc.kernel
    def through(X: tc.inout[kind.dtype, "M", "N"]):
        with tc.warpgroup():
            tile = tc.shared(kind)
            tc.store(tile, tc.load(X[0, 0], rt[kind.dtype, 64, kind.cols]))
            tc.sync()
            tc.store(X[0, 0], tc.load(tile))

    return through


PLAIN = SharedTileType(bf16, 64, 64, "row", 0)  # no swizzle


@pytest.mark.parametrize(
    ("kind", "ways"),
    [
        (st[bf16, 64, 64], 1), (st[bf16, 64, 64, "col"], 1), (st[f16, 64, 16], 1),
        (st[bf16, 64, 32], 1), (PLAIN, 8),
        (st[f32, 64, 32], 1),  # odd rows trade accesses with even ones
        (st[f32, 64, 32, "col"], None),
    ],
    ids=str,
)  # fmt: skip
def test_conflicts_of_one_tile(kind: SharedTileType, ways: int | None):
    kernel = roundtrip(kind)
    x = np.zeros((64, kind.cols), kind.dtype.numpy)
    result = kernel.simulate(x, grid=1)
    compiled = compiled_of(kernel)
    assert static(compiled) == measured(result)
    if ways is not None:
        assert {access.ways for access in shared_accesses(compiled.kernel)} == {ways}


def test_bank_conflicts_as_a_user_calls_them():
    """A row-major 64-wide bf16 tile read by ldmatrix is 8-way, with the 128-byte swizzle 1-way."""
    lanes = np.arange(8)
    assert tc.layouts.bank_conflicts(lanes * 128, 16) == 8
    assert tc.layouts.bank_conflicts(PLAIN.layout.byte_offset(lanes, 0 * lanes), 16) == 8
    swizzled = st[bf16, 64, 64].layout
    assert tc.layouts.bank_conflicts(swizzled.byte_offset(lanes, 0 * lanes), 16) == 1


def test_accesses_name_the_tile_and_the_line():
    kernel = roundtrip(st[bf16, 64, 64])
    kernel.simulate(np.zeros((64, 64), BF16), grid=1)
    store, load = shared_accesses(compiled_of(kernel).kernel)
    assert (store.name, store.op, store.instruction, len(store.requests)) == (
        "tile", "StoreShared", "stmatrix", 4,
    )  # fmt: skip
    assert (load.name, load.op, load.instruction) == ("tile", "LoadShared", "ldmatrix")
    assert store.loc is not None and "tc.store(tile," in store.loc.text
