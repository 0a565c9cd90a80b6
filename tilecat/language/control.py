"""Run-time loops and branches, and the watch over Python names that a trace cannot follow."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any

from .. import dtypes
from ..builder import current
from ..errors import Loc, ScopeError, is_user_frame
from ..ir import Block, Scope, Value
from ..ops.control import OneThread, Range, When, WhileLess
from ..tiles import ScalarType
from .scalars import Scalar, Var, operand_of
from .values import Registers, SharedTile

_WATCHED = (Scalar, Registers, SharedTile, int, float)
_LINE = "a trace runs the block once"


@lru_cache(maxsize=32)
def _statements(source: str) -> dict[int, ast.For | ast.With]:
    """The `for` and `with` statements of a file, by their first line."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return {}
    found = [n for n in ast.walk(tree) if isinstance(n, ast.For | ast.With)]
    return {n.lineno: n for n in reversed(found)}


def _statement(frame: FrameType, first: int) -> ast.For | ast.With | None:
    """The `for` or `with` statement that starts at a line, if its source is there."""
    return _statements("".join(linecache.getlines(frame.f_code.co_filename))).get(first)


def _leaving(node: ast.AST, loops: int = 0) -> ast.stmt | None:
    """The first `return`, `break` or `continue` inside a statement that leaves it."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.Return) or (
            not loops and isinstance(inner, ast.Break | ast.Continue)
        ):
            return inner
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        found = _leaving(inner, loops + isinstance(inner, ast.For | ast.While))
        if found is not None:
            return found
    return None


class Entry:
    """Where a block of a `with` statement is entered: the trace must come to its end.

    Args:
        what: the block, for errors.
        depth: frames between the statement and the caller.
    """

    def __init__(self, what: str, depth: int):
        self.what = what
        self.frame = sys._getframe(depth + 1)
        self.first = self.frame.f_lineno

    def check_left_at_the_end(self) -> None:
        """Refuses a `return`, `break` or `continue` out of the block.

        The trace would go on after it for all threads, and what is in between would be lost.
        """
        if not is_user_frame(self.frame):
            return
        statement = _statement(self.frame, self.first)
        leaving = _leaving(statement) if isinstance(statement, ast.With) else None
        if leaving is not None:
            word = type(leaving).__name__.lower()
            raise ScopeError(
                f"{self.what}: the block cannot be left by {word}; {_LINE}, and all that follows "
                "would be lost for the other threads too",
                loc=Loc(self.frame.f_code.co_filename, leaving.lineno, leaving.col_offset),
                hint="guard what follows by a condition of its own, e.g. with tc.otherwise():",
            )


def _updates_itself(frame: FrameType, first: int, name: str) -> Loc | None:
    """Place of `name += ...` or `name = ... name ...` in the statement that starts at `first`."""
    file = frame.f_code.co_filename
    statement = _statement(frame, first)
    for inner in ast.walk(statement) if statement is not None else ():
        if isinstance(inner, ast.AugAssign) and getattr(inner.target, "id", "") == name:
            return Loc(file, inner.lineno, inner.col_offset)
        if isinstance(inner, ast.Assign) and name in {getattr(t, "id", "") for t in inner.targets}:
            if name in {n.id for n in ast.walk(inner.value) if isinstance(n, ast.Name)}:
                return Loc(file, inner.lineno, inner.col_offset)
    return None


class _Watch:
    """Python names of a block's frame, before and after: a rebinding would be lost."""

    def __init__(self, what: str, frame: FrameType):
        self.what = what
        self.frame = frame
        self.first = frame.f_lineno
        self.before = {
            name: value
            for name, value in frame.f_locals.items()
            if isinstance(value, _WATCHED) and not isinstance(value, bool | Var)
        }

    def check(self, body: Block) -> None:
        """Refuses a name that now holds what was made inside the block, or a new number."""
        for name, old in self.before.items():
            new = self.frame.f_locals.get(name)
            if new is old or isinstance(new, Var):
                continue
            made = getattr(new, "value", None)
            if isinstance(made, Value):
                if made is not getattr(old, "value", None):
                    self._check_value(name, new, made, body)
            elif isinstance(new, int | float):
                self._check_number(name, old, new)

    def _check_value(self, name: str, new: Any, made: Value, body: Block) -> None:
        if made.block is None or not made.block.inside(body):
            return
        raise ScopeError(
            f"{self.what}: rebinds the name `{name}`, got {name}={new!r} made inside the block; "
            f"{_LINE}, so the new value would not reach the next iteration or the code after it",
            loc=made.loc,
            hint=f"before the block: {name} = tc.var(...), inside: {name} += ... or {name}.set(...)"
            if isinstance(new, Scalar)
            else f"write the tile in place: {name} *= ..., or an op's out={name}",
        )

    def _check_number(self, name: str, old: Any, new: int | float) -> None:
        loc = _updates_itself(self.frame, self.first, name)
        if loc is not None:
            raise ScopeError(
                f"{self.what}: updates the Python number `{name}` inside a run-time block, "
                f"got {name}={new!r}; {_LINE}",
                loc=loc,
                hint=f"{name} = tc.var({old!r}) before the block",
            )


def range_(start: Any, stop: Any = None, step: Any = 1) -> Iterator[Scalar]:
    """`for i in tc.range(n)` or `tc.range(start, stop, step)`: a loop at run time.

    The body is traced once. Steps must be positive: a step of 0 at run time is a loop without end,
    which the PTX machine reports (`limit`). `break` and `return` out of the loop, and rebinding a
    name to a new run-time value inside, are errors.

    Bounds are ints or s32 scalars, `stop` excluded. Scope: any. PTX: `setp`, `bra`.
    """
    if stop is None:
        start, stop = 0, start
    builder = current()
    watch = _Watch("tc.range", sys._getframe(1))
    body = builder.child()
    first, last, by = (operand_of(bound, "tc.range") for bound in (start, stop, step))
    op = builder.add(Range(first, last, by, body))
    index = op.result
    index.block = body
    finished = False
    with builder.within(body):
        try:
            yield Scalar(index)
            finished = True
        finally:
            if not finished and sys.exc_info()[0] is GeneratorExit:
                builder.broken = ScopeError(
                    "tc.range: a run-time loop cannot be left by break or return",
                    loc=op.loc,
                    hint="compute the trip count first, or guard the body with tc.when",
                )
    watch.check(body)


def while_less(place: Var, stop: Any) -> Iterator[Scalar]:
    """A loop at run time, as long as a mutable s32 that its body writes is less than `stop`.

    Gives the place's value at the start of the body.
    """
    builder = current()
    body = builder.child()
    builder.add(WhileLess(place.value, operand_of(stop), body))
    with builder.within(body):
        yield place.get()


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """`with tc.when(condition):` a branch at run time; a Python bool decides while tracing.

    The body of a false Python bool is still traced, and then dropped.

    Scope: any; a warp may take both branches. PTX: `bra`.
    """
    builder = current()
    watch, entry = _Watch("tc.when", sys._getframe(2)), Entry("tc.when", 2)
    decided = operand_of(condition, "tc.when")
    if isinstance(decided, bool):
        with builder.within(builder.block if decided else builder.child()):
            yield
        entry.check_left_at_the_end()
        builder.last_branch = (builder.block, len(builder.block.ops), decided)
        return
    if not isinstance(decided, Value) or decided.type != ScalarType(dtypes.pred):
        raise ScopeError(
            f"tc.when: the condition is a comparison of run-time scalars, got {condition!r}",
            hint="with tc.when(i < n):",
        )
    op = When(decided, builder.child())
    builder.add(op)
    with builder.within(op.body):
        yield
    entry.check_left_at_the_end()
    watch.check(op.body)
    builder.last_branch = (builder.block, len(builder.block.ops), op)


@contextmanager
def otherwise() -> Iterator[None]:
    """`with tc.otherwise():` right after a `tc.when` block: its else branch.

    Scope: that of the `tc.when`. PTX: `bra`.
    """
    builder = current()
    watch, entry = _Watch("tc.otherwise", sys._getframe(2)), Entry("tc.otherwise", 2)
    here = (builder.block, len(builder.block.ops))
    if builder.last_branch is None or builder.last_branch[:2] != here:
        raise ScopeError(
            "tc.otherwise: follows a tc.when block directly",
            hint="put it on the line after the tc.when block, with nothing between",
        )
    branch, builder.last_branch = builder.last_branch[2], None
    if isinstance(branch, bool):
        with builder.within(builder.child() if branch else builder.block):
            yield
        entry.check_left_at_the_end()
        return
    branch.orelse = builder.child()
    with builder.within(branch.orelse):
        yield
    entry.check_left_at_the_end()
    watch.check(branch.orelse)


@contextmanager
def one_thread(first: Any = 0) -> Iterator[None]:
    """A section executed by thread `first` of the CTA alone.

    Scope: any; the body is one thread's. PTX: `setp` on `%tid.x`, `bra`.
    """
    builder, entry = current(), Entry("tc.one_thread", 2)
    body = builder.child()
    builder.add(OneThread(operand_of(first, "tc.one_thread"), body))
    with builder.within(body, Scope.THREAD):
        yield
    entry.check_left_at_the_end()
