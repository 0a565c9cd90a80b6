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


@dataclass(frozen=True)
class MmaForm:
    """One form of the warpgroup's matrix instruction, M = 64.

    Args:
        dtype: element type of A and B.
        accumulator: element type of D.
        k: K of one instruction, elements.
        types: as the instruction names them.
        max_n: N is a multiple of 8 up to this.
        source: where the manual lists it.
    """

    dtype: str
    accumulator: str
    k: int
    types: str
    max_n: int
    source: str


@dataclass(frozen=True)
class Arch:
    """One target of the compiler.

    Args:
        name: e.g. `hopper`.
        target: ptxas target, e.g. `sm_90a`.
        ptx_version: the `.version` the generated text declares.
        features: names ops ask for, e.g. `wgmma`.
        limits: by name.
        mma_forms: matrix instructions of a warpgroup.
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

    def mma_form(self, dtype: str, accumulator: str) -> MmaForm | None:
        """The matrix instruction for these types, or None."""
        wanted = (dtype, accumulator)
        return next((f for f in self.mma_forms if (f.dtype, f.accumulator) == wanted), None)

    def require(self, feature: str, op: str) -> None:
        """Raises ArchError unless the architecture has the feature."""
        if feature not in self.features:
            raise ArchError(f"{op}: needs {feature}, which {self.target} does not have")
