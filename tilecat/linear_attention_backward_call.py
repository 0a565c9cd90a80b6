"""Gradients of linear attention: three scans, and those of the gates, of what scans give beside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .errors import LayoutError
from .kernels.checkpoints import EVERY, number_of
from .kernels.chunk_tasks import CHUNK
from .kernels.gate_gradients import checkpoint_products, gate_gradients, sum_gates
from .linear_attention_call import Call, Scan
from .operators import num_sms
from .ready import Launch, again
from .row_arguments import check_flag
from .runtime.arrays import allocator, view
from .scan_call import check, run, turned
from .scan_segments import Segments

FULL = 128  # columns of a state whose scan has registers to multiply it by checkpoints
CTAS = 8  # of `gate_gradients` an SM: with few heads, as many share one


def simple_gla_backward(
    do: Any, q: Any, k: Any, v: Any, g: Any = None, g_gamma: Any = None,
    scale: float | None = None, *, initial_state: Any = None, d_final_state: Any = None,
    cu_seqlens: Any = None, wants_d_gamma: bool = False,
) -> tuple[Any, Any, Any, Any, Any, Any]:  # fmt: skip
    """Gradients of `tc.simple_gla` (and `tc.linear_attention`), given that of its output.

    Args:
        do: gradient of o, B x T x H x V.
        q, k, v, g, g_gamma, scale, initial_state, cu_seqlens: of the call.
        d_final_state: gradient of the final state, f32 [sequences, H, K, V]; None: 0.
        wants_d_gamma: also that of g_gamma.

    Returns:
        dq, dk, dv, dg (f32; None without g), that of g_gamma (f32 [H]; None if it is not wanted)
        and that of the initial state (None without).

    Raises:
        LayoutError, DTypeError, ResourceError: as `tc.simple_gla`; a scale of 0; a gradient of a
            g_gamma that is not given.

    Scope, streams and devices: as `tc.simple_gla`. Each of dq, dk and dv is a scan of the same
    kernel, dk and dv in reversed time (docs/design/chunk-scan.md).

    Example: `dq, dk, dv, dg, _, _ = tc.simple_gla_backward(do, q, k, v, g)`
    """
    call = Call("simple_gla_backward", q, k, v, g, g_gamma, scale, initial_state, cu_seqlens)
    more = (do, d_final_state)
    wants_d_gamma = check_flag(call.name, "wants_d_gamma", wants_d_gamma)
    key, given = call.key(*more), call.given(*more)
    key = None if key is None else (wants_d_gamma, *key)
    if wants_d_gamma and g_gamma is None:
        raise LayoutError(f"{call.name}: wants_d_gamma is for a g_gamma, got None")
    made = list(again(key, given) or _run(key, given, call, do, d_final_state, wants_d_gamma))
    dq, dk, dv = made[:3]
    dg = made.pop(3) if g is not None else None
    d_gamma = made.pop(3) if wants_d_gamma else None
    return dq, dk, dv, dg, d_gamma, made[3] if initial_state is not None else None


def _run(
    key: Any, given: tuple[Any, ...], call: Call, do: Any, d_state: Any, wants_d_gamma: bool
) -> tuple[Any, ...]:
    extents, sequences = call.check()
    batch, length, heads, dim, dim_v = extents
    check(call.name, "do", do, (batch, length, heads, dim_v), (view(call.q).dtype,), "of v")
    states = (sequences, heads, dim, dim_v)
    if d_state is not None:
        check(call.name, "d_final_state", d_state, states, ("f32",), "sequences x H x K x V")
    if call.factor == 0.0:
        raise LayoutError(f"{call.name}: gradients are those of a scale other than 0, got 0.0")
    shapes = _results(call, extents, states, wants_d_gamma)
    results = len(shapes)
    if call.g is not None or wants_d_gamma:
        shapes |= beside(extents, sequences, d_state is not None)
        shapes.setdefault("dg", ((batch, length, heads), "f32"))
    segments = call.cut(dim, max(dim, dim_v))
    makers = [allocator(call.q, *x) for x in shapes.values()]
    makers += segments.makers(call.q, sequences, heads, (dim, dim_v), call.decayed)
    arrays = tuple(make() for make in makers)
    made = dict(zip(shapes, arrays, strict=False))
    if 0 in (batch, length, heads, dim_v) or sequences == 0:
        for name in list(shapes)[:results]:
            made[name][...] = 0
        if d_state is not None and "d_initial" in made:
            made["d_initial"][...] = d_state
    else:
        segments = segments.holding(arrays[len(made) :])
        backward = Backward(call, do, d_state, made, sequences, segments)
        run(key, given, arrays, makers, backward.launches)
    return arrays[:results]


Shapes = dict[str, tuple[tuple[int, ...], str]]  # and dtypes, of arrays by name


def _results(
    call: Call, extents: tuple[int, ...], states: tuple[int, ...], wants_d_gamma: bool
) -> Shapes:
    """What a call gives, in order."""
    batch, length, heads, *_ = extents
    names = (("dq", call.q), ("dk", call.k), ("dv", call.v))
    shapes = {name: (tuple(view(x).shape), str(view(x).dtype)) for name, x in names}
    if call.g is not None:
        shapes["dg"] = (batch, length, heads), "f32"
    if wants_d_gamma:
        shapes["d_gamma"] = (heads,), "f32"
    if call.state is not None:
        shapes["d_initial"] = states, "f32"
    return shapes


def beside(extents: tuple[int, ...], sequences: int, last: bool) -> Shapes:
    """Arrays that gradients of gates take: see `gate_gradients`."""
    batch, length, heads, dim, dim_v = extents
    parts, blocks = -(-dim // CHUNK), number_of(batch * length, sequences)
    wide = dim_v > FULL
    found = {
        "outer": (batch, heads, parts, length), "inner": (batch, heads, parts, length),
        "checkpoints": (blocks, heads, dim, dim_v),
        "products": (blocks, heads, 1 if wide else parts),
    }  # fmt: skip
    if wide:
        found["others"] = found["checkpoints"]
    if last:
        found["last"] = (sequences, heads, dim_v, dim)
    return {name: (shape, "f32") for name, shape in found.items()}


@dataclass(eq=False)
class Backward:
    """The launches of one call.

    Args:
        call, do, d_state: given.
        made: arrays to write, by name.
        sequences: how many there are.
        segments: how they are cut; all scans use its arrays.
    """

    call: Call
    do: Any
    d_state: Any
    made: dict[str, Any]
    sequences: int
    segments: Segments

    def launches(self, eased: bool) -> tuple[Launch, ...]:
        """The scans of dq, dk and dv, and gradients of gates."""
        call, do, made = self.call, self.do, self.made
        start = None if call.state is None else call.state.swapaxes(2, 3)
        d_end = None if self.d_state is None else self.d_state.swapaxes(2, 3)
        dots: list[tuple[Any, ...]] = [(), ()]
        points: list[tuple[Any, ...]] = [(), ()]
        if "outer" in made:
            dots = [(call.q, made["outer"]), (call.k, made["inner"])]
            kept = made["checkpoints"]
            points = [(kept,), (made["others"],) if "others" in made else (kept, made["products"])]
        scans = (
            Scan(do, call.v, call.k, made["dq"], start, made.get("last"), dots[0], points[0]),
            Scan(call.v, do, call.q, made["dk"], d_end, None, dots[1], points[1], True),
            Scan(call.k, call.q, do, made["dv"], self.d_state, made.get("d_initial"),
                 reverse=True),
        )  # fmt: skip
        launches = [x for scan in scans for x in call.launches(scan, self.of(scan), eased)]
        return (*launches, *(self.of_gates(d_end) if "outer" in made else ()))

    def of(self, scan: Scan) -> Segments:
        """Segments, with states of a scan."""
        if not self.segments.tokens:
            return self.segments
        states = self.segments.states
        shape = (*states.shape[:2], view(scan.v).shape[3], view(scan.q).shape[3])
        return replace(self.segments, states=states.reshape(shape))

    def of_gates(self, d_end: Any) -> tuple[Launch, ...]:
        """Gradients of gates, and their sums."""
        call, made = self.call, self.made
        before = (call.state, made["d_initial"]) if "d_initial" in made else ()
        after = (made["last"], d_end) if "last" in made else ()
        packed = () if call.starts is None else (call.starts,)
        _, length, heads, _ = view(call.v).shape
        stripes = stripes_of(call.q, self.sequences * heads, length)
        wanted = {"packed": bool(packed), "first": bool(before), "last": bool(after)}
        gates = Launch(
            gate_gradients,
            (made["outer"], made["inner"], made["products"], turned(made["dg"])),
            (stripes, *packed, *before, *after), wanted,
        )  # fmt: skip
        found: tuple[Launch, ...] = (gates,)
        if "others" in made:
            arrays = tuple(made[name] for name in ("checkpoints", "others", "products"))
            found = (Launch(checkpoint_products, arrays, (call.factor,), {}), *found)
        if "d_gamma" not in made:
            return found
        return *found, Launch(sum_gates, (turned(made["dg"]), made["d_gamma"]), (), {})


def stripes_of(like: Any, rows: int, length: int) -> int:
    """How many CTAs of `gate_gradients` share a head of a sequence.

    Args:
        like: an array, for the device. rows: sequences times heads. length: tokens.
    """
    stripes = max(1, CTAS * num_sms(view(like).device) // max(1, rows))
    return min(stripes, -(-length // EVERY))
