"""The intermediate representation: values, ops with marked fields, blocks, kernels, printer.

A kernel is a tree: a block holds ops, an op may hold blocks. Scalars are values defined once
(apart from `Var`, a mutable place); tiles are mutable places, as registers are: ops read and write
them. Every op knows its user line.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar

from .errors import Loc
from .tiles import GlobalType, TileType


class Scope(Enum):
    """Who executes an op: all threads of the CTA, a warpgroup or a warp together, one thread."""

    CTA = "cta"
    WARPGROUP = "warpgroup"
    WARP = "warp"
    THREAD = "thread"


# Scopes that hold register tiles: 16 rows a warp.
TILE_SCOPES = (Scope.WARPGROUP, Scope.WARP)


class Access(Enum):
    """What an op does to a value: reads or writes it, now or later in another proxy."""

    READ = "read"
    WRITE = "write"
    ASYNC_READ = "async read"
    ASYNC_WRITE = "async write"


@dataclass(frozen=True)
class Effect:
    """One access of an op.

    Args:
        access: read or write, at once or asynchronously.
        value: the place accessed.
        proxy: "generic", or "async" for TMA and the tensor cores.
    """

    access: Access
    value: Value
    proxy: str = "generic"


@dataclass(frozen=True)
class SharedRequest:
    """One instruction of a warp on shared memory: its worst request.

    Args:
        instruction: `stmatrix`, `ld.shared`, ...
        width_bytes: bytes at a lane's address.
        wavefronts: it takes.
        ideal: wavefronts of a request of this width without conflicts.
    """

    instruction: str
    width_bytes: int
    wavefronts: int
    ideal: int

    @property
    def ways(self) -> float:
        """Wavefronts over the ideal: 1 without conflicts, 8 for an 8-way one."""
        return self.wavefronts / self.ideal


class Value:
    """A typed result of an op, or a kernel argument.

    Args:
        type: its type.
        name: hint for its register's name.
        loc: the user's line that made it.
    """

    __slots__ = ("type", "name", "loc", "block", "op")

    def __init__(self, type: TileType, name: str = "", loc: Loc | None = None):
        self.type = type
        self.name = name
        self.loc = loc
        self.block: Block | None = None
        self.op: Op | None = None

    def __repr__(self) -> str:
        """`%name: type`."""
        return f"%{self.name or 'v'}: {self.type}"


def operand(**kwargs: Any) -> Any:
    """A field that holds a Value, a tuple of Values, or None."""
    return field(metadata={"role": "operand"}, **kwargs)


def attribute(**kwargs: Any) -> Any:
    """A field known while tracing: a number, a string, an enum, a type."""
    return field(metadata={"role": "attribute"}, **kwargs)


def region(**kwargs: Any) -> Any:
    """A field that holds a Block."""
    return field(metadata={"role": "block"}, **kwargs)


@dataclass(eq=False)
class Op:
    """Base of all operations. A subclass marks its fields, and says what it means.

    Class attributes:
        verb: how users write it, with its attributes in braces; empty: its class in lower case.
        scopes: scopes that may execute it (empty: any).
        pure: no effect; equal operands give equal results, so one of two may be dropped.
        any_fragment: takes register tiles that lie otherwise than mma's (`rt[..., "32x32b"]`).
    Methods a subclass gives: `infer` (result types, or an error), `effects`, `emit` (PTX).
    """

    verb: ClassVar[str] = ""
    scopes: ClassVar[tuple[Scope, ...]] = ()
    pure: ClassVar[bool] = False
    any_fragment: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Every op starts without results, line and scope; the builder sets them."""
        self.results: tuple[Value, ...] = ()
        self.loc: Loc | None = None
        self.scope: Scope = Scope.CTA

    @property
    def result(self) -> Value:
        """The only result."""
        return self.results[0]

    def infer(self) -> tuple[TileType, ...]:
        """Types of the results; raises the op's errors."""
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """What it reads and writes beyond its scalar operands."""
        return ()

    @property
    def label(self) -> str:
        """What users call it, for messages."""
        if self.verb:
            return self.verb.format(**self.attributes())
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def name_hint(self) -> str:
        """Name of the result's register; empty: the name the user's line assigns to."""
        return ""

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """Its instructions that access shared memory by threads, with their bank conflicts."""
        return ()

    @property
    def stores(self) -> TensorArg | None:
        """The tensor argument it writes to, if any."""
        return None

    @property
    def loads(self) -> TensorArg | None:
        """The tensor argument it reads from, if any."""
        return None

    def emit(self, w: Any) -> None:
        """Writes the op's PTX to the writer."""
        raise NotImplementedError(type(self).__name__)

    def _role(self, role: str) -> Iterator[tuple[str, Any]]:
        for spec in fields(self):
            if spec.metadata.get("role") == role:
                yield spec.name, getattr(self, spec.name)

    def operands(self) -> tuple[Value, ...]:
        """All operand values, in field order."""
        found: list[Value] = []
        for _, value in self._role("operand"):
            items = value if isinstance(value, tuple) else (value,)
            found.extend(v for v in items if isinstance(v, Value))
        return tuple(found)

    def attributes(self) -> dict[str, Any]:
        """Attribute fields by name."""
        return dict(self._role("attribute"))

    def blocks(self) -> tuple[Block, ...]:
        """Blocks of the op, in field order."""
        return tuple(value for _, value in self._role("block") if value is not None)

    def key(self) -> tuple[Any, ...]:
        """Identity for common subexpressions: class, operands, attributes.

        Numbers count by their text, since 0.0 == -0.0.
        """
        parts: list[Any] = [type(self)]
        for _, value in self._role("operand"):
            items = value if isinstance(value, tuple) else (value,)
            parts += [id(v) if isinstance(v, Value) else (type(v), repr(v)) for v in items]
        return (*parts, *self.attributes().items())


class Block:
    """A list of ops executed in order.

    Args:
        parent: the block that holds the op this block belongs to.
    """

    def __init__(self, parent: Block | None = None):
        self.parent = parent
        self.ops: list[Op] = []

    def inside(self, other: Block) -> bool:
        """Whether this block is `other` or nested in it."""
        block: Block | None = self
        while block is not None:
            if block is other:
                return True
            block = block.parent
        return False

    def walk(self) -> Iterator[Op]:
        """All ops, nested ones included, in program order."""
        for op in self.ops:
            yield op
            for block in op.blocks():
                yield from block.walk()


@dataclass(eq=False)
class TensorArg:
    """A tensor argument of a kernel, as specialised for one call signature.

    Args:
        name: the Python parameter's name.
        index: position among the kernel's arguments.
        type: dtype and named dims.
        order: "row" when the last axis is contiguous, "col" when the one before it is.
        tma: whether the tensor memory accelerator can reach it (strides, alignment).
        static: extents known at compile time, by axis.
        whole: whether its contiguous axis is a whole number of 16 bytes, as TMA's stores want it.
        asked: whether the kernel's author looked at `order` or `tma` while tracing.
        whole_asked: whether the trace looked at `whole`.
        fetch_bytes: what a miss of TMA's loads fetches into L2, at most.
    """

    name: str
    index: int
    type: GlobalType
    order: str = "row"
    tma: bool = True
    static: tuple[int | None, ...] = ()
    whole: bool = True
    asked: bool = False
    whole_asked: bool = False
    fetch_bytes: int = 256

    @property
    def contiguous(self) -> int:
        """The axis that is contiguous in memory, where `tma` holds."""
        return self.type.rank - (1 if self.order == "row" else 2)

    @property
    def ends_whole(self) -> bool:
        """`whole`, on which the trace then depends."""
        self.whole_asked = True
        return self.whole


@dataclass(frozen=True, eq=False)
class SameExtent:
    """A rule on a call's arrays: two axes are equally long.

    Args:
        arg: a tensor argument.
        dim: its axis.
        like: another one.
        like_dim: the axis of that.
        or_one: whether an extent of 1 will do too.
    """

    arg: TensorArg
    dim: int
    like: TensorArg
    like_dim: int
    or_one: bool


@dataclass(eq=False)
class ScalarArg:
    """A run-time scalar argument of a kernel."""

    name: str
    index: int
    dtype: str


@dataclass
class Role:
    """Threads `first` to `last` of a CTA and what they do, for reports."""

    first: int
    last: int
    name: str


@dataclass
class Kernel:
    """A traced kernel.

    Args:
        name: the user's function name.
        args: its run-time arguments.
        params: compile-time parameters, by name.
        body: the outermost block.
        threads: threads a CTA.
        cluster: CTAs a cluster.
        roles: who does what.
        loc: the line of the `def`.
        facts: what the pipeline says of itself (stages, budgets), for reports.
    """

    name: str
    args: list[TensorArg | ScalarArg]
    params: dict[str, Any]
    body: Block
    threads: int = 128
    cluster: int = 1
    roles: list[Role] = field(default_factory=list)
    loc: Loc | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """The kernel as text: one op a line, under the user's line that made it."""
        return _Printer().kernel(self)


class _Printer:
    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.used: dict[str, int] = {}
        self.lines: list[str] = []
        self.at: tuple[str, int] | None = None

    def name(self, value: Value) -> str:
        if id(value) not in self.names:
            base = value.name or (value.op.label if value.op is not None else "v")
            count = self.used.get(base, 0)
            self.used[base] = count + 1
            self.names[id(value)] = f"%{base}{count or ''}"
        return self.names[id(value)]

    def show(self, value: Any) -> str:
        if isinstance(value, Value):
            return self.name(value)
        if isinstance(value, tuple) and any(isinstance(v, Value) for v in value):
            return "(" + ", ".join(self.show(v) for v in value) + ")"
        if isinstance(value, TensorArg | ScalarArg):
            return f"@{value.name}"
        if isinstance(value, Enum):
            return str(value.value)
        return str(value)

    def op(self, op: Op, depth: int) -> None:
        self.source(op.loc, depth)
        parts = [self.show(v) for _, v in op._role("operand") if v is not None]
        attributes = [(n, v) for n, v in op._role("attribute") if v not in (None, "", ())]
        verb = type(op).__name__
        if attributes and attributes[0][0] == "name" and str(attributes[0][1]).isidentifier():
            verb, attributes = f"{verb}.{attributes[0][1]}", attributes[1:]
        parts += [f"{n}={self.show(v)}" for n, v in attributes]
        left = ", ".join(f"{self.name(r)}: {r.type}" for r in op.results)
        head = f"{left} = " if left else ""
        blocks = op.blocks()
        self.lines.append("  " * depth + f"{head}{verb}({', '.join(parts)})" + " {" * bool(blocks))
        for number, block in enumerate(blocks):
            if number:
                self.lines.append("  " * depth + "} else {")
            for inner in block.ops:
                self.op(inner, depth + 1)
        if blocks:
            self.lines.append("  " * depth + "}")

    def source(self, loc: Loc | None, depth: int) -> None:
        """The user's line as a remark above the ops it made, once for neighbours."""
        if loc is None or (loc.file, loc.line) == self.at:
            return
        self.at = (loc.file, loc.line)
        text = linecache.getline(loc.file, loc.line).strip()
        self.lines.append("  " * depth + f"# {loc.line}: {text}".rstrip())

    def kernel(self, kernel: Kernel) -> str:
        args = ", ".join(
            f"{a.name}: {a.type if isinstance(a, TensorArg) else a.dtype}" for a in kernel.args
        )
        params = "".join(f", {k}={v}" for k, v in kernel.params.items())
        shape = f"{kernel.threads} threads, clusters of {kernel.cluster}"
        self.lines.append(f"kernel {kernel.name}({args}{params}) {{  # {shape}")
        for op in kernel.body.ops:
            self.op(op, 1)
        self.lines.append("}")
        return "\n".join(self.lines) + "\n"
