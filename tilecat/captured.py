"""Functions of users that kernels are traced with: those that would trace alike are one.

A kernel is kept by its functions. A lambda that is made anew in each call is the one of before, and
a function that reads another number than before, in its closure, in its module, in what an object
there holds or its properties give, or in a function that it calls, is another. The same is true of
a kernel itself: it is traced again when what its body reads has changed.
"""

from __future__ import annotations

import hashlib
import sys
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property, lru_cache, partial
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

MAX_FUNCTIONS = 1024  # remembered, so that equal lambdas compile once
MAX_BYTES = 8192  # of arrays whose bytes are kept; of larger ones a digest is
PLAIN = (bool, int, float, complex, str, bytes, type(None))
OWN = __name__.partition(".")[0]
# Objects of their classes count by identity alone: tensors, dtypes, tiles.
LIBRARIES = (OWN, "builtins", "numpy", "torch", "cupy", "ml_dtypes")
# Methods that Python calls unnamed; all others that it does make or describe an object.
UNREAD = ("__init__", "__new__", "__post_init__", "__repr__", "__str__", "__eq__", "__hash__")
MISSING = object()
MAX_OBJECTS = 16384  # whose attributes one look goes into; those behind count by identity alone

_functions: dict[Any, Any] = {}  # by state
_kept: set[int] = set()  # identities of those
_seen: dict[int, tuple[Any, Surroundings, Any]] = {}  # by identity: what is kept in its place


class _Same:
    """An object that counts by identity, kept alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        """Whether it is the same object."""
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        """Of the identity."""
        return id(self.value)


@dataclass(frozen=True)
class _Walk:
    """One look at what a function reads: it goes into each value once.

    Args:
        met: values it went into, with the names that were looked for there -> which one it was,
            and the value, so that no other has its identity as long as the walk lasts.
        objects: (object, walk, names) whose attributes are still to be looked at, the nearest
            first, however long a chain of objects is.
        within: codes of functions, and identities of objects, that it is inside of.
    """

    met: dict[tuple[int, frozenset[str]], tuple[int, Any]] = field(default_factory=dict)
    objects: deque[tuple[Any, _Walk, frozenset[str]]] = field(default_factory=deque)
    within: tuple[Any, ...] = ()

    def inside(self, of: Any) -> _Walk:
        """The same walk in a function or an object."""
        return _Walk(self.met, self.objects, (*self.within, of))

    def again(self, value: Any, used: frozenset[str]) -> Any:
        """What a value counts as without going into it; None where that is to be done now."""
        number, _ = self.met.get((id(value), used), (None, None))
        if number is not None:
            return "again", number
        self.met[id(value), used] = len(self.met), value
        return None


def remembered(function: Any) -> Any:
    """The first function of the same code and surroundings as this one has now.

    Functions, methods, `functools.partial` and callable objects of users' classes. Objects count by
    identity, and by what their attributes hold and their properties give; tensors by identity, and
    by how often they were written.
    """
    seen = _seen.get(id(function))
    if seen is not None and seen[0] is function and not seen[1].changed():
        return seen[2]
    function = _as_method(function)
    if not isinstance(function, FunctionType | MethodType | partial) or is_own(function):
        return function
    around = Surroundings(function)
    if around.state is None:
        return function
    plain = isinstance(function, FunctionType)
    try:
        found = _functions.get(around.state)
    except (TypeError, ValueError):  # objects whose own rule compares otherwise
        return function
    if found is None:
        if len(_functions) >= MAX_FUNCTIONS:
            _functions.clear()
            _kept.clear()
        # One that is kept already is kept for what it read before; methods of an object are equal.
        found = function if plain and id(function) not in _kept else _copy(function)
        _functions[around.state] = found
        _kept.add(id(found))
    if plain:
        if len(_seen) >= MAX_FUNCTIONS:
            _seen.clear()
        _seen[id(function)] = function, around, found
    return found


class Surroundings:
    """What a function reads, to see later whether it would read the same again.

    Attributes:
        state: equal for functions that trace alike; None if it cannot be compared.

    Args:
        function: a function, a method, or one of `functools.partial`.
    """

    def __init__(self, function: Any):
        self._function = function
        self._read: list[tuple[Any, str, Any]] = []  # (names or a cell, name, what it was)
        self._deep = not isinstance(function, FunctionType)  # it reads what may change in place
        self._walked: set[CodeType] = set()
        self.state = self._now()

    def changed(self) -> bool:
        """Whether it would trace otherwise than when this was made."""
        if self._walked and not self._deep and all(
            [(where.get(name, MISSING) if name else _content(where)) is value
             for where, name, value in self._read]
        ):  # fmt: skip
            return False
        try:
            if self._now() != self.state:
                return True
        except (TypeError, ValueError):  # objects whose own rule compares otherwise
            return True
        self._read.clear()
        self._walked.clear()
        if isinstance(self._function, FunctionType):
            self._walk(self._function)
        return False

    def _now(self) -> Any:
        try:
            walk = _Walk()
            states = [_value(self._function, walk, frozenset())]
            while walk.objects and len(states) <= MAX_OBJECTS:
                value, inner, used = walk.objects.popleft()
                states.append(tuple([(name, _value(x, inner, used | names))
                                     for name, x, names in _held(value, used)]))  # fmt: skip
            state = tuple(states)
            hash(state)
            return state
        except (TypeError, ValueError, RecursionError):
            return None

    def _walk(self, function: FunctionType) -> None:
        code, names = function.__code__, function.__globals__
        if code in self._walked:
            return
        self._walked.add(code)
        found: list[tuple[Any, str, Any]] = [
            (names, name, names[name]) for name in _names(code) if name in names
        ]
        found += [(cell, "", _content(cell)) for cell in function.__closure__ or ()]
        self._read += found
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        for value in (*[value for _, _, value in found], *defaults):
            if isinstance(value, FunctionType):
                if not is_own(value):
                    self._walk(value)
            elif not _is_fixed(value):
                self._deep = True


def _is_fixed(value: Any) -> bool:
    """Whether a value cannot change in place, or counts by identity."""
    kind = type(value)
    if kind is tuple:
        return all(_is_fixed(x) for x in value)
    if isinstance(value, ModuleType):
        return _is_library(value.__name__) or value.__name__ in sys.builtin_module_names
    if kind in PLAIN or value is MISSING:
        return True
    if kind is BuiltinMethodType:
        return isinstance(value.__self__, ModuleType)
    if isinstance(value, type):
        return _is_library(value.__module__)
    return _root(kind.__module__) in (OWN, "ml_dtypes") or isinstance(value, np.generic | np.dtype)


def _root(module: Any) -> str:
    return str(module).partition(".")[0]


def _is_library(module: Any) -> bool:
    root = _root(module)
    return root in LIBRARIES or root in sys.stdlib_module_names


def is_own(function: Any) -> bool:
    """Whether a function is tilecat's: it reads nothing that changes."""
    return _root(getattr(function, "__module__", "")) == OWN


def _as_method(function: Any) -> Any:
    """A callable object of a user's class as the method that a call of it runs."""
    kind = type(function)
    if _is_library(kind.__module__) or isinstance(function, type):
        return function
    calls = (vars(owner).get("__call__") for owner in kind.__mro__)
    call = next(filter(None, calls), None)
    if not isinstance(call, FunctionType):
        return function
    return MethodType(_copy(call, kind.__name__), function)


def _copy(function: Any, name: str = "") -> Any:
    """The same function, as another object."""
    if isinstance(function, MethodType):
        return MethodType(_copy(function.__func__), function.__self__)
    if isinstance(function, partial):
        return partial(function.func, *function.args, **function.keywords)
    made = FunctionType(function.__code__, function.__globals__, name or function.__name__,
                        function.__defaults__, function.__closure__)  # fmt: skip
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    made.__module__, made.__doc__ = function.__module__, function.__doc__
    return made


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _function(function: FunctionType, walk: _Walk) -> Any:
    """What tracing it depends on."""
    code, names = function.__code__, function.__globals__
    if code in walk.within:  # it calls itself
        return code
    inner = walk.inside(code)
    used = _names(code)
    read = [(name, _value(names[name], inner, used)) for name in sorted(used) if name in names]
    cells = [_value(_content(cell), inner, used) for cell in function.__closure__ or ()]
    extra = tuple((function.__kwdefaults__ or {}).items())
    return (code, id(names), tuple(read), *cells,
            _value(function.__defaults__, inner, used), _value(extra, inner, used))  # fmt: skip


@lru_cache(maxsize=MAX_FUNCTIONS)
def _names(code: CodeType) -> frozenset[str]:
    """Names that it, and what is defined in it, may read of its module or of objects."""
    found = set(code.co_names)
    for x in code.co_consts:
        if isinstance(x, CodeType):
            found |= _names(x)
        elif isinstance(x, str) and x.isidentifier():  # getattr(object, "name")
            found.add(x)
    return frozenset(found)


def _value(value: Any, walk: _Walk, used: frozenset[str]) -> Any:
    """A value as part of a state: numbers by what they are, objects by which they are, and hold.

    Args:
        value: that a function reads.
        walk: that it is read in.
        used: names of attributes that the function may read.
    """
    kind = type(value)
    if isinstance(value, float):
        return kind, repr(value)  # 0.0 and -0.0 differ
    if kind in PLAIN:
        return kind, value
    if id(value) in walk.within:  # it holds itself
        return _Same(value)
    again = walk.again(value, used)
    if again is not None:
        return again
    if isinstance(value, np.ndarray | np.generic):
        return kind, value.dtype, value.shape, _bytes_of(value)
    if isinstance(value, FunctionType):
        return _Same(value) if is_own(value) else _function(value, walk)
    inner = walk.inside(id(value))
    if kind is MethodType:
        body = value.__func__
        more = _names(body.__code__) if isinstance(body, FunctionType) else frozenset()
        return kind, _value(body, inner, used), _value(value.__self__, inner, used | more)
    if isinstance(value, staticmethod | classmethod):
        return kind, _value(value.__func__, inner, used)
    if isinstance(value, partial):
        return kind, _value((value.func, value.args, value.keywords), inner, used)
    if kind is BuiltinMethodType:  # of a dict, a list, ...; or a function of a module
        owner = value.__self__
        held = None if isinstance(owner, ModuleType | type) else _value(owner, inner, used)
        return kind, value.__name__, _Same(value) if held is None else held
    contents = _contents(value, inner, used)
    if contents is not None and _is_library(kind.__module__):
        return kind, contents
    walk.objects.append((value, inner, used))
    return kind, _identity(value) if contents is None else contents


def _bytes_of(array: Any) -> Any:
    if array.dtype.hasobject:
        return repr(array.tolist())
    data = array.tobytes()
    return data if len(data) <= MAX_BYTES else hashlib.blake2b(data).digest()


def _contents(value: Any, walk: _Walk, used: frozenset[str]) -> Any:
    """Of a container; None for other objects."""
    if isinstance(value, tuple | list | deque):
        return _each(value, walk, used)
    if isinstance(value, set | frozenset):
        return frozenset([_value(x, walk, used) for x in value])
    if isinstance(value, dict | MappingProxyType):
        return _each(value.keys(), walk, used), _each(value.values(), walk, used)
    return None


def _each(values: Collection[Any], walk: _Walk, used: frozenset[str]) -> Any:
    """Of values in order; plain ones of one type all at once, so that long tables cost little."""
    kinds = set(map(type, values))
    if len(kinds) == 1 and kinds <= {*PLAIN}:
        kind = kinds.pop()
        return kind, _bytes_of(np.array([*values])) if kind is float else tuple(values)
    return tuple([_value(x, walk, used) for x in values])


def _identity(value: Any) -> Any:
    """What an object is equal to: by its own rule where it has one; tensors as they were written.

    Tiles have a rule that is none of Python's: it records a comparison.
    """
    kind = type(value)
    root = _root(kind.__module__)
    if root == "torch":
        return _Same(value), _version(value)
    by_rule = any("__eq__" in vars(owner) for owner in kind.__mro__[:-1]) and kind.__hash__
    if not by_rule or (root == OWN and not is_dataclass(value)):
        return _Same(value)
    try:
        hash(value)
        return value
    except TypeError:  # a frozen dataclass that holds a list, an array
        return _Same(value)


def _version(tensor: Any) -> Any:
    """How often a tensor of torch was written in place; None for what does not count it."""
    try:
        return getattr(tensor, "_version", None)
    except RuntimeError:  # made under torch.inference_mode
        return None


def _held(value: Any, used: frozenset[str]) -> list[tuple[str, Any, frozenset[str]]]:
    """Attributes of an object of a user's, of its class, or of a module: those that may be read.

    Returns:
        name, what is there, and the names that the object's methods read.
    """
    if isinstance(value, ModuleType):
        return [(name, x, frozenset()) for name, x in _of_module(value, used)]
    kind = value if isinstance(value, type) else type(value)
    if _root(kind.__module__) in LIBRARIES:
        return []
    members: dict[str, Any] = {}
    for owner in reversed(kind.__mro__[:-1]):
        if not _is_library(owner.__module__):
            members |= vars(owner)
    names = _read_by(members, used)
    found = {name: x for name, x in members.items() if name in names or _is_implicit(name, x)}
    if value is not kind:
        for name, x in list(found.items()):
            if isinstance(x, property | cached_property | MemberDescriptorType):
                found[name] = (_code_of(x), _given(value, name))
        found |= getattr(value, "__dict__", {})
    return [(name, x, names) for name, x in found.items()]


def _of_module(module: ModuleType, used: frozenset[str]) -> list[tuple[str, Any]]:
    plain = (*PLAIN, tuple, list, dict, np.ndarray) if _is_library(module.__name__) else None
    inside = vars(module)
    return [(name, inside[name]) for name in sorted(used)
            if name in inside and (plain is None or type(inside[name]) in plain)]  # fmt: skip


def _read_by(members: dict[str, Any], used: frozenset[str]) -> frozenset[str]:
    """The names used, and those that methods of these names, and Python's own, use in turn."""
    names, done = used, set()
    while True:
        more = [(name, code) for name, x in members.items()
                if name not in done and (name in names or _is_implicit(name, x))
                and (code := _code_of(x)) is not None]  # fmt: skip
        if not more:
            return names
        for name, code in more:
            done.add(name)
            names |= _names(code)


def _is_implicit(name: str, member: Any) -> bool:
    """Whether Python calls it without its name: `x * settings`, `settings(x)`, `settings[0]`."""
    special = name.startswith("__") and name.endswith("__") and name not in UNREAD
    return special and isinstance(member, FunctionType)


def _code_of(member: Any) -> CodeType | None:
    """Of a method, or of what a property runs."""
    for inner in ("__func__", "fget", "func"):
        if isinstance(member, staticmethod | classmethod | property | cached_property):
            member = getattr(member, inner, member)
    return member.__code__ if isinstance(member, FunctionType) else None


def _given(value: Any, name: str) -> Any:
    """What a property gives now; nothing where it cannot outside of a kernel."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001
        return None
