"""Calls of Mamba-2's recurrence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .array_arguments import check_devices
from .errors import LayoutError
from .kernels.ssd import ssd as kernel
from .ready import Launch, again, key_of
from .row_arguments import check_flag
from .runtime.arrays import view
from .scan_call import (
    check,
    check_features,
    check_rank,
    check_rates,
    check_starts,
    outputs,
    plan,
    run,
    turned,
    untouched,
)
from .scan_segments import Segments, cut

HALVES_AND_SINGLE = ("f32", "bf16", "f16")
NO_LIMIT = (0.0, math.inf)


def ssd(
    x: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int = 64, D: Any = None, z: Any = None,
    dt_bias: Any = None, initial_states: Any = None, seq_idx: Any = None, cu_seqlens: Any = None,
    dt_softplus: bool = False, dt_limit: tuple[float, float] = NO_LIMIT,
    return_final_states: bool = False,
) -> Any:  # fmt: skip
    """Mamba-2: `y_t = C_t h_t + D x_t`, `h_t = exp(dt_t A) h_(t-1) + dt_t x_t B_t` of each head.

    dt is `clamp(dt + dt_bias)` or, with dt_softplus, `clamp(softplus(dt + dt_bias))`.

    Args:
        x: batch x length x heads x P, bf16 or f16, any strides.
        dt: batch x length x heads, f32, bf16 or f16.
        A: f32 [heads], negative (in CPU memory that is checked).
        B, C: batch x length x groups x N; groups divide heads, N is at most 256, computed as the
            next of 32, 64, 96, 128, 192 and 256.
        chunk_size: of other implementations; here 64 always.
        D: f32 [heads] or [heads, P], or None.
        z: as x: the output is multiplied by silu(z); or None.
        dt_bias: f32 [heads], or None.
        initial_states: f32 [sequences, heads, P, N]: h before the first token; None: 0.
        seq_idx: s32 batch x length: where it changes from one token to the next, h starts at 0.
        cu_seqlens: s32 [sequences + 1]: where sequences begin, from 0 to the length; then the batch
            is 1. (In CUDA memory it is not read before the launch.)
        dt_softplus: see above.
        dt_limit: what dt is clamped to.
        return_final_states: also give h after the last token.

    Returns:
        y as x, contiguous; or (y, states f32 [sequences, heads, P, N]). CUDA arrays run on the GPU
        on the current stream, without waiting; NumPy arrays and CPU tensors on the PTX machine.

    Raises:
        LayoutError: shapes that do not fit, groups that do not divide heads, an N that has no tile.
        DTypeError: dtypes other than those above. ResourceError: arrays on two devices, no GPU.

    Source: Dao and Gu, Transformers are SSMs (2024); arguments of mamba_ssm's
    `mamba_chunk_scan_combined`.

    Example: `y = tc.ssd(x, dt, A, B, C, D=D, dt_bias=bias, dt_softplus=True)`
    """
    arrays = x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens
    wants = check_flag("ssd", "return_final_states", return_final_states)
    options = (*options_of("ssd", chunk_size, dt_softplus, dt_limit), wants)
    key = key_of(arrays, ("ssd", *options))
    given = tuple(a for a in arrays if a is not None)
    made = again(key, given) or _run(key, given, Call("ssd", *arrays, *options))
    return (made[0], made[1]) if wants else made[0]


def options_of(
    name: str, chunk_size: Any, softplus: Any, limit: Any
) -> tuple[bool, tuple[float, float]]:
    """Whether dt takes softplus, and both ends that it is clamped to.

    Raises:
        LayoutError: no chunk size, no two ascending numbers.
    """
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
        raise LayoutError(f"{name}: chunk_size is an int from 1 up, got {chunk_size!r}")
    return check_flag(name, "dt_softplus", softplus), check_limit(name, limit)


def check_limit(name: str, limit: Any) -> tuple[float, float]:
    """Both ends that dt is clamped to.

    Raises:
        LayoutError: no two ascending numbers.
    """
    numbers = isinstance(limit, tuple | list) and [
        x for x in limit if isinstance(x, int | float) and not isinstance(x, bool)
    ]
    if not numbers or not len(numbers) == len(limit) == 2 or not limit[0] <= limit[1]:
        raise LayoutError(
            f"{name}: dt_limit is two ascending numbers, got {limit!r}", hint="(0.0, float('inf'))"
        )
    return float(limit[0]), float(limit[1])


@dataclass(eq=False)
class Call:
    """The arguments of a call. `name` is the function's, for errors."""

    name: str
    x: Any
    dt: Any
    A: Any
    B: Any
    C: Any
    D: Any
    z: Any
    bias: Any
    states: Any
    seq_idx: Any
    starts: Any
    softplus: bool
    limit: tuple[float, float]
    wants_states: bool = False

    def check(self) -> tuple[int, int]:
        """Sequences and groups.

        Raises:
            LayoutError: axes that do not fit, groups that do not divide heads, an N without a tile.
            DTypeError: other dtypes. ResourceError: several devices.
        """
        name = self.name
        array = check_rank(name, "x", self.x, "batch x length x heads x P")
        batch, length, heads, dim = array.shape
        state = check_rank(name, "B", self.B, "batch x length x groups x N")
        groups, size = state.shape[2:]
        check_features(name, "N, the state size,", size)
        if groups < 1 or heads % groups:
            raise LayoutError(
                f"{name}: the groups of B and C divide the heads of x, got {groups} and {heads}"
            )
        sequences, halves = check_starts(name, self.starts, batch, length), (array.dtype,)
        for what in ("B", "C"):
            wanted = (batch, length, groups, size)
            check(name, what, getattr(self, what), wanted, halves, "batch x length x groups x N")
        rows = batch, length, heads
        check(name, "dt", self.dt, rows, HALVES_AND_SINGLE, "batch x length x heads")
        check_rates(name, self.A, heads)
        skip = (heads, dim) if self.D is not None and len(view(self.D).shape) == 2 else (heads,)
        for what, value, extents, dtypes, axes in (
            ("D", self.D, skip, ("f32",), "[heads] or [heads, P]"),
            ("z", self.z, tuple(array.shape), halves, "of x"),
            ("dt_bias", self.bias, (heads,), ("f32",), "[heads]"),
            ("initial_states", self.states, (sequences, heads, dim, size), ("f32",),
             "sequences x heads x P x N"),
            ("seq_idx", self.seq_idx, (batch, length), ("s32",), "batch x length"),
        ):  # fmt: skip
            if value is not None:
                check(name, what, value, extents, dtypes, axes)
        names = ("x", "dt", "A", "B", "C", "D", "z", "bias", "states", "seq_idx", "starts")
        check_devices(name, {what: getattr(self, what) for what in names})
        return sequences, groups

    @property
    def limits(self) -> bool:
        """Whether dt is clamped: softplus is not negative."""
        return not (self.softplus and self.limit == NO_LIMIT)

    def launches(
        self, out: Any, after: Any, groups: int, segments: Segments, eased: bool
    ) -> tuple[Launch, ...]:
        """The scan, perhaps of segments."""

        def scan(start: Any, end: Any, local: bool = False) -> Launch:
            states = {"before": start, "after": end}
            return self._launch(out, states, groups, segments, local, eased)

        return segments.launches(scan, self.states, after)

    def _launch(
        self, out: Any, states: dict[str, Any], groups: int, segments: Segments, local: bool,
        eased: bool,
    ) -> Launch:  # fmt: skip
        batch, _, heads, dim = view(self.x).shape
        count = batch if self.starts is None else view(self.starts).shape[0] - 1
        z = None if self.z is None or local else turned(self.z)
        more = {"z": z, "D": None if local else self.D, "bias": self.bias,
                "sequences": self.seq_idx, "starts": self.starts, **states,
                "segment": segments.tokens or None,
                "fades": segments.fades if local else None}  # fmt: skip
        more = {name: x for name, x in more.items() if x is not None}
        tensors = (turned(self.x), turned(self.dt), self.A, turned(self.B), turned(self.C),
                   turned(out))  # fmt: skip
        tiles = (tensors[0], *tensors[3:], *(() if z is None else (z,)))
        params = plan(
            self.x, tiles, check_features("ssd", "N", view(self.B).shape[3]), dim,
            (count * segments.count * groups, heads // groups), shared=True,
            more=int(z is not None), eased=eased, scores=True,
        )  # fmt: skip
        wanted = {"softplus": self.softplus, "limits": self.limits, "names": tuple(more),
                  "local": local}  # fmt: skip
        return Launch(kernel, tensors, (*self.limit, *more.values()), {**wanted, **params})


def _run(key: Any, given: tuple[Any, ...], call: Call) -> tuple[Any, ...]:
    sequences, groups = call.check()
    batch, length, heads, dim = shape = tuple(view(call.x).shape)
    size = view(call.B).shape[3]
    states = (sequences, heads, dim, size) if call.wants_states else None
    makers, made = outputs(call.x, shape, states)
    if 0 in shape or sequences == 0:
        return untouched(made, call.states)
    after = made[1] if call.wants_states else None
    segments = cut(call.x, batch * heads, size, dim, 0 if call.starts is not None else length)
    makers += segments.makers(call.x, sequences, heads, (dim, size), True)
    made += tuple(make() for make in makers[len(made) :])
    segments = segments.holding(made[1 + call.wants_states :])
    run(key, given, made, makers,
        lambda eased: call.launches(made[0], after, groups, segments, eased))  # fmt: skip
    return made
