"""ALU table, pairs of float32: add, sub, mul, fma of f32x2. PTX ISA 9.7.3.3 to 9.7.3.6."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from tilecat.sim.alu_directed import DIRECTED_FAMILIES
from tilecat.sim.alu_float import FLOAT_FAMILIES
from tilecat.sim.alu_types import AluRow


def _halves(row: AluRow, *srcs: np.ndarray) -> np.ndarray:
    """The row of one float32, done with both."""
    parts = [np.ascontiguousarray(x).view(np.float32) for x in np.broadcast_arrays(*srcs)]
    if row.into:
        out = np.empty_like(parts[0])
        row.apply(*parts, out)
    else:
        out = np.ascontiguousarray(row.apply(*parts).astype(np.float32))
    return out.view(np.uint64)


def _pair(base: str, mods: list[str]) -> AluRow | None:
    """The f32 form with the same modifiers; there is no .sat."""
    if mods[-1] != "f32x2" or "sat" in mods:
        return None
    for families in (FLOAT_FAMILIES, DIRECTED_FAMILIES):
        row = families[base](base, [*mods[:-1], "f32"])
        if row is not None:
            return replace(row, dst="b64", srcs=("b64",) * len(row.srcs), into=False,
                           apply=partial(_halves, row), needs="since-100")  # fmt: skip
    return None


PAIR_FAMILIES = dict.fromkeys(("add", "sub", "mul", "fma"), _pair)
