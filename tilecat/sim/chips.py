"""What the machine knows of a target: features, tensor memory, shared memory. PTX ISA 11.1.2.

A target with `a` has the features of its chip alone, one with `f` those of its family, a plain one
neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilecat.errors import MachineError

_NEWEST = (9, 5)  # the newest `.version` that ptxas 13.5 takes

# Largest block: 227 KB for compute capability 9.0 and 10.x (CUDA programming guide, technical
# specifications); 327 KB in Rubin's oversized mode (334848 bytes in CuTe DSL 4.8's table).
_SHARED_BYTES, _OVERSIZED_BYTES = 232448, 334848


@dataclass(frozen=True)
class Chip:
    """One `.target`.

    Args:
        name: as `.target` writes it.
        since: first `.version` that has it.
        features: what rows of the instruction table and descriptors ask for.
        tensor_columns: columns of tensor memory that one allocation can have.
        exclusive_columns: the same for an exclusive allocation.
        shared_bytes: most shared memory of a CTA.
        address_bits: width of the address fields of a shared-memory descriptor, in 16 bytes.
    """

    name: str
    since: tuple[int, int]
    features: frozenset[str] = frozenset()
    tensor_columns: int = 0
    exclusive_columns: int = 0
    shared_bytes: int = _SHARED_BYTES
    address_bits: int = 14


def _features(text: str) -> frozenset[str]:
    return frozenset(text.split())


# PTX ISA 9.4, target notes of each instruction. What a family has, each of its chips has.
_SINCE_100 = "since-100 launch-control"  # no suffix is needed: 9.7.3.6, 9.7.14.18
_FAMILY_100 = f"{_SINCE_100} tcgen05 setmaxnreg redux-f32"
_FAMILY_103 = f"{_FAMILY_100} ld.red"
_FAMILY_107 = f"{_FAMILY_103} collector-b early-a wide-k mask-32b exclusive"
_CHIP = "shift scale-vec"
_RUBIN = {
    "tensor_columns": 512, "exclusive_columns": 576, "shared_bytes": _OVERSIZED_BYTES,
    "address_bits": 15,
}  # fmt: skip
CHIPS = (
    Chip("sm_90a", (8, 0), _features("wgmma setmaxnreg")),
    Chip("sm_100a", (8, 6), _features(f"{_FAMILY_100} {_CHIP} i8"), 512),
    Chip("sm_100f", (8, 8), _features(_FAMILY_100), 512),
    Chip("sm_103a", (8, 8), _features(f"{_FAMILY_103} {_CHIP} k96 absolute"), 512),
    Chip("sm_103f", (8, 8), _features(_FAMILY_103), 512),
    Chip("sm_107a", (9, 4), _features(f"{_FAMILY_107} {_CHIP} k96 absolute"), **_RUBIN),
    Chip("sm_107f", (9, 4), _features(_FAMILY_107), **_RUBIN),
)  # fmt: skip
_BY_NAME = {chip.name: chip for chip in CHIPS}
_PLAIN = dict.fromkeys(("sm_100", "sm_103", "sm_107"), _SINCE_100)


def chip_of(target: str, version: tuple[int, int]) -> Chip:
    """The chip that a module is for.

    Args:
        target: what `.target` says, options included.
        version: what `.version` says.

    Raises:
        MachineError: a target that is not known, or a version that does not have it.
    """
    name = target.split(",")[0].strip()
    chip = _BY_NAME.get(name)
    if chip is None:
        if not re.fullmatch(r"sm_\d+", name):
            known = ", ".join(chip.name for chip in CHIPS)
            raise MachineError(f"parse: a target without suffix, or one of {known}, got {name!r}")
        chip = Chip(name, (1, 0), _features(_PLAIN.get(name, "")))
    if not chip.since <= version <= _NEWEST:
        first, last, got = (".".join(map(str, v)) for v in (chip.since, _NEWEST, version))
        raise MachineError(f"parse: {name} has .version {first} to {last}, got version={got}")
    return chip
