"""Kernels without a pipeline: one warpgroup a CTA, shared tiles and barriers by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..builder import Builder, add, current
from ..errors import ScopeError
from ..ir import Role, Scope
from ..ops.control import RoleSection
from ..ops.scalar import SpecialRegister, WarpgroupIndex, WarpIndex
from ..ops.sync import FenceAsync, NamedBarrier, WarpSync
from .meeting import after_meeting
from .scalars import Scalar, binary, operand_of

WARPGROUP_THREADS = 128


@contextmanager
def warpgroup(count: int = 1) -> Iterator[Scalar]:
    """`with tc.warpgroup():` the body of a kernel whose CTAs are one warpgroup of 128 threads.

    It is the kernel's last statement, and takes the place of a pipeline. CTAs share work by
    `tc.cta_id()` and `tc.num_ctas()`.

    Args:
        count: warpgroups of a CTA, 1 to 8; each executes the body, and `as number` tells which
            it is.

    Scope: the whole CTA, at the end of the kernel. PTX: `.reqntid`; a branch where a CTA has more
    warpgroups than one role.
    """
    builder = current()
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 8:
        raise ScopeError(f"tc.warpgroup: a CTA has 1 to 8 warpgroups, got {count!r}")
    if any(isinstance(op, RoleSection) for op in builder.kernel.body.ops):
        raise ScopeError("tc.warpgroup: a kernel has one such block, got another")
    body = builder.child()
    builder.kernel.threads = count * WARPGROUP_THREADS
    last = builder.kernel.threads - 1
    op = builder.add(RoleSection("warpgroup", 0, last, None, False, body))
    builder.kernel.roles.append(Role(0, last, "warpgroup"))
    builder.finalizers.append(lambda: _check_alone(builder, op))
    with builder.within(body, Scope.WARPGROUP):
        yield Scalar(add(WarpgroupIndex()).result) if count > 1 else 0  # type: ignore[misc]


@contextmanager
def warps() -> Iterator[None]:
    """`with tc.warps():` each warp executes the body by itself, with register tiles of its own.

    Inside a `tc.warpgroup` block or a consumer's hole. `tc.warp_id()` tells the warps apart.

    Scope: warpgroup; the body is a warp's. PTX: none.
    """
    builder = current()
    if builder.scope is not Scope.WARPGROUP:
        raise ScopeError(
            f"tc.warps: splits a warpgroup, got scope={builder.scope.value}",
            hint="with tc.warpgroup(): with tc.warps():",
        )
    with builder.within(builder.block, Scope.WARP):
        yield


def warp_id() -> Scalar:
    """Number of this warp in the CTA, uniform in the warp.

    Scope: any. PTX: `%tid.x` shifted, through `shfl.sync.idx`.
    """
    return Scalar(add(WarpIndex()).result)


def _check_alone(builder: Builder, section: Any) -> None:
    kernel = builder.kernel
    if "template" in kernel.facts:
        raise ScopeError(
            "tc.warpgroup: a kernel has a pipeline or a tc.warpgroup block, got both",
            loc=section.loc,
        )
    after = kernel.body.ops[kernel.body.ops.index(section) + 1 :]
    late = next((op for op in after if not op.pure), None)
    if late is not None:
        raise ScopeError(
            "tc.warpgroup: is the kernel's last statement, got code after it", loc=late.loc
        )


def sync() -> None:
    """Waits for all threads of the warpgroup (in a `tc.warps` block, of the warp).

    What they wrote to shared tiles before is there after, for the threads, mma and TMA.
    PTX: `fence.proxy.async`, `bar.sync` (or `bar.warp.sync`).

    Scope: warpgroup, warp.
    """
    builder = current()
    if builder.scope is Scope.WARP:
        add(FenceAsync())
        add(WarpSync())
        after_meeting()
        return
    if builder.scope is not Scope.WARPGROUP:
        raise ScopeError(
            f"sync: must be executed by a warpgroup, got scope={builder.scope.value}",
            hint="call it in a tc.warpgroup block, or in a consumer's hole of a pipeline",
        )
    thread = Scalar(add(SpecialRegister("%tid.x")).result)
    number = operand_of(binary("add", thread >> 7, 1))
    add(FenceAsync())
    add(NamedBarrier(number, WARPGROUP_THREADS))
    after_meeting()


def cta_id() -> Scalar:
    """Number of this CTA on the grid.

    Scope: any. PTX: `%ctaid.x`.
    """
    return Scalar(add(SpecialRegister("%ctaid.x")).result)


def num_ctas() -> Scalar:
    """CTAs on the grid.

    Scope: any. PTX: `%nctaid.x`.
    """
    return Scalar(add(SpecialRegister("%nctaid.x")).result)
