"""tcgen05.mma: D = A B + D of one CTA or of a pair. PTX ISA 9.4, 9.7.17.10.9.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.bulk import as_slice
from tilecat.sim.fibers import Fiber
from tilecat.sim.operands import check_tile
from tilecat.sim.parse import Instruction, Mem
from tilecat.sim.table import Row
from tilecat.sim.tensor_core import Issue, TensorCore, issue
from tilecat.sim.tensor_forms import FORMS, Form, decode
from tilecat.sim.tensor_memory import (
    LANES,
    Operation,
    TensorMemory,
    check_live,
    check_written,
    names,
    read,
    region,
    write,
)
from tilecat.sim.tensor_operands import (
    BITS,
    ITEM_BYTES,
    Operand,
    operand,
    refuse_packed,
    values_of,
)
from tilecat.sim.tensor_scales import fetch
from tilecat.sim.tensor_shapes import Shape, decode_shape

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

_WORD = 4


@dataclass(frozen=True)
class Place:
    """Where an operand lies in tensor memory."""

    lane: int
    column: int


@dataclass
class Mma:
    """One mma in the queue."""

    form: Form
    shape: Shape
    issue: Issue
    core: TensorCore
    d: Place
    a: Operand | Place
    b: Operand
    scales: tuple[Place, ...]
    accumulate: bool
    lanes_off: np.ndarray | None

    def continues(self, other: Mma) -> bool:
        """Whether another mma is the same product with a longer K."""
        return (
            isinstance(other, Mma) and other.accumulate and self.shape == other.shape
            and self.d == other.d and not self.form.scale and not other.form.scale
            and not self.scales and set(self.form.collectors + other.form.collectors) == {"discard"}
            and self.lanes_off is None and other.lanes_off is None
            and isinstance(self.a, Operand) and isinstance(other.a, Operand)
            and self.shape.d_type == "f32" and self.issue.snapshot is other.issue.snapshot
            and self.issue.known is other.issue.known and self.issue.agent == other.issue.agent
            and self.issue.a_time == other.issue.a_time and self.issue.ctas == other.issue.ctas
        )  # fmt: skip

    def run(self, machine: Machine) -> None:
        """Do it, with those behind it that continue it."""
        parts = [self]
        queue = self.core.queue
        while queue and self.continues(queue[0]):
            parts.append(queue.popleft())
        _execute(machine, parts)


# ---- issue
def _mma(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """One thread issues the whole product: 9.7.17.5."""
    form: Form = item.info
    for thread in machine.active(fiber, item):
        bits = machine.value(item, item.args[3], thread)
        shape = decode_shape(machine, item, form.kind, form.group, form.block, bits)
        stream, issued = issue(machine, item, thread)
        d = Place(*names(machine, item, machine.address(item, item.args[0], thread)))
        _check_lanes(machine, item, shape, form, d)
        a = _a_operand(machine, item, thread, form, shape)
        b = _b_operand(machine, item, thread, form, shape)
        scales = tuple(
            _scale_place(machine, item, shape, index, mem, thread)
            for index, mem in enumerate(form.scales)
        )
        accumulate, off = machine.truth(form.enable, thread), _mask(machine, item, form, thread)
        work = Mma(form, shape, issued, stream.core, d, a, b, scales, accumulate, off)
        stream.core.queue.append(work)
        machine.stats[f"tcgen05.mma m{shape.m}n{shape.n}k{shape.k}.{form.kind}"] += 1


def _check_lanes(machine: Machine, item: Instruction, shape: Shape, form: Form, place: Place):
    """D, and A in tensor memory, begin at lane 0; 64 rows also at lane 16. 9.7.17.10.5."""
    half = shape.m == 64 and form.group == 1
    if place.lane not in ((0, 16) if half else (0,)):
        machine.fault("tcgen05", item, f"M={shape.m} begins at lane 0{' or 16' if half else ''} of "
                      f"tensor memory, got lane {place.lane}")  # fmt: skip


def _a_operand(machine: Machine, item: Instruction, thread: int, form: Form, shape: Shape):
    rows = shape.m // form.group
    if form.from_memory:
        place = Place(*names(machine, item, machine.address(item, item.args[1], thread)))
        _check_lanes(machine, item, shape, form, place)
        if shape.transposed[0]:
            machine.fault("tcgen05", item, "A in tensor memory is K-major")
        if shape.a_type in BITS and shape.padded:
            refuse_packed(item, shape.a_type)
        return place
    bits = machine.value(item, item.args[1], thread, "u64")
    found = operand(
        machine, item, bits, "A", rows=rows, k_bytes=shape.k_bytes(shape.a_type),
        transposed=shape.transposed[0], item_bytes=ITEM_BYTES[shape.a_type],
    )  # fmt: skip
    check_tile(machine, item, found, "A: the matrix descriptor")
    return found


def _b_operand(machine: Machine, item: Instruction, thread: int, form: Form, shape: Shape):
    bits = machine.value(item, item.args[2], thread, "u64")
    found = operand(machine, item, bits, "B", rows=shape.n // form.group,
                    k_bytes=shape.k_bytes(shape.b_type), transposed=shape.transposed[1],
                    item_bytes=ITEM_BYTES[shape.b_type])  # fmt: skip
    check_tile(machine, item, found, "B: the matrix descriptor")
    return found


def _mask(machine: Machine, item: Instruction, form: Form, thread: int) -> np.ndarray | None:
    """Lanes of every CTA that keep what they have: 9.7.17.10.9.1, disable-output-lane."""
    if not form.mask:
        return None
    words = np.array([machine.value(item, word, thread) for word in form.mask], np.uint32)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little").astype(bool)
    return bits.reshape(form.group, LANES) if bits.any() else None


def _scale_place(machine: Machine, item, shape: Shape, index: int, mem: Mem, thread: int) -> Place:
    """Bits 30 and 31 of a scale's address may repeat its index in the descriptor, as in CuTe."""
    address = machine.address(item, mem, thread)
    if address >> 30 not in (0, shape.scale_ids[index]):
        machine.fault("tcgen05", item, f"address {address:#010x} of scales: index "
                      f"{address >> 30}, in the descriptor {shape.scale_ids[index]}")  # fmt: skip
    lane, column = names(machine, item, address & 0x3FFFFFFF)
    if lane:
        machine.fault("tcgen05", item, f"scales begin at lane 0, got lane {lane}")
    return Place(lane, column)


# ---- execution
def _execute(machine: Machine, parts: list[Mma]) -> None:
    first = parts[0]
    shape, group = first.shape, first.form.group
    number = machine.tensor_operations.add(_operation(first))
    a = [_fetch_a(machine, cta, parts, number) for cta in first.issue.ctas]
    b = [_fetch_b(machine, cta, parts) for cta in first.issue.ctas]
    _collect(machine, first, (a, b))
    columns = np.concatenate(b) if group == 2 else b[0]
    negative = shape.signs[0] * shape.signs[1] < 0
    for index, cta in enumerate(first.issue.ctas):
        rows, others = a[index], columns
        if shape.scale_type:
            rows, others = _scaled(machine, cta, first, rows, others, number)
        product = _product(shape, rows, others)
        if negative:
            product = -product
        _accumulate(machine, machine.tensor_memory[cta], first, product, number, index)


def _collect(machine: Machine, part: Mma, values: tuple[list, list]) -> None:
    """The collector buffers: a permission to reuse what a fill has read. 9.7.17.10.

    They need not be used, so what lies in memory must be what they hold.
    """
    item, held = part.issue.item, part.core.collectors
    operands = ((part.a, part.shape.a_type), (part.b, part.shape.b_type))
    for name, use, (place, kind), data in zip("ab", part.form.collectors, operands, values,
                                              strict=True):  # fmt: skip
        key = (part.form.kind, kind, place.key if isinstance(place, Operand) else place)
        if use in ("use", "lastuse"):
            filled, kept = held.get(name, (None, None))
            if filled != key:
                machine.report("tcgen05", item, f".collector::{name}::{use} without a fill of the "
                               "same operand and kind that is still valid")  # fmt: skip
            elif not np.array_equal(kept, np.stack(data), equal_nan=True):
                machine.report("race", item, f".collector::{name}::{use}: the operand in memory "
                               "has changed since its fill, either can be taken")  # fmt: skip
        if use == "fill":
            held[name] = (key, np.stack(data))
        elif use != "use":
            held.pop(name, None)


def _product(shape: Shape, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(rows, N). Products of integers are exact in float64."""
    if shape.d_type == "s32":
        return a.astype(np.float64) @ b.astype(np.float64).T
    return a @ b.T


def _scaled(machine: Machine, cta: int, part: Mma, a: np.ndarray, b: np.ndarray, number: int):
    """Rows of A and of B times their scales, exactly. All of B's are in every CTA. 9.7.17.10.7."""
    shape, known = part.shape, part.issue.known
    count = shape.k // shape.block
    out = []
    for values, place, index in zip((a, b), part.scales, shape.scale_ids, strict=True):
        found = fetch(
            machine, part.issue.item, cta, place.column, rows=len(values), count=count,
            index=index, kind=shape.scale_type, number=number, known=known,
        )  # fmt: skip
        out.append(values.astype(np.float64) * np.repeat(found, shape.block, 1))
    return out


def _operation(part: Mma) -> Operation:
    issued = part.issue
    signature = (part.shape.kind, part.shape.m, part.shape.n, part.d, part.form.group)
    return Operation(issued.agent, issued.time, issued.item.pc, "mma", issued.core, signature,
                     issued.thread // 32, issued.clock)  # fmt: skip


def _chunks(machine: Machine, operands: list[Operand]):
    """Chunks of consecutive K steps as one index, and the same as a set."""
    key = ("tcgen05 run", *(o.key for o in operands))
    found = machine.cache.get(key)
    if found is None:
        axis = 0 if operands[0].transposed else 1
        index = np.concatenate([o.chunks for o in operands], axis)
        found = machine.cache[key] = (index, as_slice(index))
    return found


def _shared_values(machine: Machine, cta: int, part: Mma, operands, kind: str, agent: int, time):
    """(rows, K) values of an operand in shared memory; the async proxy reads it. 9.7.17.6.5."""
    index, chunk_set = _chunks(machine, operands)
    issued = part.issue
    if machine.races:
        machine.shadows[cta].async_read(chunk_set, agent, time, issued.snapshot, issued.item.pc)
    data = machine.chunks[cta][index][..., None].view(np.uint8)
    values = values_of(data.reshape(len(data), -1), kind, part.shape.padded)
    return values.T if operands[0].transposed else values


def _fetch_a(machine: Machine, cta: int, parts: list[Mma], number: int) -> np.ndarray:
    first, issued = parts[0], parts[0].issue
    if isinstance(first.a, Operand):
        return _shared_values(machine, cta, first, [part.a for part in parts],
                              first.shape.a_type, issued.a_agent, issued.a_time)  # fmt: skip
    return _memory_a(machine, cta, first, number)


def _fetch_b(machine: Machine, cta: int, parts: list[Mma]) -> np.ndarray:
    first = parts[0]
    return _shared_values(machine, cta, first, [part.b for part in parts], first.shape.b_type,
                          first.issue.agent, first.issue.time)  # fmt: skip


def _lanes(shape: Shape, group: int, lane: int) -> np.ndarray:
    """Lane of every row of a CTA: 9.7.17.10.5. 64 rows of one CTA: 16 in every quarter."""
    rows = np.arange(shape.m // group)
    if shape.m == 64 and group == 1:
        return rows // 16 * 32 + rows % 16 + lane
    return rows


def _area(shape: Shape, group: int, lane: int, column: int, num_columns: int):
    """Shadow cells of the lanes of a CTA."""
    if shape.m == 64 and group == 1:
        start = lane // 16
        return slice(start, 8, 2), slice(column, column + num_columns)
    return region(0, LANES, column, num_columns)


def _memory_a(machine: Machine, cta: int, part: Mma, number: int) -> np.ndarray:
    """(rows, K) values of A in tensor memory: row by lane, 4 bytes of K a column."""
    shape, group, memory = part.shape, part.form.group, machine.tensor_memory[cta]
    item, count = part.issue.item, shape.k_bytes(shape.a_type) // _WORD
    column = part.a.column
    check_live(machine, item, memory, column, count, "A")
    read(machine, memory, _area(shape, group, part.a.lane, column, count), number,
         part.issue.known)  # fmt: skip
    lanes = _lanes(shape, group, part.a.lane)[:, None]
    columns = np.arange(column, column + count)
    check_written(machine, item, memory, lanes, columns, "tcgen05.mma")
    words = memory.words[lanes, columns]
    if group == 2 and shape.m == 128:  # two halves of the lanes do half of the columns each
        check_written(machine, item, memory, lanes + 64, columns, "tcgen05.mma")
        if (memory.words[lanes + 64, columns] != words).any():
            machine.report("tcgen05", item, f"A of M=128 in tensor memory of a pair: lanes 64 to "
                           f"127 of CTA {cta} do not repeat lanes 0 to 63")  # fmt: skip
    return values_of(np.ascontiguousarray(words).view(np.uint8), shape.a_type, shape.padded)


def _layout(shape: Shape, group: int, product: np.ndarray) -> np.ndarray:
    """Rows of a CTA's D as its lanes have them: 64 rows of a pair's CTA are 2 x 2. 9.7.17.10.5."""
    if group == 2 and shape.m == 128:
        half = shape.n // 2
        return np.concatenate([product[:, :half], product[:, half:]])
    return product


def _accumulate(
    machine: Machine, memory: TensorMemory, part: Mma, product: np.ndarray, number: int, index: int
) -> None:
    shape, group, item = part.shape, part.form.group, part.issue.item
    product = _layout(shape, group, product)
    width, column = product.shape[1], part.d.column
    check_live(machine, item, memory, column, width, "D")
    lanes = _lanes(shape, group, part.d.lane)
    if group == 2 and shape.m == 128:
        lanes = np.arange(LANES)
    keep = None if part.lanes_off is None else part.lanes_off[index][lanes]
    if keep is not None:
        lanes, product = lanes[~keep], product[~keep]
    write(machine, memory, _area(shape, group, part.d.lane, column, width), number,
          part.issue.known)  # fmt: skip
    full = len(lanes) == LANES
    rows = slice(0, LANES) if full else lanes[:, None]
    columns = slice(column, column + width) if full else np.arange(column, column + width)
    if part.accumulate:
        check_written(machine, item, memory, rows, columns, "tcgen05.mma")
        product = product + _old(memory.words[rows, columns], shape.d_type, part.form.scale)
    memory.words[rows, columns] = _words(product, shape)
    memory.written[rows, columns] = True


def _old(words: np.ndarray, kind: str, scale: int) -> np.ndarray:
    """D as it was; 16-bit elements have a word each. 9.7.17.10.4.1."""
    if kind == "s32":
        return words.view(np.int32).astype(np.float64)
    if kind == "f16":
        values = words.astype(np.uint16).view(np.float16).astype(np.float32)
    else:
        values = np.ascontiguousarray(words).view(np.float32)
    return values * np.float32(2.0**-scale) if scale else values


def _words(values: np.ndarray, shape: Shape) -> np.ndarray:
    if shape.d_type == "s32":
        whole = values.astype(np.int64)
        if shape.saturate:
            whole = np.clip(whole, -(1 << 31), (1 << 31) - 1)
        return whole.astype(np.uint32)
    if shape.d_type == "f16":
        return np.ascontiguousarray(values.astype(np.float16)).view(np.uint16).astype(np.uint32)
    return np.ascontiguousarray(values.astype(np.float32)).view(np.uint32)


TABLE = tuple(
    Row(pattern, operands, _mma, "9.7.17.10.9.1", decode=decode, needs=needs)
    for pattern, operands, needs in FORMS
)
