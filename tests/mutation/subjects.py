"""The kernels whose text is changed: small problems with several tasks, steps and ragged edges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import reference

from tilecat import sim
from tilecat.arch import DEFAULT_TARGET
from tilecat.binding import bind
from tilecat.codegen.module import PtxModule
from tilecat.errors import MachineError
from tilecat.kernels import KERNELS, KernelSpec
from tilecat.runtime import machine
from tilecat.runtime.arrays import view

CTAS = 2
# A right run takes at most 17,000 instructions a CTA; a wrong loop must end too.
LIMIT = 40_000
NO_OUTPUT = np.zeros(0, np.uint32)  # these kernels print nothing


@dataclass(frozen=True)
class Subject:
    """A compiled kernel on one problem.

    Args:
        name: as the tables show it.
        kernel: name of its `KernelSpec`.
        extents: of the problem.
        params: compile-time parameters.
        strided: arguments that TMA cannot reach: rows one element longer than the matrix.
        target: whose text it is.
        ctas: of the grid.
    """

    name: str
    kernel: str
    extents: tuple[tuple[str, int], ...]
    params: tuple[tuple[str, Any], ...]
    strided: tuple[int, ...] = ()
    target: str = DEFAULT_TARGET
    ctas: int = CTAS

    @cached_property
    def spec(self) -> KernelSpec:
        """The kernel and what there is to know of it."""
        return next(spec for spec in KERNELS if spec.name == self.kernel)

    def arguments(self) -> list[Any]:
        """Fresh arguments: the same inputs every time, outputs NaN."""
        args = self.spec.example(dict(self.extents))
        for index in self.strided:
            rows, cols = args[index].shape
            base = np.full((rows, cols + 1), np.nan, args[index].dtype)
            base[:, :cols] = args[index]
            args[index] = base[:, :cols]
        return args

    @cached_property
    def module(self) -> PtxModule:
        """The PTX module."""
        views = [_view(arg) for arg in self.arguments()]
        bound = bind(self.spec.kernel.signature, views, dict(self.params))
        return self.spec.kernel.specialize(bound.specialization, self.target).module

    @property
    def text(self) -> str:
        """The PTX text."""
        return self.module.text

    @cached_property
    def exact(self) -> tuple[reference.Reference, ...]:
        """What the outputs must be."""
        args = self.arguments()
        if self.kernel == "matmul":
            return (reference.matmul(*args[:2]),)
        return reference.attention(*args[:3], args[-1])

    def run(self, text: str, seed: int) -> tuple[sim.Result, str]:
        """Runs a text in place of the kernel's own.

        Returns:
            The machine's result, and what is wrong with the numbers ("" if they are right).

        Raises:
            MachineError: the machine cannot take the text.
        """
        args = self.arguments()
        views = [_view(arg) for arg in args]
        result = sim.run(
            text,
            grid=self.ctas,
            args=[machine.argument(param, views, NO_OUTPUT) for param in self.module.params],
            smem_bytes=self.module.smem_bytes,
            table=self.module.table,
            seed=seed,
            limit=LIMIT,
        )
        return result, self._wrong(args)

    def _wrong(self, args: list[Any]) -> str:
        for index, exact in zip(self.spec.outputs, self.exact, strict=True):
            try:
                reference.assert_close(args[index], exact, args[index].dtype)
            except AssertionError as error:
                return str(error)
        return ""


def _view(value: Any) -> Any:
    return value if isinstance(value, int | float) else view(value)


def _matmul(name: str, m: int, n: int, k: int, strided: tuple[int, ...] = (), **params: int):
    extents = (("M", m), ("N", n), ("K", k))
    return Subject(name, "matmul", extents, tuple(params.items()), strided)


def _attention(name: str, queries: int, keys: int, consumers: int):
    extents = (("B", 1), ("H", 2), ("Hkv", 1), ("Lq", queries), ("Lk", keys), ("D", 64))
    params = (("D", 64), ("consumers", consumers), ("pingpong", True))
    return Subject(name, "attention", extents, params)


# Four tasks for two CTAs each; the last rows, columns and steps are cut off by the edge.
SUBJECTS = (
    _matmul("matmul, 2 stages", 200, 200, 264, tile_m=128, tile_n=128, stages=2),
    _matmul("matmul, 4 stages", 200, 264, 392, tile_m=128, tile_n=192, stages=4),
    _matmul("matmul, threads", 200, 104, 136, (0, 2), tile_m=128, tile_n=64, stages=2),
    _attention("attention, 2 consumers", 200, 325, 2),
    _attention("attention, 3 consumers", 264, 325, 3),
)


@cache
def verdict(subject: Subject, text: str, seed: int) -> tuple[str, ...]:
    """How the machine finds a text: kinds of its reports, or `wrong result`, or nothing."""
    try:
        result, wrong = subject.run(text, seed)
    except MachineError:
        return ("refused",)
    kinds = tuple(sorted({report.kind for report in result.reports}))
    return kinds or (("wrong result",) if wrong else ())
