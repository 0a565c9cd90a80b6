"""Arguments of operators on rows (rotary, norms, cross-entropy): their checks, as one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .errors import DTypeError, LayoutError, ResourceError
from .runtime.arrays import ArrayView, view

FLOATS = ("bf16", "f16", "f32")


def array_of(
    call: str, name: str, x: Any, dtypes: tuple[str, ...], shape: tuple[int, ...] | None = None,
    words: str = "",
) -> ArrayView:  # fmt: skip
    """The view of an argument.

    Args:
        call: the function, for errors.
        name: the argument's.
        x: an array.
        dtypes: it may have.
        shape: it has; None for any.
        words: the shape in words.

    Raises:
        DTypeError: no array, or another dtype. LayoutError: another shape.
    """
    try:
        array = view(x)
    except DTypeError as error:
        raise DTypeError(f"{call}: {name}: {error.message}", hint=error.hint) from None
    if array.dtype not in dtypes:
        raise DTypeError(f"{call}: {name} is {' or '.join(dtypes)}, got {array.dtype}")
    if shape is not None and tuple(array.shape) != tuple(shape):
        raise LayoutError(
            f"{call}: {name} has the shape {words} = {tuple(shape)} here, got {tuple(array.shape)}"
        )
    return array


def check_devices(call: str, arrays: dict[str, ArrayView]) -> None:
    """All arrays are on one device.

    Raises:
        ResourceError: they are not.
    """
    if len({array.device for array in arrays.values()}) > 1:
        raise ResourceError(
            f"{call}: all arrays are on one device, got "
            + ", ".join(f"{name} on {array.device}" for name, array in arrays.items()),
            hint="move them with .to(device)",
        )


def check_number(
    call: str, name: str, value: Any, low: float, high: float, *, open_: bool
) -> float:  # fmt: skip
    """A number from low to high (below it, if `open_`).

    Raises:
        LayoutError: no number, or one outside.
    """
    kinds = int | float | np.integer | np.floating
    known = isinstance(value, kinds) and not isinstance(value, bool)
    if not known or not (low <= value < high if open_ else low <= value <= high):
        end = f"below {high:g}" if open_ else f"at most {high:g}"
        raise LayoutError(f"{call}: {name} is a number, at least {low:g} and {end}, got {value!r}")
    return float(value)


def first_that_fits(
    kernel: Callable[..., Any], known: dict[Any, int], key: Any,
    configs: Iterable[Any], call: Callable[[Any], Any],
) -> Any:  # fmt: skip
    """Calls with the first configuration whose registers suffice, and remembers which.

    Args:
        kernel: for `known`.
        known: number of the configuration, by kernel and key.
        key: what registers depend on.
        configs: in the order they are tried.
        call: the call with one.

    Raises:
        ResourceError: none suffices.
    """
    rows = list(configs)
    for number in range(known.get((kernel, key), 0), len(rows)):
        try:
            found = call(rows[number])
        except ResourceError as error:
            if "spill" not in error.message and "register" not in error.message:
                raise
            if number + 1 == len(rows):
                raise
            continue
        known[kernel, key] = number
        return found
    raise AssertionError("the last one raised")
