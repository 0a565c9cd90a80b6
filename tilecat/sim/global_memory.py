"""Global memory: arrays in an address space of their own, tensor maps, owners of elements."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import numpy as np

from tilecat.errors import MachineError
from tilecat.sim.global_order import GlobalOrder

GLOBAL_BASE = 0x7F00_0000_0000
_ALIGN = 512  # cudaMalloc gives at least 256 bytes (CUDA programming guide, 5.3.2)
_GAP = 1 << 20


@dataclass(frozen=True)
class Pointer:
    """A pointer argument: the address of the array's first element."""

    array: np.ndarray


@dataclass(frozen=True)
class TensorMap:
    """A tensor-map argument (tiled mode, zero fill).

    Args:
        array: NumPy array of rank 1 to 5; strides as the driver takes them.
        box: elements an axis, innermost first.
        swizzle_bytes: 0, 32, 64 or 128.
        dtype: element type's name, or an object with a `name`; b4x16 and b4x16_p64 are elements
            of 4 bits, two in each byte of the array.
    """

    array: np.ndarray
    box: tuple[int, ...]
    swizzle_bytes: int
    dtype: object

    @property
    def dtype_name(self) -> str:
        """Name of the element type."""
        return str(getattr(self.dtype, "name", self.dtype))


@dataclass
class Segment:
    """One allocation: device address, bytes, the arguments that live in it."""

    start: int
    host: int
    data: np.ndarray
    item_bytes: int
    names: list[tuple[int, int, str]] = field(default_factory=list)
    owners: np.ndarray | None = None
    epochs: np.ndarray | None = None
    writeable: bool = True

    @property
    def end(self) -> int:
        """First address behind it."""
        return self.start + len(self.data)

    def name_near(self, address: int) -> str:
        """The argument nearest to an address."""
        offset = address - self.start
        best = min(self.names, key=lambda n: max(n[0] - offset, offset - n[1], 0))
        return best[2]


def _root(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _byte_bounds(array: np.ndarray) -> tuple[int, int]:
    return np.lib.array_utils.byte_bounds(array)


class GlobalMemory:
    """The arguments' arrays. Views of one array share an allocation, so aliases stay aliases."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.order = GlobalOrder()
        self.kept: list[np.ndarray] = []

    def place(self, arrays: list[tuple[str, np.ndarray]]) -> None:
        """Lay out every array of the launch."""
        extents = []
        for _, array in arrays:
            if array.dtype.itemsize > 8 or array.dtype.hasobject:
                raise MachineError(f"run: elements of at most 8 bytes, got dtype={array.dtype}")
            low, high = _byte_bounds(array)
            root_low, root_high = _byte_bounds(_root(array))
            inside = root_low <= low and high <= root_high
            extents.append((root_low, root_high) if inside else (low, high))
        merged: list[list[int]] = []
        for low, high in sorted(extents):
            if merged and low < merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], high)
            else:
                merged.append([low, high])
        address = GLOBAL_BASE
        for low, high in merged:
            data = np.frombuffer((ctypes.c_uint8 * max(high - low, 1)).from_address(low), np.uint8)
            self.segments.append(Segment(address, low, data, 8))
            address += -(-(high - low) // _ALIGN) * _ALIGN + _GAP
        for name, array in arrays:
            self._attach(name, array)

    def _attach(self, name: str, array: np.ndarray) -> None:
        self.kept.append(array)
        low, high = _byte_bounds(array)
        segment = next(s for s in self.segments if s.host <= low and high <= s.host + len(s.data))
        segment.names.append((low - segment.host, high - segment.host, name))
        segment.item_bytes = min(segment.item_bytes, array.dtype.itemsize)
        segment.writeable = segment.writeable and array.flags.writeable

    def segment_of(self, array: np.ndarray) -> Segment:
        """The allocation an array lives in."""
        low, _ = _byte_bounds(array)
        return next(s for s in self.segments if s.host <= low < s.host + len(s.data))

    def address_of(self, array: np.ndarray) -> int:
        """Device address of an array's first element."""
        segment = self.segment_of(array)
        return segment.start + array.__array_interface__["data"][0] - segment.host

    def find(self, low: int, high: int) -> Segment | None:
        """The allocation that holds addresses [low, high), or None."""
        return next((s for s in self.segments if s.start <= low and high <= s.end), None)

    def describe(self, address: int) -> str:
        """Where an address is, relative to the nearest argument."""
        if not self.segments:
            return f"address {address:#x}; the kernel has no arrays"
        segment = min(self.segments, key=lambda s: max(s.start - address, address - s.end, 0))
        if not segment.names:
            return f"address {address:#x}"
        name = segment.name_near(address)
        first, last, _ = next(n for n in segment.names if n[2] == name)
        offset = address - segment.start - first
        return f"byte {offset} of argument {name}, which has {last - first} bytes"

    def claim(self, segment: Segment, index: np.ndarray, owner: int) -> bool:
        """CTA `owner` stores elements `index`; False if another CTA's store is not ordered."""
        owners, epochs = self._owned(segment)
        fine = self.order.ordered(owner, owners[index], epochs[index])
        owners[index], epochs[index] = owner + 1, self.order.of(owner).epoch
        return fine

    @staticmethod
    def _owned(segment: Segment) -> tuple[np.ndarray, np.ndarray]:
        if segment.owners is None:
            size = len(segment.data) // segment.item_bytes + 1
            segment.owners, segment.epochs = np.zeros((2, size), np.int32)
        return segment.owners, segment.epochs

    def may_read(self, segment: Segment, index: np.ndarray, reader: int) -> bool:
        """Whether CTA `reader` is ordered after the stores of other CTAs to elements `index`."""
        if segment.owners is None:
            return True
        return self.order.ordered(reader, segment.owners[index], segment.epochs[index])

    def claim_view(self, part: np.ndarray, owner: int) -> bool:
        """The same for a strided part of an array."""
        segment = self.segment_of(part)
        first = (part.__array_interface__["data"][0] - segment.host) // segment.item_bytes
        strides = tuple(4 * stride // segment.item_bytes for stride in part.strides)
        held, when = (
            np.lib.stride_tricks.as_strided(array[first:], part.shape, strides)
            for array in self._owned(segment)
        )
        fine = self.order.ordered(owner, held, when)
        held[...], when[...] = owner + 1, self.order.of(owner).epoch
        return fine


_SWIZZLES = (0, 32, 64, 128)
# Elements of 4 bits go sixteen at a time, 8 bytes; with a gap of as many in shared memory or not.
# PTX ISA 5.5.1.1.
_PACKED = {"b4x16": False, "b4x16_p64": True}
_PACK = 16
_GAP_BYTE = 0xA5  # the gap is not initialised


class EncodedMap:
    """A checked tensor map. Rules: CUDA driver API, cuTensorMapEncodeTiled; PTX ISA 5.5."""

    def __init__(self, name: str, source: TensorMap, memory: GlobalMemory):
        array = source.array
        self.name, self.dtype, self.swizzle = name, source.dtype_name, source.swizzle_bytes
        self.rank, self.box = array.ndim, tuple(int(extent) for extent in source.box)
        self.pack, self.padded = 1, _PACKED.get(self.dtype, False)
        if self.dtype in _PACKED:
            array = self._packed(array, memory)
        self.item_bytes = array.dtype.itemsize
        self.row_bytes = self.box[0] * self.item_bytes * (1 + self.padded) if self.box else 0
        self.rows = int(np.prod(self.box[1:]))
        self.num_bytes = self.rows * self.row_bytes
        # What a load counts on its mbarrier; of padded elements Triton counts the packed bytes.
        self.counted_bytes = self.num_bytes // (1 + self.padded)
        self._check(array, memory)
        self.array = array.view(f"u{self.item_bytes}")
        self.typed = array

    def _packed(self, array: np.ndarray, memory: GlobalMemory) -> np.ndarray:
        """The array in items of sixteen elements; self.pack and self.box follow.

        Rules of the padded type: cuTensorMapEncodeTiled, CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B.
        """
        align, whole = (32, 128) if self.padded else (16, 2 * _PACK)
        extent = 2 * array.shape[-1]
        steps = [memory.address_of(array), *array.strides[:-1]]
        rules = [
            (array.dtype.itemsize == 1, f"an array of bytes, got dtype={array.dtype}"),
            (extent % whole == 0, f"a multiple of {whole} elements a row, got {extent}"),
            (not any(step % align for step in steps), f"rows at multiples of {align} bytes"),
            (not self.padded or self.box[0] == whole, f"inner box {whole}, got {self.box[0]}"),
            (self.box[0] % whole == 0, f"inner box a multiple of {whole}, got {self.box[0]}"),
            (not self.padded or self.swizzle in (0, 128), f"swizzle 0 or 128, got {self.swizzle}"),
        ]
        for good, text in rules:
            if not good:
                raise MachineError(f"tensor map {self.name}: {self.dtype} wants {text}")
        self.pack, self.box = _PACK, (self.box[0] // _PACK, *self.box[1:])
        return array.view("u8")

    def item_coords(self, coords: tuple[int, ...]) -> tuple[int, ...]:
        """Coordinates in items of the array."""
        return (coords[0] // self.pack, *coords[1:])

    def _check(self, array: np.ndarray, memory: GlobalMemory) -> None:
        rules = [
            (1 <= self.rank <= 5 and len(self.box) == self.rank, f"rank 1 to 5 and as many box "
             f"extents, got rank={self.rank}, box={self.box}"),
            (self.item_bytes in (1, 2, 4, 8), f"elements of 1 to 8 bytes, got {self.item_bytes}"),
            (all(1 <= extent <= 256 for extent in self.box), f"box 1 to 256, got {self.box}"),
            (self.swizzle in _SWIZZLES, f"swizzle 0, 32, 64 or 128, got {self.swizzle}"),
            (self.row_bytes % 16 == 0, f"inner box a multiple of 16 bytes, got {self.row_bytes}"),
            (not self.swizzle or self.row_bytes <= self.swizzle,
             f"inner box at most the swizzle, got {self.row_bytes} and {self.swizzle} bytes"),
        ]  # fmt: skip
        for good, text in rules:
            if not good:
                raise MachineError(f"tensor map {self.name}: {text}")
        if self.swizzle and self.row_bytes != self.swizzle and self.rows > 1:
            raise MachineError(f"tensor map {self.name}: an inner box narrower than the swizzle is "
                               f"not implemented, got {self.row_bytes} bytes")  # fmt: skip
        self._check_layout(array, memory)

    def _check_layout(self, array: np.ndarray, memory: GlobalMemory) -> None:
        address = memory.address_of(array)
        if address % 16:
            raise MachineError(f"tensor map {self.name}: base address a multiple of 16 bytes, got "
                               f"{address % 16} bytes too many")  # fmt: skip
        if array.shape[-1] > 1 and array.strides[-1] != self.item_bytes:
            raise MachineError(f"tensor map {self.name}: innermost axis contiguous, got a stride "
                               f"of {array.strides[-1]} bytes")  # fmt: skip
        for extent, stride in zip(array.shape[:-1], array.strides[:-1], strict=True):
            if extent > 1 and (stride % 16 or not 0 <= stride < 1 << 40):
                raise MachineError(f"tensor map {self.name}: strides multiples of 16 bytes below "
                                   f"2^40, got {stride}")  # fmt: skip

    def clip(self, coords: tuple[int, ...]):
        """Slices of the box and of the array, outermost first, or None if nothing is inside."""
        inner, outer = [], []
        for axis in range(self.rank - 1, -1, -1):
            extent = self.array.shape[self.rank - 1 - axis]
            low, high = max(coords[axis], 0), min(coords[axis] + self.box[axis], extent)
            if high <= low:
                return None
            inner.append(slice(low - coords[axis], high - coords[axis]))
            outer.append(slice(low, high))
        return tuple(inner), tuple(outer)

    def load(self, coords: tuple[int, ...]) -> np.ndarray:
        """The box at `coords` as 16-byte chunks, zero outside the tensor."""
        return self._padded(self._load(coords)) if self.padded else self._load(coords)

    @staticmethod
    def _padded(chunks: np.ndarray) -> np.ndarray:
        items = chunks.view("u8")
        gaps = np.full(len(items), np.full(8, _GAP_BYTE, "u1").view("u8"), "u8")
        return np.stack([items, gaps], 1).reshape(-1).view("c16")

    def _load(self, coords: tuple[int, ...]) -> np.ndarray:
        shape = self.box[::-1]
        clipped = self.clip(coords)
        if clipped is None:
            return np.zeros(self.counted_bytes, np.uint8).view("c16")
        inner, outer = clipped
        part = self.array[outer]
        if part.shape == shape:
            return np.ascontiguousarray(part).reshape(-1).view("c16")
        box = np.zeros(shape, self.array.dtype)
        box[inner] = part
        return box.reshape(-1).view("c16")
