"""Functions of users that read objects: what their attributes hold counts."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat.captured import remembered

module = ModuleType("settings")


class Narrow:
    """An object without a dict."""

    __slots__ = ("factor",)


class Settings:
    """What functions below read."""

    shared = 2.0

    def __init__(self, factor: float):
        self.factor = factor
        self.inner = SimpleNamespace(factor=1.0)

    def method(self, x: Any, at: Any) -> Any:
        return x * self.factor


settings, narrow, members = Settings(1.0), Narrow(), {1}
settings.inner.outer = settings  # an object that holds itself


def of_attribute(x, at):
    return x * settings.factor


def of_inner(x, at):
    return x * settings.inner.factor


def of_class(x, at):
    return x * Settings.shared


def of_module(x, at):
    return x * module.factor


def of_slot(x, at):
    return x * narrow.factor


@pytest.mark.parametrize(
    ("function", "owner", "name"),
    [(of_attribute, settings, "factor"), (of_inner, settings.inner, "factor"),
     (of_class, Settings, "shared"), (of_module, module, "factor"),
     (of_slot, narrow, "factor"), (settings.method, settings, "factor")],
)  # fmt: skip
def test_a_changed_attribute_is_another_function(function, owner, name, monkeypatch):
    monkeypatch.setattr(owner, name, 1.0, raising=False)
    first = remembered(function)
    assert remembered(function) is first
    monkeypatch.setattr(owner, name, 3.0)
    other = remembered(function)
    assert other != first and other(2.0, None) == 6.0
    monkeypatch.setattr(owner, name, 1.0)
    assert remembered(function) is first


def test_a_changed_set_is_another_function(monkeypatch):
    def of_set(x, at):
        return x * (1 in members)

    first = remembered(of_set)
    monkeypatch.setitem(globals(), "members", set())
    assert remembered(of_set) is not first
    members.add(1)
    assert remembered(of_set) is first


def test_a_changed_function_of_a_module_is_another_function(monkeypatch):
    def of_function(x, at):
        return module.scaled(x)

    monkeypatch.setattr(module, "scaled", lambda x: x, raising=False)
    first = remembered(of_function)
    monkeypatch.setattr(module, "scaled", lambda x: x * 2)
    assert remembered(of_function)(1, None) == 2 and remembered(of_function) is not first


def test_objects_that_are_alike_are_two():
    def made(owner: Any) -> Any:
        return lambda x, at: x * owner.factor

    one, other = Settings(1.0), Settings(1.0)
    assert remembered(made(one)) is remembered(made(one))
    assert remembered(made(one)) is not remembered(made(other))


def test_a_product_sees_the_attribute_as_it_is():
    a = np.ones((64, 64), np.float16)
    scale = SimpleNamespace(factor=1.0)

    def scaled(x, at):
        return x * scale.factor

    for scale.factor in (1.0, 0.5):
        y = tc.matmul(a, a, epilogue=(scaled,))
        np.testing.assert_array_equal(y, np.full((64, 64), 64 * scale.factor))


class Gauge:
    """An object that computes what it gives."""

    __slots__ = ("reading", "__dict__")
    unit = 1.0

    def __init__(self, reading: float = 1.0):
        self.reading = reading

    @property
    def value(self) -> float:
        return self.reading * self.unit

    @cached_property
    def once(self) -> float:
        return self.reading

    @staticmethod
    def plain(x: Any) -> Any:
        return x * settings.factor

    @classmethod
    def of_kind(cls, x: Any) -> Any:
        return x * cls.unit

    def scaled(self, x: Any) -> Any:
        return x * self.reading

    def __call__(self, x: Any, at: Any) -> Any:
        return x * self.reading

    def __rmul__(self, x: Any) -> Any:
        return x * self.unit


class Numbers(list):
    """A list of a user's."""


def scaled_by(factor: float, x: Any, at: Any) -> Any:
    return x * factor * settings.factor


def put(where: Any, key: Any) -> Callable[[float], None]:
    """Sets an attribute, or an item, to a number."""
    if isinstance(key, str) and not isinstance(where, dict):
        return lambda number: setattr(where, key, number)
    return lambda number: where.__setitem__(key, number)


def reader(name: str) -> tuple[Any, Callable[[float], None]]:
    """A function that reads a number, and what sets the number."""
    gauge, table, numbers = Gauge(), {"a": 1.0}, [1.0]
    ordered, ends, own, large = OrderedDict(a=1.0), deque([1.0]), Numbers([1.0]), np.ones(5000)
    reading, factor = put(gauge, "reading"), put(settings, "factor")
    call, scaled, get = partial(scaled_by, 1.0), gauge.scaled, table.get
    return {
        "property": (lambda x, at: x * gauge.value, reading),
        "property of its class": (lambda x, at: x * gauge.value, put(Gauge, "unit")),
        "method of a slot": (lambda x, at: gauge.scaled(x), reading),
        "static method": (lambda x, at: gauge.plain(x), factor),
        "class method": (lambda x, at: gauge.of_kind(x), put(Gauge, "unit")),
        "bound method": (lambda x, at: scaled(x), reading),
        "object called": (lambda x, at: gauge(x, at), reading),
        "operator": (lambda x, at: x * gauge, put(Gauge, "unit")),
        "object": (gauge, reading),
        "partial": (partial(scaled_by, 1.0), factor),
        "partial called": (lambda x, at: call(x, at), factor),
        "name in a string": (lambda x, at: x * getattr(settings, "fac" "tor"), factor),  # noqa: B009
        "method of a dict": (lambda x, at: x * get("a"), put(table, "a")),
        "list": (lambda x, at: x * numbers[0], put(numbers, 0)),
        "ordered dict": (lambda x, at: x * ordered["a"], put(ordered, "a")),
        "deque": (lambda x, at: x * ends[0], put(ends, 0)),
        "list of a user's": (lambda x, at: x * own[0], put(own, 0)),
        "large array": (lambda x, at: x * float(large[0]), put(large, 0)),
    }[name]  # fmt: skip


READERS = (
    "property", "property of its class", "method of a slot", "static method", "class method",
    "bound method", "object called", "operator", "object", "partial", "partial called",
    "name in a string", "method of a dict", "list", "ordered dict", "deque", "list of a user's",
    "large array",
)  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_whatever_a_function_reads_counts(name, monkeypatch):
    monkeypatch.setattr(Gauge, "unit", 1.0)
    monkeypatch.setattr(settings, "factor", 1.0)
    function, change = reader(name)
    first = remembered(function)
    assert remembered(function) is first and first(2.0, None) == 2.0
    change(3.0)
    other = remembered(function)
    assert other is not first and other != first and other(2.0, None) == 6.0
    change(1.0)
    assert remembered(function) is first


def test_tensors_count_by_how_often_they_were_written():
    torch = pytest.importorskip("torch")
    factor = torch.ones(1)

    def scaled(x: Any, at: Any) -> Any:
        return x * factor.item()

    first = remembered(scaled)
    assert remembered(scaled) is first
    factor.mul_(2)
    assert remembered(scaled) is not first


# ---- kernels themselves

FACTOR = 1.0


def twice(x: Any) -> Any:
    return x * FACTOR


def test_a_kernel_is_traced_again_when_what_it_reads_has_changed(monkeypatch):
    monkeypatch.setattr(settings, "factor", 1.0)
    own = 1.0

    @tc.kernel
    def kernel(X: tc.gl[tc.f32, 64, 16], Y: tc.gl[tc.f32, 64, 16], *, function=None):
        with tc.warpgroup():
            x = twice(tc.load(X[0, 0], tc.rt[tc.f32, 64, 16])) * settings.factor * own
            tc.store(Y[0, 0], function(x, None) if function else x)

    def called(**params: Any) -> float:
        x, y = np.ones((64, 16), np.float32), np.full((64, 16), np.nan, np.float32)
        kernel(x, y, grid=1, **params)
        return float(y[3, 4])

    assert (called(), called(), kernel.compiles) == (1.0, 1.0, 1)
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert (called(), called(), kernel.compiles) == (2.0, 2.0, 2)
    settings.factor = 3.0
    own = 5.0
    assert (called(), called(), kernel.compiles) == (30.0, 30.0, 3)
    gauge = Gauge()
    assert called(function=gauge) == 30.0
    gauge.reading = 2.0
    assert (called(function=gauge), called(function=gauge), kernel.compiles) == (60.0, 60.0, 5)


@dataclass(frozen=True)
class Frozen:
    """It cannot be hashed: what it holds cannot."""

    factors: list[float]


def chain(length: int) -> list[Any]:
    """Objects that hold the next one."""
    found = [SimpleNamespace(factor=1.0)]
    for _ in range(length):
        found.append(Settings(1.0))
        found[-1].inner = found[-2]
    return found[::-1]


links, frozen, numbers = chain(2000), Frozen([1.0]), [float(i) for i in range(100_000)]
rows, tables = [[float(i)] for i in range(6000)], [np.full(1, float(i)) for i in range(6000)]
boxes = [SimpleNamespace(factor=1.0) for _ in range(6000)]
mixed = {i: float(i) for i in range(6000)}


@pytest.mark.parametrize(
    ("function", "change"),
    [
        (lambda x, at: x * links[0].factor, lambda to: setattr(links[0], "factor", to)),
        (lambda x, at: x * links[0].factor, lambda to: setattr(links[-1], "factor", to)),
        (lambda x, at: x * frozen.factors[0], lambda to: frozen.factors.__setitem__(0, to)),
        (lambda x, at: x * numbers[9], lambda to: numbers.__setitem__(99_999, to)),
        (lambda x, at: x * rows[9][0], lambda to: rows[5999].__setitem__(0, to)),
        (lambda x, at: x * tables[9][0], lambda to: tables[5999].__setitem__(0, to)),
        (lambda x, at: x * boxes[9].factor, lambda to: setattr(boxes[5999], "factor", to)),
        (lambda x, at: x * mixed[9], lambda to: mixed.__setitem__(5999, to)),
        (lambda x, at: x * numbers[9], lambda to: numbers.__setitem__(0, -0.0 if to else 0.0)),
    ],
    ids=["chain", "end of a chain", "unhashable", "long list", "rows", "arrays", "objects",
         "dict", "negative zero"],
)  # fmt: skip
def test_what_lies_far_counts_too(function, change):
    change(0.0)
    first = remembered(function)
    assert remembered(function) is first
    change(3.0)
    other = remembered(function)
    assert other is not first and remembered(function) is other
    change(0.0)
    assert remembered(function) is first
