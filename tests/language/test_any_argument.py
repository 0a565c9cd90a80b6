"""Public functions on arguments of every kind: they work, or raise an error of ours at the line."""

from __future__ import annotations

import inspect
import itertools
import operator
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilecat as tc
from language.bodies import traced
from tilecat import bf16, f32, rt, st
from tilecat.errors import TileError

# Not functions of values: they take Python functions or arrays, or are statements.
OTHERS = {
    "KernelFunction", "attention", "batched", "grouped_matmul", "inline", "kernel", "lcf", "lcsf",
    "matmul", "one_thread", "otherwise", "range", "require", "require_extent", "require_feature",
    "roles", "rows", "warpgroup", "warps", "when",
}  # fmt: skip
WIDE = rt[f32, 64, 64]
VALUES: dict[str, Callable[[Any], Any]] = {
    "int": lambda k: 3,
    "zero": lambda k: 0,
    "none": lambda k: None,
    "text": lambda k: "x",
    "bool": lambda k: True,
    "list": lambda k: [1],
    "dtype": lambda k: bf16,
    "s32": lambda k: k.n,
    "f32": lambda k: k.s,
    "condition": lambda k: k.n > 3,
    "var": lambda k: tc.var(0),
    "tile": lambda k: tc.zeros(WIDE),
    "half": lambda k: tc.cast(tc.zeros(WIDE), bf16),
    "vector": lambda k: tc.row_max(k.x),
    "shared": lambda k: tc.shared(st[bf16, 64, 64]),
    "tensor": lambda k: k.X,
    "place": lambda k: k.X[0, 0],
    "register type": lambda k: WIDE,
    "shared type": lambda k: st[f32, 64, 64],
}
MOST = 120  # combinations of arguments of one function


def functions() -> list[str]:
    found = []
    for name in sorted(set(tc.__all__) - OTHERS):
        value = getattr(tc, name)
        if inspect.isfunction(value):
            found.append(name)
    return found


def combinations(count: int) -> list[tuple[str, ...]]:
    every = list(itertools.product(VALUES, repeat=min(count, 2)))
    rng = np.random.default_rng(0)
    if count > 2:
        every = [(*pair, *rng.choice(list(VALUES), count - 2)) for pair in every]
    if len(every) > MOST:
        every = [every[i] for i in rng.choice(len(every), MOST, replace=False)]
    return every


@pytest.mark.parametrize("name", functions())
def test_function_takes_an_argument_or_says_why_not(name: str):
    function = getattr(tc, name)
    parameters = inspect.signature(function).parameters.values()
    count = sum(
        p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters
    )
    wanted = {p.name: 1 for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY}
    for chosen in combinations(count):

        def body(k: Any, chosen: tuple[str, ...] = chosen) -> None:
            function(*(VALUES[kind](k) for kind in chosen), **wanted)

        try_it(body)


def try_it(body: Callable[[Any], Any]) -> None:
    """Traces a body; an error must be ours, with a place in this file."""
    try:
        traced(body)
    except TileError as error:
        assert error.loc is not None and error.loc.file == __file__, error
        assert ": " in error.message, error


OPERATORS = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift, operator.lt,
    operator.iadd, operator.isub, operator.imul, operator.ixor,
)  # fmt: skip


@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
def test_operator_takes_an_operand_or_says_why_not(function):
    """Python itself refuses, at the user's line, what neither operand has a method for."""
    for left, right in itertools.product(("s32", "f32", "condition", "var", "tile"), VALUES):

        def body(k: Any, left: str = left, right: str = right) -> None:
            function(VALUES[left](k), VALUES[right](k))

        try:
            try_it(body)
        except TypeError as error:
            assert traceback.extract_tb(error.__traceback__)[-1].filename == __file__


USES: dict[str, Callable[[Any, Any], Any]] = {
    "to": lambda k, x: k.n.to(x),
    "size": lambda k, x: k.X.size(x),
    "set": lambda k, x: tc.var(0).set(x),
    "var dtype": lambda k, x: tc.var(0, x),
    "initial": lambda k, x: tc.row_sum(k.x, x),
    "out": lambda k, x: tc.maximum(k.x, k.x, out=x),
    "cast out": lambda k, x: tc.cast(k.x, bf16, out=x),
    "when": lambda k, x: tc.when(x).__enter__(),
    "range": lambda k, x: list(tc.range(x)),
    "step": lambda k, x: list(tc.range(0, 4, x)),
    "index": lambda k, x: tc.store(k.Y[x, 0], k.x),
    "inline": lambda k, x: tc.inline("mov.b32 $0, $0;", x),
    "gl": lambda k, x: tc.gl[x, "M"],
    "gl dim": lambda k, x: tc.gl[f32, x],
    "st": lambda k, x: st[bf16, x, 64],
    "st order": lambda k, x: st[bf16, 64, 64, x],
    "rt": lambda k, x: rt[f32, 64, x],
    "rv": lambda k, x: tc.rv[f32, x],
    "rv axis": lambda k, x: tc.rv[f32, 64, x],
    "group": lambda k, x: tc.grouped(1, 1, rows=x),
}


@pytest.mark.parametrize("name", USES)
def test_use_takes_a_value_or_says_why_not(name: str):
    for kind in VALUES:

        def body(k: Any, kind: str = kind) -> None:
            USES[name](k, VALUES[kind](k))

        try_it(body)
