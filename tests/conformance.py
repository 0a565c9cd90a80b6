"""What the CASES tables cover: cases, forms of ops, op classes, opcodes.

    python tests/conformance.py              # counts by family
    python tests/conformance.py --opcodes    # and every opcode that was emitted

A case is a row of a table; its own test runs it and compares numbers. A form is one combination of
an op, the dtypes, shapes and layouts of its tiles, and the scope that executes it, as they stand in
the traced kernel of a case. Ops on scalars alone have no tile, and are counted among the op classes
only.
"""

from __future__ import annotations

import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cases as kernel_cases
import mma_cases
import numpy as np
import ops_cases
import table
import table_rows
from memory import test_memory

from tilecat import sim
from tilecat.binding import bind
from tilecat.driver import Compiled, KernelFunction
from tilecat.ir import Op
from tilecat.ops import ALL_OPS
from tilecat.tiles import PeerType, RegTileType, RegVecType, SharedTileType, SharedVecType

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs"))
from examples import FAMILIES, run  # noqa: E402

TARGET = "sm_90a"
TILES = (RegTileType, RegVecType, SharedTileType, SharedVecType, PeerType)
# Their `name` is the user's, not a function's.
UNNAMED = {"AllocShared", "AllocBarriers", "RoleSection"}
OPCODE = re.compile(r"^ +(?:@\S+ )?([a-z][\w.:]*)\b.*;", re.M)
Form = tuple[str, ...]


@dataclass(frozen=True)
class CaseTable:
    """One CASES table.

    Args:
        family: its name in the report.
        cases: its rows.
        compiled: a row's kernels, traced, checked and emitted.
        sample: of how many rows the short run takes one.
    """

    family: str
    cases: tuple[Any, ...]
    compiled: Callable[[Any], list[Compiled]]
    sample: int = 1


def compiled_on(
    kernel: KernelFunction, args: Iterable[Any], params: dict[str, Any]
) -> list[Compiled]:
    """A kernel as a call with these arrays makes it; not assembled."""
    bound = bind(kernel.signature, [kernel._view(arg) for arg in args], params)
    return [kernel.specialize(bound.specialization, TARGET)]


def _op(case: ops_cases.OpCase) -> list[Compiled]:
    arrays = ops_cases.operands()
    out = np.zeros((ops_cases.ROWS, ops_cases.COLS), np.float32)
    args = (arrays.X, arrays.Y, arrays.R, arrays.C, out, ops_cases.N, ops_cases.S)
    return compiled_on(ops_cases.kernel_of(case), args, {})


def _row_of_table(case: table.Case) -> list[Compiled]:
    found: list[Compiled] = []
    table.run(case, table.arrays_of(case), lambda k, *a: found.extend(compiled_on(k, a, {})))
    return found


def _mma(case: mma_cases.MmaCase) -> list[Compiled]:
    found: list[Compiled] = []
    mma_cases.run(case, mma_cases.arrays(case), lambda k, *a: found.extend(compiled_on(k, a, {})))
    return found


def _memory(case: Any) -> list[Compiled]:
    return compiled_on(case.kernel, case.arrays().values(), case.params)


def _kernel(case: kernel_cases.Case) -> list[Compiled]:
    return compiled_on(case.spec.kernel, kernel_cases.arguments(case), case.options)


def _example(pair: tuple[Any, Any]) -> list[Compiled]:
    example, family = pair
    with redirect_stdout(io.StringIO()):
        names = run(example, family.frame)
    kernels = (value for value in names.values() if isinstance(value, KernelFunction))
    return [compiled for kernel in kernels for compiled in kernel._compiled.values()]


TABLES = (
    CaseTable("maps, reductions, control", ops_cases.CASES, _op),
    CaseTable("ops on every dtype and scope", tuple(table_rows.CASES), _row_of_table, table.QUICK),
    CaseTable("matrix products", mma_cases.CASES, _mma, 16),
    CaseTable("memory and synchronisation", test_memory.CASES, _memory),
    CaseTable("shipped kernels", kernel_cases.CASES, _kernel),
    CaseTable(
        "examples of the reference",
        tuple((example, family) for family in FAMILIES for example in family.examples),
        _example,
    ),
)


def form_of(op: Op) -> Form | None:
    """The op, its tiles' types and its scope; None for an op without tiles."""
    values = (*op.operands(), *op.results)
    kinds = [value.type for value in values if isinstance(value.type, TILES)]
    if not kinds:
        return None
    described = [
        f"{kind} swizzle {kind.layout.swizzle_bytes}" if isinstance(kind, SharedTileType)
        else str(kind) for kind in kinds
    ]  # fmt: skip
    name = op.attributes().get("name", "")
    tensor = op.stores or op.loads
    place = [] if tensor is None else [f"{tensor.order} {'tma' if tensor.tma else 'strided'}"]
    named = name if isinstance(name, str) and type(op).__name__ not in UNNAMED else ""
    return (type(op).__name__, named, *described, *place, op.scope.value)


@dataclass
class Coverage:
    """What some cases exercise."""

    cases: int = 0
    forms: set[Form] = field(default_factory=set)
    ops: set[type[Op]] = field(default_factory=set)
    opcodes: Counter[str] = field(default_factory=Counter)

    def add(self, compiled: Compiled, decode: bool) -> None:
        """Counts a kernel; the PTX machine decodes its text where no test of its own does."""
        for op in compiled.kernel.body.walk():
            self.ops.add(type(op))
            form = form_of(op)
            if form is not None:
                self.forms.add(form)
        self.opcodes.update(OPCODE.findall(compiled.ptx))
        if decode:
            sim.parse(compiled.ptx)

    def merge(self, other: Coverage) -> None:
        """Adds another's."""
        self.cases += other.cases
        self.forms |= other.forms
        self.ops |= other.ops
        self.opcodes += other.opcodes


def coverage(*, short: bool = False) -> Iterator[tuple[str, Coverage]]:
    """By family, of all rows; of a sample for the short run."""
    for rows in TABLES:
        found = Coverage()
        for case in rows.cases[:: rows.sample if short else 1]:
            found.cases += 1
            for compiled in rows.compiled(case):
                found.add(compiled, decode=short)
        yield rows.family, found


def report(families: list[tuple[str, Coverage]], total: Coverage) -> str:
    """The counts as text."""
    lines = [f"{'family':32} {'cases':>7} {'forms':>7} {'op classes':>11} {'opcodes':>8}"]
    lines += [_row(family, found) for family, found in families]
    lines.append(_row("together", total))
    return "\n".join(lines)


def missing(total: Coverage) -> list[str]:
    """Op classes that no case exercises."""
    return [op.__name__ for op in ALL_OPS if op not in total.ops]


def together(families: list[tuple[str, Coverage]]) -> Coverage:
    """All of them."""
    total = Coverage()
    for _, found in families:
        total.merge(found)
    return total


def main(arguments: list[str]) -> None:
    """Print the counts."""
    families = list(coverage())
    total = together(families)
    print(report(families, total))
    print(f"op classes without a case: {', '.join(missing(total)) or 'none'}")
    if "--opcodes" in arguments:
        for name, count in sorted(total.opcodes.items()):
            print(f"{count:9} {name}")


def _row(name: str, found: Coverage) -> str:
    counts = len(found.forms), len(found.ops), len(found.opcodes)
    return f"{name:32} {found.cases:7} {counts[0]:7} {counts[1]:11} {counts[2]:8}"


if __name__ == "__main__":
    main(sys.argv[1:])
