"""Cases of memory, views and synchronisation by hand, for the PTX machine and the GPU.

A case is a kernel, the arrays of a call, and what they must hold after it, by NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilecat.dtypes import DType, by_name

Arrays = dict[str, Any]


@dataclass(frozen=True)
class MemoryCase:
    """One call.

    Args:
        name: for the test's name.
        kernel: what runs.
        arrays: arguments by name, in order; numbers too.
        expected: from the arguments before the call, what written ones must hold after it.
        grid: CTAs.
        tolerance: absolute; 0 compares bits.
    """

    name: str
    kernel: Any
    arrays: Callable[[], Arrays]
    expected: Callable[[Arrays], Arrays]
    grid: int = 1
    tolerance: float = 0.0
    params: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def numbers(shape: tuple[int, ...], dtype: DType | str, seed: int = 0) -> np.ndarray:
    """Small integers, exact in every dtype."""
    row = by_name(dtype) if isinstance(dtype, str) else dtype
    low = 0 if row.name.startswith("u") else -8
    return np.random.default_rng(seed).integers(low, 9, shape).astype(row.numpy)


def zeros(shape: tuple[int, ...], dtype: DType | str, value: float = 0) -> np.ndarray:
    """An array filled with a value."""
    row = by_name(dtype) if isinstance(dtype, str) else dtype
    return np.full(shape, value).astype(row.numpy)


def window(array: np.ndarray, row: int, col: int, rows: int, cols: int, fill: float = 0) -> Any:
    """A tile of a matrix at element (row, col), `fill` outside."""
    tile = np.full((rows, cols), fill).astype(array.dtype)
    low, left = max(row, 0), max(col, 0)
    part = array[low : max(row + rows, 0), left : max(col + cols, 0)]
    tile[low - row :, left - col :][: part.shape[0], : part.shape[1]] = part
    return tile


def put(array: np.ndarray, row: int, col: int, tile: np.ndarray) -> np.ndarray:
    """A copy of a matrix with a tile at element (row, col); what is outside is dropped."""
    out = array.copy()
    rows, cols = max(0, out.shape[0] - row), max(0, out.shape[1] - col)
    part = tile[:rows, :cols]
    out[row : row + part.shape[0], col : col + part.shape[1]] = part
    return out


def check(case: MemoryCase, before: Arrays, after: Arrays) -> None:
    """Compares every array after a call with what it must hold."""
    wanted = case.expected(before)
    for name, array in after.items():
        if not isinstance(array, np.ndarray):
            continue
        target = wanted.get(name, before[name])
        if case.tolerance:
            np.testing.assert_allclose(
                array.astype(np.float64), np.asarray(target, np.float64), rtol=0,
                atol=case.tolerance, err_msg=f"{case.name}: {name}",
            )  # fmt: skip
        else:
            np.testing.assert_array_equal(
                array.view(f"u{array.itemsize}"), np.asarray(target).astype(array.dtype).view(
                    f"u{array.itemsize}"), err_msg=f"{case.name}: {name}",
            )  # fmt: skip


def run_on_machine(case: MemoryCase, seed: int = 0) -> Any:
    """Runs a case on the PTX machine, checks it, and returns the result."""
    before = case.arrays()
    copies = {id(v): _copied(v) for v in before.values()}
    after = {k: copies[id(v)] for k, v in before.items()}
    result = case.kernel.simulate(*after.values(), grid=case.grid, seed=seed, **case.params)
    assert not result.reports, "\n".join(map(str, result.reports[:3]))
    check(case, before, after)
    return result


def _copied(value: Any) -> Any:
    """A copy with the same strides, since they choose the code that runs."""
    if not isinstance(value, np.ndarray):
        return value
    base = value if value.base is None else value.base
    if base is value or 0 in value.strides:
        return value.copy(order="K") if 0 not in value.strides else value
    copy = base.copy(order="K")
    offset = value.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return np.ndarray(value.shape, value.dtype, copy, offset, value.strides)


