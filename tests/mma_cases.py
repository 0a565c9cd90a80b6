"""Every matrix instruction of the tables, at every legal N, against float64 or exact integers.

A case multiplies A (M x K) by B (given as N x K) into C (M x N) by one call of `tc.mma_*`, its
operands where and how the case says. The same cases run on the PTX machine and on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

import tilecat as tc
from tilecat import gl, rt, st
from tilecat.arch import MMA_SYNC, WGMMA, MmaForm
from tilecat.arch.hopper import HOPPER
from tilecat.builder import add
from tilecat.dtypes import DType, by_name
from tilecat.ops.sync import AllocBarriers, ArriveExpect, InitBarriers, WaitBarrier
from tilecat.ops.tma import BulkWait, TmaLoad, TmaStore

NAMES = ("mma_AB", "mma_ABt", "mma_AtB", "mma_AtBt")
WARPS = 4
# Half a unit in the last place of the sums, relative.
ROUNDING = {"f32": 2.0**-24, "f16": 2.0**-11, "s32": 0.0}
# FP8 on Hopper's tensor cores: the products of one instruction and the addend are aligned to the
# largest and keep 13 bits behind its point (DeepSeek-V3 technical report, section 3.3.2, 2024:
# about 14 bits of an FP8 product's sum). The PTX machine adds in f32.
FP8_ON_GPU = 2.0**-13


@dataclass(frozen=True)
class MmaCase:
    """One product.

    Args:
        form: its instruction.
        m, n, k: extents; m of one warp for mma.sync.
        name: the function called.
        a: "registers", or the order in shared memory of the tile that is passed.
        b: the order of the tile that is passed; for mma.sync "registers".
        accumulate: True, False, or "if n" for a run-time predicate that holds, "if not n".
        signs: of A and B.
        special: whether A holds a NaN and an infinity.
        saturate: whether s32 sums do; C is then anywhere in their range.
    """

    form: MmaForm
    m: int
    n: int
    k: int
    name: str = "mma_AB"
    a: str = "registers"
    b: str = "col"
    accumulate: bool | str = False
    signs: tuple[int, int] = (1, 1)
    special: bool = False
    saturate: bool = False

    def __str__(self) -> str:
        flags = [self.name, f"a {self.a}", f"b {self.b}", f"accumulate {self.accumulate}"]
        flags += [f"signs {self.signs}"] if self.signs != (1, 1) else []
        flags += ["special"] * self.special + ["saturate"] * self.saturate
        return f"{self.form} {self.m}x{self.n}x{self.k} {', '.join(flags)}"

    @property
    def described(self) -> tuple[str, ...]:
        """The op, its instruction, its operands, the type of the accumulator, the scope."""
        of_warp = self.form.instruction == MMA_SYNC
        op = f"{self.name} accumulate {self.accumulate} signs {self.signs}"
        kind = rt[self.dtypes[2], self.m, self.n].held_by(1 if of_warp else WARPS)
        operands = f"K {self.k}, a {self.a}, b {self.b}"
        return (op, str(self.form), operands, str(kind), "warp" if of_warp else "warpgroup")

    @property
    def dtypes(self) -> tuple[DType, DType, DType]:
        """Of A, B and the accumulator."""
        return by_name(self.form.a), by_name(self.form.b), by_name(self.form.accumulator)

    @property
    def a_order(self) -> str:
        """Order in which A lies in shared memory as M x K."""
        if self.a == "registers":
            return "row"
        return _turned(self.a) if self.name.startswith("mma_At") else self.a

    @property
    def b_order(self) -> str:
        """Order in which B lies in shared memory as N x K."""
        if self.b == "registers":
            return "row"
        return self.b if self.name.endswith("Bt") else _turned(self.b)

    @property
    def rows(self) -> int:
        """Rows of A, those of all warps."""
        return self.m * (WARPS if self.form.instruction == MMA_SYNC else 1)


def _turned(order: str) -> str:
    return "col" if order == "row" else "row"


def _orders(form: MmaForm, name: str) -> Iterator[tuple[str, str]]:
    """Legal places and orders of the tiles passed to one function."""
    k_major = ("row", "col")[name.startswith("mma_At")], ("col", "row")[name.endswith("Bt")]
    orders = ("row", "col") if form.mn_major else ()
    yield from product(orders or k_major[:1], orders or k_major[1:])
    if not name.startswith("mma_At"):
        yield from (("registers", b) for b in (orders or k_major[1:]))


def _wgmma_cases(form: MmaForm) -> Iterator[MmaCase]:
    for n in form.n:
        yield MmaCase(form, 64, n, 2 * form.k)
    wide = 128 if form.mn_major else 64  # two panels where N is contiguous
    for name in NAMES:
        for a, b in _orders(form, name):
            yield MmaCase(form, 64, wide, 64 if form.k == 16 else 2 * form.k, name, a, b)
    deep = 2 * form.k if form.k == 8 else form.k  # a line of a shared tile: 16 elements of tf32
    for accumulate in (True, "if n", "if not n"):
        yield MmaCase(form, 64, 64, deep, a="row", accumulate=accumulate)
    yield MmaCase(form, 128, 64, 4 * form.k, a="row", accumulate=True)
    yield MmaCase(form, 128, 48, 4 * form.k, accumulate=True)
    if form.signs:
        for signs in ((-1, 1), (1, -1), (-1, -1)):
            yield MmaCase(form, 64, 32, deep, accumulate=True, signs=signs)
        yield MmaCase(form, 64, 64, deep, a="row", special=True)
    else:
        yield MmaCase(form, 64, 16, form.k, accumulate=True, saturate=True)


def _mma_cases(form: MmaForm) -> Iterator[MmaCase]:
    narrow = 32 if form.k == 32 else 16
    for m, n, k in ((16, 16, 1), (32, 48, 2), (16, 64, 3), (48, 32, 1)):
        for name in NAMES:
            deep = -(-k * form.k // narrow) * narrow  # a line of a shared tile
            yield MmaCase(form, m, n, deep, name, b="registers")
    for accumulate in (True, "if n", "if not n"):
        yield MmaCase(form, 32, 32, 2 * narrow, b="registers", accumulate=accumulate)
    if form.accumulator != "s32":
        yield MmaCase(form, 16, 16, narrow, b="registers", special=True)
    else:
        yield MmaCase(form, 16, 16, narrow, b="registers", accumulate=True, saturate=True)


CASES = tuple(
    dict.fromkeys(
        case
        for form in HOPPER.mma_forms
        for case in (_wgmma_cases if form.instruction == WGMMA else _mma_cases)(form)
    )
)


@dataclass(frozen=True)
class Arrays:
    """A (rows x K), B (N x K) and C (rows x N) of a case, in the types of a kernel's tensors."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray


def memory(dtype: DType) -> DType:
    """What a tile of a dtype is loaded as: tf32 is f32 in memory."""
    return tc.f32 if dtype.name == "tf32" else dtype


def arrays(case: MmaCase, seed: int = 0) -> Arrays:
    """Random operands; integers over their whole range."""
    rng = np.random.default_rng(seed)

    def numbers(dtype: DType, *shape: int) -> np.ndarray:
        if not dtype.is_float:
            info = np.iinfo(dtype.numpy if dtype.bits == 8 else np.int16)
            return rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype.numpy)
        return dtype.round(rng.standard_normal(shape).astype(np.float32)).astype(dtype.numpy)

    left, right, sums = case.dtypes
    a = numbers(left, case.rows, case.k)
    if case.special:
        a[3, 1], a[5, 2] = np.nan, -np.inf if left.name != "e4m3" else 1.0
    c = numbers(sums, case.rows, case.n)
    if case.saturate:
        c = np.clip(c.astype(np.int64) * 2**16, -(2**31), 2**31 - 1).astype(np.int32)
        c[::2, ::2] = np.where(c[::2, ::2] < 0, -(2**31) + 5, 2**31 - 6)
    return Arrays(a, numbers(right, case.n, case.k), c)


def kernel_of(case: MmaCase) -> tc.KernelFunction:
    """A kernel of one warpgroup that runs a case: tiles come and go by TMA."""
    left, right, sums = case.dtypes

    def mma_case(
        A: gl[memory(left), "M", "K"], B: gl[memory(right), "K", "N"], C: gl[sums, "M", "N"],
        D: gl[sums, "M", "N"], n: tc.s32,
    ):  # fmt: skip
        tiles = _Tiles(case)
        with tc.warpgroup():
            tiles.load(A, B, C)
            (_by_warps if case.form.instruction == MMA_SYNC else _by_warpgroup)(case, tiles, n)
            tc.sync()
            tiles.store(D)

    return tc.kernel(mma_case)


def run(case: MmaCase, given: Arrays, call: Callable[..., Any]) -> np.ndarray:
    """D of a case; `call` takes the kernel and its arguments, arrays of the orders it wants."""
    out = np.full(given.c.shape[::-1], -1, given.c.dtype).T
    a = given.a if case.a_order == "row" else np.asfortranarray(given.a)
    b = given.b if case.b_order == "row" else np.asfortranarray(given.b)
    call(kernel_of(case), a, b.T, np.asfortranarray(given.c), out, 1)
    return out


class _Tiles:
    """Shared tiles of a kernel: A, and the accumulators, one a warp for mma.sync."""

    def __init__(self, case: MmaCase):
        left, right, sums = case.dtypes
        count = case.rows // case.m
        self.a = tc.shared(st[left, case.m, case.k, case.a_order], count)
        self.b = tc.shared(st[right, case.k, case.n, _turned(case.b_order)])
        self.c = tc.shared(st[sums, case.m, case.n, "col"], count)
        self.loads_c = case.accumulate is not False
        self.barrier = add(AllocBarriers("full", 1)).result
        add(InitBarriers((self.barrier,)))

    def load(self, A: Any, B: Any, C: Any) -> None:
        """Brings all of them."""
        moves = [(self.a[i], A, i) for i in range(len(self.a))] + [(self.b, B, 0)]
        if self.loads_c:
            moves += [(self.c[i], C, i) for i in range(len(self.c))]
        num_bytes = sum(tile.type.layout.num_bytes for tile, _, _ in moves)
        add(ArriveExpect(self.barrier, 0, num_bytes))
        for tile, tensor, index in moves:
            coords = (index * tile.type.rows, 0)
            add(TmaLoad(tile.value, coords, tensor.arg, self.barrier, 0))
        add(WaitBarrier(self.barrier, 0, 0))

    def store(self, D: Any) -> None:
        """Brings the accumulators to D."""
        for index in range(len(self.c)):
            add(TmaStore(self.c[index].value, (index * self.c[index].type.rows, 0), D.arg))
        add(BulkWait(0, read=False))


def _options(case: MmaCase, n: Any) -> dict[str, Any]:
    decided = {"if n": n > 0, "if not n": n < 0}.get(case.accumulate, case.accumulate)  # type: ignore[call-overload]
    negated = {"negate_a": case.signs[0] < 0, "negate_b": case.signs[1] < 0}
    return {"accumulate": decided, "saturate": case.saturate, **negated}


def _by_warpgroup(case: MmaCase, tiles: _Tiles, n: Any) -> None:
    a, b, c = tiles.a[0], tiles.b, tiles.c[0]
    acc = tc.load(c) if tiles.loads_c else tc.empty(rt[case.dtypes[2], case.m, case.n])
    a = tc.load(a) if case.a == "registers" else a
    a = a.T if case.name.startswith("mma_At") else a
    b = b.T if case.name.endswith("Bt") else b
    getattr(tc, case.name)(acc, a, b, **_options(case, n))
    tc.mma_wait()
    tc.store(c, acc)


def _by_warps(case: MmaCase, tiles: _Tiles, n: Any) -> None:
    with tc.warps():
        warp = tc.warp_id()
        a, b, c = tc.load(tiles.a[warp]), tc.load(tiles.b, order="col"), tiles.c[warp]
        acc = tc.load(c) if tiles.loads_c else tc.empty(rt[case.dtypes[2], case.m, case.n])
        a = a.T if case.name.startswith("mma_At") else a
        b = b.T if case.name.endswith("Bt") else b
        getattr(tc, case.name)(acc, a, b, **_options(case, n))
        tc.store(c, acc)


def check(case: MmaCase, actual: np.ndarray, given: Arrays, *, gpu: bool = False) -> None:
    """Compares with float64 (integers: exactly); NaN and infinities must stand where they do there.

    The bound: each of the K products and the addend is rounded at most once in the sum.
    """
    exact = np.float64 if case.form.accumulator != "s32" else np.int64
    a, b, c = (x.astype(exact) for x in (given.a, given.b, given.c))
    added = case.accumulate is True or case.accumulate == "if n"
    with np.errstate(all="ignore"):
        wanted = case.signs[0] * case.signs[1] * (a @ b.T) + (c if added else 0)
    if exact is np.int64:
        wanted = np.clip(wanted, -(2**31), 2**31 - 1) if case.saturate else wanted
        np.testing.assert_array_equal(actual, wanted)
        return
    size = np.nan_to_num(abs(a), posinf=0.0) @ abs(b).T + (abs(c) if added else 0)
    slack = ROUNDING[case.form.accumulator] * (case.k + 1) * size
    if case.form.accumulator == "f16":
        slack = ROUNDING["f16"] * (case.k // case.form.k + 1) * size
    if gpu and case.form.k == 32:
        largest = np.outer(abs(a).max(1), abs(b).max(1))
        largest = np.maximum(largest, abs(wanted) + abs(c)) if added else largest + abs(wanted)
        slack = slack + FP8_ON_GPU * (case.k + case.k // case.form.k) * largest
    finite = np.isfinite(wanted)
    got = actual.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(got[~finite], wanted[~finite])
    wrong = abs(got[finite] - wanted[finite]) > slack[finite]
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} wrong"
