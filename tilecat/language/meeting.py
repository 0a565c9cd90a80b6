"""What threads that meet owe to tensor memory."""

from __future__ import annotations

from ..builder import add, current
from ..ops.tensor import AllocTensorMemory, TensorFence


def has_tensor_memory() -> bool:
    """Whether the kernel being traced has allocated tensor memory."""
    return any(isinstance(op, AllocTensorMemory) for op in current().kernel.body.ops)


def after_meeting() -> None:
    """Behind a barrier: what follows in tensor memory comes after what others did there before.

    Loads and stores end with the fence that comes before a barrier.
    """
    if has_tensor_memory():
        add(TensorFence())
