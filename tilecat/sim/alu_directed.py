"""ALU table, float32 arithmetic rounded towards zero or an infinity. PTX ISA 9.7.3.

The result is rounded to nearest first; whether it lies above or below the exact value is then
found without error, and it moves by one unit where its mode wants the other neighbour. Products of
two float32 are exact in float64, sums are kept with their rounding error (Knuth's two-sum), and
quotients and roots are compared by multiplying back.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tilecat.sim.alu_types import AluRow, choose, flush

MODES = ("rz", "rm", "rp")
_ONE = np.ones(1, np.float32)


def _excess_of_sum(near: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sign of near - (a + b), for float64 addends."""
    total = a + b
    rest = total - a
    error = (a - (total - rest)) + (b - rest)
    return np.where(near != total, np.sign(near - total), -np.sign(error))


def _add(a, b):
    wide = a.astype(np.float64), b.astype(np.float64)
    near = a + b
    return near, _excess_of_sum(near.astype(np.float64), *wide)


def _multiply(a, b):
    exact = a.astype(np.float64) * b.astype(np.float64)
    near = exact.astype(np.float32)
    return near, np.sign(near.astype(np.float64) - exact)


def _fused(a, b, c):
    product, wide = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    near = (product + wide).astype(np.float32)
    return near, _excess_of_sum(near.astype(np.float64), product, wide)


def _divide(a, b):
    near, wide = a / b, b.astype(np.float64)
    return near, np.sign(near.astype(np.float64) * wide - a.astype(np.float64)) * np.sign(wide)


def _root(a):
    near = np.sqrt(a)
    return near, np.sign(near.astype(np.float64) ** 2 - a.astype(np.float64))


def towards(mode: str, near: np.ndarray, excess: np.ndarray) -> np.ndarray:
    """The neighbour of `near` that the mode wants; `excess` is the sign of near - exact."""
    finite = np.isfinite(excess) & ~np.isnan(near)
    down = (excess > 0) & ((mode == "rm") | (mode == "rz") & (near > 0))
    up = (excess < 0) & ((mode == "rp") | (mode == "rz") & (near < 0))
    low, high = np.float32(-np.inf), np.float32(np.inf)
    moved = np.where(down & finite, np.nextafter(near, low), near)
    return np.where(up & finite, np.nextafter(near, high), moved).astype(np.float32)


def _zero_sum(mode: str, value: np.ndarray, excess: np.ndarray, *addends: np.ndarray):
    """A sum that is exactly zero is -0 when rounding down, unless both addends are +0."""
    if mode != "rm":
        return value
    positive = np.logical_and.reduce([(x == 0) & ~np.signbit(x) for x in addends])
    return np.where((value == 0) & (excess == 0) & ~positive, np.float32(-0.0), value)


def _apply(base: str, mode: str, ftz: bool, sat: bool, *srcs):
    if ftz:
        srcs = tuple(flush(source) for source in srcs)
    if base == "sub":
        srcs, base = (srcs[0], -srcs[1]), "add"
    function = {"add": _add, "mul": _multiply, "fma": _fused, "mad": _fused, "div": _divide,
                "rcp": lambda a: _divide(_ONE, a), "sqrt": _root}[base]  # fmt: skip
    near, excess = function(*srcs)
    value = towards(mode, near, excess)
    if base == "add":
        value = _zero_sum(mode, value, excess, *srcs)
    if base in ("fma", "mad"):
        value = _zero_sum(mode, value, excess, srcs[0] * srcs[1], srcs[2])
    if ftz:
        value = flush(value)
    return np.where(np.isnan(value), 0, np.clip(value, 0, 1)) if sat else value


_SOURCES = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "mad": 3, "div": 2, "rcp": 1, "sqrt": 1}


def _directed(base: str, mods: list[str]) -> AluRow | None:
    """add, sub, mul, fma, mad, div, rcp, sqrt of f32 with .rz, .rm or .rp."""
    mode = choose(mods, *MODES)
    ftz, sat = bool(choose(mods, "ftz")), bool(choose(mods, "sat"))
    if mode is None or mods != ["f32"] or sat and base in ("div", "rcp", "sqrt"):
        return None
    function = partial(_apply, base, mode, ftz, sat)
    return AluRow("f32", ("f32",) * _SOURCES[base], function, "9.7.3")


DIRECTED_FAMILIES = dict.fromkeys(_SOURCES, _directed)
