"""Run-time loops and branches, and the watch over Python names that a trace cannot follow."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..builder import current
from ..errors import Loc, ScopeError
from ..ir import Block, Scope, Value
from ..ops.control import OneThread, Range, When
from .scalars import Scalar, Var, operand_of
from .values import Registers, SharedTile

_WATCHED = (Scalar, Registers, SharedTile, int, float)


def _snapshot(frame: FrameType) -> dict[str, Any]:
    return {
        name: value
        for name, value in frame.f_locals.items()
        if isinstance(value, _WATCHED) and not isinstance(value, bool | Var)
    }


def _updates_itself(frame: FrameType, first: int, name: str) -> int | None:
    """Line of `name += ...` or `name = ... name ...` in the statement that starts at `first`."""
    source = "".join(linecache.getlines(frame.f_code.co_filename))
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if not isinstance(node, ast.For | ast.With) or node.lineno != first:
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.AugAssign) and getattr(inner.target, "id", "") == name:
                return inner.lineno
            if isinstance(inner, ast.Assign) and any(
                getattr(t, "id", "") == name for t in inner.targets
            ):
                loads = {n.id for n in ast.walk(inner.value) if isinstance(n, ast.Name)}
                if name in loads:
                    return inner.lineno
    return None


def _check_names(what: str, frame: FrameType, first: int, before: dict[str, Any], body: Block) -> None:
    for name, old in before.items():
        new = frame.f_locals.get(name)
        if new is old or isinstance(new, Var):
            continue
        made = getattr(new, "value", None)
        if isinstance(made, Value):
            if made is getattr(old, "value", None) or made.block is None or not made.block.inside(body):
                continue
            raise ScopeError(
                f"{what}: rebinds the name `{name}`, got {name}={new!r} made inside the block; "
                "a trace runs the block once, so the new value would not reach the next "
                "iteration or the code after it",
                loc=made.loc,
                hint=f"before the block: {name} = tc.var(...), inside: {name} += ... or "
                f"{name}.set(...); a tile is written in place: {name} *= ..., or out={name}",
            )
        line = _updates_itself(frame, first, name) if isinstance(new, int | float) else None
        if line is not None:
            raise ScopeError(
                f"{what}: updates the Python number `{name}` inside a run-time block, "
                f"got {name}={new!r}; a trace runs the block once",
                loc=Loc(frame.f_code.co_filename, line),
                hint=f"{name} = tc.var({old!r}) before the block",
            )


def range_(start: Any, stop: Any = None, step: Any = 1) -> Iterator[Scalar]:
    """`for i in tc.range(n)` or `tc.range(start, stop, step)`: a loop at run time.

    The body is traced once. Steps must be positive. `break` and `continue` of the loop itself,
    and rebinding a name to a new run-time value inside, are errors.
    """
    if stop is None:
        start, stop = 0, start
    if isinstance(step, int) and step <= 0:
        raise ScopeError(f"tc.range: the step is positive, got step={step}")
    builder = current()
    frame = sys._getframe(1)
    first, before = frame.f_lineno, _snapshot(frame)
    body = builder.child()
    op = Range(operand_of(start, "range"), operand_of(stop, "range"), operand_of(step, "range"), body)
    builder.add(op)
    op.result.name = op.result.name or "i"
    finished = False
    with builder.within(body):
        try:
            yield Scalar(op.result)
            finished = True
        finally:
            if not finished and sys.exc_info()[0] is GeneratorExit:
                builder.broken = ScopeError(
                    "tc.range: a run-time loop cannot be left by break or return",
                    loc=op.loc,
                    hint="compute the trip count first, or guard the body with tc.when",
                )
    _check_names("tc.range", frame, first, before, body)


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """`with tc.when(condition):` a branch at run time; a Python bool decides while tracing.

    The body of a false Python bool is still traced and then dropped.
    """
    builder = current()
    frame = sys._getframe(2)
    first, before = frame.f_lineno, _snapshot(frame)
    body = builder.child()
    if isinstance(condition, bool):
        with builder.within(body):
            yield
        if condition:
            builder.block.ops.extend(body.ops)
        return
    p = operand_of(condition, "when")
    if not isinstance(p, Value) or getattr(p.type, "dtype", None) is None or p.type.dtype.name != "pred":  # type: ignore[union-attr]
        raise ScopeError(
            f"tc.when: the condition is a comparison of run-time scalars, got {condition!r}",
            hint="with tc.when(i < n):",
        )
    builder.add(When(p, body))
    with builder.within(body):
        yield
    _check_names("tc.when", frame, first, before, body)


@contextmanager
def otherwise() -> Iterator[None]:
    """`with tc.otherwise():` right after a `tc.when` block: its else branch."""
    builder = current()
    last = builder.block.ops[-1] if builder.block.ops else None
    if not isinstance(last, When) or last.orelse is not None:
        raise ScopeError(
            "tc.otherwise: follows a tc.when block directly",
            hint="put it on the line after the tc.when block, with nothing between",
        )
    last.orelse = builder.child()
    with builder.within(last.orelse):
        yield


@contextmanager
def one_thread(first: Any = 0) -> Iterator[None]:
    """A section executed by thread `first` of the CTA alone."""
    builder = current()
    body = builder.child()
    builder.add(OneThread(operand_of(first, "one_thread"), body))
    with builder.within(body, Scope.THREAD):
        yield
