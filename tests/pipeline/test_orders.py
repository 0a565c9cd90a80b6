"""Orders of tasks: every block once, where the order says, over odd extents and any grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import reference

import tilecat as tc
from tilecat import bf16, gl, inout, s32
from tilecat.errors import DTypeError, LayoutError, ScopeError
from tilecat.kernels.gemm import matmul

BF16 = bf16.numpy
EXTENTS = [(1, 1), (1, 7), (7, 1), (3, 4), (5, 3), (9, 7), (13, 2)]


def diagonals(rows: Any, cols: Any) -> tc.Schedule:
    """A user's own order: block rows, each turned by its number."""

    def place(t: Any) -> dict[str, Any]:
        row = t // cols
        return {"row": row, "col": (t + row) % cols}

    return tc.custom_order(rows * cols, place)


def in_groups(rows: int, cols: int, height: int, turning: bool) -> Iterator[tuple[int, int]]:
    """The raster in plain loops."""
    for group, first in enumerate(range(0, rows, height)):
        there = range(cols)
        for col in reversed(there) if turning and group % 2 else there:
            for row in range(first, min(first + height, rows)):
                yield row, col


ORDERS: dict[str, tuple[Callable[..., tc.Schedule], Callable[..., Any]]] = {
    "row": (tc.row_major, lambda r, c: in_groups(r, c, 1, False)),
    "column": (tc.column_major, lambda r, c: in_groups(r, c, r, False)),
    "grouped": (lambda r, c: tc.grouped(r, c, rows=4), lambda r, c: in_groups(r, c, 4, False)),
    "snake": (tc.snake, lambda r, c: in_groups(r, c, 1, True)),
    "snake of 3": (lambda r, c: tc.snake(r, c, rows=3), lambda r, c: in_groups(r, c, 3, True)),
    "own": (diagonals, lambda r, c: [(t // c, (t + t // c) % c) for t in range(r * c)]),
}  # fmt: skip


def visits(make: Callable[..., tc.Schedule]) -> tc.KernelFunction:
    """Seen[row, col] += 1 and Number[row, col] = t of each task t."""

    @tc.kernel
    def visit(Seen: inout[s32, "R", "S"], Number: gl[s32, "R", "S"]):
        order = make(Seen.rows, Seen.cols)
        with tc.one_thread():
            for number in tc.range(tc.cta_id(), order.count, tc.num_ctas()):
                task = order.task(number)
                tc.store(Seen[task.row, task.col], tc.load(Seen[task.row, task.col], s32) + 1)
                tc.store(Number[task.row, task.col], number)

    return visit


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_visits_each_block_once(name: str):
    make, expected = ORDERS[name]
    kernel = visits(make)
    for extents in EXTENTS:
        for grid in (1, 3):
            seen, number = np.zeros(extents, np.int32), np.full(extents, -1, np.int32)
            kernel(seen, number, grid=grid)
            assert (seen == 1).all(), (extents, grid)
            order = [(int(t) // extents[1], int(t) % extents[1]) for t in np.argsort(number.flat)]
            assert order == list(expected(*extents)), (extents, grid)


@pytest.mark.parametrize("name", ORDERS)
def test_orders_of_python_numbers_are_the_same(name: str):
    make, expected = ORDERS[name]
    seen, number = np.zeros((5, 3), np.int32), np.full((5, 3), -1, np.int32)
    visits(lambda rows, cols: make(5, 3))(seen, number, grid=2)
    assert [(t // 3, t % 3) for t in np.argsort(number.flat).tolist()] == list(expected(5, 3))


OF_MATMUL = ("grouped", "snake", "row", "column", tc.column_major, diagonals)


@pytest.mark.parametrize(
    "order", OF_MATMUL, ids=lambda order: getattr(order, "__name__", order)
)
def test_matmul_in_every_order_is_the_product(order: Any):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(BF16) for s in ((3, 200, 72), (3, 72, 328)))
    c = np.full((3, 200, 328), np.nan, BF16)
    matmul(a, b, c, order=order, tile_m=64, tile_n=64, stages=2, group=2, grid=3)
    reference.assert_close(c, reference.matmul(a, b), BF16)


def test_text_names_an_order_without_its_address():
    first = matmul.compile(order=diagonals).ptx.splitlines()[0]
    assert "order=diagonals" in first


@pytest.mark.parametrize("order", ["snake", "grouped"])
def test_orders_go_by_clusters(order: str):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(s).astype(BF16) for s in ((330, 72), (72, 200)))
    c = np.full((330, 200), np.nan, BF16)
    matmul(a, b, c, order=order, tile_m=64, tile_n=64, stages=2, group=4, cluster=2, grid=4)
    reference.assert_close(c, reference.matmul(a, b), BF16)


WRONG: dict[str, tuple[Callable[[], Any], type[tc.TileError], str]] = {
    "no function": (lambda: tc.custom_order(3, {"row": 1}), ScopeError,
                    "custom_order: f is a function of a task's number, got {'row': 1} (dict)"),
    "no coordinates": (lambda: tc.custom_order(3, lambda t: (t, t)).task(1), ScopeError,
                       "custom_order: f returns named coordinates (none of them index or coords), "
                       "got (1, 1) (tuple)"),
    "a taken name": (lambda: tc.custom_order(3, lambda t: {"index": t}).task(1), ScopeError,
                     "got {'index': 1} (dict)"),
    "count": (lambda: tc.custom_order(3.5, lambda t: {"row": t}), DTypeError,
              "custom_order: count"),
    "cluster": (lambda: tc.custom_order(3, lambda t: {"row": t}, cluster=0), LayoutError,
                "custom_order: cluster is an int from 1 up, got cluster=0"),
    "cluster_cols": (lambda: tc.custom_order(3, lambda t: {"row": t}, cluster=2, cluster_cols=4),
                     LayoutError, "got cluster=2 and cluster_cols=4"),
    "rows": (lambda: tc.snake(3, 4, rows=0), LayoutError, "snake: rows is a compile-time int"),
    "order": (lambda: matmul.compile(order="spiral"), LayoutError,
              "matmul: order is grouped, snake, row, column, or a function of block rows and "
              "columns, got order='spiral'"),
    "column of clusters": (lambda: matmul.compile(order="column", cluster=2), LayoutError,
                           "got cluster=2, order='column'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_orders_say_what_is_wrong(name: str):
    call, kind, text = WRONG[name]
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value)
