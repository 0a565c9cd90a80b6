"""Forms of tcgen05.mma: modifiers and operands. PTX ISA 9.4, 9.7.17.10.9.1.

Not implemented: .sp, .ws, .ashift, .decompress::lut::b.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilecat.sim.parse import Imm, Instruction, Mem, Vec
from tilecat.sim.program import refuse
from tilecat.sim.tensor_alloc import group_of

_MAX_SCALE = 15  # scale-input-d: D times 2 to the minus 0 to 15


@dataclass(frozen=True)
class Form:
    """A decoded mma.

    Args:
        kind: `.kind`.
        group: CTAs, 1 or 2.
        block: elements a scale, 0 without scales.
        from_memory: whether A lies in tensor memory.
        mask: words of disable-output-lane.
        scale: D is taken times 2 to the minus this.
        enable: operand enable-input-d.
        scales: addresses of the scales of A and B.
        collectors: what `.collector::a` and `::b` say.
    """

    kind: str
    group: int
    block: int
    from_memory: bool
    mask: tuple
    scale: int
    enable: object
    scales: tuple[Mem, ...]
    collectors: tuple[str, str]


def decode(item: Instruction) -> Form:
    """Modifiers and operands, checked against each other."""
    kind = next(mod for mod in item.mods if mod.startswith("kind::")).removeprefix("kind::")
    group, args = group_of(item), item.args[4:]
    mask, scales = (), ()
    from_memory = isinstance(item.args[1], Mem)
    if "block_scale" in item.mods:
        scales, args = item.args[4:6], args[2:]
        return Form(kind, group, _block(item), from_memory, (), 0, args[0], scales,
                    _collectors(item))  # fmt: skip
    if isinstance(args[0], Vec):
        mask, args = args[0].items, args[1:]
        if len(mask) != 4 * group:
            raise refuse(item, f"{4 * group} words of lanes are wanted")
    scale = 0
    if len(args) > 1:
        if not isinstance(args[1], Imm) or not 0 <= args[1].value <= _MAX_SCALE:
            raise refuse(item, f"D is scaled by a constant from 0 to {_MAX_SCALE}")
        if kind not in ("f16", "tf32"):
            raise refuse(item, "D is scaled for kinds f16 and tf32 only")
        scale = args[1].value
    return Form(kind, group, 0, from_memory, mask, scale, args[0], (), _collectors(item))


# Elements a scale by modifier and kind: 9.7.17.10.7.1, tables 59 and 60; .scale_vec::NX names the
# scales of 64 elements, of 32 for mxf8f6f4.
_BLOCKS = {
    "mxf8f6f4": {"": 32, "block32": 32, "scale_vec::1X": 32},
    "mxf4": {"": 32, "block32": 32, "scale_vec::2X": 32},
    "mxf4nvf4": {"block16": 16, "block32": 32, "scale_vec::4X": 16, "scale_vec::2X": 32},
}


def _block(item: Instruction) -> int:
    kind = next(mod for mod in item.mods if mod.startswith("kind::")).removeprefix("kind::")
    given = next((mod for mod in item.mods if mod.startswith(("block1", "block3", "scale_"))), "")
    found = _BLOCKS[kind].get(given)
    if found is None:
        wanted = ", ".join(f".{name}" for name in _BLOCKS[kind] if name)
        raise refuse(item, f"kind::{kind} has {wanted}")
    return found


def _collectors(item: Instruction) -> tuple[str, str]:
    """What an mma may do with the buffers of A and B; discard where nothing is said."""
    found = []
    for name in ("collector::a::", "collector::b::"):
        given = [mod.removeprefix(name) for mod in item.mods if mod.startswith(name)]
        found.append(given[0] if given else "discard")
    return found[0], found[1]


_MMA = "tcgen05.mma(.cta_group::1,.cta_group::2)"
_PLAIN = "(.kind::f16,.kind::tf32,.kind::f8f6f4)"
_SCALED = "(.kind::mxf8f6f4,.kind::mxf4,.kind::mxf4nvf4).block_scale"
_VECTORS = "(.scale_vec::1X,.scale_vec::2X,.scale_vec::4X)"
_USES = ("fill", "use", "lastuse", "discard")
_A, _B = (",".join(f".collector::{name}::{use}" for use in _USES) for name in "ab")
_BASE = (
    (f"{_MMA}{_PLAIN}", "m rm r r q i?", "tcgen05"),
    (f"{_MMA}{_PLAIN}", "m rm r r v q i?", "tcgen05"),
    (f"{_MMA}{_SCALED}{{.block16,.block32}}", "m rm r r m m q", "tcgen05"),
    (f"{_MMA}{_SCALED}{_VECTORS}", "m rm r r m m q", "scale-vec"),
    (f"{_MMA}.kind::i8", "m rm r r q", "i8"),
    (f"{_MMA}.kind::i8", "m rm r r v q", "i8"),
)
# Opcode, operand forms and feature of the target, as in rows of the instruction table.
FORMS = (
    *((f"{pattern}{{{_A}}}", operands, needs) for pattern, operands, needs in _BASE),
    *((f"{pattern}{{{_A}}}({_B})", operands, "collector-b") for pattern, operands, _ in _BASE),
)
