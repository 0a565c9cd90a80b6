"""The table of forms: every text is named, has what it is named for, and the page is up to date."""

from __future__ import annotations

import re

import pytest

from .forms import CLOSED, PAGE, TEXTS, page
from .runs import text_of

ROWS = [form for forms in CLOSED.values() for form in forms]
_DESCRIPTOR = re.compile(r"tcgen05\.mma[.\w:]* *\[[^]]*\], *[^,]*, *[^,]*, *(%\w+),")


def descriptors(text: str) -> set[int]:
    """Constants that a text moves to the registers of its instruction descriptors."""
    registers = set(_DESCRIPTOR.findall(text))
    moves = re.findall(r"mov\.[bu]32\s+(%\w+), (-?\d+);", text)
    return {int(value) & 0xFFFFFFFF for name, value in moves if name in registers}


@pytest.mark.parametrize("form", ROWS, ids=lambda form: form.name)
def test_texts_have_the_form(form):
    for name in form.texts.split():
        text = text_of(TEXTS[name])
        assert not form.pattern or re.search(form.pattern, text), name
        if form.bits is not None:
            mask, value = form.bits
            found = descriptors(text)
            assert any(bits & mask == value for bits in found), (name, [hex(b) for b in found])


def test_every_text_is_named():
    named = {name for form in ROWS for name in form.texts.split()}
    assert named == set(TEXTS)


def test_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run `PYTHONPATH=tests python -m oracle.forms`"
