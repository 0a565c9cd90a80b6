"""`mma.sync` and `movmatrix`: one warp's matrices in register fragments. PTX ISA 9.7.14.5.

All shapes share one fragment layout. With lane = 4 g + t (g: group of 4 lanes, t: lane in it) and
e elements a register:

    A  register r, element j   row g + 8 (r mod M/8), column 4 e (r div M/8) + e t + j
    B  register r, element j   row 4 e r + e t + j,   column g
    C, D  element i            row g + 8 (i div 2),   column 2 t + (i mod 2)

This is 9.7.14.5.4 (m16n8k4), .7 (m16n8k8), .8 (m16n8k16, floats), .9 (m16n8k16, bytes), .11
(m16n8k32), .1-.3 (m8n8k4 f64, m8n8k16) written once. For m16n8k16 of f16 (e = 2), register 3 of A
holds rows g + 8 and columns 8 + 2 t, 9 + 2 t.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from tilecat.errors import MachineError
from tilecat.sim.fibers import Fiber, whole_warps
from tilecat.sim.parse import Instruction, Reg, Vec
from tilecat.sim.program import refuse
from tilecat.sim.table import NEXT, Row

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

LANES = 32
# Elements: PTX type -> NumPy dtype. A tf32 is an fp32 whose 13 low bits are not read.
ELEMENTS = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32), "f64": np.dtype(np.float64), "f32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "s8": np.dtype(np.int8), "u8": np.dtype(np.uint8), "s32": np.dtype(np.int32),
}  # fmt: skip
TF32_MASK = np.uint32(0xFFFFE000)
_BYTES, _FLOAT8 = ("s8", "u8"), ("e4m3", "e5m2")
# Shape -> multiplicand types and accumulator types that go with them. PTX ISA table 35 (shapes),
# 9.7.14.5.14 (mma); .satfinite is for integers.
SHAPES: dict[str, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = {
    "m8n8k4": ((("f64",), ("f64",)),),
    "m8n8k16": ((_BYTES, ("s32",)),),
    "m16n8k4": ((("tf32",), ("f32",)), (("f64",), ("f64",))),
    "m16n8k8": (
        (("f16",), ("f16", "f32")), (("bf16", "tf32"), ("f32",)), (("f64",), ("f64",)),
    ),
    "m16n8k16": (
        (("f16",), ("f16", "f32")), (("bf16",), ("f32",)), (("f64",), ("f64",)),
        (_BYTES, ("s32",)), (_FLOAT8, ("f16", "f32")),
    ),
    "m16n8k32": ((_BYTES, ("s32",)), (_FLOAT8, ("f16", "f32"))),
}  # fmt: skip
_OP = re.compile(
    r"mma\.sync\.aligned\.(m\d+n\d+k\d+)\.row\.col(\.rn)?(\.satfinite)?"
    r"\.(f16|f32|f64|s32)\.(\w+)\.(\w+)\.(f16|f32|f64|s32)"
)


@dataclass(frozen=True)
class Form:
    """A decoded `mma.sync`: extents, types of D, A, B and C, whether the sum saturates."""

    m: int
    n: int
    k: int
    d: str
    a: str
    b: str
    c: str
    saturate: bool

    def registers(self) -> tuple[int, int, int, int]:
        """Registers a thread of D, A, B and C: 64-bit ones for f64, else 32-bit."""
        width = 8 if self.a == "f64" else 4
        count = [self.m * self.n, self.m * self.k, self.n * self.k, self.m * self.n]
        sizes = [ELEMENTS[t].itemsize for t in (self.d, self.a, self.b, self.c)]
        return tuple(n * size // (LANES * width) for n, size in zip(count, sizes, strict=True))


def form_of(op: str) -> Form:
    """The form an opcode names.

    Raises:
        MachineError: shapes, types or modifiers that are not in the table.
    """
    match = _OP.fullmatch(op)
    if match is None or match[1] not in SHAPES:
        raise MachineError(f"mma: form not implemented: {op}")
    shape, rounding, saturate, d, a, b, c = match.groups()
    fits = any(a in types and b in types and d in sums and c in sums and (
        a == b or types in (_BYTES, _FLOAT8)) for types, sums in SHAPES[shape])  # fmt: skip
    if not fits or saturate and d != "s32" or rounding and d != "f64":
        raise MachineError(f"mma: types or modifiers do not go with {shape}: {op}")
    m, n, k = (int(x) for x in re.findall(r"\d+", shape))
    return Form(m, n, k, d, a, b, c, bool(saturate))


def _elements(registers: np.ndarray, kind: str) -> np.ndarray:
    """[registers, warps, 8, 4, elements a register]: the values of a fragment."""
    dtype = ELEMENTS[kind]
    if kind == "tf32":
        registers = registers & TF32_MASK
    values = np.ascontiguousarray(registers).view(dtype)
    return values.reshape(len(registers), -1, 8, 4, registers.itemsize // dtype.itemsize)


def _matrix_a(registers: np.ndarray, form: Form) -> np.ndarray:
    """[warps, M, K]."""
    values = _elements(registers, form.a)
    halves = form.m // 8
    split = values.reshape(-1, halves, *values.shape[1:])  # k block, half, warp, g, t, j
    return split.transpose(2, 1, 3, 0, 4, 5).reshape(values.shape[1], form.m, form.k)


def _matrix_b(registers: np.ndarray, form: Form) -> np.ndarray:
    """[warps, K, N]."""
    values = _elements(registers, form.b)  # k block, warp, g, t, j
    return values.transpose(1, 0, 3, 4, 2).reshape(values.shape[1], form.k, form.n)


def _matrix_c(registers: np.ndarray, form: Form, kind: str) -> np.ndarray:
    """[warps, M, N]."""
    values = _elements(registers, kind)
    if values.shape[-1] == 1:  # one element a register: two registers a row
        values = np.moveaxis(values[..., 0].reshape(form.m // 8, 2, *values.shape[1:4]), 1, -1)
    return values.transpose(1, 0, 2, 3, 4).reshape(values.shape[1], form.m, form.n)


def _fragment_d(matrix: np.ndarray, form: Form, width: int) -> np.ndarray:
    """[registers, threads] of unsigned words: the inverse of `_matrix_c`."""
    dtype = ELEMENTS[form.d]
    warps = len(matrix)
    split = matrix.astype(dtype).reshape(warps, form.m // 8, 8, 4, 2).transpose(1, 4, 0, 2, 3)
    if dtype.itemsize == width:
        return np.ascontiguousarray(split).view(f"u{width}").reshape(-1, warps * LANES)
    packed = np.ascontiguousarray(split.transpose(0, 2, 3, 4, 1)).view(f"u{width}")
    return packed.reshape(-1, warps * LANES)


def multiply(form: Form, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """D = A @ B + C on fragments.

    Args:
        form: from `form_of`.
        a, b, c: [registers, threads] of uint32 (uint64 for f64); whole warps, lane 0 first.

    Returns:
        D as c is given. Float sums are taken exactly and rounded once (hardware's order of
        addition is not public); integer sums wrap, or saturate with `.satfinite`.
    """
    wide = np.int64 if form.d == "s32" else np.float64
    x, y = _matrix_a(a, form).astype(wide), _matrix_b(b, form).astype(wide)
    with np.errstate(over="ignore", invalid="ignore"):
        z = x @ y + _matrix_c(c, form, form.c).astype(wide)
        if form.saturate:
            z = np.clip(z, -(2**31), 2**31 - 1)
        return _fragment_d(z, form, a.itemsize)


# ---- the instruction
def _decode(item: Instruction) -> tuple[Form, list[list[int]]]:
    """The form, and the register rows of D, A, B and C."""
    form = form_of(item.op)
    bank = "D" if form.a == "f64" else "R"
    rows = []
    for operand, count in zip(item.args, form.registers(), strict=True):
        registers = operand.items if isinstance(operand, Vec) else (operand,)
        good = all(isinstance(reg, Reg) and reg.bank == bank for reg in registers)
        if not good or len(registers) != count:
            raise refuse(item, f"{count} registers of {64 if bank == 'D' else 32} bits are wanted")
        rows.append([reg.row for reg in registers])
    return form, rows


def _mma(machine: Machine, fiber: Fiber, item: Instruction):
    """mma.sync: 9.7.14.5.14."""
    outcome = whole_warps(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    form, (d, a, b, c) = item.info
    bank = machine.registers.banks["D" if form.a == "f64" else "R"][:, fiber.lo : fiber.hi]
    bank[d] = multiply(form, bank[a], bank[b], bank[c])
    machine.stats[f"mma m{form.m}n{form.n}k{form.k}.{form.d}.{form.a}.{form.b}"] += 1
    return NEXT


def _movmatrix(machine: Machine, fiber: Fiber, item: Instruction):
    """movmatrix: 9.7.14.5.17. Lane 4 g + t holds row g, columns 2 t and 2 t + 1, before and after.

    The matrix that is held after is the transpose of the one before.
    """
    outcome = whole_warps(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    words = machine.values(item, item.args[1], "b32", fiber.lo, fiber.hi)
    matrices = np.ascontiguousarray(words).view(np.uint16).reshape(-1, 8, 8)
    turned = np.ascontiguousarray(matrices.transpose(0, 2, 1))
    if isinstance(item.args[0], Reg):
        target = machine.registers.raw(item.args[0], fiber.lo, fiber.hi)
        target[:] = turned.view(np.uint32).reshape(-1)
    return NEXT


_SHAPES = "(" + ",".join(f".{shape}" for shape in SHAPES) + ")"
_SUMS = "(.f16,.f32,.f64,.s32)"
_FACTORS = "(.f16,.bf16,.tf32,.f64,.e4m3,.e5m2,.s8,.u8)"
TABLE = (
    Row(f"mma.sync.aligned{_SHAPES}.row.col{{.rn}}{{.satfinite}}{_SUMS}{_FACTORS}{_FACTORS}{_SUMS}",
        "v vr vr v", _mma, "9.7.14.5.14", aligned=True, decode=_decode),
    Row("movmatrix.sync.aligned.m8n8.trans.b16", "r r", _movmatrix, "9.7.14.5.17", aligned=True),
)  # fmt: skip
