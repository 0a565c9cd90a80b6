"""ALU table, float32 arithmetic of sm_100 and later: pairs, and operands of 16 bits.

PTX ISA 9.7.3.3 to 9.7.3.6 (f32x2), 9.7.5 (mixed precision).
"""

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
    row = None if "sat" in mods else _single(base, [*mods[:-1], "f32"])
    if row is None:
        return None
    return replace(row, dst="b64", srcs=("b64",) * len(row.srcs), into=False,
                   apply=partial(_halves, row), needs="since-100")  # fmt: skip


def _single(base: str, mods: list[str]) -> AluRow | None:
    """The row of the f32 form."""
    rows = (families[base](base, [*mods]) for families in (FLOAT_FAMILIES, DIRECTED_FAMILIES))
    return next((row for row in rows if row is not None), None)


def _widened(row: AluRow, *srcs: np.ndarray) -> np.ndarray:
    """The row of float32 with operands converted to it, which is exact."""
    wide = [np.ascontiguousarray(x).astype(np.float32) for x in np.broadcast_arrays(*srcs)]
    if not row.into:
        return row.apply(*wide)
    out = np.empty_like(wide[0])
    row.apply(*wide, out)
    return out


def _mixed(base: str, mods: list[str]) -> AluRow | None:
    """D = a + c, a - c, a b + c with a and b of 16 bits: 9.7.5.1 to 9.7.5.3. There is no .ftz."""
    row = _single(base, mods[:-1]) if base != "mul" and "ftz" not in mods else None
    if row is None or mods[-2] != "f32":
        return None
    srcs = (mods[-1],) * (len(row.srcs) - 1) + ("f32",)
    return replace(row, srcs=srcs, into=False, apply=partial(_widened, row), needs="since-100",
                   longer=None)  # fmt: skip


def _form(base: str, mods: list[str]) -> AluRow | None:
    if mods[-1] == "f32x2":
        return _pair(base, mods)
    return _mixed(base, mods) if mods[-1] in ("f16", "bf16") and len(mods) > 1 else None


PAIR_FAMILIES = dict.fromkeys(("add", "sub", "mul", "fma"), _form)
