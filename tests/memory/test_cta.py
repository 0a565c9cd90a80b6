"""CTA scope: what a function of a tile's part may not do, and barriers that matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import f32, gl, st
from tilecat.errors import LayoutError, ScopeError, TileError
from tilecat.runtime import machine
from tilecat.runtime.arrays import view

WIDE, NARROW = st[f32, 128, 64], st[f32, 128, 32]
RULES = (
    (lambda k: tc.cta_map(lambda x: x - tc.col_max(x), k.rows, k.rows), LayoutError,
     "cta_map: a warpgroup sees its own rows of the tile, so the function is element-wise or along "
     "them, got col_max"),
    (lambda k: tc.cta_map(lambda x: x - tc.row_max(x), k.panels, k.panels), LayoutError,
     "cta_map: a warpgroup sees its own columns of the tile, so the function is element-wise or "
     "along them, got row_max"),
    (lambda k: tc.cta_map(lambda x: tc.tril(x), k.rows, k.rows), LayoutError,
     "cta_map: a warpgroup sees its own rows of the tile, so the function is element-wise or along "
     "them, got tril"),
    (lambda k: tc.cta_map(tc.exp, k.small, k.small), LayoutError,
     "cta_map: 2 warpgroups share a tile by 64 rows each, or by whole panels of 64 rows, "
     "got st[f32, 64, 32]"),
    (lambda k: tc.cta_map(lambda x, y: x, k.rows, k.rows, k.panels), LayoutError,
     "cta_map: wanted shared tiles of one shape, got st[f32, 128, 64]"),
    (lambda k: tc.cta_reduce("mean", k.rows), LayoutError,
     "cta_reduce: by max, min, sum, prod, absmax, got 'mean'"),
    (lambda k: tc.cta_reduce("sum", 3.0), LayoutError,
     "cta_reduce: of a shared tile, or of a run-time scalar without an axis, got 3.0"),
    (lambda k: one_thread(tc.cta_sync), ScopeError,
     "cta_sync: must be executed by all warpgroups of a CTA, got scope=thread"),
)  # fmt: skip


class Tiles:
    """Shared tiles that rows, panels and nothing divide."""

    def __init__(self) -> None:
        self.rows, self.panels = tc.shared(NARROW), tc.shared(WIDE)
        self.small = tc.shared(st[f32, 64, 32])


def one_thread(body: Callable[[], Any]) -> None:
    with tc.elected():
        body()


@pytest.mark.parametrize(("body", "kind", "message"), RULES)
def test_rule_of_a_cta(body: Callable[[Any], Any], kind: type[TileError], message: str):
    def breaks(A: gl[f32, "M", "N"]):
        with tc.warpgroup(2):
            body(Tiles())

    error = pytest.raises(kind, lambda: tc.kernel(breaks).compile()).value
    assert error.message == message
    assert error.loc is not None and error.loc.file == __file__


@tc.kernel
def sums(A: gl[f32, "K"], B: gl[f32, "M", "N"]):
    with tc.warpgroup(2) as warpgroup:
        for step in tc.range(3):
            mine = tc.load(A[warpgroup + step], f32)
            tc.store(B[step, warpgroup], tc.cta_reduce("sum", mine))


def test_each_barrier_of_an_exchange_matters():
    a, b = np.arange(4, dtype=np.float32), np.zeros((3, 2), np.float32)
    assert not sums.simulate(a, b, grid=1).reports
    assert (b == (a[:3] + a[1:])[:, None]).all()
    compiled = next(iter(sums._compiled.values()))
    lines = compiled.ptx.splitlines()
    barriers = [i for i, line in enumerate(lines) if "bar.sync" in line]
    assert len(barriers) == 2
    for at in barriers:
        text = "\n".join(lines[:at] + lines[at + 1 :])
        reports = found_in(compiled, text, (a, b.copy()))
        assert any(report.kind == "race" for report in reports)


def found_in(compiled: Any, text: str, args: tuple[np.ndarray, ...]) -> Any:
    """What the PTX machine reports of a changed text."""
    module = replace(compiled.module, text=text)
    return machine.launch(module, [view(x) for x in args], grid=1).reports
