"""The builder: records ops of the kernel being traced, checks them, drops duplicates."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType
from typing import Any

from .arch import Arch
from .errors import LOCATORS, LayoutError, Loc, ScopeError, TileError, caller_loc
from .ir import Block, Kernel, Op, Scope, Value
from .tiles import RegTileType, RegVecType, TileType

_ASSIGNED = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\+|-|\*|/)?=(?!=)[\s(]*", re.ASCII)
_TUPLE = re.compile(r"\s*\w+\s*,[\s\w,]*=", re.ASCII)  # a, b = ...
_STACK: list[Builder] = []
_WHERE = {
    Scope.WARPGROUP: "in a consumer's hole of a pipeline, or in a tc.warpgroup block",
    Scope.THREAD: "in a tc.one_thread block, or in a load hole of a pipeline",
    Scope.CTA: "outside pipelines and blocks",
}


class Builder:
    """Records one kernel.

    Args:
        kernel: where the ops go.
        arch: the target, for what depends on its limits.
        boundary: code of the function that runs the trace; its callers are not the kernel.
    """

    def __init__(self, kernel: Kernel, arch: Arch, boundary: CodeType | None = None):
        self.kernel = kernel
        self.arch = arch
        self.boundary = boundary
        self.block = kernel.body
        self.scope = Scope.CTA
        self.default_loc = kernel.loc
        self.finalizers: list[Any] = []
        self.broken: TileError | None = None
        self.products: list[tuple[Any, Loc | None]] = []  # `a @ b` not yet added, and their lines
        # Keyed by the blocks themselves: an id can come back when a dropped block is freed.
        self._seen: dict[Block, dict[tuple[Any, ...], Op]] = {}
        self.last_branch: tuple[Block, int, Any] | None = None  # what a tc.otherwise would follow

    @contextmanager
    def tracing(self) -> Iterator[Builder]:
        """Makes this the builder that ops find."""
        _STACK.append(self)
        LOCATORS.append(self.loc)
        try:
            yield self
        finally:
            LOCATORS.pop()
            _STACK.pop()

    @contextmanager
    def within(self, block: Block, scope: Scope | None = None) -> Iterator[Block]:
        """Records into `block`, executed by `scope`."""
        saved = self.block, self.scope
        self.block, self.scope = block, scope or self.scope
        try:
            yield block
        finally:
            self.block, self.scope = saved

    @contextmanager
    def located(self, loc: Loc | None) -> Iterator[None]:
        """Gives ops recorded outside any user's frame the line `loc`."""
        saved = self.default_loc
        self.default_loc = loc or saved
        try:
            yield
        finally:
            self.default_loc = saved

    def child(self) -> Block:
        """A new block nested in the current one."""
        return Block(self.block)

    def loc(self) -> Loc | None:
        """The user's line on the stack, or the line template code stands for."""
        return caller_loc(self.boundary) or self.default_loc

    def check_products(self) -> None:
        """Refuses `a @ b` that no accumulator has taken.

        Raises:
            LayoutError: there is one.
        """
        for product, loc in self.products:
            raise LayoutError(
                f"@: by itself a product is no tile, got {product!r}", loc=loc,
                hint="tc.mma_AB(acc, a, b)",
            )  # fmt: skip

    def check_unbroken(self) -> None:
        """Raises the error of a run-time loop left by `break`."""
        if self.broken is not None:
            error, self.broken = self.broken, None
            raise error

    def add(self, op: Op) -> Op:
        """Records an op: scope and dominance checked, types inferred, duplicates dropped."""
        self.check_unbroken()
        mine = caller_loc(self.boundary)
        op.loc = mine or self.default_loc
        op.scope = self.scope
        self._check_scope(op)
        for value in op.operands():
            self._check_visible(op, value)
        if op.pure:
            known = self._find(op)
            if known is not None:
                return known
        types = op.infer()
        _check_fragment(op, types)
        name = op.name_hint or assigned_name(mine)
        op.results = tuple(Value(t, name, op.loc) for t in types)
        for value in op.results:
            value.block, value.op = self.block, op
        self.block.ops.append(op)
        if op.pure:
            self._seen.setdefault(self.block, {})[op.key()] = op
        return op

    def _find(self, op: Op) -> Op | None:
        key = op.key()
        block: Block | None = self.block
        while block is not None:
            found = self._seen.get(block, {}).get(key)
            if found is not None:
                return found
            block = block.parent
        return None

    def _check_scope(self, op: Op) -> None:
        if op.scopes and self.scope not in op.scopes:
            wanted = " or ".join(s.value for s in op.scopes)
            raise ScopeError(
                f"{op.label}: must be executed by a {wanted}, got scope={self.scope.value}",
                loc=op.loc,
                hint=f"call it where a {wanted} runs: {_WHERE[op.scopes[0]]}",
            )

    def _check_visible(self, op: Op, value: Value) -> None:
        if value.block is not None and not self.block.inside(value.block):
            made = f" (made at {value.loc})" if value.loc else ""
            raise ScopeError(
                f"{op.label}: uses a value made inside a tc.range or tc.when that has "
                f"ended, got {value!r}{made}",
                loc=op.loc,
                hint="make the tile before the block, or a tc.var, and write to it inside",
            )


def _check_fragment(op: Op, types: tuple[TileType, ...]) -> None:
    """Tiles that lie otherwise than mma's go to ops that read how they lie.

    Raises:
        LayoutError: an op that does not.
    """
    if op.any_fragment:
        return
    for kind in (*(value.type for value in op.operands()), *types):
        held = isinstance(kind, RegTileType | RegVecType) and kind.layout.fragment
        if held and not held.of_mma:
            raise LayoutError(
                f"{op.label}: works on tiles that lie as mma's do, got {kind}",
                hint="tc.regroup(x) of 16 rows a warp; else tc.store(shared, x), tc.sync(), "
                "tc.load(shared)",
            )


def assigned_name(loc: Loc | None) -> str:
    """The name a line assigns an expression to, or an empty string.

    Example: in `pipe = tc.lcf(steps=tc.cdiv(n, 64))` the call of lcf has the name `pipe`, the
    call of cdiv, which starts at another column, none.
    """
    return _target_at(loc.text, loc.col) if loc is not None else ""


@lru_cache(maxsize=4096)
def _target_at(line: str, col: int) -> str:
    match = _ASSIGNED.match(line)
    if match is not None:
        return match[1] if col in (0, match.start(1), match.end()) else ""
    if not _TUPLE.match(line):
        return ""
    try:
        statement = ast.parse(line.strip()).body[0]
    except (SyntaxError, IndexError):  # a part of a statement, or a comment
        return ""
    shift = len(line) - len(line.lstrip())
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Tuple):
        return ""
    targets = getattr(statement.targets[0], "elts", [])
    for target, value in zip(targets, statement.value.elts, strict=False):
        if value.col_offset + shift == col and isinstance(target, ast.Name):
            return target.id if target.id.isascii() else ""
    return ""


def current() -> Builder:
    """The builder of the kernel being traced.

    Raises:
        ScopeError: outside a kernel.
    """
    if not _STACK:
        raise ScopeError(
            "tilecat ops run only while a kernel is traced, got a call outside any kernel",
            hint="put the call in a function decorated with @tc.kernel",
        )
    return _STACK[-1]


def add(op: Op) -> Op:
    """Records an op in the kernel being traced."""
    return current().add(op)


def tracing() -> bool:
    """Whether a kernel is being traced."""
    return bool(_STACK)
