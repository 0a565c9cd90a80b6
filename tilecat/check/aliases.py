"""Arguments that a kernel both reads and writes are declared so."""

from __future__ import annotations

from ..errors import SyncError
from ..ir import Kernel, Op, TensorArg


def check_aliases(kernel: Kernel) -> None:
    """A tensor that is read and written is an `inout` argument.

    Whoever calls the kernel, and whoever reads it, learns from the signature that it changes an
    array in place; a slip of the pen (`A` for `C`) does not pass.

    Raises:
        SyncError: one that is not.
    """
    read: dict[int, Op] = {}
    written: dict[int, tuple[Op, TensorArg]] = {}
    for op in kernel.body.walk():
        if op.loads is not None:
            read.setdefault(op.loads.index, op)
        if op.stores is not None:
            written.setdefault(op.stores.index, (op, op.stores))
    for index, (op, arg) in written.items():
        if index in read and not arg.type.inout:
            dims = ", ".join(f'"{d}"' if isinstance(d, str) else str(d) for d in arg.type.dims)
            raise SyncError(
                f"{kernel.name}: {arg.name} is written here and read at {read[index].loc}, "
                f"got {arg.name}: {arg.type}",
                loc=op.loc,
                hint=f"declare it: {arg.name}: tc.inout[{arg.type.dtype.name}, {dims}]",
            )
