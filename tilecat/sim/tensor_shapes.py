"""The instruction descriptor of tcgen05.mma, and which shapes there are.

PTX ISA 9.4, 9.7.17.4.2 (bits), 9.7.17.2.1 (shapes), 9.7.17.10.1 (transpose, negate).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from tilecat.sim.parse import Instruction
from tilecat.sim.tensor_operands import ITEM_BYTES

if TYPE_CHECKING:
    from tilecat.sim.chips import Chip
    from tilecat.sim.core import Machine

_F8F6F4 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_BYTE_FLOATS = ("e4m3", "e5m2")
K_BYTES = 32  # every dense mma reads 32 bytes of K a row, wide K aside


@dataclass(frozen=True)
class Kind:
    """One `.kind`: codes of D, of A and B; whether scaled, and codes of the scales.

    Args:
        d_types: D type by bits 4 and 5; empty where those are an index of scales.
        elements: A and B types by code.
        scales: scale type by bits 23 and 24.
        transposes: whether MN-major operands exist.
        negates: whether operands can be negated.
    """

    d_types: dict[int, str]
    elements: dict[int, str]
    scales: dict[int, str]
    transposes: bool = True
    negates: bool = True


_FLOAT_D = {0: "f16", 1: "f32"}
KINDS = {
    "f16": Kind(_FLOAT_D, {0: "f16", 1: "bf16"}, {}),
    "tf32": Kind({1: "f32"}, {2: "tf32"}, {}),
    "f8f6f4": Kind(_FLOAT_D, _F8F6F4, {}),
    "i8": Kind({2: "s32"}, {0: "u8", 1: "s8"}, {}, negates=False),
    "mxf8f6f4": Kind({}, _F8F6F4, {1: "ue8m0"}),
    "mxf4": Kind({}, {1: "e2m1"}, {1: "ue8m0"}, transposes=False),
    "mxf4nvf4": Kind({}, {1: "e2m1"}, {0: "ue4m3", 1: "ue8m0"}, transposes=False),
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """A decoded instruction descriptor. M and N are those of all CTAs of the group.

    Args:
        kind: `.kind`.
        m: rows of D.
        n: columns of D.
        k: elements of K.
        d_type: type of D.
        a_type: type of A.
        b_type: type of B.
        signs: -1 for a negated operand, A and B.
        transposed: MN-major, A and B.
        saturate: integers saturate.
        padded: elements of 4 and 6 bits stand in shared memory with gaps.
        scale_type: type of the scales, empty without.
        scale_ids: first byte of the scales in a word, A and B.
        block: elements that one scale is for.
    """

    kind: str
    m: int
    n: int
    k: int
    d_type: str
    a_type: str
    b_type: str
    signs: tuple[int, int]
    transposed: tuple[bool, bool]
    saturate: bool = False
    padded: bool = True
    scale_type: str = ""
    scale_ids: tuple[int, int] = (0, 0)
    block: int = 0

    def k_bytes(self, kind: str) -> int:
        """Bytes of K in a row of shared memory."""
        if kind == "e2m1" and not self.padded:
            return self.k // 2
        if kind in ("e2m3", "e3m2") and not self.padded:
            return self.k * 6 // 8
        return self.k * ITEM_BYTES[kind]


def decode_shape(
    machine: Machine, item: Instruction, kind: str, group: int, block: int, bits: int
) -> Shape:
    """Every bit of an instruction descriptor; what the manual does not have is refused.

    Args:
        machine: the machine.
        item: the mma.
        kind: its `.kind`.
        group: CTAs, 1 or 2.
        block: elements a scale, 0 if the instruction does not say.
        bits: the descriptor.
    """
    key = ("idesc", kind, group, block, bits)
    found = machine.cache.get(key)
    if found is None:
        fail = _failure(machine, item, kind, bits)
        found = _decode(machine.program.module.chip, kind, block, bits, fail)
        _check_shape(found, group, fail)
        machine.cache[key] = found
    return found


def _failure(machine: Machine, item: Instruction, kind: str, bits: int) -> Callable[[str], None]:
    def fail(why: str) -> NoReturn:
        machine.fault(
            "tcgen05", item, f"instruction descriptor {bits:#010x} of kind::{kind}: {why}"
        )

    return fail


def _field(bits: int, low: int, width: int) -> int:
    return bits >> low & (1 << width) - 1


def _decode(chip: Chip, kind: str, block: int, bits: int, fail) -> Shape:
    row = KINDS[kind]
    if _field(bits, 0, 3):
        fail("a dense mma has bits 0 to 2 zero")
    b_width = 3 if row.transposes else 2  # bit 12 of mxf4 is not part of B's type
    a, b = _field(bits, 7, 3), _field(bits, 10, b_width)
    if a not in row.elements or b not in row.elements:
        fail(f"no such types of A and B: {a}, {b}")
    types = row.elements[a], row.elements[b]
    if kind == "f16" and types[0] != types[1]:
        fail("A and B are both f16 or both bf16")
    negate = _field(bits, 13, 1), _field(bits, 14, 1)
    transposed = bool(_field(bits, 15, 1)), bool(_field(bits, 16, 1))
    if any(negate) and not row.negates or any(transposed) and not row.transposes:
        fail("this kind has no negated, or no MN-major operands")
    for major, operand in zip(transposed, types, strict=True):
        if major and operand in ("e2m1", "e2m3", "e3m2"):
            fail(f"{operand} is K-major only")
    signs = 1 - 2 * negate[0], 1 - 2 * negate[1]
    shape = Shape(kind, 0, _field(bits, 17, 6) << 3, 0, "f32", *types, signs, transposed)
    if row.d_types:
        return _plain(chip, row, shape, bits, fail)
    return _scaled(chip, row, shape, block, bits, fail)


def _plain(chip: Chip, row: Kind, shape: Shape, bits: int, fail) -> Shape:
    """Bits of the kinds without scales: table 45."""
    kind = shape.kind
    if _field(bits, 6, 1) or _field(bits, 23, 1) or _field(bits, 30, 2):
        fail("bits 6, 23, 30 and 31 are zero")
    d = _field(bits, 4, 2)
    if d not in row.d_types:
        fail(f"no such type of D: {d}")
    if shape.a_type == "bf16" and row.d_types[d] == "f16":
        fail("bf16 has f32 accumulators")
    saturate, wide = bool(_field(bits, 3, 1)), bool(_field(bits, 29, 1))
    if saturate and kind != "i8":
        fail("saturation, bit 3, is for integers")
    shape = replace(shape, m=_field(bits, 24, 5) << 4, d_type=row.d_types[d], saturate=saturate,
                    k=K_BYTES // ITEM_BYTES[shape.a_type])  # fmt: skip
    if not wide:
        return shape
    if kind != "f8f6f4" or "wide-k" not in chip.features:
        fail(f"a wide K step, bit 29, of kind::{kind} on {chip.name}")
    if shape.a_type not in _BYTE_FLOATS or shape.b_type not in _BYTE_FLOATS:
        fail("a wide K step is for e4m3 and e5m2")
    return replace(shape, k=2 * shape.k)


def _scaled(chip: Chip, row: Kind, shape: Shape, block: int, bits: int, fail) -> Shape:
    """Bits of the kinds with scales: tables 46 and 47."""
    if _field(bits, 6, 1) or _field(bits, 25, 1):
        fail("bits 6 and 25 are zero")
    if _field(bits, 26, 1):
        fail("scales of A in 128 lanes, bit 26, are not implemented")
    scale = _field(bits, 23, 2)
    if scale not in row.scales:
        fail(f"no such type of scales: {scale}")
    shape = replace(shape, m=_field(bits, 27, 2) << 7, scale_type=row.scales[scale],
                    scale_ids=(_field(bits, 29, 2), _field(bits, 4, 2)))  # fmt: skip
    if shape.kind == "mxf8f6f4":
        shape = _mxf8(chip, shape, bits, fail)
    else:
        shape = _mxf4(chip, shape, block, bits, fail)
    return shape


def _mxf8(chip: Chip, shape: Shape, bits: int, fail) -> Shape:
    wide = _field(bits, 31, 1)
    if _field(bits, 3, 1):
        fail("bit 3 is zero")
    if wide and "wide-k" not in chip.features:
        fail(f"a wide K step, bit 31, on {chip.name}")
    # Two scales a row at K = 64: CuTe and Triton; the manual's table 59 has one.
    shape = replace(shape, k=64 if wide else 32, padded=not wide, block=32)
    if wide and any(index % 2 for index in shape.scale_ids):
        fail(f"indices of two scales are 0 or 2, got {shape.scale_ids}")
    return shape


def _mxf4(chip: Chip, shape: Shape, block: int, bits: int, fail) -> Shape:
    code = _field(bits, 31, 1) | _field(bits, 3, 1) << 1
    # The version of the sparsity format: CuTe sets it for Rubin in dense mma too, Triton does not.
    if _field(bits, 12, 1) and "wide-k" not in chip.features:
        fail("bit 12 is zero")
    needed = {0: "tcgen05", 1: "k96", 2: "wide-k"}.get(code)
    if needed is None or needed not in chip.features:
        fail(f"K by bits 31 and 3, {code}, on {chip.name}")
    shape = replace(shape, k={0: 64, 1: 96, 2: 128}[code], padded=False, block=block or 32)
    if shape.scale_type == "ue4m3" and shape.block != 16:
        fail("ue4m3 scales are for blocks of 16")
    count = shape.k // shape.block
    step = {3: 1, 6: 2, 2: 2}.get(count, 4)  # 9.7.17.10.7.2: byte, half word or word
    if any(index % step for index in shape.scale_ids):
        fail(f"indices of {count} scales a row: {shape.scale_ids}")
    return shape


def _check_shape(shape: Shape, group: int, fail) -> None:
    """M and N: 9.7.17.2.1, table 42; 9.7.17.10.1, table 55.

    At M = 128 of one CTA the table has steps of 8, as CuTe DSL 4.8 does, and for f8f6f4 both 8 and
    16, of which 64 and 128 rows are taken to have one each. CUTLASS asserts 16 everywhere. K = 96
    and the wide steps are for pairs in the table, for one CTA in CuTe and Triton too.
    """
    m, n = shape.m, shape.n
    heights = (64, 128) if group == 1 else (128, 256)
    if shape.scale_type:
        heights = (128 * group,)
    step = 16 if group == 2 or shape.kind == "f8f6f4" and m == 128 else 8
    if shape.kind == "i8":
        step = max(step, 16 if n > 32 else 8) if group == 1 else 32
    if shape.transposed[1] and ITEM_BYTES[shape.b_type] == 1:
        step = max(step, 16 * group)
    wide = shape.kind == "f8f6f4" and shape.k == 64
    if wide:
        heights = (128 * group,)
    if m not in heights or n % step or not step <= n <= 256:
        fail(f"M of {' or '.join(map(str, heights))}, N a multiple of {step} up to 256 are wanted "
             f"for .cta_group::{group}, got M={m}, N={n}")  # fmt: skip
