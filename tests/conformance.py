"""What the CASES tables cover: cases, forms of ops, op classes, opcodes.

    python tests/conformance.py              # counts by family
    python tests/conformance.py --opcodes    # and every opcode that was emitted

A case is a row of a table; its own test runs it and compares numbers. A form is one combination of
an op, the dtypes, shapes and layouts of its tiles, and the scope that executes it: declared, as the
cases of the two large tables say it, and traced, as they stand in the kernel of a case. Ops on
scalars alone have no tile, and are counted among the op classes only.
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
import scaled_cases
import table
import table_rows
import tensor_cases
from memory import test_memory

from tilecat import sim
from tilecat.binding import bind
from tilecat.driver import Compiled, KernelFunction
from tilecat.ir import Op
from tilecat.ops import ALL_OPS
from tilecat.tiles import (
    PeerType,
    RegTileType,
    RegVecType,
    SharedTileType,
    SharedVecType,
    TensorScalesType,
    TensorTileType,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs"))
from examples import FAMILIES, run  # noqa: E402

TARGET = "sm_90a"
TILES = (RegTileType, RegVecType, SharedTileType, SharedVecType, PeerType, TensorTileType,
         TensorScalesType)  # fmt: skip
# Their `name` is the user's, not a function's.
UNNAMED = {"AllocShared", "AllocBarriers", "RoleSection", "AllocTensor"}
OPCODE = re.compile(r"^ +(?:@\S+ )?([a-z][\w.:]*)\b.*;", re.M)
Form = tuple[str, ...]


@dataclass(frozen=True)
class CaseTable:
    """One CASES table.

    Args:
        family: its name in the report.
        cases: its rows.
        compiled: a row's kernels, traced, checked and emitted.
        sample: the rows of the short run.
        declared: the form that a row names; None where rows are whole kernels.
    """

    family: str
    cases: tuple[Any, ...]
    compiled: Callable[[Any], list[Compiled]]
    sample: tuple[Any, ...]
    declared: Callable[[Any], Form] | None = None

    @property
    def forms(self) -> set[Form]:
        """The forms that its cases declare."""
        return {self.declared(case) for case in self.cases} if self.declared else set()


def compiled_on(
    kernel: KernelFunction, args: Iterable[Any], params: dict[str, Any], target: str = TARGET
) -> list[Compiled]:
    """A kernel as a call with these arrays makes it; not assembled."""
    bound = bind(kernel.signature, [kernel._view(arg) for arg in args], params)
    return [kernel.specialize(bound.specialization, target)]


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


def _tensor(case: tensor_cases.TensorCase) -> list[Compiled]:
    args = tensor_cases.call_arrays(case, tensor_cases.arrays(case))
    return compiled_on(tensor_cases.kernel_of(case), args, {}, case.target)


def _scaled(case: scaled_cases.ScaledCase) -> list[Compiled]:
    args = scaled_cases.call_arrays(case, scaled_cases.operands(case))
    return compiled_on(scaled_cases.kernel_of(case), args, {}, case.target)


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


EXAMPLES = tuple((example, family) for family in FAMILIES for example in family.examples)
# Synchronisation by hand, debugging, loads of tensor memory: few cases of the tables have them.
RARE = ("by hand", "debug", "Tensor memory")
BY_HAND = tuple(pair for pair in EXAMPLES if any(word in pair[1].title for word in RARE))

TABLES = (
    CaseTable("maps, reductions, control", ops_cases.CASES, _op, ops_cases.CASES[::4]),
    CaseTable("ops on every dtype and scope", tuple(table_rows.CASES), _row_of_table,
              tuple(table_rows.CASES[:: table.QUICK]), lambda case: case.form),
    CaseTable("matrix products", mma_cases.CASES, _mma, mma_cases.CASES[::16],
              lambda case: case.described),
    CaseTable("products in tensor memory", tensor_cases.CASES, _tensor,
              (*tensor_cases.CASES[::8], tensor_cases.CONTROLLED[0]),
              lambda case: case.described),
    CaseTable("products with scales", scaled_cases.CASES, _scaled, scaled_cases.CASES[::24],
              lambda case: case.described),
    CaseTable("memory and synchronisation", test_memory.CASES, _memory,
              tuple(test_memory.FAMILIES.values())),
    CaseTable("shipped kernels", kernel_cases.CASES, _kernel, kernel_cases.CASES[::4]),
    CaseTable("examples of the reference", EXAMPLES, _example, EXAMPLES[::4] + BY_HAND),
)  # fmt: skip


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
    undeclared: list[str] = field(default_factory=list)  # cases that are not what they declare

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
        self.undeclared += other.undeclared


def coverage(*, short: bool = False) -> Iterator[tuple[str, Coverage]]:
    """By family, of all rows; of a sample for the short run."""
    for rows in TABLES:
        found = Coverage()
        for case in rows.sample if short else rows.cases:
            found.cases += 1
            for compiled in rows.compiled(case):
                found.add(compiled, decode=short)
                if rows.declared and not shows(rows.declared(case), compiled):
                    found.undeclared.append(str(case))
        yield rows.family, found


def declared() -> tuple[str, int]:
    """Cases and declared forms by table, as text; the number of different forms."""
    rows = [(table.family, len(table.cases), table.forms) for table in TABLES]
    together = set().union(*(forms for _, _, forms in rows))
    rows.append(("together", sum(cases for _, cases, _ in rows), together))
    lines = [f"{family:32} {cases:7} {len(forms) or '':>7}" for family, cases, forms in rows]
    return "\n".join([f"{'family':32} {'cases':>7} {'forms':>7}", *lines]), len(together)


def shows(form: Form, compiled: Compiled) -> bool:
    """Whether a kernel has a value of the type, and an op at the scope, that its case declares."""
    ops = list(compiled.kernel.body.walk())
    types = {str(value.type) for op in ops for value in (*op.operands(), *op.results)}
    return form[-2] in types and form[-1] in {op.scope.value for op in ops}


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
