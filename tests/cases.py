"""Small problems of every shipped kernel, for the PTX machine's tests and the GPU's alike.

A `Case` names a kernel, extents, dtype, parameters and how each array lies in memory. `arrays`
makes its arguments in NumPy; `on_device` makes the same bytes, with the same strides, in torch.
The layouts use indexing and `swapaxes` alone, which NumPy and torch both have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilecat.dtypes import by_name
from tilecat.kernels import KERNELS, KernelSpec
from tilecat.kernels.spec import Extents

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How an array lies in memory: the shape of its base, and the view of it.

    Args:
        base: from the array's shape to the base's, which is contiguous.
        view: from the base and the array's shape to the array.
    """

    base: Callable[[Shape], Shape]
    view: Callable[[Any, Shape], Any]


def _window(shape: Shape, first: int, at: int) -> tuple[slice, ...]:
    """Whole axes but the last two, which start at row `first` and column `at`."""
    *outer, rows, cols = shape
    return (*map(slice, outer), slice(first, first + rows), slice(at, at + cols))


# What TMA reaches: row, col, sliced, skipped, heads (where the last axis is a multiple of 8).
# What it does not: shifted (address), odd (row stride), spread (last axis), reversed is no array
# of torch's.
LAYOUTS = {
    "row": Layout(lambda s: s, lambda x, s: x),
    "col": Layout(lambda s: (*s[:-2], s[-1], s[-2]), lambda x, s: x.swapaxes(-1, -2)),
    "sliced": Layout(lambda s: (*s[:-2], s[-2] + 3, s[-1] + 16), lambda x, s: x[_window(s, 2, 8)]),
    "skipped": Layout(lambda s: (*s[:-2], 2 * s[-2], s[-1]), lambda x, s: x[..., ::2, :]),
    "shifted": Layout(lambda s: (*s[:-1], s[-1] + 8), lambda x, s: x[..., 1 : s[-1] + 1]),
    "odd": Layout(lambda s: (*s[:-1], s[-1] + 1), lambda x, s: x[..., : s[-1]]),
    "spread": Layout(lambda s: (*s[:-1], 2 * s[-1]), lambda x, s: x[..., ::2]),
    # [B, L, H, D] seen as [B, H, L, D], and the same inside a packed projection.
    "heads": Layout(lambda s: (s[0], s[2], s[1], s[3]), lambda x, s: x.swapaxes(1, 2)),
    "packed": Layout(
        lambda s: (s[0], s[2], s[1], 3 * s[3]),
        lambda x, s: x[..., s[3] : 2 * s[3]].swapaxes(1, 2),
    ),
}


@dataclass(frozen=True)
class Case:
    """One problem.

    Args:
        kernel: name of its `KernelSpec`.
        extents: by the kernel's names, in their order.
        layouts: of the tensors, in the order of the arguments; missing ones are `row`.
        dtype: `bf16` or `f16`.
        config: name of the configuration; None for the default.
        params: more compile-time parameters.
        grid: CTAs on the PTX machine; None for its default.
        integers: small whole numbers as inputs, so that every sum is exact.
    """

    kernel: str
    extents: tuple[int, ...]
    layouts: tuple[str, ...] = ()
    dtype: str = "bf16"
    config: str | None = None
    params: tuple[tuple[str, Any], ...] = ()
    grid: int | None = None
    integers: bool = False

    def __str__(self) -> str:
        """For pytest: `matmul-200x136x72-bf16-col.row`."""
        parts = [self.kernel, "x".join(map(str, self.extents)), self.dtype, ".".join(self.layouts)]
        parts += [self.config or "", *(f"{k}={v}" for k, v in self.params)]
        parts += [f"grid={self.grid}"] if self.grid else []
        parts += ["integers"] if self.integers else []
        return "-".join(filter(None, parts)).replace(" ", "")

    @property
    def spec(self) -> KernelSpec:
        """The kernel and what there is to know of it."""
        return next(spec for spec in KERNELS if spec.name == self.kernel)

    @property
    def named(self) -> Extents:
        """Extents by name."""
        return dict(zip(dict(self.spec.small), self.extents, strict=True))

    @property
    def options(self) -> dict[str, Any]:
        """Compile-time parameters of a call."""
        return {**self.spec.config(self.named, self.config).params, **dict(self.params)}


def bases(case: Case, seed: int = 0) -> list[Any]:
    """Contiguous NumPy arrays under the case's tensors (inputs filled, outputs NaN), and scalars.

    What lies in an input's base outside its view is NaN too: a kernel that reads it shows.
    """
    made = case.spec.example(case.named, dtype=case.dtype, seed=seed)
    found = []
    for index, value in enumerate(made):
        if not isinstance(value, np.ndarray):
            found.append(value)
            continue
        layout = LAYOUTS[_layout_name(case, index)]
        base = np.full(layout.base(value.shape), np.nan, value.dtype)
        if index not in case.spec.outputs:
            if case.integers:
                value = whole_numbers(value.shape, case.dtype, seed + index)
            layout.view(base, value.shape)[...] = value
        found.append(base)
    return found


def whole_numbers(shape: Shape, dtype: str, seed: int) -> np.ndarray:
    """Whole numbers from -2 to 2: their products' sums are exact in fp32."""
    numbers = np.random.default_rng(seed).integers(-2, 3, shape)
    return numbers.astype(by_name(dtype).numpy)


def views(case: Case, arrays: list[Any]) -> list[Any]:
    """The kernel's arguments over bases, NumPy's or torch's."""
    shapes = [np.shape(value) for value in case.spec.example(case.named, dtype=case.dtype)]
    return [
        LAYOUTS[_layout_name(case, index)].view(array, shape) if shape else array
        for index, (array, shape) in enumerate(zip(arrays, shapes, strict=True))
    ]


def arguments(case: Case, seed: int = 0) -> list[Any]:
    """The kernel's arguments in NumPy."""
    return views(case, bases(case, seed))


def to_torch(array: Any, device: str) -> Any:
    """The same bytes in torch, on a device; numbers stay as they are.

    Args:
        array: a contiguous NumPy array of any dtype tilecat has in torch, or a number.
        device: e.g. `cuda`.
    """
    import torch

    if not isinstance(array, np.ndarray):
        return array
    for row, carrier in ((by_name("bf16"), np.int16), (by_name("e4m3"), np.uint8)):
        if array.dtype == row.numpy:
            return torch.from_numpy(array.view(carrier)).to(device).view(getattr(torch, row.torch))
    return torch.from_numpy(array).to(device)


def outside(case: Case, index: int, base: np.ndarray) -> np.ndarray:
    """Elements of an output's base that no kernel may write."""
    mask = np.ones(base.shape, bool)
    shape = np.shape(case.spec.example(case.named, dtype=case.dtype)[index])
    LAYOUTS[_layout_name(case, index)].view(mask, shape)[...] = False
    return base[mask]


def _layout_name(case: Case, index: int) -> str:
    return case.layouts[index] if index < len(case.layouts) else "row"


def _matmul(*extents: int, layouts: str = "", **more: Any) -> Case:
    return Case("matmul", extents, tuple(layouts.split()), **more)


def _attention(*extents: int, layouts: str = "", **more: Any) -> Case:
    return Case("attention", extents, tuple(layouts.split()), **more)


MATMUL_CASES = (
    _matmul(128, 256, 64),
    _matmul(256, 512, 256),
    _matmul(256, 512, 256, integers=True),
    _matmul(200, 136, 72),
    _matmul(200, 136, 72, layouts="row col"),
    _matmul(200, 136, 72, layouts="col row", dtype="f16"),
    _matmul(136, 200, 72, layouts="col col"),
    _matmul(136, 264, 520, dtype="f16", config="64x256"),
    _matmul(130, 250, 90, layouts="row row row"),  # N off the 16-byte rule
    _matmul(67, 72, 33),  # K off it
    _matmul(72, 64, 40, layouts="shifted row row"),
    _matmul(72, 64, 40, layouts="row spread col"),
    _matmul(72, 64, 40, layouts="sliced skipped sliced"),
    _matmul(1, 1, 1),
    _matmul(5, 8, 3, layouts="odd col odd"),
    _matmul(384, 384, 192, config="128x192"),
    _matmul(256, 256, 320, config="128x128", grid=1),
    _matmul(192, 384, 128, config="64x128", grid=3),
    _matmul(70, 200, 136, config="64x64"),
    _matmul(384, 384, 192, config="128x192", params=(("pingpong", 1),)),
    _matmul(392, 200, 136, config="128x192", params=(("tile_m", 192), ("stages", 3))),
    _matmul(200, 264, 136, config="128x192", params=(("tile_m", 192), ("tile_n", 128))),
    _matmul(256, 264, 320, config="128x128", params=(("pingpong", 1), ("stages", 6)), grid=1),
    _matmul(256, 256, 192, config="128x256, depth 1"),
    _matmul(256, 256, 192, config="128x256, depth 2"),
    _matmul(640, 256, 64, params=(("group", 1),)),
    _matmul(264, 300, 200, config="128x256, cluster of 2"),
    _matmul(130, 264, 72, layouts="col col", dtype="f16", config="128x256, cluster of 2"),
)
# Extents: B, H, Hkv, Lq, Lk, D.
ATTENTION_CASES = (
    _attention(1, 2, 2, 128, 128, 64),
    _attention(1, 2, 2, 128, 256, 128),
    _attention(2, 2, 1, 100, 150, 32),
    _attention(1, 4, 2, 77, 200, 64, dtype="f16"),
    _attention(1, 2, 2, 200, 77, 128, dtype="f16"),
    _attention(1, 1, 1, 1, 1, 64),
    _attention(1, 2, 2, 1, 129, 128),
    _attention(1, 2, 1, 65, 300, 64, layouts="heads heads heads heads"),
    _attention(1, 2, 2, 70, 130, 128, layouts="packed packed packed row"),
    _attention(1, 1, 1, 40, 70, 32, layouts="shifted row odd"),
    _attention(1, 2, 2, 128, 384, 128, config="D128, depth 1"),
    _attention(1, 1, 1, 200, 256, 64, config="D64, 2 consumers", grid=1),
    _attention(1, 2, 2, 50, 140, 32, config="D32, 1 consumer"),
    _attention(1, 1, 1, 64, 128, 64, config="D64, 1 consumer", dtype="f16"),
    _attention(2, 1, 1, 30, 260, 128, config="D128, 1 consumer"),
    _attention(1, 2, 1, 128, 64, 32, config="D32, 2 consumers"),
)
CASES = (*MATMUL_CASES, *ATTENTION_CASES)
