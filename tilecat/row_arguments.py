"""Arguments of operators on rows (rotary, norms, cross-entropy): their checks, as one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .errors import DTypeError, LayoutError, ResourceError

FLOATS = ("bf16", "f16", "f32")


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


def check_flag(call: str, name: str, value: Any) -> bool:
    """Whether an option is asked for.

    Raises:
        DTypeError: neither true nor false: an array.
    """
    if type(value) is bool:
        return value
    try:
        return bool(value)
    except Exception:  # noqa: BLE001
        raise DTypeError(
            f"{call}: {name} is True or False, got {type(value).__name__} {value!r}"
        ) from None


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
