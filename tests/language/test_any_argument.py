"""Public functions on arguments of every kind: they work, or raise an error of ours at the line."""

from __future__ import annotations

import inspect
import itertools
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
    "KernelFunction", "attention", "inline", "kernel", "lcf", "matmul", "one_thread", "otherwise",
    "range", "require", "warpgroup", "warps", "when",
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
    for chosen in combinations(count):

        def body(k: Any, chosen: tuple[str, ...] = chosen) -> None:
            function(*(VALUES[kind](k) for kind in chosen))

        try:
            traced(body)
        except TileError as error:
            assert error.loc is not None and error.loc.file == __file__, (chosen, error)
            assert ": " in error.message, error
