"""What an architecture is: limits and features as rows of data, each with its source."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ArchError

# How a number is known: from the manuals of a chip, from a measurement on one, from a
# manufacturer's announcement alone, or not at all: as on the chip before it.
DOCUMENTED, MEASURED, ANNOUNCED, ASSUMED = "documented", "measured", "announced", "assumed"


@dataclass(frozen=True)
class Limit:
    """A number of the hardware with its unit, its source, and how it is known."""

    value: int
    unit: str
    source: str
    known: str = DOCUMENTED


# Instructions that multiply matrices: one of a warpgroup, asynchronous; one of a warp; one of a
# single thread, asynchronous, with its sums in tensor memory.
WGMMA, MMA_SYNC, TCGEN05 = "wgmma", "mma.sync", "tcgen05.mma"


@dataclass(frozen=True)
class MmaForm:
    """One form of a matrix instruction: D = A B + D on a block of M x N x K.

    Args:
        instruction: WGMMA or MMA_SYNC.
        a: element type of A.
        b: element type of B.
        accumulator: element type of D.
        m: rows of one instruction.
        n: its legal numbers of columns, ascending.
        k: its depth, elements.
        source: where the manual lists it.
        mn_major: whether operands in shared memory may have M or N contiguous instead of K.
        signs: whether it can negate A and B.
        version: the first `.version` of PTX that has it.
    """

    instruction: str
    a: str
    b: str
    accumulator: str
    m: int
    n: tuple[int, ...]
    k: int
    source: str
    mn_major: bool = False
    signs: bool = False
    version: str = "8.0"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells it from the others."""
        return (self.instruction, self.a, self.b, self.accumulator)

    def __str__(self) -> str:
        """`wgmma e4m3 x e5m2 -> f32`."""
        return f"{self.instruction} {self.a} x {self.b} -> {self.accumulator}"


@dataclass(frozen=True)
class TensorShape:
    """M of a tcgen05.mma and its legal N.

    Args:
        ctas: CTAs that multiply together, 1 or 2 (`.cta_group`).
        m: rows, of both CTAs together.
        n: legal numbers of columns, ascending.
    """

    ctas: int
    m: int
    n: tuple[int, ...]


@dataclass(frozen=True)
class TensorForm:
    """One form of tcgen05.mma: D = A B + D, D in tensor memory.

    Args:
        kind: `f16`, `tf32`, `f8f6f4`, `i8`, `mxf8f6f4`, `mxf4`, `mxf4nvf4`.
        a: element type of A.
        b: element type of B.
        accumulator: element type of D.
        k: depth of one instruction, elements.
        shapes: legal M and N.
        source: where the manual lists it.
        wide_k: depth of the wide K step, 0 where there is none.
        wide_shapes: legal M and N of the wide K step.
        block: elements of K that share a scale, 0 without scales.
        scale: element type of the scales.
        mn_major: whether operands in shared memory may have M or N contiguous instead of K.
        signs: whether it can negate A and B.
    """

    kind: str
    a: str
    b: str
    accumulator: str
    k: int
    shapes: tuple[TensorShape, ...]
    source: str
    wide_k: int = 0
    wide_shapes: tuple[TensorShape, ...] = ()
    block: int = 0
    scale: str = ""
    mn_major: bool = False
    signs: bool = True

    @property
    def key(self) -> tuple[str, str, str, str, int, str]:
        """What tells it from the others."""
        return (self.kind, self.a, self.b, self.accumulator, self.block, self.scale)

    def columns(self, m: int, ctas: int = 1) -> tuple[int, ...]:
        """Legal N of an M, ascending; empty for an M that it does not have."""
        return self._columns(self.shapes, m, ctas)

    def wide_columns(self, m: int, ctas: int = 1) -> tuple[int, ...]:
        """Legal N of an M with the wide K step, ascending; empty where it has none."""
        return self._columns(self.wide_shapes, m, ctas)

    @staticmethod
    def _columns(shapes: tuple[TensorShape, ...], m: int, ctas: int) -> tuple[int, ...]:
        return next((s.n for s in shapes if (s.ctas, s.m) == (ctas, m)), ())

    def __str__(self) -> str:
        """`tcgen05.mma kind::f16 bf16 x bf16 -> f32`."""
        return f"{TCGEN05} kind::{self.kind} {self.a} x {self.b} -> {self.accumulator}"


@dataclass(frozen=True)
class Arch:
    """One target of the compiler.

    Args:
        name: e.g. `hopper`.
        target: ptxas target, e.g. `sm_90a`.
        ptx_version: the `.version` the generated text declares.
        features: names ops ask for, e.g. `wgmma`.
        limits: by name.
        mma_forms: matrix instructions of a warpgroup and of a warp.
        tensor_forms: matrix instructions with sums in tensor memory.
        rates: by name, what one GPU of it does in a second, and what it has of the units that do.
    """

    name: str
    target: str
    ptx_version: str
    features: frozenset[str]
    limits: tuple[tuple[str, Limit], ...]
    mma_forms: tuple[MmaForm, ...]
    tensor_forms: tuple[TensorForm, ...] = ()
    rates: tuple[tuple[str, Limit], ...] = ()

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability of its GPUs: (10, 3) of `sm_103a`."""
        major, minor = divmod(int(self.target.removeprefix("sm_").rstrip("af")), 10)
        return major, minor

    def limit(self, name: str) -> int:
        """Value of a limit."""
        return dict(self.limits)[name].value

    def rate(self, name: str) -> Limit:
        """A rate and how it is known.

        Raises:
            ArchError: a rate that nobody has given for it.
        """
        found = dict(self.rates).get(name)
        if found is None:
            known = ", ".join(name for name, _ in self.rates) or "none"
            raise ArchError(f"rates: of {self.target} are known {known}, got {name!r}")
        return found

    def knows(self, name: str) -> bool:
        """Whether it has a limit of that name."""
        return name in dict(self.limits)

    def tensor_form(self, a: str, b: str, accumulator: str) -> TensorForm | None:
        """The tcgen05.mma without scales for these types, or None."""
        types = (a, b, accumulator)
        plain = (form for form in self.tensor_forms if not form.block)
        return next((f for f in plain if (f.a, f.b, f.accumulator) == types), None)

    def mma_form(self, key: tuple[str, str, str, str]) -> MmaForm | None:
        """The matrix instruction with this key (instruction, A, B, accumulator), or None."""
        return next((form for form in self.mma_forms if form.key == key), None)

    def require(self, feature: str, op: str, hint: str | None = None) -> None:
        """Raises ArchError unless the architecture has the feature."""
        if feature not in self.features:
            raise ArchError(f"{op}: needs {feature}, which {self.target} does not have", hint=hint)
