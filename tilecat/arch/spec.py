"""What an architecture is: limits and features as rows of data, each with its source."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ArchError


@dataclass(frozen=True)
class Limit:
    """A number of the hardware with its unit and source."""

    value: int
    unit: str
    source: str


# Instructions that multiply matrices: one of a warpgroup, asynchronous, and one of a warp.
WGMMA, MMA_SYNC = "wgmma", "mma.sync"


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
class Arch:
    """One target of the compiler.

    Args:
        name: e.g. `hopper`.
        target: ptxas target, e.g. `sm_90a`.
        ptx_version: the `.version` the generated text declares.
        features: names ops ask for, e.g. `wgmma`.
        limits: by name.
        mma_forms: matrix instructions of a warpgroup and of a warp.
    """

    name: str
    target: str
    ptx_version: str
    features: frozenset[str]
    limits: tuple[tuple[str, Limit], ...]
    mma_forms: tuple[MmaForm, ...]

    def limit(self, name: str) -> int:
        """Value of a limit."""
        return dict(self.limits)[name].value

    def mma_form(self, key: tuple[str, str, str, str]) -> MmaForm | None:
        """The matrix instruction with this key (instruction, A, B, accumulator), or None."""
        return next((form for form in self.mma_forms if form.key == key), None)

    def require(self, feature: str, op: str) -> None:
        """Raises ArchError unless the architecture has the feature."""
        if feature not in self.features:
            raise ArchError(f"{op}: needs {feature}, which {self.target} does not have")
