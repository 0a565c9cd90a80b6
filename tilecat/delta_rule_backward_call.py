"""Gradients of the delta rule: two scans of its own, four of linear attention, and sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .delta_rule_call import DIMS, Call, turned
from .errors import LayoutError
from .kernels.chunk_scan import CHUNK
from .kernels.delta_rule_backward import delta_rule_gradient, delta_rule_written
from .kernels.delta_rule_norms import delta_rule_sums, delta_rule_units
from .kernels.gate_gradients import gate_gradients
from .kernels.linear_attention import linear_attention
from .ready import Launch, again, key_of
from .runtime.arrays import ITEM_BYTES, allocator, view
from .scan_call import ROW_BYTES, check, plan, run, whole_rows


def gated_delta_rule_backward(
    do: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, scale: float | None = None,
    initial_state: Any = None, d_final_state: Any = None, use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Any = None,
) -> tuple[Any, Any, Any, Any, Any, Any]:  # fmt: skip
    """Gradients of `tc.gated_delta_rule` (and of `tc.delta_rule`), given that of its output.

    Args:
        do: gradient of o, B x T x H x V.
        q, k, v, g, beta, scale, initial_state, use_qk_l2norm_in_kernel, cu_seqlens: of the call.
        d_final_state: gradient of the final state, f32 [sequences, H, K, V]; None: 0.

    Returns:
        dq, dk, dv, dg (f32; None without g), dbeta (f32) and the gradient of the initial state
        (f32; None without one).

    Raises:
        LayoutError, DTypeError, ResourceError: as `tc.gated_delta_rule`; a scale of 0.

    Scope, streams and devices: as `tc.gated_delta_rule`. Nothing of the forward is needed: what
    tokens write is made again (docs/design/delta-rule.md).

    Example: `dq, dk, dv, dg, dbeta, _ = tc.gated_delta_rule_backward(do, q, k, v, g, beta)`
    """
    call = Call("gated_delta_rule_backward", q, k, v, g, beta, scale, initial_state, cu_seqlens,
                bool(use_qk_l2norm_in_kernel))  # fmt: skip
    tensors = (do, q, k, v, g, beta, initial_state, d_final_state, cu_seqlens)
    given = tuple(x for x in tensors if x is not None)
    key = key_of(tensors, (call.name, scale, call.norm))
    made = list(again(key, given) or _made(key, given, call, do, d_final_state))
    dq, dk, dv, dbeta = made[:4]
    dg = made.pop(4) if g is not None else None
    return dq, dk, dv, dg, dbeta, made[4] if initial_state is not None else None


def _made(
    key: Any, given: tuple[Any, ...], call: Call, do: Any, d_state: Any
) -> tuple[Any, ...]:
    """Results, and memory for what passes from kernel to kernel."""
    (batch, length, heads, dim, dim_v), sequences = call.check()
    check(call.name, "do", do, (batch, length, heads, dim_v), (view(call.q).dtype,), "v's shape")
    states = (sequences, heads, dim, dim_v)
    if d_state is not None:
        check(call.name, "d_final_state", d_state, states, ("f32",), "sequences x H x K x V")
    if call.factor == 0.0:
        raise LayoutError(f"{call.name}: gradients are those of a scale other than 0, got 0.0")
    gated, wants = call.g is not None, call.state is not None
    if 0 not in (batch, length, heads, dim_v, sequences) and (dim % UNIT or dim_v % UNIT):
        return _padded(call, do, d_state, (dim, dim_v))
    dtype, tokens = view(call.q).dtype, (batch, length, heads)
    shapes = [(tuple(view(x).shape), dtype) for x in (call.q, call.k, call.v)]
    shapes += [(tokens, "f32")] * (1 + gated) + [(states, "f32")] * wants
    results = len(shapes)
    shapes += [((*tokens, dim_v), dtype)] * 2 + [((*tokens, dim), dtype)] * 4
    shapes += [((batch, heads, -(-dim // CHUNK), length), "f32")]
    shapes += [((batch, heads, -(-dim_v // CHUNK), length), "f32")] * 2
    shapes += [(tuple(view(call.q).shape), dtype)] * (2 * call.norm)
    shapes += [(states, "f32")] * (gated and d_state is not None)
    makers = [allocator(call.q, *x) for x in shapes]
    made = tuple(make() for make in makers)
    if 0 in (batch, length, heads, dim_v) or sequences == 0:
        for x in made:
            x[...] = 0
        if wants and d_state is not None:
            made[results - 1][...] = d_state
        return made
    work = _Gradients(call, whole_rows(do), d_state, made[:results], made[results:])
    run(key, given, made, makers, work.launches)
    return made


UNIT = ROW_BYTES // ITEM_BYTES["bf16"]  # rows have a multiple of as many columns


def _padded(call: Call, do: Any, d_state: Any, dims: tuple[int, int]) -> tuple[Any, ...]:
    """Of rows that TMA does not store: with zeros behind their columns, which are cut off again."""
    sizes = [-(-dim // UNIT) * UNIT for dim in dims]

    def wide(x: Any, *axes: int) -> Any:
        """The array, its last axes those of K (0) or V (1)."""
        if x is None:
            return None
        shape = tuple(view(x).shape)
        outer, inner = shape[: -len(axes)], shape[-len(axes) :]
        made = allocator(x, (*outer, *(sizes[axis] for axis in axes)), view(x).dtype)()
        made[...] = 0
        made[(..., *(slice(size) for size in inner))] = x
        return made

    q, k = (wide(x, 0) for x in (call.q, call.k))
    dq, dk, dv, dg, dbeta, ds = gated_delta_rule_backward(
        wide(do, 1), q, k, wide(call.v, 1), call.g, call.beta, call.factor,
        wide(call.state, 0, 1), wide(d_state, 0, 1), call.norm, call.starts,
    )  # fmt: skip
    found = [dq[..., : dims[0]], dk[..., : dims[0]], dv[..., : dims[1]], dbeta]
    found += [] if dg is None else [dg]
    return *found, *([] if ds is None else [ds[..., : dims[0], : dims[1]]])


@dataclass(eq=False)
class _Gradients:
    """The kernels of one call.

    Args:
        call, do, d_state: given.
        grads: dq, dk, dv, dbeta, dg and that of the state, where wanted.
        work: n, u, dq, and the three parts of dk of each head, products q dq, parts of dbeta,
            products v dv; q and k over their norms, the final state; where wanted.
    """

    call: Call
    do: Any
    d_state: Any
    grads: tuple[Any, ...]
    work: tuple[Any, ...]

    def launches(self, eased: bool) -> tuple[Launch, ...]:
        """In their order."""
        call, more = self.call, list(self.work[9:])
        q, k, v = (whole_rows(x) for x in (call.q, call.k, call.v))
        self.dim = DIMS[view(call.q).shape[3] > DIMS[0]]
        found, units = [], (q, k)
        if call.norm:
            units = (more.pop(0), more.pop(0))
            both = tuple(turned(x) for x in (q, k, *units))
            found.append(Launch(delta_rule_units, both, (), {"dim": self.dim}))
        end = more.pop() if more else None
        found += self.of_values(units, v, end)
        found += self.of_keys(units, eased)
        if call.g is not None:
            found.append(self.of_gates(end))
        dq, dk, _, dbeta = self.grads[:4]
        tensors = (*(turned(x) for x in (q, k, *self.work[2:6])), self.work[7],
                   *(turned(x) for x in (dq, dk, dbeta)))  # fmt: skip
        wanted = {"dim": self.dim, "norm": call.norm}
        return *found, Launch(delta_rule_sums, tensors, (), wanted)

    def of_values(self, units: Any, v: Any, end: Any) -> list[Launch]:
        """What tokens write, and dv; both scans of states."""
        call, (n, u) = self.call, self.work[:2]
        start = self.grads[-1] if call.state is not None else None
        q, k, v, n, u, do, dv, beta = (
            turned(x) for x in (*units, v, n, u, self.do, self.grads[2], call.beta)
        )
        found = []
        for kernel, tensors, states in (
            (delta_rule_written, (k, v, beta, n, u), (call.state, end)),
            (delta_rule_gradient, (q, k, do, u, v, beta, dv, *self.work[7:9]),
             (self.d_state, start)),
        ):  # fmt: skip
            gates = None if call.g is None else turned(call.g)
            rest = tuple(x for x in (gates, call.starts, *states) if x is not None)
            scale = (call.factor,) if kernel is delta_rule_gradient else ()
            params = {
                "dim": self.dim, "g": gates is not None, "packed": call.starts is not None,
                "start": states[0] is not None, "end": states[1] is not None,
            }  # fmt: skip
            found.append(Launch(kernel, tensors, (*scale, *rest), params))
        return found

    def of_keys(self, units: Any, eased: bool) -> list[Launch]:
        """dq, and the parts of dk, of each head: scans of linear attention."""
        (q, k), (n, _, dq, dk, later, before), dv = units, self.work[:6], self.grads[2]
        start, d_end = (
            None if x is None else x.swapaxes(2, 3) for x in (self.call.state, self.d_state)
        )
        dots, factor = (q, self.work[6]), self.call.factor
        return [
            self.scan(self.do, n, k, dq, factor, start, dots, eased=eased),
            self.scan(n, self.do, q, dk, factor, d_end, reverse=True, eased=eased),
            self.scan(n, dv, k, later, 1.0, reverse=True, strict=True, eased=eased),
            self.scan(dv, n, k, before, 1.0, start, strict=True, eased=eased),
        ]

    def scan(
        self, q: Any, k: Any, v: Any, out: Any, scale: float, start: Any = None, dots: Any = (),
        *, reverse: bool = False, strict: bool = False, eased: bool = False,
    ) -> Launch:  # fmt: skip
        """A scan of linear attention whose values are shared by heads; see `Call.launch` there."""
        call, (batch, _, heads, dim) = self.call, view(q).shape
        given = (None if call.g is None else turned(call.g), *(turned(x) for x in dots[:1]),
                 *dots[1:], call.starts, start)  # fmt: skip
        rest = tuple(x for x in given if x is not None)
        tensors = tuple(turned(x) for x in (q, k, v, out))
        count = batch if call.starts is None else view(call.starts).shape[0] - 1
        params = plan(
            q, (*tensors, *rest), DIMS[dim > DIMS[0]], view(v).shape[3], (count, heads),
            more=len(dots) // 2, eased=eased, gated=call.g is not None,
        )  # fmt: skip
        wanted = {
            "g": call.g is not None, "dots": bool(dots), "packed": call.starts is not None,
            "start": start is not None, "reverse": reverse, "strict": strict,
            "grouped": view(v).shape[2] != heads,
        }  # fmt: skip
        return Launch(linear_attention, tensors, (scale, *rest), {**wanted, **params})

    def of_gates(self, end: Any) -> Launch:
        """dg: `o` has the decays of all sums up to its token, and v the inverse of them."""
        call, states = self.call, () if end is None else (end, self.d_state)
        packed = () if call.starts is None else (call.starts,)
        tensors = (self.work[6], self.work[8], turned(self.grads[4]))
        wanted = {"packed": bool(packed), "states": bool(states)}
        return Launch(gate_gradients, tensors, (*packed, *states), wanted)
