"""Matrix multiply-accumulate by a warpgroup, and the rules it shares with a warp's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from ..arch import ARCHS, WGMMA, MmaForm
from ..errors import DTypeError, LayoutError
from ..ir import Access, Effect, Op, Scope, Value, attribute, operand
from ..layouts import MatrixDescriptor, matrix_descriptor
from ..layouts.registers import fragment_of
from ..ptx import instructions as ptx
from ..tiles import RegTileType, SharedTileType, TensorTileType, TileType

# Forms some architecture has; the check stage asks the target's own.
FORMS: dict[tuple[str, str, str, str], MmaForm] = {f.key: f for a in ARCHS for f in a.mma_forms}


AnyForm = TypeVar("AnyForm", bound="Form")


class Form(Protocol):
    """What all forms of matrix instructions have."""

    @property
    def a(self) -> str:
        """Element type of A."""

    @property
    def b(self) -> str:
        """Element type of B."""

    @property
    def accumulator(self) -> str:
        """Element type of D."""


def find_form(name: str, instruction: str, a: Any, b: Any, acc: Any) -> MmaForm:
    """The instruction that multiplies these types.

    Args:
        name: the op's, for the message.
        instruction: WGMMA or MMA_SYNC.
        a: type of A's tile.
        b: type of B's.
        acc: the accumulator's.

    Raises:
        DTypeError: there is none; the hint lists those nearest to it.
    """
    return pick_form(name, [f for f in FORMS.values() if f.instruction == instruction], a, b, acc)


def pick_form(name: str, mine: Sequence[AnyForm], a: Any, b: Any, acc: Any) -> AnyForm:
    """The one of several forms that multiplies these types; see `find_form`."""
    left, right, sums = (kind.dtype.name for kind in (a, b, acc))
    for form in mine:
        if (form.a, form.b, form.accumulator) == (left, right, sums):
            return form
    given = f"got a={left}, b={right}, acc={sums}"
    same = [f.accumulator for f in mine if (f.a, f.b) == (left, right)]
    if same:
        legal = " or ".join(same)
        raise DTypeError(
            f"{name}: the accumulator of {left} x {right} is {legal}, {given}",
            hint=f"make it {legal}, and convert after: tc.cast(acc, tc.{sums})",
        )
    partners = sorted({f.b for f in mine if f.a == left})
    if partners:
        raise DTypeError(
            f"{name}: {left} multiplies {' or '.join(partners)}, {given}",
            hint=f"convert one operand with tc.cast, or make both tc.{left}",
        )
    listing = ", ".join(dict.fromkeys(f.a for f in mine))
    raise DTypeError(
        f"{name}: the tensor core multiplies {listing}, {given}",
        hint="convert with tc.cast, e.g. to tc.bf16",
    )


def check_shapes(name: str, acc: Any, a: Any, b: Any) -> None:
    """A is M x K, B is K x N, the accumulator M x N.

    Raises:
        LayoutError: they are not.
    """
    if a.rows != acc.rows or b.cols != acc.cols or a.cols != b.rows:
        raise LayoutError(
            f"{name}: A is M x K, B is K x N, acc is M x N, got "
            f"a={a.rows}x{a.cols}, b={b.rows}x{b.cols} (as used), acc={acc.rows}x{acc.cols}",
            hint=f"B as {a.cols}x{acc.cols} fits this A and acc",
        )


def check_extents(name: str, form: MmaForm, acc: RegTileType, depth: int) -> None:
    """Whole instructions: M, N and K.

    Raises:
        LayoutError: an extent that no number of them has.
    """
    who = "a warpgroup's mma" if form.instruction == WGMMA else "a warp's mma"
    top = form.n[-1]
    if form.instruction == WGMMA and acc.cols > top:
        raise LayoutError(
            f"{name}: N of {who} is at most {top}, got N={acc.cols}",
            hint=f"split the tile into columns of {top}",
        )
    if form.instruction == WGMMA and acc.cols not in form.n:
        near = [max(n for n in form.n if n < acc.cols), min(n for n in form.n if n > acc.cols)]
        raise LayoutError(
            f"{name}: N of {who} on {form.a} is {_listing(form.n)}, got N={acc.cols}",
            hint=f"nearest legal: {near[0]} and {near[1]}",
        )
    for axis, extent, unit in (("M", acc.rows, form.m), ("K", depth, form.k)):
        if extent % unit:
            low = extent // unit * unit
            raise LayoutError(
                f"{name}: {axis} of {who} on {form.a} is a multiple of {unit}, "
                f"got {axis}={extent}",
                hint=f"nearest legal: {low or unit} and {low + unit}",
            )


def _listing(ns: tuple[int, ...]) -> str:
    """`a multiple of 8`, or with its exceptions: `8, 24 or a multiple of 16`."""
    step = ns[-1] - ns[-2]
    odd = [str(n) for n in ns if n % step]
    return f"{', '.join(odd)} or a multiple of {step}" if odd else f"a multiple of {step}"


def check_registers(name: str, which: str, kind: RegTileType, order: str, warps: int) -> None:
    """A register operand is held by the right warps, in the instruction's fragment and order.

    Args:
        name: the op's, for the message.
        which: "A", "B" or "acc".
        kind: its type.
        order: "row" or "col", as the instruction wants it.
        warps: 1 or 4.

    Raises:
        LayoutError: it is not; the hint names the change.
    """
    who, letter = "a warp" if warps == 1 else "a warpgroup", which.lower()
    if kind.warps != warps:
        raise LayoutError(
            f"{name}: {which} of {who}'s mma is held by {who}, got {letter}={kind}",
            hint="make the tile in the same scope as the mma",
        )
    if kind.order != order:
        words = {"row": "row", "col": "column"}
        swap = f"tc.{name}(...) on tc.swap_layout({letter}), which moves it between lanes"
        load = f', or load it so: tc.load(tile, order="{order}")' if which != "acc" else ""
        raise LayoutError(
            f"{name}: {which} of {who}'s mma in registers has {words[order]} order, "
            f"got {letter}={kind} in {words[kind.order]} order",
            hint=swap + load if warps == 1 else "pass it in shared memory, in either order",
        )
    if kind.layout.fragment != fragment_of(kind.dtype):
        held, wanted = kind.layout.fragment.run, fragment_of(kind.dtype).run
        raise LayoutError(
            f"{name}: a lane of {which} holds {wanted} adjacent elements of {kind.dtype.name}, "
            f"got {letter}={kind} with {held}, as it was converted",
            hint=f"tc.regroup({letter}) moves elements between lanes; instead of the conversion, "
            f"tc.permuted_k(x, tc.{kind.dtype.name}) permutes K of both operands and moves none",
        )


def check_major(
    name: str, either: bool, a: RegTileType | SharedTileType | TensorTileType, b: SharedTileType
) -> None:
    """Only 16-bit operands may have M or N contiguous in shared memory.

    Args:
        name: the op's.
        either: whether the instruction takes both.
        a: A's type, as M x K.
        b: B's type, as K x N.

    Raises:
        LayoutError: M or N is contiguous, and must not be; the hint says what to write.
    """
    if either:
        return
    turned_a, turned_b = name.startswith("mma_At"), name.endswith("Bt")
    tile, (m, k, n) = f"tc.st[tc.{a.dtype.name}, ", (a.rows, a.cols, b.cols)
    if isinstance(a, SharedTileType) and a.order == "col":
        plain = f"{tile}{m}, {k}] as M x K"
        raise LayoutError(
            f"{name}: A of {a.dtype.name} has K contiguous in shared memory (only 16-bit types "
            f"may have M), got a={a} as M x K",
            hint=f'{tile}{k}, {m}, "col"] as K x M, or {plain} and tc.mma_AB{name[7:]}'
            if turned_a
            else f"{plain}, or load A into registers",
        )
    if b.order == "row":
        tile = f"tc.st[tc.{b.dtype.name}, "
        plain = f"{tile}{n}, {k}] as N x K"
        raise LayoutError(
            f"{name}: B of {b.dtype.name} has K contiguous in shared memory (only 16-bit types "
            f"may have N), got b={b} as K x N",
            hint=plain
            if turned_b
            else f'{tile}{k}, {n}, "col"] as K x N, or {plain} and tc.{name}t',
        )


def check_saturation(name: str, form: Form, saturate: bool) -> None:
    """Only sums of integers saturate.

    Raises:
        DTypeError: others are asked to.
    """
    if saturate and form.accumulator != "s32":
        raise DTypeError(
            f"{name}: saturate is for s32 sums, got {form.a} x {form.b} -> {form.accumulator}",
            hint="sums of floats overflow to infinity",
        )


@dataclass(eq=False)
class Mma(Op):
    """`acc = A @ B + acc` (or `acc = A @ B`), asynchronous: `tc.mma_wait` completes it.

    Args:
        acc: M x N accumulator in registers, M a multiple of 64.
        a: M x K tile in registers or shared memory (for the `At` forms, its transpose).
        b: K x N tile in shared memory (for the `Bt` forms, its transpose).
        accumulate: True, False, or a run-time predicate.
        signs: 1 or -1 for A and for B.
        saturate: s32 sums do not wrap.
    """

    verb: ClassVar[str] = "{name}"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    name: str = attribute()
    acc: Value = operand()
    a: Value = operand()
    b: Value = operand()
    accumulate: Value | bool = operand()
    signs: tuple[int, int] = attribute(default=(1, 1))
    saturate: bool = attribute(default=False)

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; shapes, dtypes and layouts must fit an instruction."""
        acc, a, b = self.acc.type, self.a.type, self.b.type
        if not isinstance(acc, RegTileType):
            raise LayoutError(f"{self.name}: the accumulator is a register tile, got acc={acc}")
        if not isinstance(a, RegTileType | SharedTileType):
            raise LayoutError(f"{self.name}: A is a register or shared tile, got a={a}")
        if isinstance(b, RegTileType):
            extents = (b.cols, b.rows) if self.name.endswith("Bt") else (b.rows, b.cols)
            raise LayoutError(
                f"{self.name}: B of a warpgroup's mma lies in shared memory, row or column order, "
                f"got b={b} (registers, as K x N)",
                hint=f"s = tc.shared(tc.st[tc.{b.dtype.name}, {extents[0]}, {extents[1]}]); "
                f"tc.store(s, b); tc.sync(); tc.{self.name}(acc, a, s)",
            )
        if not isinstance(b, SharedTileType):
            raise LayoutError(f"{self.name}: B is a shared tile, got b={b}")
        form = find_form(self.name, WGMMA, a, b, acc)
        check_shapes(self.name, acc, a, b)
        check_extents(self.name, form, acc, a.cols)
        check_registers(self.name, "acc", acc, "row", 4)
        if isinstance(a, RegTileType):
            check_registers(self.name, "A", a, "row", 4)
        check_saturation(self.name, form, self.saturate)
        check_major(self.name, form.mn_major, a, b)
        if self.signs != (1, 1) and not form.signs:
            raise DTypeError(
                f"{self.name}: only products of floats can be negated, got {form.a} x {form.b}",
                hint="negate the result, or subtract it",
            )
        try:
            self.descriptors()
        except LayoutError as error:  # K, or no swizzle
            text = error.message.removeprefix("descriptor: ")
            raise LayoutError(f"{self.name}: {text}", hint=error.hint) from None
        return ()

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
        """Fence, one `wgmma` a K step and 64 rows, commit: one group."""
        acc, a = self.acc.type, self.a.type
        assert isinstance(acc, RegTileType), "checked in infer"
        assert isinstance(a, RegTileType | SharedTileType), "checked in infer"
        form = w.mma_form(self, find_form(self.name, WGMMA, a, self.b.type, acc))
        left, right = self.descriptors()
        a_base = w.descriptor_base(self.a, left) if left else None
        b_base = w.descriptor_base(self.b, right)
        trailing = list(self.signs) if form.signs else []
        if form.mn_major:
            trailing += [int(d.major == "MN") for d in (left, right) if d is not None]
        blocks, steps = acc.rows // form.m, a.cols // form.k
        shape = f"m{form.m}n{acc.cols}k{form.k}"
        types = f"{form.accumulator}.{form.a}.{form.b}{'.satfinite' if self.saturate else ''}"
        dst = _blocks(w.regs(self.acc), blocks)
        held = () if left else w.regs(self.a)
        fragments = [_blocks(part, steps) for part in _blocks(held, blocks)] if held else []
        w.line(ptx.wgmma_fence())
        for block in range(blocks):
            for step in range(steps):
                if left:
                    first = w.descriptor(a_base, left, step, block * form.m)
                else:
                    first = fragments[block][step]
                second = w.descriptor(b_base, right, step)
                accumulate = w.predicate(True if step else self.accumulate)
                w.line(ptx.wgmma(shape, types, dst[block], first, second, accumulate, trailing))
        w.line(ptx.wgmma_commit_group())


def _blocks(registers: tuple[str, ...], count: int) -> list[tuple[str, ...]]:
    """Registers cut into equal parts, in order."""
    size = len(registers) // count
    return [registers[size * i : size * (i + 1)] for i in range(count)]


@dataclass(eq=False)
class MmaWait(Op):
    """Waits until at most `pending` of the warpgroup's mma are under way."""

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    pending: int = attribute(default=0)

    def emit(self, w: Any) -> None:
        """`wgmma.wait_group`."""
        w.line(ptx.wgmma_wait_group(self.pending))
