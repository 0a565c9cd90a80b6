"""The language reference: its pages are what the generator writes, and its examples run."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path

import pytest

import tilecat as tc

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs/make_reference.py")
make_reference = importlib.util.module_from_spec(spec)
sys.modules["make_reference"] = make_reference
spec.loader.exec_module(make_reference)
FAMILIES = make_reference.FAMILIES
EXAMPLES = [(example, family) for family in FAMILIES for example in family.examples]


@pytest.mark.parametrize(("example", "family"), EXAMPLES, ids=lambda value: str(value)[:60])
def test_example_of_the_reference_holds(example, family, capsys):
    from examples import run

    run(example, family.frame)


def test_pages_are_what_the_generator_writes():
    assert make_reference.stale() == [], "run: python docs/make_reference.py"


def test_every_public_name_is_on_one_page():
    listed = [name for family in FAMILIES for name in family.names if "." not in name]
    public = {name for name in listed if hasattr(tc, name)}
    assert public == set(tc.__all__), sorted(public ^ set(tc.__all__))
    assert len(listed) == len(set(listed))


def test_every_op_has_an_example():
    shown = {name for example, _ in EXAMPLES for name in example.names}
    listed = {name for family in FAMILIES for name in family.names}
    errors = {name for family in FAMILIES if family.file == "errors" for name in family.names}
    assert shown <= listed, sorted(shown - listed)
    assert listed - errors <= shown, sorted(listed - errors - shown)


def test_every_name_has_words():
    for family in FAMILIES:
        for name in family.names:
            known = "." in name or hasattr(tc, name)
            value = make_reference.value_of(name) if known else family.objects[name]
            words = family.notes.get(name) or inspect.getdoc(value)
            assert words and len(words) > 5, f"{name} has no docstring"
