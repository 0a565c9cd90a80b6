"""Looking into a kernel: prints and assertions, on the PTX machine and on the GPU alike."""

from __future__ import annotations

from typing import Any

from ..builder import add
from ..errors import DTypeError, LayoutError
from ..ir import Value
from ..ops.debug import DeviceAssert, Print
from .memory import load
from .scalars import Scalar, operand_of
from .values import Registers, SharedTile, SharedVec


def print_(*items: Any) -> None:
    """Prints tiles, vectors and scalars as they are here, once the kernel has run.

    A tile or vector is printed whole, by each warpgroup (or warp) that executes it; a scalar by
    one thread of the scope. A kernel that prints waits for its end: the call returns after it. What
    does not fit the buffer (4 MiB a launch) is counted, and dropped.

    Args:
        items: what to print; strings are the label of what follows.

    Scope: any for scalars; warpgroup, warp for tiles.

    Example: `tc.print("step", step, "scores", scores)`
    """
    label = ""
    for item in items:
        if isinstance(item, str):
            label = f"{label} {item}".strip()
            continue
        shown = load(item) if isinstance(item, SharedTile | SharedVec) else item
        value = shown.value if isinstance(shown, Registers) else operand_of(shown, "print")
        if not isinstance(value, Value):
            label = f"{label} {value}".strip()
            continue
        add(Print(value, label))
        label = ""
    if label:
        raise LayoutError(
            f"print: shows run-time values, got {label!r} with none after it",
            hint="Python's own print shows what is known while tracing",
        )


def device_assert(condition: Any, message: str = "") -> None:
    """Ends the kernel with an error where a condition is false.

    The error names the message, the line, the CTA and the thread. After it the GPU's context is
    lost, as after any fault of a kernel.

    Args:
        condition: a comparison of run-time scalars; a Python bool decides while tracing.
        message: what is wrong then.

    Scope: any; every thread looks.
    """
    decided = operand_of(condition, "device_assert")
    if isinstance(decided, bool):
        if not decided:
            raise LayoutError(f"device_assert: is false while tracing: {message}")
        return
    if not isinstance(condition, Scalar) or condition.dtype.name != "pred":
        raise DTypeError(
            f"device_assert: the condition is a comparison of run-time scalars, got {condition!r}",
            hint="tc.device_assert(i < n, message)",
        )
    assert isinstance(decided, Value), "a run-time condition"
    add(DeviceAssert(decided, message))
