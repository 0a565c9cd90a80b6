"""A kernel of one warpgroup around a body: what the language tests trace and run."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

import tilecat as tc
from tilecat import f32, gl, rt, s32
from tilecat.driver import Compiled
from tilecat.ir import Op

TILE = rt[f32, 64, 16]
N, S = 7, 2.0


def kernel_of(body: Callable[[Any], Any]) -> tc.KernelFunction:
    """`body(k)` gets k.X and k.Y (tensors), k.x (a tile of X), k.n = 7 and k.s = 2.0."""

    def traced(X: gl[f32, "M", "N"], Y: gl[f32, "M", "N"], n: s32, s: f32):
        with tc.warpgroup():
            x = tc.load(X[0, 0], TILE)
            result = body(SimpleNamespace(X=X, Y=Y, x=x, n=n, s=s))
            if result is not None:
                tc.store(Y[0, 0], as_tile(result))

    return tc.kernel(traced)


def as_tile(value: Any) -> Any:
    """A scalar fills a tile; a tile is one."""
    if isinstance(value, int | float):
        return tc.full(TILE, float(value))
    if not hasattr(value, "dtype") or isinstance(value.value.type, type(TILE)):
        return value
    return tc.full(TILE, value.to(f32))


def run(body: Callable[[Any], Any]) -> np.ndarray:
    """What the body's result is; X is 0, 1, 2, ..."""
    x = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)
    out = np.full_like(x, np.nan)
    kernel_of(body)(x, out, N, S, grid=1)
    return out


def traced(body: Callable[[Any], Any]) -> Compiled:
    """The body traced, checked and emitted; not assembled."""
    kernel = kernel_of(body)
    spec = tc.language.kernel.TensorSpec("f32")
    return kernel.specialize(tc.language.kernel.Specialization((spec, spec)), "sm_90a")


def ops(body: Callable[[Any], Any], kind: type[Op] | None = None) -> list[Op]:
    """The ops of a body, or those of one class."""
    return [op for op in traced(body).kernel.body.walk() if kind is None or isinstance(op, kind)]
