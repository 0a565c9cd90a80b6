"""Python's own errors in a kernel, as errors of the language: a wrong call, a name it lacks.

Python runs a kernel's body, so what it refuses there, and what fails inside of an op for arguments
that no rule foresaw, ends in its TypeError or AttributeError. Those that are about tilecat's names
and objects say so, at the user's line; all others are the user's, and stay what they are.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any

from ..errors import Loc, ScopeError, TileError, is_user_frame, loc_in

OWN = __name__.partition(".")[0]
KERNELS = f"{OWN}.kernels"  # written as users write
MAX_SHOWN = 80  # characters of an argument
ABOUT = re.compile(r"'([\w.]+)'")
SIGNATURE = re.compile(r"^[\w.<>]+\(\) (?:missing|got|takes)")
OPERATOR = re.compile(r"for ([^:]+): '|^'(\S+)' not supported")
HERE = {  # names of Triton, PyTorch and NumPy
    "arange": "places X[i, j] take the place of offsets: tc.load(X[i, 0], rt[f32, 64, 64])",
    "T": "tc.mma_ABt, tc.mma_AtB and tc.mma_AtBt take operands transposed",
    "argmax": "tc.row_argmax(x), tc.col_argmax(x)",
    "argmin": "tc.row_argmin(x), tc.col_argmin(x)",
    "associative_scan": "tc.cumsum(x, axis), tc.cummax, tc.cummin, tc.cumprod",
    "astype": "tc.cast(x, dtype)",
    "constexpr": "keyword parameters of a kernel are compile-time: def kernel(X, *, cols=64)",
    "debug_barrier": "tc.sync()",
    "device_print": "tc.print(x)",
    "dot": "tc.mma_AB(acc, a, b)",
    "flip": "views reverse: X[::-1]",
    "matmul": "tc.mma_AB(acc, a, b)",
    "max": "tc.row_max(x), tc.col_max(x), tc.tile_max(x); of two: tc.maximum(a, b)",
    "mean": "tc.row_sum(x) / cols",
    "min": "tc.row_min(x), tc.col_min(x), tc.tile_min(x); of two: tc.minimum(a, b)",
    "num_programs": "tc.num_ctas()",
    "program_id": "tc.cta_id()",
    "rand": "tc.uniform(seed, ...)",
    "reduce": "tc.row_sum(x), tc.col_sum(x), tc.row_max(x), ...",
    "reshape": "tc.view_as(x, type)",
    "shape": "x.type.shape; of a tensor X.rows, X.cols, X.size(axis)",
    "size": "x.type.shape; of a tensor X.rows, X.cols, X.size(axis)",
    "softmax": "e = tc.exp(x - tc.row_max(x)); e / tc.row_sum(e)",
    "static_range": "range(n): Python's own unrolls",
    "sum": "tc.row_sum(x), tc.col_sum(x), tc.tile_sum(x)",
    "to": "tc.cast(x, dtype)",
    "trans": "x.T of a shared tile; of registers tc.transpose(x)",
    "where": "tc.select(condition, a, b)",
}  # fmt: skip


@dataclass(frozen=True)
class _Line:
    """Where Python stood.

    Args:
        frame: the innermost of the user's.
        loc: its place.
        text: the expression there; empty if unknown.
        within: whether what failed is inside of tilecat.
    """

    frame: FrameType
    loc: Loc
    text: str
    within: bool


def explained(error: Exception, default: Loc | None) -> TileError | None:
    """The error of the language that Python's stands for; None for one of the user's own.

    Args:
        error: what ended a trace.
        default: the kernel's line, for what fails outside any line of its body.
    """
    line = _line_of(error)
    if line is None:
        return ScopeError(f"kernel: {_said(error)}", loc=default)
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return _lacks(error, line)
    if line.within:
        return _inside(error, line)
    if isinstance(error, UnboundLocalError):
        name = str(error).partition("'")[2].partition("'")[0]
        return ScopeError(
            f"{name}: a name that a hole assigns is the hole's own, {_said(error)}", loc=line.loc,
            hint=f"tiles are written in place: tc.mma_AB({name}, a, b), {name}[:] = x; or "
            f"`nonlocal {name}`, or another name",
        )  # fmt: skip
    if isinstance(error, AttributeError):
        return _lacks(error, line)
    return _refused(error, line) if isinstance(error, TypeError) else None


def _said(error: Exception) -> str:
    return f"got {type(error).__name__}: {error}"


def _line_of(error: Exception) -> _Line | None:
    """The user's innermost line, if the error arose there or in tilecat called from there."""
    found: TracebackType | None = None
    rest: list[FrameType] = []
    for part in _parts(error.__traceback__):
        if is_user_frame(part.tb_frame):
            found, rest = part, []
        else:
            rest.append(part.tb_frame)
    if found is None:
        return None
    code = found.tb_frame.f_code
    loc = loc_in(code, found.tb_lineno, found.tb_lasti)
    within = bool(rest) and _is_own(rest[-1].f_globals.get("__name__"))
    return _Line(found.tb_frame, loc, _text(found), within)


def _parts(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _text(part: TracebackType) -> str:
    """The source of the expression that was evaluated."""
    positions = list(part.tb_frame.f_code.co_positions())
    first, last, start, end = positions[part.tb_lasti // 2]
    if None in (first, last, start, end):
        return ""
    path = part.tb_frame.f_code.co_filename
    lines = [Loc(path, number).text for number in range(first or 0, (last or 0) + 1)]
    lines[-1] = lines[-1].encode()[:end].decode(errors="replace")
    lines[0] = lines[0].encode()[start:].decode(errors="replace")
    return " ".join(text.strip() for text in lines)


def _is_own(module: Any) -> bool:
    name = str(module)
    return name.partition(".")[0] == OWN and not name.startswith(KERNELS)


def _called(line: _Line) -> Any:
    """The function of a call, if it is named by names and attributes; else None."""
    try:
        call = ast.parse(line.text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return _named(call.func, line.frame) if isinstance(call, ast.Call) else None


def _named(node: ast.expr, frame: FrameType) -> Any:
    if isinstance(node, ast.Attribute):
        owner = _named(node.value, frame)
        return None if owner is None else getattr(owner, node.attr, None)
    if not isinstance(node, ast.Name):
        return None
    return frame.f_locals.get(node.id, frame.f_globals.get(node.id))


def _signature(function: Any) -> str:
    """How it is called: names and defaults, without annotations."""
    found = inspect.signature(function)
    empty = inspect.Parameter.empty
    bare = [x.replace(annotation=empty) for x in found.parameters.values()]
    return f"{function.__name__}{inspect.Signature(bare)}"


def _refused(error: TypeError, line: _Line) -> TileError | None:
    """A call with other arguments than a function of ours takes, or an operator of our objects."""
    text = str(error)
    if SIGNATURE.match(text):
        function = _called(line)
        function = vars(function).get("__init__") if isinstance(function, type) else function
        if not isinstance(function, FunctionType | MethodType) or not _is_own(function.__module__):
            return None
        what = text.partition("() ")[2]
        return ScopeError(
            f"{function.__name__}: {what}, got {_short(line.text)}", loc=line.loc,
            hint=_signature(function),
        )  # fmt: skip
    if not any(_is_class(name) for name in ABOUT.findall(text)):
        return None
    operator = OPERATOR.search(text)
    symbol = next(filter(None, operator.groups())) if operator else ""
    hint = "tc.mma_AB(acc, a, b)" if symbol.startswith("@") else _of_registers(text)
    return ScopeError(f"{symbol or 'kernel'}: {text}, got {_short(line.text)}", loc=line.loc,
                      hint=hint)  # fmt: skip


def _of_registers(text: str) -> str:
    if "not callable" in text:
        return "places and parts are indexed: X[i, j], tile[:, 0:32]"
    return "register tiles and numbers are computed with: x = tc.load(tile)"


def _is_class(name: str) -> bool:
    """Whether a class of that name is ours."""
    last = name.rpartition(".")[2]
    for module in [x for key, x in sys.modules.items() if key.startswith(f"{OWN}.")]:
        if isinstance(found := vars(module).get(last), type) and _is_own(found.__module__):
            return True
    return False


def _lacks(error: AttributeError, line: _Line) -> TileError | None:
    """A name that tilecat, or an object of ours, does not have."""
    owner: Any = error.obj
    name = error.name or ""
    whole = isinstance(owner, ModuleType)
    if not _is_own(owner.__name__ if whole else type(owner).__module__):
        return None
    if owner is None or not name:
        return None
    public = getattr(sys.modules.get(OWN), "__all__", ())
    names = public if whole else [x for x in dir(owner) if not x.startswith("_")]
    near = difflib.get_close_matches(name, names, 3)
    if name in HERE:
        hint = HERE[name]
    elif near:
        hint = "nearest: " + ", ".join(near)
    else:
        hint = f"tc.{name}(x)" if name in public else "docs/reference/index.md has all functions"
    who = owner.__name__ if whole else _short(f"{owner!r} ({type(owner).__name__})")
    return ScopeError(f"{name}: {who} has no such attribute, got {_short(line.text)}",
                      loc=line.loc, hint=hint)  # fmt: skip


def _inside(error: Exception, line: _Line) -> TileError:
    """What failed inside of a function of ours, for arguments that no rule foresaw."""
    function = _called(line)
    known = isinstance(function, FunctionType | MethodType) and _is_own(function.__module__)
    what = function.__name__ if known else "kernel"
    return ScopeError(
        f"{what}: cannot take what it was given, got {_short(line.text)}: "
        f"{type(error).__name__}: {error}",
        loc=line.loc, hint=_signature(function) if known else None,
    )  # fmt: skip


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
