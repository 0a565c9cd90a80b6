"""tcgen05's descriptors: 64 bits say where an operand lies, 32 bits what is multiplied.

ptxas checks neither: they are numbers at run time. Each field here is a row of its bits, so that
`decode(encode(x)) == x`, and a value that its field does not hold is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..errors import LayoutError


@dataclass(frozen=True)
class Bits:
    """A field of a descriptor.

    Args:
        low: its lowest bit.
        width: bits.
        shift: how many low bits of the value are not kept, as they are 0.
        codes: what its numbers stand for; empty: the number itself.
    """

    low: int
    width: int
    shift: int = 0
    codes: tuple[tuple[object, int], ...] = ()

    def put(self, name: str, value: object) -> int:
        """The field with a value in it.

        Raises:
            LayoutError: the value is none of its own.
        """
        if self.codes:
            known = dict(self.codes)
            if value not in known:
                legal = ", ".join(str(v) for v in known)
                raise LayoutError(f"descriptor: {name} is one of {legal}, got {name}={value!r}")
            return known[value] << self.low
        number = int(value)  # type: ignore[call-overload]
        unit, most = 1 << self.shift, ((1 << self.width) - 1) << self.shift
        if number % unit or not 0 <= number <= most:
            raise LayoutError(
                f"descriptor: {name} is a multiple of {unit} from 0 to {most}, "
                f"got {name}={value!r}",
                hint=f"the nearest legal {name} is {min(most, max(0, number) // unit * unit)}",
            )
        return number >> self.shift << self.low

    def get(self, name: str, bits: int) -> object:
        """The value in the field.

        Raises:
            LayoutError: a code that stands for nothing.
        """
        number = bits >> self.low & (1 << self.width) - 1
        if not self.codes:
            return number << self.shift
        for value, code in self.codes:
            if code == number:
                return value
        raise LayoutError(f"descriptor: no {name} has the code {number}")


def _encode(rows: dict[str, Bits], record: object) -> int:
    """The fields of a record; those without a row must have their default."""
    found = 0
    for spec in fields(record):  # type: ignore[arg-type]
        value = getattr(record, spec.name)
        if spec.name in rows:
            found |= rows[spec.name].put(spec.name, value)
        elif spec.name not in ("kind", "accumulator") and value != spec.default:
            raise LayoutError(
                f"descriptor: kind::{getattr(record, 'kind', '')} has no {spec.name}, "
                f"got {spec.name}={value!r}"
            )
    return found


# ---- operands in shared memory: PTX ISA 9.7.16.4.1, shared memory descriptor

VERSION = 1 << 46  # bits 46-48 are 0b001
_FLAG = ((False, 0), (True, 1))
# Start and leading offset have 15 bits from PTX 9.4 on: Rubin's shared memory passes 256 KiB.
_SHARED = {
    "address": Bits(0, 15, 4),
    "leading_bytes": Bits(16, 15, 4),
    "stride_bytes": Bits(32, 14, 4),
    "base_offset": Bits(49, 3),
    "absolute": Bits(52, 1, codes=_FLAG),
    "lut_half": Bits(53, 1),
    "swizzle_bytes": Bits(61, 3, codes=((0, 0), (128, 2), (64, 4), (32, 6), ("128 by 32", 1))),
}


@dataclass(frozen=True)
class SharedDescriptor:
    """Where an operand lies, in bytes.

    Example: a K-major bf16 tile with rows of 128 bytes at 0x400 has the stride 1024, from 8 rows
    to the next 8: 0x4000404000000040.

    Args:
        address: start, a multiple of 16.
        leading_bytes: LBO.
        stride_bytes: SBO.
        base_offset: 0 where the swizzle pattern starts on its own multiple.
        absolute: LBO is an address (sm_103a and later).
        lut_half: which half of a block of indices (Rubin).
        swizzle_bytes: 0, 32, 64, 128, or "128 by 32", whose atoms have 32 bytes.
    """

    address: int
    leading_bytes: int
    stride_bytes: int
    base_offset: int = 0
    absolute: bool = False
    lut_half: int = 0
    swizzle_bytes: int | str = 128

    def encode(self) -> int:
        """The 64 bits.

        Raises:
            LayoutError: a value that its field does not hold.
        """
        return VERSION | _encode(_SHARED, self)

    @staticmethod
    def decode(bits: int) -> SharedDescriptor:
        """The fields of 64 bits.

        Raises:
            LayoutError: bits 46 to 48 are not 0b001, or no swizzle has the code.
        """
        if bits >> 46 & 7 != 1:
            raise LayoutError(f"descriptor: bits 46-48 are 0b001, got {bits:#x}")
        return SharedDescriptor(**{n: row.get(n, bits) for n, row in _SHARED.items()})  # type: ignore[arg-type]


# ---- what is multiplied: PTX ISA 9.7.16.4.2, instruction descriptor

_HALF = (("f16", 0), ("bf16", 1))
_TF32 = (("tf32", 2),)
_NARROW = (("e4m3", 0), ("e5m2", 1), ("e2m3", 3), ("e3m2", 4), ("e2m1", 5))
_BYTE = (("u8", 0), ("s8", 1))
_NIBBLE = (("e2m1", 1),)
_FLOATS = (("f16", 0), ("f32", 1))


def _dense(
    types: tuple[tuple[str, int], ...], sums: tuple[tuple[str, int], ...]
) -> dict[str, Bits]:
    return {
        "selector": Bits(0, 2),
        "sparse": Bits(2, 1, codes=_FLAG),
        "accumulator": Bits(4, 2, codes=sums),
        "a": Bits(7, 3, codes=types),
        "b": Bits(10, 3, codes=types),
        "negate_a": Bits(13, 1, codes=_FLAG),
        "negate_b": Bits(14, 1, codes=_FLAG),
        "a_mn_major": Bits(15, 1, codes=_FLAG),
        "b_mn_major": Bits(16, 1, codes=_FLAG),
        "n": Bits(17, 6, 3),
        "m": Bits(24, 5, 4),
        "max_shift": Bits(30, 2),
    }


_SCALED = {
    "sparse": Bits(2, 1, codes=_FLAG),
    "sfb_id": Bits(4, 2),
    "negate_a": Bits(13, 1, codes=_FLAG),
    "negate_b": Bits(14, 1, codes=_FLAG),
    "n": Bits(17, 6, 3),
    "sfa_lanes": Bits(26, 1, codes=((32, 0), (128, 1))),
    "m": Bits(27, 2, 7),
    "sfa_id": Bits(29, 2),
}
_FOUR_BITS = _SCALED | {
    "a": Bits(7, 3, codes=_NIBBLE),
    "b": Bits(10, 2, codes=_NIBBLE),
    "version": Bits(12, 1),
    "scale": Bits(23, 2, codes=(("ue4m3", 0), ("ue8m0", 1), ("ue5m3", 2))),
}
_ROWS: dict[str, dict[str, Bits]] = {
    "f16": _dense(_HALF, _FLOATS),
    "tf32": _dense(_TF32, (("f32", 1),)),
    "f8f6f4": _dense(_NARROW, _FLOATS) | {"wide_k": Bits(29, 1, codes=_FLAG)},
    "i8": _dense(_BYTE, (("s32", 2),)) | {"saturate": Bits(3, 1, codes=_FLAG)},
    "mxf8f6f4": _SCALED
    | {
        "a": Bits(7, 3, codes=_NARROW),
        "b": Bits(10, 3, codes=_NARROW),
        "a_mn_major": Bits(15, 1, codes=_FLAG),
        "b_mn_major": Bits(16, 1, codes=_FLAG),
        "scale": Bits(23, 1, codes=(("ue8m0", 1),)),
        "wide_k": Bits(31, 1, codes=_FLAG),
    },
    # Two bits of K lie apart: bit 31 says 96, bit 3 says 128.
    "mxf4": _FOUR_BITS
    | {"wide_k": Bits(3, 1, codes=_FLAG), "k_96": Bits(31, 1, codes=_FLAG)},
}  # fmt: skip
_ROWS["mxf4nvf4"] = _ROWS["mxf4"]
KINDS = tuple(_ROWS)


@dataclass(frozen=True)
class InstructionDescriptor:
    """What a tcgen05.mma multiplies; its K is the kind's own, unless the descriptor says more.

    Example: bf16 x bf16 -> f32, M = 128, N = 256 is 0x08400490.

    Args:
        kind: `f16`, `tf32`, `f8f6f4`, `i8`, `mxf8f6f4`, `mxf4`, `mxf4nvf4`.
        a: element type of A.
        b: element type of B.
        m: rows, of both CTAs of a pair together.
        n: columns.
        accumulator: element type of D; kinds with scales have f32.
        a_mn_major: M is contiguous in A, not K.
        b_mn_major: N is contiguous in B, not K.
        negate_a: -A.
        negate_b: -B.
        saturate: s32 sums do not wrap.
        sparse: A has its non-zero elements alone.
        selector: of the sparse metadata.
        wide_k: the K step of 64 bytes (sm_107a).
        k_96: the K step of 48 bytes (sm_103a, sm_107a).
        max_shift: of `.ws`.
        scale: element type of the scales.
        sfa_id: which byte or half of a word has A's scales.
        sfb_id: the same for B.
        sfa_lanes: lanes that A's scales take, 32 or (sm_107a) 128.
        version: of the sparsity format.
    """

    kind: str
    a: str
    b: str
    m: int
    n: int
    accumulator: str = "f32"
    a_mn_major: bool = False
    b_mn_major: bool = False
    negate_a: bool = False
    negate_b: bool = False
    saturate: bool = False
    sparse: bool = False
    selector: int = 0
    wide_k: bool = False
    k_96: bool = False
    max_shift: int = 0
    scale: str = ""
    sfa_id: int = 0
    sfb_id: int = 0
    sfa_lanes: int = 32
    version: int = 0

    def encode(self) -> int:
        """The 32 bits.

        Raises:
            LayoutError: a field that the kind does not have, or a value that it does not hold.
        """
        if self.kind not in _ROWS:
            raise LayoutError(
                f"descriptor: kind is one of {', '.join(_ROWS)}, got kind={self.kind!r}"
            )
        rows = _ROWS[self.kind]
        if "accumulator" not in rows and self.accumulator != "f32":
            raise LayoutError(
                f"descriptor: sums of kind::{self.kind} are f32, "
                f"got accumulator={self.accumulator!r}"
            )
        if self.wide_k and self.k_96:
            raise LayoutError("descriptor: K is 96 or the wide step, got both")
        return _encode(rows, self)

    @staticmethod
    def decode(kind: str, bits: int) -> InstructionDescriptor:
        """The fields of 32 bits, as an instruction of that kind reads them.

        Raises:
            LayoutError: bits that the kind does not read are set, or a code stands for nothing.
        """
        rows = _ROWS[kind]
        read = 0
        for row in rows.values():
            read |= (1 << row.width) - 1 << row.low
        if bits & ~read:
            raise LayoutError(f"descriptor: kind::{kind} has no bits {bits & ~read:#x}")
        found = {name: row.get(name, bits) for name, row in rows.items()}
        return InstructionDescriptor(kind=kind, **found)  # type: ignore[arg-type]
