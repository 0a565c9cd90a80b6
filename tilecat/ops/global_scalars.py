"""One element of a tensor as a run-time scalar, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import dtypes
from ..errors import DTypeError
from ..ir import Op, TensorArg, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import ScalarType, TileType
from .global_memory import number_text
from .places import Bounds, element_address, inside, window
from .scalar import Operand, require_s32

SCALARS = ("f32", "s32", "u32")


@dataclass(eq=False)
class LoadScalar(Op):
    """One element of a tensor as a run-time scalar; `fill` outside the tensor.

    Args:
        coords: element coordinates, outermost first.
        arg: a tensor of f32, s32 or u32.
        bounds: as in `GlobalAccess`.
        fill: what an element outside is.
    """

    verb: ClassVar[str] = "load"
    coords: tuple[Operand, ...] = operand()
    arg: TensorArg = attribute()
    bounds: Bounds = operand(default=())
    fill: float = attribute(default=0)

    def infer(self) -> tuple[TileType, ...]:
        """A scalar of the tensor's dtype."""
        require_s32("load", *self.coords)
        dtype = self.arg.type.dtype
        assert isinstance(dtype, dtypes.DType), "resolved before tracing"
        if dtype.name not in SCALARS:
            raise DTypeError(
                f"load: a scalar is {', '.join(SCALARS)}, got {self.arg.name} of {dtype.name}"
            )
        return (ScalarType(dtype),)

    @property
    def loads(self) -> TensorArg:
        """The tensor."""
        return self.arg

    def emit(self, w: Any) -> None:
        """A masked `ld.global`."""
        dtype, register = self.arg.type.dtype, w.define(self.result)
        assert isinstance(dtype, dtypes.DType), "resolved before tracing"
        kind = "f32" if dtype.name == "f32" else "b32"
        w.line(ptx.alu(f"mov.{kind}", register, number_text(self.fill, dtype)))
        address = element_address(w, self.arg, self.coords)
        mask = all_inside(w, self.arg, self.coords, self.bounds)
        w.line(ptx.ld_global(kind, register, address), pred=mask)


def all_inside(
    w: Any, arg: TensorArg, coords: tuple[Operand, ...], bounds: Bounds
) -> str | None:
    """Predicate: an element lies inside the tensor."""
    found = None
    for dim, coord in enumerate(coords):
        where = window(w, arg, dim, bounds)
        found = w.both(found, inside(w, w.src(coord, "s32"), where))
    return found


@dataclass(eq=False)
class StoreScalar(Op):
    """`arg[coords...] = value`, by one thread of the scope; nothing outside the tensor.

    Args:
        value: a scalar of the tensor's dtype, or a number.
        coords: element coordinates, outermost first.
        arg: a tensor of f32, s32 or u32.
        bounds: as in `GlobalAccess`.
    """

    verb: ClassVar[str] = "store"
    value: Operand = operand()
    coords: tuple[Operand, ...] = operand()
    arg: TensorArg = attribute()
    bounds: Bounds = operand(default=())

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; one dtype."""
        require_s32("store", *self.coords)
        dtype = self.arg.type.dtype
        given = self.value.type if isinstance(self.value, Value) else ScalarType(dtype)  # type: ignore[arg-type]
        assert isinstance(dtype, dtypes.DType), "resolved before tracing"
        if dtype.name not in SCALARS or given != ScalarType(dtype):
            raise DTypeError(
                f"store: a scalar of {', '.join(SCALARS)} and a tensor of the same, "
                f"got {given} and {self.arg.name} of {dtype.name}"
            )
        return ()

    @property
    def stores(self) -> TensorArg:
        """The tensor."""
        return self.arg

    def emit(self, w: Any) -> None:
        """A masked `st.global`."""
        dtype = self.arg.type.dtype
        assert isinstance(dtype, dtypes.DType), "resolved before tracing"
        kind = "f32" if dtype.name == "f32" else "b32"
        address = element_address(w, self.arg, self.coords)
        mask = w.both(all_inside(w, self.arg, self.coords, self.bounds), w.elected(self.scope))
        w.line(ptx.st_global(kind, address, w.src(self.value, dtype.name)), pred=mask)
