"""Runs of adjacent values of a thread from and to a tensor: 16 bytes an access, each masked.

For plain vectors, and tiles held for memory (`rt[bf16, 16, 64, "row", 8]`), where the tensor's
contiguous axis begins and ends at multiples of 16 bytes: then a run is inside or outside as a
whole.
"""

from __future__ import annotations

from typing import Any

from ..dtypes import DType
from ..ptx import instructions as ptx
from ..ptx import transfers
from ..tiles import RegTileType, RegVecType
from .elements import pack, unpack, whole_registers
from .places import Place, Steps
from .ranges import span

Kind = RegTileType | RegVecType
ACCESS_BYTES = 16  # ld.global.v4.b32
REGISTER_BYTES = 4


def run_of(op: Any, kind: RegVecType, dtype: DType) -> int:
    """Elements of a run that one access moves; 1 where they move one by one.

    Args:
        op: the access, a `GlobalAccess`.
        kind: the vector's type.
        dtype: of the tensor's elements.
    """
    most = ACCESS_BYTES // dtype.nbytes
    near, axes = op.arg.contiguous, op.axes or (op.arg.type.rank - 1,)
    if kind.run < most or not op.arg.tma or axes[0] != near or near in op.reverse:
        return 1
    cut = op.bounds[2 * near : 2 * near + 2] if op.bounds else (None, None)
    known = tuple(cut) == (None, None) and op.together % most == 0
    return most if known and not op.gathered and op.arg.ends_whole else 1


def in_masked_runs(op: Any, kind: Kind) -> bool:
    """Whether runs are masked one by one: of vectors, and of tiles that are held for memory."""
    if isinstance(kind, RegVecType):
        return True
    return kind.kept is not None and bool(op.arg.ends_whole)


def inside_along(op: Any, kind: Kind, threads: int) -> bool:
    """Whether all elements are known to be inside along the contiguous axis."""
    near, axes = op.arg.contiguous, op.axes or tuple(range(op.arg.type.rank))[-len(kind.shape) :]
    extent = dict(zip(axes, kind.shape, strict=True))[near]
    limit = op.arg.static[near] if op.arg.static else None
    known = span(op.coords[near], threads)
    return (limit is not None and known is not None and known[0] >= 0
            and known[1] + extent <= limit)  # fmt: skip


def load_runs(
    op: Any, w: Any, run: int, dtype: DType, registers: tuple[str, ...], fill: str
) -> None:  # fmt: skip
    """`ld.global.v4` (or shorter), once a run; what is outside is `fill`, a number of 32 bits.

    Args:
        op: the `LoadGlobal`.
        w: the writer.
        run: elements of an access.
        dtype: of the tensor.
        registers: of the vector: elements of 32 bits, or pairs of 16.
        fill: register's contents outside.
    """
    kind = op.kind
    direct = kind.dtype == dtype
    place, steps = op.place(w, kind, op.arg.contiguous)
    words = run * dtype.nbytes // REGISTER_BYTES
    each = words if direct else run
    for number, first in enumerate(range(0, kind.elements, run)):
        mine = registers[each * number : each * (number + 1)]
        held = list(mine) if direct else [w.new("b32", "pair") for _ in range(words)]
        mask = _mask(op, w, kind, place, steps[first])
        suffix = "f32" if direct and dtype.name == "f32" else "b32"
        if mask is not None:
            for register in held:
                w.line(ptx.alu(f"mov.{suffix}", register, fill))
        text = (f"v{words}.{suffix}", ptx.vector(held)) if words > 1 else (suffix, held[0])
        address = op.near(w, place, steps[first])
        w.line(ptx.ld_global(*text, address, first=op.first), pred=mask)
        if not direct:
            elements = unpack(w, kind.cast(dtype), held)
            pack(w, kind.dtype, elements, mine)


def store_runs(op: Any, w: Any, run: int, dtype: DType, registers: tuple[str, ...]) -> None:
    """`st.global.v4` (or shorter), once a run; f32 is rounded to pairs of a 16-bit dtype.

    Args:
        op: the `StoreGlobal`.
        w: the writer.
        run: elements of an access.
        dtype: of the tensor.
        registers: of the vector.
    """
    kind = op.tile.type
    direct = kind.dtype == dtype
    place, steps = op.place(w, kind, op.arg.contiguous)
    words = run * dtype.nbytes // REGISTER_BYTES
    each = words if direct else run
    for number, first in enumerate(range(0, kind.elements, run)):
        held = list(registers[each * number : each * (number + 1)])
        if not direct:
            elements, held = held, [w.new("b32", "pair") for _ in range(words)]
            pack(w, dtype, elements, held)
        suffix = "f32" if dtype.name == "f32" else "b32"
        mask, address = _mask(op, w, kind, place, steps[first]), op.near(w, place, steps[first])
        text = (f"v{words}.{suffix}", ptx.vector(held)) if words > 1 else (suffix, held[0])
        w.line(ptx.st_global(text[0], address, text[1], first=op.first), pred=mask)


def add_runs(op: Any, w: Any, run: int, registers: tuple[str, ...]) -> None:
    """`red.global.add.v4.f32`, once a run (PTX ISA 9.7.13.6, from 8.1 on).

    Args:
        op: the `AtomicGlobal`.
        w: the writer.
        run: elements of an access.
        registers: of the vector.
    """
    kind = op.tile.type
    w.need_version("8.1")
    place, steps = op.place(w, kind)
    for first in range(0, kind.elements, run):
        part = ptx.vector(registers[first : first + run])
        mask, address = _mask(op, w, kind, place, steps[first]), op.near(w, place, steps[first])
        w.line(transfers.reduce_memory("global", "add", f"v{run}.f32", address, part), pred=mask)


def fill_word(value: str, dtype: DType) -> str:
    """The register's contents that hold an element, or a pair of 16-bit ones, of a value."""
    if whole_registers(dtype):
        return value
    return str(int(value) * 0x10001)


def _mask(op: Any, w: Any, kind: Kind, place: Place, steps: Steps) -> str | None:
    if op.surely_inside(w):
        return None
    if inside_along(op, kind, w.threads):
        steps = {dim: step for dim, step in steps.items() if dim != op.arg.contiguous}
    return place.mask(steps)
