"""tcgen05.mma: issued by one thread, operands in shared memory, sums in tensor memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..arch import ARCHS, TensorForm
from ..errors import DTypeError, LayoutError
from ..ir import Access, Block, Effect, Op, Scope, Value, attribute, operand, region
from ..layouts import MatrixDescriptor, matrix_descriptor
from ..ptx import instructions as ptx
from ..ptx import tensor as ptx_tensor
from ..ptx.tensor_descriptors import InstructionDescriptor
from ..tiles import SUMS, SharedTileType, TensorScalesType, TensorTileType, TileType
from .mma import check_major, check_saturation, check_shapes, pick_form
from .scalar import Operand
from .sync import barrier_of
from .tensor_scales import (
    PADDED,
    check_k_contiguous,
    check_wide_scales,
    per_byte,
    place_of,
    scaled_form,
)

# Forms some architecture has; the target's own are asked where the op is recorded.
TENSOR_FORMS: tuple[TensorForm, ...] = tuple(
    {f.key: f for a in ARCHS for f in a.tensor_forms if not f.block}.values()
)


# One thread issues. Of a warp it is an elected lane: then ptxas (13.5) knows that control and
# descriptors are uniform in the warp; of one thread by its number it makes a loop around each
# product that moves its operands to uniform registers.
ISSUERS = (Scope.THREAD, Scope.WARP)
# Registers with an operand's descriptor at a step; at None, with what those of all steps share.
STEP_COLUMNS = 8  # of tensor memory, that a K step of 32 bytes takes of an A
Made = dict[tuple[Value, int | None], str]


def check_tensor_extents(
    name: str, form: TensorForm, acc: TensorTileType, depth: int, ctas: int
) -> None:
    """Whole instructions: M, N and K.

    Raises:
        LayoutError: an extent that no instruction has.
    """
    legal, m = form.columns(acc.rows * ctas, ctas), acc.rows * ctas
    if acc.cols not in legal:
        low = max((n for n in legal if n < acc.cols), default=legal[0])
        high = min((n for n in legal if n > acc.cols), default=legal[-1])
        raise LayoutError(
            f"{name}: N of a tcgen05.mma with M={m}{' of a pair' * (ctas - 1)} on {form.a} is "
            f"{legal[0]} to "
            f"{legal[-1]} in steps of {legal[-1] - legal[-2]}, got N={acc.cols}",
            hint=f"nearest legal: {low}" + f" and {high}" * (high != low),
        )
    if depth % form.k:
        low = depth // form.k * form.k
        raise LayoutError(
            f"{name}: K of a tcgen05.mma on {form.a} is a multiple of {form.k}, got K={depth}",
            hint=f"nearest legal: {low or form.k} and {low + form.k}",
        )


def check_places(name: str, acc: TensorTileType, a: Any, b: Any, *, scaled: bool) -> None:
    """B lies in shared memory; A too, or in tensor memory if it has no scales.

    Raises:
        DTypeError: an accumulator that holds no sums.
        LayoutError: operands elsewhere.
    """
    if not acc.is_sums:
        raise DTypeError(
            f"{name}: sums in tensor memory are {', '.join(SUMS[:-1])} or {SUMS[-1]}, "
            f"got acc={acc}",
            hint=f'tt[tc.f32, {acc.rows}, {acc.cols}]; of f16 tt[tc.f16, rows, cols, "sums"]',
        )
    for which, kind in (("A", a), ("B", b)):
        held = isinstance(kind, TensorTileType) and which == "A" and not scaled
        if not held and not isinstance(kind, SharedTileType):
            with_scales = " with scales" * scaled
            also = ", or in tensor memory" if which == "A" and not scaled else ""
            raise LayoutError(
                f"{name}: {which} of a tcgen05.mma{with_scales} lies in shared memory{also}, "
                f"got {which.lower()}={kind}",
                hint="s = tc.shared(...); tc.store(s, tile); tc.fence_async()",
            )


def check_wide_step(
    name: str, form: TensorForm, acc: TensorTileType, a: SharedTileType | TensorTileType,
    b: SharedTileType, ctas: int,
) -> None:  # fmt: skip
    """A K step of 64 bytes: its types, its rows, and tiles whose lines hold whole ones.

    Raises:
        DTypeError: types that have none.
        LayoutError: rows, K or a swizzle that it does not go with.
    """
    if not form.wide_k or PADDED in (a.dtype.name, b.dtype.name):
        raise DTypeError(
            f"{name}: a wide K step is for e4m3 and e5m2, got a={form.a}, b={form.b}",
            hint="wide_k=False: K steps of 32 bytes",
        )
    each = per_byte(form)
    if (depth := a.cols * each) % form.wide_k:
        raise LayoutError(
            f"{name}: with a wide K step K is a multiple of {form.wide_k}, got K={depth}",
            hint=f"the nearest legal K is {max(1, round(depth / form.wide_k)) * form.wide_k}",
        )
    check_wide_scales(name, form, acc)
    step_bytes = form.wide_k // each * a.dtype.nbytes
    for which, kind in (("A", a), ("B", b)):
        if isinstance(kind, SharedTileType) and kind.layout.swizzle_bytes < step_bytes:
            raise LayoutError(
                f"{name}: a wide K step reads {step_bytes} bytes of a line, got {which.lower()}="
                f"{kind} with a swizzle of {kind.layout.swizzle_bytes} bytes",
                hint="a swizzle of 64 or 128 bytes",
            )
    if not form.wide_columns(acc.rows * ctas, ctas):
        rows = ", ".join(str(shape.m) for shape in form.wide_shapes if shape.ctas == 1)
        raise LayoutError(
            f"{name}: with a wide K step M is {rows}, got M={acc.rows}",
            hint="an even number of consumers of 64 rows, whose tiles of A lie one behind the "
            "other; or wide_k=False",
        )


@dataclass(eq=False)
class TensorMma(Op):
    """`acc = A @ B + acc` (or `acc = A @ B`), asynchronous: a `Commit` signals that it is done.

    Args:
        acc: M x N sums in tensor memory, M 64 or 128.
        a: M x K tile in shared memory (for the `At` forms, its transpose), or in tensor memory.
        b: K x N tile in shared memory (for the `Bt` forms, its transpose); of a pair of CTAs, the
            N/2 columns that this one has.
        accumulate: True, False, or a run-time predicate.
        signs: 1 or -1 for A and for B.
        saturate: s32 sums do not wrap.
        wide_k: 64 bytes of K an instruction, not 32.
        scale_a: scales of A's blocks of K in tensor memory; None for a product without.
        scale_b: scales of B's.
        ctas: 2: the even CTA of a pair issues for both, each of which has M rows of A and of the
            sums.
    """

    verb: ClassVar[str] = "{name}"
    scopes: ClassVar[tuple[Scope, ...]] = ISSUERS
    name: str = attribute()
    acc: Value = operand()
    a: Value = operand()
    b: Value = operand()
    accumulate: Value | bool = operand()
    signs: tuple[int, int] = attribute(default=(1, 1))
    saturate: bool = attribute(default=False)
    wide_k: bool = attribute(default=False)
    scale_a: Value | None = operand(default=None)
    scale_b: Value | None = operand(default=None)
    ctas: int = attribute(default=1)

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; shapes, dtypes and layouts must fit an instruction."""
        acc, a, b = self.acc.type, self.a.type, self.b.type
        assert isinstance(acc, TensorTileType), "chosen by its type"
        check_places(self.name, acc, a, b, scaled=self.scale_a is not None)
        assert isinstance(a, SharedTileType | TensorTileType), "checked"
        assert isinstance(b, SharedTileType), "checked"
        if self.scale_a is not None and isinstance(a, SharedTileType):
            check_k_contiguous(self.name, a, b)
        check_shapes(self.name, acc, a, replace(b, cols=b.cols * self.ctas))
        form = self.form
        if self.wide_k:
            check_wide_step(self.name, form, acc, a, b, self.ctas)
        depth = a.cols * per_byte(form)
        check_tensor_extents(self.name, form, acc, depth, self.ctas)
        check_saturation(self.name, form, self.saturate)
        check_major(self.name, b.dtype.bits == 16, a, b)
        if self.signs != (1, 1) and not form.signs:
            raise DTypeError(
                f"{self.name}: only products of floats can be negated, got {form.a} x {form.b}",
                hint="negate the result, or subtract it",
            )
        self.descriptors()
        return ()

    @property
    def form(self) -> TensorForm:
        """The instruction."""
        a, b, acc = self.a.type, self.b.type, self.acc.type
        if self.scale_a is None or self.scale_b is None:
            return pick_form(self.name, TENSOR_FORMS, a, b, acc)
        assert isinstance(a, SharedTileType) and isinstance(b, SharedTileType), "checked in infer"
        assert isinstance(acc, TensorTileType), "chosen by its type"
        return scaled_form(self.name, a, b, acc, (self.scale_a.type, self.scale_b.type))

    def descriptors(self) -> tuple[MatrixDescriptor | None, MatrixDescriptor]:
        """How A and B are walked; None for an A in tensor memory."""
        a, b = self.a.type, self.b.type
        assert isinstance(b, SharedTileType), "checked in infer"
        try:
            return (
                matrix_descriptor(a.layout, "A") if isinstance(a, SharedTileType) else None,
                matrix_descriptor(b.layout, "B"),
            )
        except LayoutError as error:  # K, or no swizzle
            text = error.message.removeprefix("descriptor: ")
            raise LayoutError(f"{self.name}: {text}", hint=error.hint) from None

    def instruction(self, step: int = 0) -> InstructionDescriptor:
        """What is multiplied in a K step, as the instruction's 32 bits say it."""
        form, (left, right) = self.form, self.descriptors()
        acc = self.acc.type
        assert isinstance(acc, TensorTileType), "chosen by its type"
        place = place_of(form, step)[1] if form.block else 0
        return InstructionDescriptor(
            form.kind, form.a, form.b, acc.rows * self.ctas, acc.cols, form.accumulator,
            a_mn_major=left is not None and left.major == "MN", b_mn_major=right.major == "MN",
            negate_a=self.signs[0] < 0, negate_b=self.signs[1] < 0, saturate=self.saturate,
            wide_k=self.wide_k,
            scale=form.scale, sfa_id=place, sfb_id=place,
        )  # fmt: skip

    def effects(self) -> tuple[Effect, ...]:
        """Reads A, B and scales and writes the sums, all until a commit's arrival."""
        scales = [scale for scale in (self.scale_a, self.scale_b) if scale is not None]
        return (
            *(Effect(Access.ASYNC_READ, value, "async") for value in (self.a, self.b, *scales)),
            Effect(Access.ASYNC_WRITE, self.acc, "async"),
        )

    @property
    def steps(self) -> range:
        """Where its instructions begin, in units of 32 bytes of K."""
        return range(0, self.descriptors()[1].num_k_steps, 1 + self.wide_k)

    def emit(self, w: Any) -> None:
        """One `tcgen05.mma` a K step."""
        made: Made = {}
        self.begin(w, made)
        for step in self.steps:
            self.issue(w, made, step)

    def begin(self, w: Any, made: Made) -> None:
        """What all steps' descriptors begin with, where it is not made."""
        for tile, descriptor in zip((self.a, self.b), self.descriptors(), strict=True):
            if descriptor is not None and (tile, None) not in made:
                made[tile, None] = w.operand_base(tile, descriptor)

    def issue(self, w: Any, made: Made, step: int, collectors: str = "") -> None:
        """The `tcgen05.mma` of one step, with descriptors where they are not made."""
        form, what = self.form, w.instruction_descriptor(self.instruction(step))
        sums, issuer = w.text(w.address(self.acc)), w.issuer(self.scope)
        for tile, descriptor in zip((self.a, self.b), self.descriptors(), strict=True):
            if (tile, step) not in made and descriptor is None:
                made[tile, step] = f"[{w.text(w.address(tile), step * STEP_COLUMNS)}]"
            elif (tile, step) not in made:
                made[tile, step] = w.operand(made[tile, None], descriptor, step)
        a, b = made[self.a, step], made[self.b, step]
        accumulate = w.predicate(True if step else self.accumulate)
        if not form.block:
            kind = f"{form.kind}{collectors}"
            text = ptx_tensor.mma(kind, sums, a, b, what, accumulate, ctas=self.ctas)
            w.line(text, issuer)
            return
        w.need_version("8.8")  # of .block16 and .block32
        places = self._scale(w, self.scale_a, step), self._scale(w, self.scale_b, step)
        kind = f"{form.kind}.block_scale.block{form.block}{collectors}"
        text = ptx_tensor.mma_scaled(kind, sums, a, b, what, places, accumulate, ctas=self.ctas)
        w.line(text, issuer)

    def _scale(self, w: Any, scale: Value | None, step: int) -> str:
        """The address of the word with a K step's scales."""
        assert scale is not None and isinstance(scale.type, TensorScalesType), "checked in infer"
        word, _ = place_of(self.form, step)
        return str(w.text(w.address(scale), word * scale.type.word_columns))


@dataclass(eq=False)
class Collected(Op):
    """Products, one K step of each in turn; an operand that neighbours share is read once.

    Args:
        products: `TensorMma`s of equal depth, nothing else.
        collectors: whose collector keeps an operand from one instruction to the next: "a", "b".
    """

    scopes: ClassVar[tuple[Scope, ...]] = ISSUERS
    products: Block = region()
    collectors: str = attribute()

    @property
    def parts(self) -> list[TensorMma]:
        """Its products."""
        return [op for op in self.products.ops if isinstance(op, TensorMma)]

    def emit(self, w: Any) -> None:
        """`tcgen05.mma` with `.collector::x::fill`, `use` and `lastuse`."""
        parts = self.parts
        made: Made = {}
        for part in parts:
            part.begin(w, made)
        for step in parts[0].steps:
            for index, part in enumerate(parts):
                w.at(part.loc)
                part.issue(w, made, step, self._uses(index))

    def _uses(self, index: int) -> str:
        """Modifiers of a product: its collectors take an operand over, keep it, or both."""
        parts, found = self.parts, ""
        for which in self.collectors:
            near = [index > 0 and shares(parts[index - 1], parts[index], which)]
            near.append(index + 1 < len(parts) and shares(parts[index], parts[index + 1], which))
            use = {(False, True): "fill", (True, True): "use", (True, False): "lastuse"}
            if any(near):
                found += f".collector::{which}::{use[near[0], near[1]]}"
        return found


def shares(one: TensorMma, other: TensorMma, which: str) -> bool:
    """Whether two products have the same tile as A ("a") or as B ("b")."""
    return getattr(one, which) is getattr(other, which)


@dataclass(eq=False)
class Commit(Op):
    """One arrival on `barriers[index]`, when all products issued by this thread so far are done.

    Args:
        barriers: the mbarriers.
        index: which of them.
        ranks: CTAs of the cluster whose mbarrier arrives, as bits; None for this one.
        early_a: when all of them have read their A, which may then be overwritten; it says nothing
            of B and of the sums.
    """

    verb: ClassVar[str] = "mma_commit"
    scopes: ClassVar[tuple[Scope, ...]] = ISSUERS
    barriers: Value = operand()
    index: Operand = operand()
    ranks: Operand | None = operand(default=None)
    early_a: bool = attribute(default=False)

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; who waits on the barrier is told of products."""
        barrier_of(self.barriers).tensor = True
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Signals the barrier."""
        return (Effect(Access.WRITE, self.barriers),)

    def emit(self, w: Any) -> None:
        """`tcgen05.commit`."""
        address, issuer = w.barrier(self.barriers, self.index), w.issuer(self.scope)
        if self.ranks is None:
            w.line(ptx_tensor.commit(address, ctas=w.cta_group, early_a=self.early_a), issuer)
            return
        mask = w.new("b16", "ranks")
        w.line(ptx.alu("cvt.u16.u32", mask, w.src(self.ranks, "u32")))
        text = ptx_tensor.commit_multicast(
            address, mask, ctas=w.cta_group, early_a=self.early_a
        )
        w.line(text, issuer)


@dataclass(eq=False)
class ElectIssuer(Op):
    """The lane that issues the warp's products from here on."""

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARP,)

    def emit(self, w: Any) -> None:
        """`elect.sync`, once for the block and what it holds."""
        w.issuer(self.scope)
