"""Functions of users that kernels are traced with: those that would trace alike are one.

A kernel is kept by its functions. A lambda that is made anew in each call is the one of before, and
a function that reads another number than before, in its closure, in its module, in an attribute of
an object there, or in a function that it calls, is another.
"""

from __future__ import annotations

import sys
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

MAX_FUNCTIONS = 1024  # remembered, so that equal lambdas compile once
MAX_ELEMS = 1024  # of arrays whose numbers count; larger ones count by identity
PLAIN = (bool, int, float, complex, str, bytes, type(None))
OWN = __name__.partition(".")[0]
# Objects of their classes count by identity alone: tensors, dtypes, tiles.
LIBRARIES = (OWN, "builtins", "numpy", "torch", "cupy", "ml_dtypes")

_functions: dict[Any, Any] = {}  # by state
_states: dict[Any, Any] = {}  # of those, by identity


def remembered(function: Any) -> Any:
    """The first function of the same code and surroundings as this one has now.

    Objects of classes count by identity, and by what their attributes hold. What properties give,
    and callable objects in the place of a function, are not looked at.
    """
    if not isinstance(function, FunctionType | MethodType) or _is_own(function):
        return function
    try:
        state = _state(function)
        found = _functions.get(state)
        if found is not None:
            return found
        if len(_functions) >= MAX_FUNCTIONS:
            _functions.clear()
            _states.clear()
        if id(function) in _states or isinstance(function, MethodType):
            # It is kept for what it read before; methods of one object are equal.
            function = _copy(function)
        _functions[state], _states[id(function)] = function, state
        return function
    except (TypeError, ValueError):  # surroundings that cannot be compared, or an empty cell
        return function


def _is_own(function: Any) -> bool:
    return str(function.__module__).partition(".")[0] == OWN


def _state(function: Any) -> Any:
    """What tracing a function, or a method of an object, depends on."""
    if isinstance(function, MethodType):
        body: Any = function.__func__
        owner = _value(function.__self__, (body.__code__,), _names(body.__code__))
        return _function(body, ()), owner
    return _function(function, ())


def _copy(function: Any) -> Any:
    """The same function, as another object."""
    if isinstance(function, MethodType):
        return MethodType(_copy(function.__func__), function.__self__)
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
    used = _names(code)
    read = [(name, _value(names[name], inner, used)) for name in used if name in names]
    return (code, id(names), tuple(read), *[_value(x, inner, used) for x in cells],
            _value(function.__defaults__, inner, used), _value(extra, inner, used))  # fmt: skip


def _names(code: CodeType) -> list[str]:
    """Names that it, and what is defined in it, may read of its module."""
    inside = [x for x in code.co_consts if isinstance(x, CodeType)]
    return sorted({*code.co_names, *[name for x in inside for name in _names(x)]})


def _value(value: Any, outer: tuple[Any, ...], used: list[str]) -> Any:
    """A value as part of a state: numbers by what they are, objects by which they are, and hold.

    Args:
        value: that a function reads.
        outer: codes of functions, and identities of objects, that it is read within.
        used: names of attributes that the function may read.
    """
    kind = type(value)
    if isinstance(value, float):
        return kind, repr(value)  # 0.0 and -0.0 differ
    if kind in PLAIN:
        return kind, value
    if kind in (tuple, list):
        return kind, tuple([_value(x, outer, used) for x in value])
    if kind in (set, frozenset):
        return kind, frozenset([_value(x, outer, used) for x in value])
    if kind is dict:
        return kind, tuple([(key, _value(x, outer, used)) for key, x in value.items()])
    if isinstance(value, np.ndarray | np.generic) and value.size <= MAX_ELEMS:
        return kind, value.dtype, value.shape, value.tobytes()
    if kind is FunctionType and not _is_own(value):
        return _function(value, outer)
    known = value if getattr(value, "__hash__", None) is not None else (kind, id(value))
    if id(value) in outer:  # it holds itself
        return known
    held = _held(value, used)
    inner = (*outer, id(value))
    return (known, tuple([(name, _value(x, inner, used)) for name, x in held])) if held else known


def _held(value: Any, used: list[str]) -> list[tuple[str, Any]]:
    """Attributes of an object of a user's, of its class, or of a module: those that may be read."""
    if isinstance(value, ModuleType):
        root = value.__name__.partition(".")[0]
        known = root in LIBRARIES or root in sys.stdlib_module_names
        plain = (*PLAIN, tuple, list, dict, np.ndarray, *(() if known else (FunctionType,)))
        return [(name, x) for name in used if type(x := vars(value).get(name, value)) in plain]
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__.partition(".")[0] in LIBRARIES:
        return []
    found: dict[str, Any] = {}
    for owner in reversed(kind.__mro__[:-1]):
        found |= {name: x for name, x in vars(owner).items() if name in used}
    if value is not kind:
        slots = [name for name, x in found.items() if type(x) is MemberDescriptorType]
        found |= {name: getattr(value, name, None) for name in slots}
        found |= getattr(value, "__dict__", {})
    return list(found.items())
