"""A call's arrays against a kernel's signature: dtypes, extents, devices, strides, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .dtypes import DType, DTypeVar, by_name
from .errors import DTypeError, LayoutError, ResourceError
from .ir import SameExtent
from .language.kernel import Signature, Specialization, TensorSpec, complete_params
from .ops.scalar import RANGES
from .runtime.arrays import TMA_ALIGN_BYTES, ArrayView, check_address, overlaps, tma_ok
from .tiles import GlobalType

# Extents, also rounded up to whole tiles, are s32 scalars in kernels.
MAX_EXTENT = 2**31 - 2**16


@dataclass(frozen=True)
class Bound:
    """A call that fits its signature.

    Args:
        signature: the kernel's.
        specialization: what to compile.
        device: "cpu" or "cuda:N".
        extents: by dim name.
        empties: tensor arguments without elements.
        reach: bytes each argument reaches below and above its address; (0, 0) for scalars.
        numbers: index, name, least and greatest value of the integer arguments.
    """

    signature: Signature
    specialization: Specialization
    device: str
    extents: tuple[tuple[str, int], ...]
    empties: tuple[int, ...]
    reach: tuple[tuple[int, int], ...]
    numbers: tuple[tuple[int, str, int, int], ...] = ()

    def check(
        self, views: list[Any], outputs: tuple[int, ...], rules: tuple[SameExtent, ...] = ()
    ) -> None:
        """What may differ between two calls of one specialisation: numbers, memory, extents.

        Raises:
            DTypeError: an integer beyond its dtype.
            LayoutError: a read-only or overlapping output, or extents against the kernel's rules.
        """
        for rule in rules:
            self._check_extent(rule, views)
        for index, arg, low, high in self.numbers:
            if not low <= views[index] <= high:
                raise DTypeError(
                    f"{self.signature.name}: {arg} is an integer from {low} to {high}, "
                    f"got {arg}={views[index]}"
                )
        self.check_memory(views, outputs)

    def _check_extent(self, rule: SameExtent, views: list[Any]) -> None:
        got = views[rule.arg.index].shape[rule.dim]
        wanted = views[rule.like.index].shape[rule.like_dim]
        if got != wanted and not (rule.or_one and got == 1):
            raise LayoutError(
                f"{self.signature.name}: axis {rule.dim} of {rule.arg.name} is as long as axis "
                f"{rule.like_dim} of {rule.like.name}{', or 1' if rule.or_one else ''}, "
                f"got {got} and {wanted}"
            )

    def empty(self, outputs: tuple[int, ...]) -> bool:
        """Whether every output has no element."""
        return bool(outputs) and all(index in self.empties for index in outputs)

    def check_memory(self, views: list[Any], outputs: tuple[int, ...]) -> None:
        """Outputs may be written, and share no memory with any other argument.

        Raises:
            LayoutError: a read-only or overlapping output.
        """
        for index in outputs:
            out = views[index]
            below, above = self.reach[index]
            low, high = out.ptr - below, out.ptr + above
            if index in self.empties:
                continue
            check_written(self.signature.name, self.signature.args[index][0], out)
            for other, (before, after) in enumerate(self.reach):
                if other == index or not after:
                    continue
                candidate = views[other]
                apart = candidate.ptr - before >= high or candidate.ptr + after <= low
                if apart or not overlaps(out, candidate) or self._in_place(index, views, other):
                    continue
                self._overlap(index, other)

    def apart(self, addresses: Sequence[int], outputs: tuple[int, ...]) -> bool:
        """Whether no output reaches into the span of another argument.

        Args:
            addresses: of the first elements, by argument.
            outputs: arguments that are written.
        """
        for index in outputs:
            below, above = self.reach[index]
            low, high = addresses[index] - below, addresses[index] + above
            for other, (before, after) in enumerate(self.reach):
                if other == index or not after or not above:
                    continue
                if addresses[other] - before < high and addresses[other] + after > low:
                    return False
        return True

    def _in_place(self, index: int, views: list[Any], other: int) -> bool:
        """Whether an `inout` argument is the very array that another of the same dims is."""
        kind, out, candidate = self.signature.args[index][1], views[index], views[other]
        return (
            isinstance(kind, GlobalType)
            and kind.inout
            and kind.dims == getattr(self.signature.args[other][1], "dims", None)
            and (out.ptr, out.shape, out.strides, out.dtype)
            == (candidate.ptr, candidate.shape, candidate.strides, candidate.dtype)
        )

    def _overlap(self, index: int, other: int) -> None:
        names = [self.signature.args[i][0] for i in (index, other)]
        raise LayoutError(
            f"{self.signature.name}: {names[0]} is written and must share no memory with "
            f"other arguments, got memory of {names[1]}",
            hint="write to a new array",
        )


@lru_cache(maxsize=1024)
def _meets_itself(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements of one array may share memory: an axis steps less than what it steps over.

    Slices, transposes and padded arrays nest; a broadcast or sliding-window view does not.
    """
    reach = 1
    for stride, extent in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += stride * (extent - 1)
    return False


def _reach(view: Any) -> tuple[int, int]:
    """Bytes an array reaches below and above the address of its first element."""
    if not isinstance(view, ArrayView) or 0 in view.shape:
        return (0, 0)
    item = by_name(view.dtype).bits // 8
    spans = [(n - 1) * s * item for n, s in zip(view.shape, view.strides, strict=True)]
    return (-sum(s for s in spans if s < 0), sum(s for s in spans if s > 0) + item)


def check_written(name: str, what: str, out: ArrayView) -> None:
    """Refuses an output that cannot be written element by element.

    Raises:
        LayoutError: a read-only array, or one whose elements share memory.
    """
    if out.readonly:
        raise LayoutError(f"{name}: {what} is written, got a read-only array",
                          hint="write to a new array, or to a copy")  # fmt: skip
    if _meets_itself(out.shape, out.strides):
        raise LayoutError(
            f"{name}: {what} is written, and its elements must lie apart, got "
            f"shape={tuple(out.shape)}, strides={tuple(out.strides)} (elements)",
            hint="write to a new array",
        )


def bind(signature: Signature, views: list[Any], params: dict[str, Any]) -> Bound:
    """Checks a call's arguments and finds its specialisation.

    Raises:
        LayoutError: number of arguments, ranks, extents, addresses between elements.
        DTypeError: element types.
        ResourceError: arrays on different devices.
    """
    name, declared = signature.name, signature
    signature = signature.fitted(views)
    if len(views) != len(signature.args):
        wanted = ", ".join(n for n, _ in signature.args)
        raise LayoutError(
            f"{name}: takes {len(signature.args)} arguments ({wanted}), got {len(views)}",
            hint=declared.describe(),
        )
    for view, (arg, kind) in zip(views, signature.args, strict=True):
        _check_kind(name, arg, kind, view)
    extents = _extents(signature, views)
    dims = {k: v for k, v in extents.items() if k in dict(signature.params)}
    for key, value in dims.items():
        if key in params and params[key] != value:
            raise LayoutError(
                f"{name}: parameter {key}={params[key]} but the arrays have {value}",
                hint=f"{key}={value}, or leave it out: the arrays say it",
            )
    complete = complete_params(signature, {**params, **dims})
    _check_dtypes(signature, views)
    for index, arg, _ in signature.tensors:
        check_address(name, arg, views[index])
    tensors = tuple(_spec(kind, views[i], dims) for i, _, kind in signature.tensors)
    empties = tuple(i for i, _, _ in signature.tensors if 0 in views[i].shape)
    return Bound(
        signature,
        Specialization(
            tensors, tuple(complete.items()), signature.args if signature is not declared else ()
        ),
        _device(signature, views),
        tuple(extents.items()),
        empties,
        tuple(_reach(v) for v in views),
        tuple(
            (i, arg, 0 if kind.name == "u32" else RANGES[kind.name][0], RANGES[kind.name][1])
            for i, (arg, kind) in enumerate(signature.args)
            if isinstance(kind, DType) and not kind.is_float
        ),
    )


def by_position(
    signature: Signature, args: tuple[Any, ...], params: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Run-time arguments given by name take their positions; the parameters are left.

    Raises:
        LayoutError: an argument is missing.
    """
    left, found = dict(params), list(args)
    for name, _ in signature.args[len(args) :]:
        if name not in left:
            raise LayoutError(
                f"{signature.name}: missing argument {name}, got {len(args)} by position"
                + (f" and {', '.join(params)}" if params else ""),
                hint=signature.describe(),
            )
        found.append(left.pop(name))
    return tuple(found), left


def _check_kind(name: str, arg: str, kind: GlobalType | DType, view: Any) -> None:
    got = f"shape {tuple(view.shape)}" if isinstance(view, ArrayView) else f"{view!r}"
    if isinstance(kind, GlobalType):
        if not isinstance(view, ArrayView):
            raise LayoutError(
                f"{name}: {arg} is a tensor {kind}, got {got} ({type(view).__name__})"
            )
        if len(view.shape) != kind.rank:
            raise LayoutError(
                f"{name}: {arg} has {kind.rank} axes ({', '.join(map(str, kind.dims))}), got {got}"
            )
    elif isinstance(view, ArrayView):
        raise DTypeError(
            f"{name}: {arg} is a scalar ({kind.name}), got an array of {got}",
            hint=f"{arg}.item(), which waits for the device",
        )
    elif isinstance(view, bool) or (not kind.is_float and not isinstance(view, int)):
        wanted = "a number" if kind.is_float else "an integer"
        raise DTypeError(
            f"{name}: {arg} is {wanted} ({kind.name}), got {got} ({type(view).__name__})"
        )


def _extents(signature: Signature, views: list[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    owner: dict[str, str] = {}
    for index, arg, kind in signature.tensors:
        for dim, extent in zip(kind.dims, views[index].shape, strict=True):
            if extent > MAX_EXTENT:
                raise LayoutError(
                    f"{signature.name}: an extent is at most {MAX_EXTENT}, got {arg} with {extent}",
                    hint="call the kernel on parts of the array",
                )
            if isinstance(dim, int):
                if dim != extent:
                    raise LayoutError(
                        f"{signature.name}: {arg} has shape {views[index].shape}, wanted {kind}"
                    )
                continue
            if found.setdefault(dim, extent) != extent:
                raise LayoutError(
                    f"{signature.name}: extent {dim} must agree, got {owner[dim]} with "
                    f"{dim}={found[dim]} and {arg} with {dim}={extent} "
                    f"(shapes {_shapes(signature, views)})",
                    hint=f"{arg} is {kind}",
                )
            owner.setdefault(dim, arg)
    return found


def _shapes(signature: Signature, views: list[Any]) -> str:
    return ", ".join(f"{arg}={views[i].shape}" for i, arg, _ in signature.tensors)


def _check_dtypes(signature: Signature, views: list[Any]) -> None:
    chosen: dict[str, tuple[str, str]] = {}
    for index, arg, kind in signature.tensors:
        got = views[index].dtype
        choices = kind.dtype.choices if isinstance(kind.dtype, DTypeVar) else (kind.dtype,)
        if got not in [c.name for c in choices]:
            raise DTypeError(
                f"{signature.name}: {arg} is {' or '.join(c.name for c in choices)}, got {got}",
                hint=f"convert {arg} to {choices[0].torch}",
            )
        if isinstance(kind.dtype, DTypeVar):
            first = chosen.setdefault(kind.dtype.name, (arg, got))
            if first[1] != got:
                raise DTypeError(
                    f"{signature.name}: {first[0]} and {arg} have one dtype, "
                    f"got {first[0]}={first[1]} and {arg}={got}"
                )


def _spec(kind: GlobalType, view: ArrayView, static: dict[str, int]) -> TensorSpec:
    rank = kind.rank
    row = tuple(range(rank - 1, -1, -1))
    extents = tuple(static.get(d) if isinstance(d, str) else d for d in kind.dims)
    if tma_ok(view, row) is None:
        return TensorSpec(view.dtype, "row", True, extents, _whole(view.shape[-1], view.dtype))
    if rank > 1 and tma_ok(view, (rank - 2, rank - 1, *row[2:])) is None:
        return TensorSpec(view.dtype, "col", True, extents, _whole(view.shape[-2], view.dtype))
    return TensorSpec(view.dtype, "row", False, extents)


def _whole(extent: int | None, dtype: str) -> bool:
    """Whether an axis of adjacent elements is a whole number of 16 bytes; one not known is."""
    return extent is None or extent * by_name(dtype).bits // 8 % TMA_ALIGN_BYTES == 0


def _device(signature: Signature, views: list[Any]) -> str:
    devices = {arg: views[i].device for i, arg, _ in signature.tensors}
    if len(set(devices.values())) > 1:
        listing = ", ".join(f"{k} on {v}" for k, v in devices.items())
        raise ResourceError(
            f"{signature.name}: all arrays are on one device, got {listing}",
            hint="move them with .to(device)",
        )
    return next(iter(devices.values()), "cpu")


def default_specialization(
    signature: Signature, params: dict[str, Any], dtype: DType | None
) -> Specialization:
    """Row-major tensors that TMA can reach, dtype parameters at their first choice or `dtype`.

    No axes and arguments beside those declared. Of several parameters those that do not take
    `dtype` have their first choice.
    """
    tensors = []
    variables = [kind.dtype for *_, kind in signature.tensors if isinstance(kind.dtype, DTypeVar)]
    taken = any(dtype in one.choices for one in variables)
    for _, _, kind in signature.tensors:
        chosen = kind.dtype
        if isinstance(chosen, DTypeVar):
            if dtype is None or taken and dtype not in chosen.choices:
                chosen = chosen.choices[0]
            else:
                chosen = chosen.check(dtype)
        static = tuple(
            d if isinstance(d, int) else params.get(d) if d in dict(signature.params) else None
            for d in kind.dims
        )
        whole = _whole(static[-1], chosen.name)
        tensors.append(TensorSpec(chosen.name, "row", True, static, whole))
    return Specialization(tuple(tensors), tuple(params.items()))


@dataclass(frozen=True)
class Movable:
    """Launches of one kernel on arrays of one layout, wherever they lie.

    Args:
        bound: the call they are like.
        outputs: arguments that are written.
        at: addresses by argument (of scalars anything) -> a launch, `launch(stream)`.
    """

    bound: Bound
    outputs: tuple[int, ...]
    at: Callable[[Sequence[int]], Callable[[Any], None]]

    def __call__(self, addresses: Sequence[int]) -> Callable[[Any], None] | None:
        """A launch, or None where an output may share memory with another argument.

        Args:
            addresses: by argument, each aligned to 16 bytes as that of the call was.
        """
        return self.at(addresses) if self.bound.apart(addresses, self.outputs) else None
