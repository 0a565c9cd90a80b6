"""Products with scales of blocks of K: every form on each target, against float64.

A case multiplies A (128 x K) by B (K x N) into C by one call of `tc.mma_*`: issued by one thread,
which copies the scales itself, or by a pipeline of two consumers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import tilecat as tc
from tilecat import f32, gl, sc, st, tt, u8
from tilecat.arch import ARCHS, arch_of
from tilecat.driver import KernelFunction
from tilecat.dtypes import DType, b4x16_p64, by_name, e4m3, e5m2, e8m0, u64

TARGETS = tuple(arch.target for arch in ARCHS if "tcgen05" in arch.features)
ROWS, STEP_BYTES = 128, 128
# A, B, scales, block.
FORMATS: tuple[tuple[DType, DType, DType, int], ...] = (
    (e4m3, e4m3, e8m0, 32), (e5m2, e4m3, e8m0, 32), (e4m3, e5m2, e8m0, 32), (e5m2, e5m2, e8m0, 32),
    (u8, u8, e8m0, 32), (u8, u8, e4m3, 16), (u8, u8, e8m0, 16),
    (e4m3, b4x16_p64, e8m0, 32), (b4x16_p64, e5m2, e8m0, 32), (b4x16_p64, b4x16_p64, e8m0, 32),
)  # fmt: skip
COLUMNS = (16, 48, 96, 128, 144, 208, 256)


def chunks(codes: np.ndarray) -> np.ndarray:
    """Scale bytes (rows, blocks) in the tensor core's order, as 64-bit words: the manual's loop."""
    rows, blocks = codes.shape
    high, wide = -(-rows // 128), -(-blocks // 4)
    data = np.zeros((high, wide, 512), np.uint8)
    for r in range(rows):
        for k in range(blocks):
            data[r // 128, k // 4, r % 32 * 16 + r % 128 // 32 * 4 + k % 4] = codes[r, k]
    return data.reshape(high, wide * 512).view(np.uint64)


@dataclass(frozen=True)
class Operand:
    """Rows of an operand, K along them.

    Args:
        data: as a kernel takes it.
        packed: its scales, as a kernel takes them.
        values: what it stands for, float64.
    """

    data: np.ndarray
    packed: np.ndarray
    values: np.ndarray


def operand(rng: Any, rows: int, depth: int, dtype: DType, scale: DType, block: int) -> Operand:
    """Random elements over all codes but NaN and infinity, and scales far apart."""
    if dtype in (u8, b4x16_p64):
        codes = rng.integers(0, 16, (rows, depth)).astype(np.uint8)
        data = codes[:, 0::2] | codes[:, 1::2] << 4
        values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    else:
        data = np.float32(rng.standard_normal((rows, depth))).astype(dtype.numpy)
        values = data.astype(np.float64)
    if scale == e8m0:
        bytes_ = rng.integers(122, 133, (rows, depth // block)).astype(np.uint8)
        factors = 2.0 ** (bytes_.astype(np.float64) - 127)
    else:
        eight = np.float32(rng.uniform(0.02, 30, (rows, depth // block))).astype(e4m3.numpy)
        bytes_, factors = eight.view(np.uint8), eight.astype(np.float64)
    return Operand(data, chunks(bytes_), values * np.repeat(factors, block, axis=1))


@dataclass(frozen=True)
class ScaledCase:
    """One product.

    Args:
        target: whose text is run.
        a: element type of A; u8: two e2m1 a byte.
        b: of B.
        scale: of the scales.
        block: elements of K that share one.
        n: columns.
        k_bytes: bytes of K of a step.
        turned: B is passed as N x K.
        pipeline: by a pipeline.
        wide: in K steps of 64 bytes.
    """

    target: str
    a: DType
    b: DType
    scale: DType
    block: int
    n: int
    k_bytes: int = STEP_BYTES
    turned: bool = False
    pipeline: bool = False
    wide: bool = False

    def __str__(self) -> str:
        flags = ", turned" * self.turned + ", pipeline" * self.pipeline + ", wide K" * self.wide
        types = f"{self.a} x {self.b} scales {self.scale} of {self.block}"
        return f"{self.target} {types} 128x{self.n}x{self.depth}{flags}"

    @property
    def depth(self) -> int:
        """Elements of K of a step."""
        return self.k_bytes * (2 if self.a == u8 else 1)

    @property
    def scales(self) -> tuple[Any, Any]:
        """Types of the scales of A and B."""
        blocks = self.depth // self.block
        return sc[self.scale, ROWS, blocks], sc[self.scale, self.n, blocks]

    @property
    def described(self) -> tuple[str, ...]:
        """The form of the op that it is a case of."""
        name = "mma_ABt" if self.turned else "mma_AB"
        place = f"{self.scales[1]} in tensor memory"
        types = (self.a.name, self.b.name, f"tt[f32, 128, {self.n}]")
        return ("TensorMma", name, *types, place, "warp" if self.pipeline else "thread")


def _cases() -> tuple[ScaledCase, ...]:
    found = []
    for target in TARGETS:
        for form in FORMATS:
            found += [ScaledCase(target, *form, n) for n in COLUMNS]
            found.append(ScaledCase(target, *form, 96, 256))
            found.append(ScaledCase(target, *form, 64, turned=True))
            found += [ScaledCase(target, *form, n, pipeline=True) for n in (128, 256)]
            if "wide_k" in arch_of(target).features and b4x16_p64 not in form:
                wide = {"pipeline": True, "wide": True}
                found += [ScaledCase(target, *form, n, **wide) for n in (128, 256)]
    return tuple(found)


CASES = _cases()


def in_memory(dtype: DType) -> DType:
    """The dtype of a tensor: elements with gaps have none there."""
    return u8 if dtype == b4x16_p64 else dtype


def by_hand(case: ScaledCase) -> KernelFunction:
    """Two warpgroups, a thread of which loads, copies and issues."""
    kinds, wide = case.scales, case.k_bytes
    order = "row" if case.turned else "col"
    shape = (case.n, wide) if case.turned else (wide, case.n)

    @tc.kernel
    def product(
        A: gl[in_memory(case.a), "M", "K"], B: gl[in_memory(case.b), "P", "Q"],
        SA: gl[u64, "R", "S"], SB: gl[u64, "T", "S"], C: gl[f32, ROWS, case.n],
    ):  # fmt: skip
        a, b = tc.shared(st[case.a, ROWS, wide]), tc.shared(st[case.b, *shape, order])
        sa, sb = tc.shared(kinds[0]), tc.shared(kinds[1])
        acc, ta, tb = tc.tmem(tt[f32, ROWS, case.n]), tc.tmem(kinds[0]), tc.tmem(kinds[1])
        loaded, done = tc.barrier(), tc.barrier()
        with tc.warpgroup(2) as number:
            with tc.when(number == 0), tc.elected():
                loaded.expect(a, b, sa, sb)
                for tile, tensor in ((a, A), (b, B), (sa, SA), (sb, SB)):
                    tc.load_async(tile, tensor[0, 0], loaded)
                loaded.wait(0)
                tc.copy_scales(ta, sa)
                tc.copy_scales(tb, sb)
                mma = tc.mma_ABt if case.turned else tc.mma_AB
                mma(acc, a, b, accumulate=False, scale_a=ta, scale_b=tb)
                tc.mma_commit(done)
            done.wait(0)
            tc.store(C[number, 0], tc.load(acc))
            tc.free_tmem(256)

    return product


def by_pipeline(case: ScaledCase) -> KernelFunction:
    """Two consumers of 64 rows, their products issued as one; any M, N and K."""
    kinds, wide = case.scales, case.k_bytes

    @tc.kernel
    def product(
        A: gl[in_memory(case.a), "M", "KA"], B: gl[in_memory(case.b), "KB", "N"],
        SA: gl[u64, "R", "S"], SB: gl[u64, "T", "S"], C: gl[f32, "M", "N"],
    ):  # fmt: skip
        tasks = tc.row_major(tc.cdiv(C.rows, ROWS), tc.cdiv(C.cols, case.n))
        held = wide // 2 if case.a == b4x16_p64 else wide  # of bytes in memory
        pipe = tc.lcf(consumers=2, stages=2, tasks=tasks, steps=tc.cdiv(A.cols, held),
                      wide_k=case.wide)  # fmt: skip
        a = pipe.input(st[case.a, 64, wide], count=2)
        b = pipe.input(st[case.b, wide, case.n, "col"])
        scale_a, scale_b = pipe.input(kinds[0]), pipe.input(kinds[1])
        c = pipe.output(st[f32, 64, case.n])
        acc = pipe.accumulator(f32, 64, case.n)

        @pipe.load
        def _(task, k):
            for i in range(2):
                tc.load_async(a[i], A[task.row * 2 + i, k])
            tc.load_async(b, B[k, task.col])
            tc.load_async(scale_a, SA[task.row, k])
            tc.load_async(scale_b, SB[task.col, k])

        @pipe.compute
        def _(task, k):
            tc.mma_AB(acc, a[pipe.consumer], b, scale_a=scale_a, scale_b=scale_b)

        @pipe.finish
        def _(task):
            c.store(C[task.row * 2 + pipe.consumer, task.col], acc)

    return product


def kernel_of(case: ScaledCase) -> KernelFunction:
    """The kernel of a case."""
    return by_pipeline(case) if case.pipeline else by_hand(case)


def operands(case: ScaledCase, extents: tuple[int, int, int] | None = None, seed: int = 0):
    """A and B, K along their rows; of extents M, N, K or those of one step."""
    m, n, depth = extents or (ROWS, case.n, case.depth)
    rng = np.random.default_rng([m, n, depth, seed])
    types = (case.a, m), (case.b, n)
    return tuple(operand(rng, rows, depth, by_name(t.name), case.scale, case.block)
                 for t, rows in types)  # fmt: skip


def call_arrays(case: ScaledCase, given: tuple[Operand, Operand]) -> tuple[np.ndarray, ...]:
    """The arrays as the kernel takes them."""
    a, b = given
    c = np.full((len(a.data), len(b.data)), np.nan, np.float32)
    return a.data, b.data if case.turned else b.data.T, a.packed, b.packed, c


def check(given: tuple[Operand, Operand], c: np.ndarray) -> None:
    """C against float64: equal but for f32 sums."""
    left, right = given[0].values, given[1].values.T
    bound = np.abs(left) @ np.abs(right)
    assert (np.abs(c - left @ right) <= (left.shape[1] + 2) * 2.0**-24 * bound).all()
