"""Matrix multiply-accumulate by a warpgroup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..arch import ARCHS
from ..errors import DTypeError, LayoutError
from ..ir import Access, Effect, Op, Scope, Value, attribute, operand
from ..layouts import MatrixDescriptor, matrix_descriptor
from ..ptx import instructions as ptx
from ..tiles import RegTileType, SharedTileType, TileType

# Forms some architecture has; the check stage asks the target's own.
FORMS = {(f.dtype, f.accumulator): f for arch in ARCHS for f in arch.mma_forms}


@dataclass(eq=False)
class Mma(Op):
    """`acc = A @ B + acc` (or `acc = A @ B`), asynchronous: `tc.mma_wait` completes it.

    Args:
        acc: 64 x N accumulator in registers.
        a: 64 x K tile in registers or shared memory.
        b: K x N tile in shared memory (for the `ABt` forms, its transpose).
        accumulate: True, False, or a run-time predicate.
    """

    verb: ClassVar[str] = "{name}"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    name: str = attribute()
    acc: Value = operand()
    a: Value = operand()
    b: Value = operand()
    accumulate: Value | bool = operand()

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; shapes, dtypes and layouts must fit an instruction."""
        acc, a, b = self.acc.type, self.a.type, self.b.type
        if not isinstance(acc, RegTileType):
            raise LayoutError(f"{self.name}: the accumulator is a register tile, got acc={acc}")
        if not isinstance(a, RegTileType | SharedTileType):
            raise LayoutError(f"{self.name}: A is a register or shared tile, got a={a}")
        if isinstance(b, RegTileType):
            raise LayoutError(
                f"{self.name}: B of a warpgroup's mma lies in shared memory, row or column order, "
                f"got b={b} (registers)",
                hint=f"s = tc.shared(tc.st[tc.{b.dtype.name}, {a.cols}, {acc.cols}]); "
                f"tc.store(s, b); tc.sync(); tc.{self.name}(acc, a, s)",
            )
        if not isinstance(b, SharedTileType):
            raise LayoutError(f"{self.name}: B is a shared tile, got b={b}")
        if a.dtype != b.dtype or (a.dtype.name, acc.dtype.name) not in FORMS:
            forms = "; ".join(f"{k[0]} x {k[0]} -> {k[1]}" for k in FORMS)
            raise DTypeError(
                f"{self.name}: A and B have one dtype that the tensor core multiplies, got "
                f"a={a.dtype.name}, b={b.dtype.name}, acc={acc.dtype.name}",
                hint=f"legal: {forms}; convert with tc.cast",
            )
        self._check_shapes(acc, a, b)
        self.descriptors()
        return ()

    def _check_shapes(self, acc: RegTileType, a: Any, b: SharedTileType) -> None:
        if a.rows != acc.rows or b.cols != acc.cols or a.cols != b.rows:
            raise LayoutError(
                f"{self.name}: A is M x K, B is K x N, acc is M x N, got "
                f"a={a.rows}x{a.cols}, b={b.rows}x{b.cols} (as used), acc={acc.rows}x{acc.cols}",
                hint=f"B as {a.cols}x{acc.cols} fits this A and acc",
            )
        max_n = FORMS[a.dtype.name, acc.dtype.name].max_n
        if acc.cols > max_n:
            raise LayoutError(
                f"{self.name}: N of a warpgroup's mma is at most {max_n}, got N={acc.cols}",
                hint=f"split the tile into columns of {max_n}",
            )

    def descriptors(self) -> tuple[MatrixDescriptor | None, MatrixDescriptor]:
        """Shared-memory descriptors of A (None when in registers) and B."""
        a = self.a.type
        left = matrix_descriptor(a.layout, "A") if isinstance(a, SharedTileType) else None
        assert isinstance(self.b.type, SharedTileType), "checked in infer"
        return left, matrix_descriptor(self.b.type.layout, "B")

    def effects(self) -> tuple[Effect, ...]:
        """Reads A and B and writes the accumulator, all until `mma_wait`."""
        a_proxy = "async" if isinstance(self.a.type, SharedTileType) else "generic"
        return (
            Effect(Access.ASYNC_READ, self.a, a_proxy),
            Effect(Access.ASYNC_READ, self.b, "async"),
            Effect(Access.ASYNC_WRITE, self.acc),
        )

    def emit(self, w: Any) -> None:
        """Fence, one `wgmma` a K step, commit: one group."""
        acc, a = self.acc.type, self.a.type
        assert isinstance(acc, RegTileType), "checked in infer"
        assert isinstance(a, RegTileType | SharedTileType), "checked in infer"
        form = w.mma_form(self, a.dtype.name, acc.dtype.name)
        left, right = self.descriptors()
        a_base = w.descriptor_base(self.a, left) if left else None
        b_base = w.descriptor_base(self.b, right)
        transposes = [int(d.major == "MN") for d in (left, right) if d is not None]
        dst = w.regs(self.acc)
        w.line(ptx.wgmma_fence())
        for step in range(a.cols // form.k):
            if left:
                first = w.descriptor(a_base, left, step)
            else:
                first = w.regs(self.a)[4 * step : 4 * step + 4]
            second = w.descriptor(b_base, right, step)
            accumulate = True if step else self.accumulate
            w.line(
                ptx.wgmma(
                    f"m64n{acc.cols}k{form.k}",
                    form.types,
                    dst,
                    first,
                    second,
                    w.predicate(accumulate),
                    [1, 1, *transposes],
                )
            )
        w.line(ptx.wgmma_commit_group())


@dataclass(eq=False)
class MmaWait(Op):
    """Waits until at most `pending` of the warpgroup's mma are under way."""

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    pending: int = attribute(default=0)

    def emit(self, w: Any) -> None:
        """`wgmma.wait_group`."""
        w.line(ptx.wgmma_wait_group(self.pending))
