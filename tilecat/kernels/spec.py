"""What there is to know about a kernel besides its text: reference, work, shapes, configurations.

The command line, the benchmarks and the tests read it; a new kernel is a file and one row in
`product_specs` or `recurrence_specs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ..driver import KernelFunction
from ..dtypes import by_name
from ..errors import LayoutError
from .space import Space

Extents = Mapping[str, int]


@dataclass(frozen=True)
class Shape:
    """One problem size.

    Args:
        name: as tables show it, e.g. `4096^3`.
        items: extents by the kernel's names for them.
        group: the list it belongs to.
    """

    name: str
    items: tuple[tuple[str, int], ...]
    group: str = "peers"

    @property
    def extents(self) -> dict[str, int]:
        """Extents by name."""
        return dict(self.items)


@dataclass(frozen=True)
class Config:
    """One choice of compile-time parameters, with a name.

    Args:
        name: e.g. `128x256`.
        items: parameters; those that are extents too (`D`) say which problems it is for.
    """

    name: str
    items: tuple[tuple[str, Any], ...]

    @property
    def params(self) -> dict[str, Any]:
        """Parameters by name."""
        return dict(self.items)

    def fits(self, extents: Extents) -> bool:
        """Whether parameters that are extents agree with a problem's."""
        return all(extents.get(name, value) == value for name, value in self.items)


@dataclass(frozen=True)
class KernelSpec:
    """A kernel and the facts around it.

    Args:
        name: its name on the command line.
        kernel: the kernel.
        outputs: positions of the arguments it writes.
        make: (extents, dtype name, random generator) -> arguments, outputs still zero.
        reference: arguments -> expected outputs in float64 NumPy, in the order of `outputs`.
        flops: floating-point operations of a problem; a multiply-add counts two.
        num_bytes: (extents, bytes an element) -> fewest bytes through device memory: each input
            read once, each output written once.
        shapes: standard problems, of the comparison tables.
        small: extents of a run on the PTX machine that takes a fraction of a second.
        configs: named parameters; the first that fits a problem is its default.
        spaces: what a tuner may choose, by architecture.
    """

    name: str
    kernel: KernelFunction
    outputs: tuple[int, ...]
    make: Callable[[Extents, str, np.random.Generator], list[Any]]
    reference: Callable[..., tuple[np.ndarray, ...]]
    flops: Callable[[Extents], int]
    num_bytes: Callable[[Extents, int], int]
    shapes: tuple[Shape, ...]
    small: tuple[tuple[str, int], ...]
    configs: tuple[Config, ...]
    spaces: tuple[tuple[str, Space], ...] = ()

    def config(self, extents: Extents | None = None, name: str | None = None) -> Config:
        """The named configuration, or the first that fits the extents.

        Args:
            extents: of the problem; None for `small`.
            name: of the configuration, or None.

        Raises:
            LayoutError: none of that name, or none that fits.
        """
        wanted = dict(self.small) if extents is None else extents
        for config in self.configs:
            if config.name == name or name is None and config.fits(wanted):
                return config
        listing = "; ".join(config.name for config in self.configs)
        shown = ", ".join(f"{dim}={extent}" for dim, extent in wanted.items())
        raise LayoutError(
            f"{self.name}: no configuration "
            + (f"fits the extents {shown}" if name is None else f"is called {name!r}"),
            hint=f"there are {listing}",
        )

    def shape(self, name: str) -> Shape:
        """The standard problem of that name.

        Raises:
            LayoutError: there is none.
        """
        for shape in self.shapes:
            if shape.name == name:
                return shape
        listing = ", ".join(shape.name for shape in self.shapes)
        raise LayoutError(f"{self.name}: no shape {name!r}", hint=f"there are {listing}")

    def example(
        self, extents: Extents | None = None, *, dtype: str = "bf16", seed: int = 0
    ) -> list:
        """Arguments of a run on the PTX machine: normal random inputs, outputs all NaN.

        Args:
            extents: of the problem, all that the kernel names; what is missing is as in `small`.
            dtype: `bf16` or `f16`.
            seed: of the random numbers.

        Raises:
            LayoutError: an extent that the kernel does not have.
        """
        chosen = {**dict(self.small), **(extents or {})}
        unknown = set(chosen) - {name for name, _ in self.small}
        if unknown:
            known = ", ".join(name for name, _ in self.small)
            raise LayoutError(f"{self.name}: no extent {', '.join(sorted(unknown))}; has {known}")
        args = self.make(chosen, dtype, np.random.default_rng(seed))
        for index in self.outputs:
            args[index].fill(np.nan)
        return args

    def error(self, args: list[Any]) -> float:
        """Largest ||out - ref|| / ||ref|| of the outputs after a run; NaN never passes a limit.

        Compare with `rounding(dtype)`: one rounding of the result keeps each element within it.
        """
        worst = 0.0
        for index, expected in zip(self.outputs, self.reference(*args), strict=True):
            got = args[index].astype(np.float64)
            norm = float(np.linalg.norm(expected)) or 1.0
            worst = max(worst, float(np.linalg.norm(got - expected)) / norm, key=_nan_last)
        return worst


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def rounding(dtype: str) -> float:
    """Half a unit in the last place, relative: 2^-8 for bf16, 2^-11 for f16."""
    return float(ml_dtypes.finfo(by_name(dtype).numpy).eps) / 2


def normal(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Normal random numbers."""
    return generator.standard_normal(shape).astype(by_name(dtype).numpy)
