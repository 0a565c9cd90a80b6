"""Arrays that calls are given: shapes, dtypes, addresses and devices, checked with one wording."""

from __future__ import annotations

from typing import Any

from .errors import DTypeError, LayoutError, ResourceError
from .runtime.arrays import ArrayView, check_address, view


def view_of(call: str, name: str, x: Any) -> ArrayView:
    """The view of an argument.

    Raises:
        DTypeError: no array.
    """
    try:
        return view(x)
    except DTypeError as error:
        raise DTypeError(f"{call}: {name}: {error.message}", hint=error.hint) from None


def array_of(
    call: str, name: str, x: Any, dtypes: tuple[str, ...], shape: tuple[int, ...] | None = None,
    words: str = "",
) -> ArrayView:  # fmt: skip
    """The view of an argument that fits.

    Args:
        call: the function, for errors.
        name: the argument's.
        x: an array.
        dtypes: it may have.
        shape: it has; None for any.
        words: the shape in words: "B x H", "of x".

    Raises:
        LayoutError: another shape, or an address between elements. DTypeError: another dtype, or
            no array.
    """
    array = view_of(call, name, x)
    if shape is not None and tuple(array.shape) != tuple(shape):
        raise LayoutError(
            f"{call}: {name} has the shape {words} = {tuple(shape)} here, got {tuple(array.shape)}"
        )
    if array.dtype not in dtypes:
        raise DTypeError(f"{call}: {name} is {' or '.join(dtypes)}, got {array.dtype}")
    check_address(call, name, array)
    return array


def check_devices(call: str, arrays: dict[str, Any]) -> None:
    """Refuses arrays on several devices.

    Args:
        call: the function, for errors.
        arrays: arrays or their views by name; None for what is not given.

    Raises:
        ResourceError: they are.
    """
    views = {
        name: x if isinstance(x, ArrayView) else view(x)
        for name, x in arrays.items() if x is not None
    }  # fmt: skip
    if len({x.device for x in views.values()}) > 1:
        shown = ", ".join(f"{name} on {x.device}" for name, x in views.items())
        raise ResourceError(f"{call}: arrays are on one device, got {shown}",
                            hint="move them with .to(device)")  # fmt: skip


def tile_of(call: str, what: str, count: int, tiles: tuple[int, ...], given: str = "") -> int:
    """Columns of the narrowest tile that holds so many.

    Args:
        call, what: the function, and what has columns, for errors.
        count: columns.
        tiles: columns of tiles that there are, ascending.
        given: words for the count; "" for itself.

    Raises:
        LayoutError: there is none.
    """
    found = next((columns for columns in tiles if columns >= count >= 1), None)
    if found is None:
        raise LayoutError(
            f"{call}: {what} is 1 to {tiles[-1]}, computed in tiles of "
            f"{', '.join(map(str, tiles))} columns, got {given or count}"
        )
    return found
