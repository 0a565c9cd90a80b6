"""Matrix products: against torch.mm, by depth, grid, task order, and by configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..dtypes import by_name
from ..errors import TileError
from ..kernels import KERNELS, KernelSpec, Shape
from ..kernels.gemm import matmul as kernel
from ..kernels.spec import rounding
from ..operators import matmul
from ..testing import poison
from .session import Session, Task

SPEC: KernelSpec = next(spec for spec in KERNELS if spec.name == "matmul")
LAYOUTS = ("NN", "NT")
DEPTHS = (1, 2, 3, 4)
GROUPS = (1, 8)
GRID_K = (64, 128, 256, 512, 1024)
BIG_TILE = {"tile_m": 128, "tile_n": 256, "tile_k": 64}
CHECK_ROWS = 4096  # rows compared at a time


def weight(shape: Shape) -> float:
    """Share of the time budget: a launch's own cost, and what grows with the work."""
    return 0.2 + SPEC.flops(shape.extents) / 4e12


def gemm_tasks(shapes: tuple[Shape, ...]) -> list[Task]:
    """Products against torch.mm, B row-major (NN) and transposed (NT)."""
    return [
        Task("gemm", f"{shape.name} {layout}", partial(_gemm, shape, layout), weight(shape))
        for shape in shapes
        for layout in LAYOUTS
    ]


def depth_tasks() -> list[Task]:
    """Stages 1 to 4 of the 128x256x64 tile at 4096^3, in one interleaved row."""
    shape = SPEC.shape("4096^3")
    return [Task("depth", shape.name, partial(_variants, shape, _by_depth), 1.0)]


def grid_tasks() -> list[Task]:
    """A CTA a task against a persistent grid, M = N = 4096, K from 64 to 1024."""
    shapes = [
        Shape(f"4096x4096x{k}", (("M", 4096), ("N", 4096), ("K", k))) for k in GRID_K
    ]
    return [Task("grid", s.name, partial(_variants, s, _by_grid), weight(s)) for s in shapes]


def order_tasks() -> list[Task]:
    """Row-major tasks against groups of 8 block rows at 16384^3."""
    shape = SPEC.shape("16384^3")
    return [Task("order", shape.name, partial(_variants, shape, _by_order), 3.0)]


def config_tasks(shapes: tuple[Shape, ...]) -> list[Task]:
    """Every configuration of the kernel against torch.mm, to see what the choice should be."""
    return [
        Task("configs", shape.name, partial(_variants, shape, _by_config), 2 * weight(shape))
        for shape in shapes
    ]


def operands(
    torch: Any, shape: Shape, layout: str = "NN", dtype: str = "bf16"
) -> tuple[Any, Any, Any]:
    """Normal random A, B and a poisoned C on the GPU."""
    m, n, k = (shape.extents[name] for name in "MNK")
    options = {"device": "cuda", "dtype": getattr(torch, by_name(dtype).torch)}
    a = torch.randn(m, k, **options) if layout[0] == "N" else torch.randn(k, m, **options).t()
    b = torch.randn(k, n, **options) if layout[1] == "N" else torch.randn(n, k, **options).t()
    c = torch.empty(m, n, **options)
    poison(c)
    return a, b, c


def expected(a: Any, b: Any) -> Any:
    """AB in float64."""
    return a.double() @ b.double()


def error(c: Any, product: Any, dtype: str = "bf16") -> float:
    """||C - AB|| / ||AB||; a NaN anywhere is an error.

    Args:
        c: the result.
        product: `expected`.
        dtype: of C.

    Raises:
        TileError: over the rounding of the dtype.
    """
    total, size = 0.0, 0.0
    for start in range(0, c.shape[0], CHECK_ROWS):
        right = product[start : start + CHECK_ROWS]
        total += float((c[start : start + CHECK_ROWS].double() - right).square().sum())
        size += float(right.square().sum())
    found = (total / size) ** 0.5
    if not found <= rounding(dtype):
        raise TileError(f"bench: wrong result, got ||C - AB|| / ||AB|| = {found:.3g}")
    return found


def _gemm(shape: Shape, layout: str, session: Session) -> dict[str, Any]:
    torch = session.torch
    a, b, c = operands(torch, shape, layout)
    d = torch.empty_like(c)
    matmul(a, b, out=c)
    found = _problem(shape, {"layout": layout, "error": error(c, expected(a, b))})
    functions = {
        "tilecat": lambda: matmul(a, b, out=c),
        "torch.mm": lambda: torch.mm(a, b, out=d),
    }
    return found | session.compare(functions, SPEC, shape)


def _variants(
    shape: Shape, variants: Callable[[], dict[str, dict[str, Any]]], session: Session
) -> dict[str, Any]:
    torch = session.torch
    a, b, c = operands(torch, shape)
    d = torch.empty_like(c)
    functions: dict[str, Callable[[], Any]] = {}
    product, worst = expected(a, b), 0.0
    for name, params in variants().items():
        poison(c)
        kernel(a, b, c, **params)
        worst = max(worst, error(c, product))
        functions[name] = partial(kernel, a, b, c, **params)
    ours = next(reversed(functions))
    functions["torch.mm"] = lambda: torch.mm(a, b, out=d)
    found = _problem(shape, {"layout": "NN", "error": worst, "ours": ours})
    return found | session.compare(functions, SPEC, shape, ours=ours)


def _problem(shape: Shape, more: dict[str, Any]) -> dict[str, Any]:
    return {"shape": shape.name, "group": shape.group, "extents": shape.extents, **more}


def _by_depth() -> dict[str, dict[str, Any]]:
    return {f"stages {depth}": {**BIG_TILE, "stages": depth} for depth in DEPTHS}


def _by_grid() -> dict[str, dict[str, Any]]:
    names = {False: "a CTA a task", True: "persistent"}
    return {names[p]: {**BIG_TILE, "stages": 4, "persistent": p} for p in names}


def _by_order() -> dict[str, dict[str, Any]]:
    names = {1: "row-major", 8: "groups of 8"}
    return {names[rows]: {**BIG_TILE, "stages": 4, "group": rows} for rows in GROUPS}


def _by_config() -> dict[str, dict[str, Any]]:
    return {config.name: config.params for config in SPEC.configs if "depth" not in config.name}
