"""Products with sums in tensor memory: every form and N, on each target, against float64.

A case multiplies A (64 x K) by B (K x N) into C by one call of `tc.mma_*`, issued by one thread of
a warpgroup, or by a pipeline of two consumers whose sums are one tile of 128 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilecat as tc
from tilecat import gl, rt, st, tt
from tilecat.arch import ARCHS, Arch, TensorForm, arch_of
from tilecat.driver import KernelFunction
from tilecat.dtypes import DType, by_name

TARGETS = tuple(arch.target for arch in ARCHS if "tcgen05" in arch.features)
NAMES = ("mma_AB", "mma_ABt", "mma_AtB", "mma_AtBt")
TYPES = ("bf16", "f16", "tf32", "e4m3", "e5m2", "s8", "u8")
ROWS = 64


@dataclass(frozen=True)
class TensorCase:
    """One product.

    Args:
        target: whose text is run.
        form: its instruction.
        n: columns.
        k: depth.
        name: the function called.
        a: the order of the tile of A as it is passed.
        b: the order of the tile of B as it is passed.
        start: what the sums are before; None: the product overwrites them.
        signs: of A and B.
        pipeline: by a pipeline, M = 128.
        persistent: of the pipeline.
    """

    target: str
    form: TensorForm
    n: int
    k: int
    name: str = "mma_AB"
    a: str = "row"
    b: str = "col"
    start: float | None = None
    signs: tuple[int, int] = (1, 1)
    pipeline: bool = False
    persistent: bool | str = True

    def __str__(self) -> str:
        flags = [self.name, f"a {self.a}", f"b {self.b}"]
        flags += [f"signs {self.signs}"] if self.signs != (1, 1) else []
        flags += [f"start {self.start}"] * (self.start is not None) + ["pipeline"] * self.pipeline
        flags += [str(self.persistent)] * (self.persistent is not True)
        kind = str(self.form).removeprefix("tcgen05.mma ")
        return f"{self.target} {kind} {self.m}x{self.n}x{self.k} {', '.join(flags)}"

    @property
    def m(self) -> int:
        """Rows of C."""
        return 2 * ROWS if self.pipeline else ROWS

    @property
    def dtypes(self) -> tuple[DType, DType, DType]:
        """Of A, B and C."""
        return by_name(self.form.a), by_name(self.form.b), by_name(self.form.accumulator)

    @property
    def described(self) -> tuple[str, ...]:
        """The form of the op that it is a case of."""
        kind = f"tt[{self.form.accumulator}, {self.m}, {self.n}]"
        scope = "warp" if self.pipeline else "thread"
        return ("TensorMma", self.name, self.form.a, self.form.b, self.a, self.b, kind, scope)


def _forms(arch: Arch) -> list[TensorForm]:
    plain = (f for f in arch.tensor_forms if not f.block and f.accumulator != "f16")
    return [f for f in plain if f.a in TYPES and f.b in TYPES]


TURNED = {"row": "col", "col": "row"}
ORDERS = tuple((a, b) for a in TURNED for b in TURNED)


def _cases() -> list[TensorCase]:
    found = []
    for target in TARGETS:
        for form in _forms(arch_of(target)):
            found += [TensorCase(target, form, n, 2 * form.k) for n in form.columns(ROWS)]
            found += _functions(target, form)
            found.append(TensorCase(target, form, 96, 4 * form.k, pipeline=True))
    return found + list(CONTROLLED)


def _functions(target: str, form: TensorForm) -> list[TensorCase]:
    """Each function once; 16-bit operands in each order, others with K contiguous."""
    orders = ORDERS if form.kind == "f16" else (("row", "col"),) * len(NAMES)
    found = []
    for index, (name, (a, b)) in enumerate(zip(NAMES, orders, strict=True)):
        mine = TURNED[a] if name.startswith("mma_At") else a
        other = TURNED[b] if name.endswith("Bt") else b
        start = 3.0 if index % 2 else None
        signs = (-1, 1) if form.signs and index > 1 else (1, 1)
        case = TensorCase(target, form, 64, 4 * form.k, name, mine, other, start, signs)
        found.append(case)
    return found


CONTROLLED = tuple(
    TensorCase(target, _forms(arch_of(target))[0], 64, 64, pipeline=True,
               persistent="launch-control")  # fmt: skip
    for target in TARGETS
)
CASES = tuple(_cases())


def _tile(dtype: DType, rows: int, cols: int, order: str, turned: bool) -> Any:
    """The type of an operand's shared tile, rows and columns exchanged for its transpose."""
    shape = (cols, rows) if turned else (rows, cols)
    return st[dtype, *shape, order]


def by_hand(case: TensorCase) -> KernelFunction:
    """One warpgroup, one thread of which issues."""
    ta, tb, sums = case.dtypes
    a_kind = _tile(ta, ROWS, case.k, case.a, case.name.startswith("mma_At"))
    b_kind = _tile(tb, case.k, case.n, case.b, case.name.endswith("Bt"))
    mma: Callable[..., None] = getattr(tc, case.name)
    stored = {"tf32": tc.f32}

    @tc.kernel
    def product(
        A: gl[stored.get(ta.name, ta), "P", "Q"], B: gl[stored.get(tb.name, tb), "R", "S"],
        C: gl[sums, ROWS, case.n],
    ):  # fmt: skip
        a, b = tc.shared(a_kind), tc.shared(b_kind)
        acc = tc.tmem(tt[sums, ROWS, case.n])
        loaded, done = tc.barrier(), tc.barrier()
        with tc.warpgroup():
            if case.start is not None:
                tc.store(acc, tc.full(rt[sums, ROWS, case.n], sums_start(case)))
                tc.sync()
            with tc.elected():
                loaded.expect(a, b)
                tc.load_async(a, A[0, 0], loaded)
                tc.load_async(b, B[0, 0], loaded)
                loaded.wait(0)
                mma(acc, a, b, accumulate=case.start is not None, negate_a=case.signs[0] < 0)
                tc.mma_commit(done)
            done.wait(0)
            tc.store(C[0, 0], tc.load(acc))
            tc.free_tmem()

    return product


def sums_start(case: TensorCase) -> float | int:
    """What the sums are before, in their dtype."""
    start = case.start or 0
    return float(start) if case.form.accumulator != "s32" else int(start)


def by_pipeline(case: TensorCase) -> KernelFunction:
    """Two consumers of 64 rows, their products issued as one."""
    ta, tb, sums = case.dtypes
    stored = {"tf32": tc.f32}

    @tc.kernel
    def product(
        A: gl[stored.get(ta.name, ta), "M", "K"], B: gl[stored.get(tb.name, tb), "K", "N"],
        C: gl[sums, "M", "N"],
    ):  # fmt: skip
        pipe = tc.lcf(consumers=2, stages=2, tasks=tc.row_major(1, 1), steps=1,
                      persistent=case.persistent)  # fmt: skip
        a = pipe.input(st[ta, ROWS, case.k], count=2)
        b = pipe.input(st[tb, case.k, case.n, "col"])
        c = pipe.output(st[sums, ROWS, case.n])
        acc = pipe.accumulator(sums, ROWS, case.n)

        @pipe.load
        def _(task, step):
            for i in range(2):
                tc.load_async(a[i], A[i, 0])
            tc.load_async(b, B[0, 0])

        @pipe.compute
        def _(task, step):
            tc.mma_AB(acc, a[pipe.consumer], b)

        @pipe.finish
        def _(task):
            c.store(C[pipe.consumer, 0], acc)

    return product


def kernel_of(case: TensorCase) -> KernelFunction:
    """The kernel of a case."""
    return by_pipeline(case) if case.pipeline else by_hand(case)


def arrays(case: TensorCase) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A and B as they are multiplied (M x K, K x N), and C before."""
    rng = np.random.default_rng(case.n + case.k)
    ta, tb, sums = case.dtypes
    found = []
    for dtype, shape in ((ta, (case.m, case.k)), (tb, (case.k, case.n))):
        if dtype.is_float:
            found.append(rng.standard_normal(shape).astype(np.float32).astype(dtype.numpy))
        else:
            low = -128 if dtype.name == "s8" else 0
            found.append(rng.integers(low, low + 256, shape).astype(dtype.numpy))
    return found[0], found[1], np.full((case.m, case.n), 7, sums.numpy)


def _stored(x: np.ndarray, order: str, turned: bool) -> np.ndarray:
    """An operand in memory: its tile's rows and columns, and the order of the tile."""
    seen = x.T if turned else x
    return np.ascontiguousarray(seen) if order == "row" else np.asfortranarray(seen)


def call_arrays(case: TensorCase, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arrays as the kernel takes them."""
    a, b, c = given
    return (
        _stored(a, case.a, case.name.startswith("mma_At")),
        _stored(b, case.b, case.name.endswith("Bt")), c,
    )  # fmt: skip


def check(case: TensorCase, given: tuple[Any, ...]) -> None:
    """C against float64: exact for integers; f32 sums of K products, tf32 of 10 bits, else."""
    a, b, c = given
    wide = np.int64 if case.form.accumulator == "s32" else np.float64
    left, right = a.astype(wide), b.astype(wide)
    want = case.signs[0] * (left @ right) + wide(case.start or 0)
    if wide is np.int64:
        assert (c == want).all()
        return
    bound = np.abs(left) @ np.abs(right) + abs(case.start or 0)
    operand = 2.0**-9 if case.form.kind == "tf32" else 0.0
    assert (np.abs(c - want) <= (operand + (case.k + 2) * 2.0**-24) * bound).all()
