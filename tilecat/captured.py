"""Functions of users that kernels are traced with: those that would trace alike are one.

A kernel is kept by its functions. A lambda that is made anew in each call is the one of before, and
a function that reads another number than before, in its closure, in its module or in a function
that it calls, is another.
"""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any

import numpy as np

MAX_FUNCTIONS = 1024  # remembered, so that equal lambdas compile once
MAX_ELEMS = 1024  # of arrays whose numbers count; larger ones count by identity
PLAIN = (bool, int, float, complex, str, bytes, type(None))
OWN = __name__.partition(".")[0]

_functions: dict[Any, Any] = {}  # by state
_states: dict[Any, Any] = {}  # of those, by identity


def remembered(function: Any) -> Any:
    """The first function of the same code and surroundings as this one has now.

    Objects of classes, and what their attributes hold, count by identity.
    """
    if not isinstance(function, FunctionType) or _is_own(function):
        return function
    try:
        state = _function(function, ())
        found = _functions.get(state)
        if found is not None:
            return found
        if len(_functions) >= MAX_FUNCTIONS:
            _functions.clear()
            _states.clear()
        if id(function) in _states:  # it is kept for what it read before
            function = _copy(function)
        _functions[state], _states[id(function)] = function, state
        return function
    except (TypeError, ValueError):  # surroundings that cannot be compared, or an empty cell
        return function


def _is_own(function: Any) -> bool:
    return str(function.__module__).partition(".")[0] == OWN


def _copy(function: FunctionType) -> FunctionType:
    """The same function, as another object."""
    made = FunctionType(function.__code__, function.__globals__, function.__name__,
                        function.__defaults__, function.__closure__)  # fmt: skip
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    made.__module__, made.__doc__ = function.__module__, function.__doc__
    return made


def _function(function: FunctionType, outer: tuple[Any, ...]) -> Any:
    """What tracing it depends on."""
    code, names = function.__code__, function.__globals__
    if code in outer:  # it calls itself
        return code
    inner = (*outer, code)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    extra = tuple((function.__kwdefaults__ or {}).items())
    read = [(name, _value(names[name], inner))
            for name in _names(code) if name in names]  # fmt: skip
    return (code, id(names), tuple(read), *[_value(x, inner) for x in cells],
            _value(function.__defaults__, inner), _value(extra, inner))  # fmt: skip


def _names(code: CodeType) -> list[str]:
    """Names that it, and what is defined in it, may read of its module."""
    inside = [x for x in code.co_consts if isinstance(x, CodeType)]
    return sorted({*code.co_names, *[name for x in inside for name in _names(x)]})


def _value(value: Any, outer: tuple[Any, ...]) -> Any:
    """A value as part of a state: numbers by what they are, objects by which they are."""
    kind = type(value)
    if isinstance(value, float):
        return kind, repr(value)  # 0.0 and -0.0 differ
    if kind in PLAIN:
        return kind, value
    if kind in (tuple, list):
        return kind, tuple([_value(x, outer) for x in value])
    if kind is dict:
        return kind, tuple([(key, _value(x, outer)) for key, x in value.items()])
    if isinstance(value, np.ndarray | np.generic) and value.size <= MAX_ELEMS:
        return kind, value.dtype, value.shape, value.tobytes()
    if kind is FunctionType and not _is_own(value):
        return _function(value, outer)
    return value if getattr(value, "__hash__", None) is not None else (kind, id(value))
