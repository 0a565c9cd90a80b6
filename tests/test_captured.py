"""Functions of users that read objects: what their attributes hold counts."""

from __future__ import annotations

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
