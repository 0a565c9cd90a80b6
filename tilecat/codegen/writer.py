"""Checked IR -> PTX text: registers and their names, parameters, addresses, labels, source lines.

Tile elements are named virtual registers, so an accumulator never moves; ptxas allocates and
schedules. Parameters and the few numbers every step needs are read once, in the prologue; lane
geometry, which only the ends of a task need, is computed where it is used, so that it does not
take registers from the main loop.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..addresses import DebugSite
from ..arch import MmaForm
from ..check import CheckedKernel
from ..errors import ArchError, Loc
from ..ir import Block, Op, ScalarArg, Scope, TensorArg, Value
from ..ops.memory import AllocScratch
from ..ptx import instructions as ptx
from ..ptx import transfers
from ..tiles import RegTileType, RegVecType, ScalarType
from . import lanes, matrices
from .module import (
    DebugParam,
    ExtentParam,
    Param,
    PointerParam,
    ScalarParam,
    StrideParam,
    TensorMapParam,
)

REGISTER_KINDS = {
    "s32": "b32", "u32": "b32", "b32": "b32", "f32": "f32", "pred": "pred",
    "s64": "b64", "u64": "b64", "b64": "b64", "b16": "b16",
    "b128": "b128",
}  # fmt: skip
# Special registers, whose names a register may not take (PTX ISA section 10).
RESERVED = frozenset({
    "tid", "ntid", "laneid", "warpid", "nwarpid", "ctaid", "nctaid", "smid", "nsmid", "gridid",
    "clusterid", "nclusterid", "clock", "clock_hi", "globaltimer", "pm", "envreg", "is",
})  # fmt: skip
SHARED_ARRAY = "smem"  # dynamic shared memory


class Address(NamedTuple):
    """A shared address: a register and a static byte offset."""

    base: str
    offset: int


class Writer:
    """Writes one kernel.

    Args:
        checked: the kernel.
    """

    def __init__(self, checked: CheckedKernel):
        self.checked = checked
        self.kernel = checked.kernel
        self.threads = checked.kernel.threads
        self.params: list[Param] = []
        self.sites: list[DebugSite] = []
        self.files: dict[str, int] = {}
        self.prologue: list[str] = []
        self.lines: list[str] = []
        self._out = self.lines
        self._declared: list[str] = []
        self._bases = Counter(RESERVED)  # how often each name was asked for
        self._names: dict[int, str] = {}
        self._tiles: dict[int, tuple[str, ...]] = {}
        self._places: dict[int, Address] = {}
        self._invariants: dict[Any, str] = {}
        self._local: list[dict[Any, str]] = [{}]
        self._labels = 0
        self.version = checked.arch.ptx_version  # what the instructions written so far need
        self._loc: Loc | None = None  # where the next instruction belongs
        self._written: Loc | None = None  # the last `.loc` in the text

    # ---- text

    def line(self, text: str, pred: str | None = None) -> None:
        """One instruction, under a predicate, after the `.loc` of its line where that is new."""
        guard = f"@{pred} " if pred else ""
        if self._out is self.lines and self._loc is not None and self._loc != self._written:
            self._written = loc = self._loc
            index = self.files.setdefault(loc.file, len(self.files) + 1)
            self._out.append(f"    .loc {index} {loc.line} {loc.col + 1}")
        self._out.append(f"    {guard}{text}")

    def comment(self, text: str) -> None:
        """A comment line."""
        self._out.append(f"    // {text}")

    def label(self, hint: str) -> str:
        """A new label."""
        self._labels += 1
        return f"${hint}_{self._labels}"

    def mark(self, label: str) -> None:
        """Places a label."""
        self._out.append(f"{label}:")

    def at(self, loc: Loc | None) -> None:
        """Following instructions belong to the user's line `loc`."""
        self._loc = loc or self._loc

    def block(self, block: Block) -> None:
        """All ops of a block."""
        with self.nested():
            for op in block.ops:
                self.at(op.loc)
                op.emit(self)

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Code that may be jumped over: what it computes is not there after it."""
        self._local.append({})
        yield
        self._local.pop()

    # ---- registers

    def _unique(self, hint: str) -> str:
        stem = re.sub(r"\W", "", hint, flags=re.ASCII) or "r"
        stem = re.sub(r"[_\d]+$", "", stem) or "r"
        self._bases[stem] += 1
        return stem if self._bases[stem] == 1 else f"{stem}{self._bases[stem]}"

    def new(self, kind: str, hint: str = "r") -> str:
        """A new register: kind b16, b32, b64, f32 or pred."""
        name = f"%{self._unique(hint)}"
        self._declared.append(f"    .reg .{REGISTER_KINDS[kind]} {name};")
        return name

    def define(self, value: Value) -> str:
        """The register of a scalar result."""
        if id(value) not in self._names:
            assert isinstance(value.type, ScalarType), f"not a scalar: {value!r}"
            self._names[id(value)] = self.new(value.type.dtype.name, _hint(value))
        return self._names[id(value)]

    def alias(self, value: Value, register: str) -> None:
        """Lets a scalar value live in a register that exists."""
        self._names[id(value)] = register

    def src(self, value: Any, dtype: str | None = None) -> str:
        """Text of a scalar operand: a register, or an immediate of a dtype."""
        if isinstance(value, Value):
            return self._names[id(value)]
        if dtype == "f32":
            return ptx.f32_literal(float(value))
        return str(int(value))

    def regs(self, value: Value) -> tuple[str, ...]:
        """The 32-bit registers of a tile or vector, in fragment order."""
        if id(value) not in self._tiles:
            kind = value.type
            assert isinstance(kind, RegTileType | RegVecType), f"not in registers: {value!r}"
            name = self._unique(_hint(value))
            register = {"f32": "f32", "pred": "pred"}.get(kind.dtype.name, "b32")
            self._declared.append(f"    .reg .{register} %{name}_<{kind.registers}>;  // {kind}")
            self._tiles[id(value)] = tuple(f"%{name}_{i}" for i in range(kind.registers))
        return self._tiles[id(value)]

    def alias_tile(self, value: Value, registers: tuple[str, ...]) -> None:
        """Lets a register tile live in registers that exist."""
        self._tiles[id(value)] = registers

    def predicate(self, value: Any) -> str:
        """A predicate register for a run-time or constant condition."""
        if isinstance(value, Value):
            return self.src(value)
        test = "eq" if value else "ne"
        return self.invariant(
            ("constant", bool(value)), "pred", "true" if value else "false",
            lambda r: self.line(ptx.alu(f"setp.{test}.u32", r, 0, 0)),
        )  # fmt: skip

    # ---- what depends on the thread alone

    def invariant(self, key: Any, kind: str, hint: str, build: Callable[[str], None]) -> str:
        """A register computed once in the prologue."""
        if key not in self._invariants:
            register = self.new(kind, hint)
            saved, self._out = self._out, []
            build(register)
            self.prologue += self._out
            self._out = saved
            self._invariants[key] = register
        return self._invariants[key]

    def local(self, key: Any, kind: str, hint: str, build: Callable[[str], None]) -> str:
        """A register computed here, and shared by the rest of the block and what it holds."""
        for known in reversed(self._local):
            if key in known:
                return known[key]
        register = self.new(kind, hint)
        build(register)
        self._local[-1][key] = register
        return register

    def tid(self) -> str:
        """Thread number in the CTA."""
        return self.invariant("tid", "b32", "thread", lambda r: lanes.thread_number(self, r))

    def warpgroup(self) -> str:
        """Warpgroup number in the CTA; ptxas knows it to be uniform in a warp."""
        thread = self.tid()
        return self.invariant(
            "warpgroup", "b32", "warpgroup", lambda r: self.line(ptx.alu("shr.u32", r, thread, 7))
        )

    def _bits(self, key: str, shift: int, mask: int) -> str:
        def build(register: str) -> None:
            source = self.tid()
            if shift:
                self.line(ptx.alu("shr.u32", register, source, shift))
                source = register
            self.line(ptx.alu("and.b32", register, source, mask))

        self.tid()
        return self.local(key, "b32", key, build)

    def lane(self) -> str:
        """Lane in the warp."""
        return self._bits("lane", 0, 31)

    def warp(self) -> str:
        """Warp in the warpgroup."""
        return self._bits("warp", 5, 3)

    def lead(self) -> str:
        """Predicate: first thread of its warpgroup."""
        thread = self.tid()

        def build(register: str) -> None:
            rank = self.new("b32", "rank")
            self.line(ptx.alu("and.b32", rank, thread, 127))
            self.line(ptx.alu("setp.eq.u32", register, rank, 0))

        return self.invariant("lead", "pred", "lead", build)

    def lane_row(self, warps: int = 4) -> str:
        """First row of a fragment this thread holds: 16 warp + lane / 4; a warp's own: lane / 4."""
        lane = self.lane()
        warp = self.warp() if warps > 1 else None

        def build(register: str) -> None:
            self.line(ptx.alu("shr.u32", register, lane, 2))
            if warp is not None:
                self.line(ptx.alu("mad.lo.u32", register, warp, 16, register))

        return self.local(("lane_row", warps), "b32", "lane_row", build)

    def lane_col(self, run: int = 2) -> str:
        """First column of a fragment this thread holds: run (lane mod 4), run 2 for 16 bits."""
        lane = self.lane()

        def build(register: str) -> None:
            self.line(ptx.alu("and.b32", register, lane, 3))
            if run & (run - 1):
                self.line(ptx.alu("mul.lo.u32", register, register, run))
            elif run > 1:
                self.line(ptx.alu("shl.b32", register, register, run.bit_length() - 1))

        return self.local(("lane_col", run), "b32", "lane_col", build)

    def lane_position(self, kind: RegTileType | RegVecType, axis: str) -> str:
        """First row (axis "row") or column ("col") of a tile, or of its vector, of this thread."""
        held, aligned = kind.layout.fragment, axis == getattr(kind, "order", "row")
        if not held.of_mma:
            return lanes.lane_place(self, held, kind.warps, of_row=aligned)
        return self.lane_row(kind.warps) if aligned else self.lane_col(held.run)

    def rank(self, warps: int) -> str:
        """Thread in its warpgroup (4 warps) or lane in its warp (1)."""
        return self.lane() if warps == 1 else self._bits("rank", 0, 127)

    def sync_warpgroup(self) -> None:
        """All threads of the warpgroup meet, at the named barrier it has for itself."""
        number = self.new("b32", "number")
        self.line(ptx.alu("add.u32", number, self.warpgroup(), 1))
        self.line(ptx.bar_sync(number, 128))

    def scratch(self, value: Value) -> str:
        """Address of this warpgroup's scratch, or of this warp's part of it."""
        op = value.op
        assert isinstance(op, AllocScratch), "scratch comes from AllocScratch"
        base = Address(self.smem(), self.checked.offset(op))
        return lanes.scratch_address(self, op, base.base, base.offset)

    def elected(self, scope: Scope) -> str | None:
        """Predicate that leaves one thread of the scope; None where one runs anyway."""
        if scope in (Scope.THREAD, Scope.WARPGROUP):
            return None if scope is Scope.THREAD else self.lead()
        number = self.lane() if scope is Scope.WARP else self.tid()
        return self.local(
            ("first", scope), "pred", "first",
            lambda r: self.line(ptx.alu("setp.eq.u32", r, number, 0)),
        )  # fmt: skip

    def both(self, a: str | None, b: str | None) -> str | None:
        """Predicate for both of two predicates."""
        if a is None or b is None:
            return a or b
        register = self.new("pred", "both")
        self.line(ptx.alu("and.pred", register, a, b))
        return register

    # ---- addresses

    def smem(self) -> str:
        """The shared base: start of dynamic shared memory, rounded up to the swizzle atom."""
        align = self.checked.arch.limit("shared_base_align")

        def build(register: str) -> None:
            self.line(ptx.alu("mov.u32", register, SHARED_ARRAY))
            self.line(ptx.alu("add.u32", register, register, align - 1))
            self.line(ptx.alu("and.b32", register, register, -align))

        return self.invariant("smem", "b32", "base", build)

    def address(self, value: Value) -> Address:
        """Where a shared tile starts."""
        if id(value) not in self._places:
            assert value.op is not None, "shared values come from ops"
            self._places[id(value)] = Address(self.smem(), self.checked.offset(value.op))
        return self._places[id(value)]

    def place(self, value: Value, address: Address) -> None:
        """Says where a view starts."""
        self._places[id(value)] = address

    def place_columns(self, value: Value, start: str, col: int) -> None:
        """Says where a tile of tensor memory starts."""
        self._places[id(value)] = Address(start, col)

    def offset(self, address: Address, index: Any, stride: int) -> Address:
        """The address `index` strides further on."""
        if not isinstance(index, Value):
            return Address(address.base, address.offset + int(index) * stride)
        register = self.new("b32", "at")
        self.line(ptx.alu("mad.lo.u32", register, self.src(index), stride, address.base))
        return Address(register, address.offset)

    def barrier(self, barriers: Value, index: Any, *, leader: bool = False) -> str:
        """Address text of one mbarrier: this CTA's, or that of the cluster's first CTA."""
        assert barriers.op is not None, "barriers come from ops"
        start = self.smem()
        if leader:
            start = self.invariant(
                "leader", "b32", "leader", lambda r: self.line(transfers.mapa(r, start, 0))
            )
        base = Address(start, self.checked.offset(barriers.op))
        return self.text(self.offset(base, index, 8))

    def text(self, address: Address, extra: int = 0) -> str:
        """An address inside brackets."""
        total = address.offset + extra
        return f"{address.base}+{total}" if total else address.base

    def materialize(self, address: Address) -> str:
        """A register that holds an address."""
        return self.add(address.base, address.offset)

    def add(self, register: str, constant: int) -> str:
        """A register, or a number, plus a constant."""
        if not constant:
            return register
        if not register.startswith("%"):
            return str(int(register) + constant)
        result = self.new("b32", "sum")
        self.line(ptx.alu("add.s32", result, register, constant))
        return result

    access_addresses = lanes.access_addresses

    # ---- matrix descriptors

    def mma_form(self, op: Op, wanted: MmaForm) -> MmaForm:
        """The target's matrix instruction of that form; the text declares its version."""
        form = self.checked.arch.mma_form(wanted.key)
        if form is None:
            raise ArchError(f"mma: {self.checked.arch.target} has no {wanted}", loc=op.loc)
        self.need_version(form.version)
        return form

    def need_version(self, version: str) -> None:
        """The text declares at least this version of PTX."""
        self.version = max(self.version, version, key=_version)

    @property
    def cta_group(self) -> int:
        """CTAs that multiply together: 2 in pairs."""
        return int(self.kernel.facts.get("cta_group", 1))

    start_from = matrices.start_from
    descriptor_base = matrices.descriptor_base
    descriptor = matrices.descriptor
    operand_base = matrices.operand_base
    operand = matrices.operand
    scales_base = matrices.scales_base
    scales = matrices.scales
    instruction_descriptor = matrices.instruction_descriptor
    tensor_lanes = matrices.tensor_lanes
    issuer = matrices.issuer

    # ---- parameters

    def _param(self, key: Any, kind: str, hint: str, make: Callable[[str], Param]) -> str:
        def build(register: str) -> None:
            taken = {p.name for p in self.params}
            name = stem = ptx.identifier(hint)
            while name in taken:
                name = f"{stem}_{len(taken)}"
            param = make(name)
            self.params.append(param)
            if isinstance(param, TensorMapParam):
                self.line(ptx.alu("mov.b64", register, param.name))
                self.line(ptx.alu("cvta.param.u64", register, register))
            else:
                self.line(ptx.ld_param(param.kind, register, param.name))

        return self.invariant(key, kind, hint, build)

    def tensor_map(
        self, arg: TensorArg, dims: tuple[int, ...], box: tuple[int, ...], swizzle_bytes: int,
        dtype: str = "",
    ) -> str:
        """Register with the generic address of a tensor map."""
        key = ("map", arg.index, dims, box, swizzle_bytes, dtype)
        return self._param(
            key, "b64", f"map_{arg.name}",
            lambda name: TensorMapParam(name, arg.index, dims, box, swizzle_bytes, dtype,
                                        arg.fetch_bytes),
        )  # fmt: skip

    def tensor_maps(self) -> list[str]:
        """Registers of all tensor maps used."""
        return [r for k, r in self._invariants.items() if isinstance(k, tuple) and k[0] == "map"]

    def extent(self, arg: TensorArg, dim: int) -> str:
        """Register (or number) with an extent."""
        if arg.static and arg.static[dim] is not None:
            return str(arg.static[dim])
        hint = f"{arg.name}_{arg.type.dims[dim]}"
        return self._param(
            ("extent", arg.index, dim), "b32", hint, lambda n: ExtentParam(n, arg.index, dim)
        )

    def stride(self, arg: TensorArg, dim: int) -> str:
        """Register with a stride in elements."""
        hint = f"{arg.name}_stride_{arg.type.dims[dim]}"
        return self._param(
            ("stride", arg.index, dim), "b64", hint, lambda n: StrideParam(n, arg.index, dim)
        )

    def pointer(self, arg: TensorArg) -> str:
        """Register with the global address of a tensor."""
        return self._param(
            ("pointer", arg.index), "b64", f"ptr_{arg.name}", lambda n: PointerParam(n, arg.index)
        )

    def debug_buffer(self) -> str:
        """Register with the address of the buffer of prints and assertions."""
        return self._param("debug", "b64", "debug_buffer", DebugParam)

    def scalar_argument(self, arg: ScalarArg) -> str:
        """Register with a scalar argument."""
        return self._param(
            ("scalar", arg.index), arg.dtype, f"arg_{arg.name}",
            lambda n: ScalarParam(n, arg.index, arg.dtype),
        )  # fmt: skip

    def declarations(self) -> list[str]:
        """All register declarations."""
        return self._declared


def _hint(value: Value) -> str:
    """A register's name: the value's own, else what its op is called."""
    return value.name or (value.op.label if value.op is not None else "value")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
