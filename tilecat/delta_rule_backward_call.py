"""Gradients of the delta rule: two scans of its own, four of linear attention, and sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .delta_rule_call import DIMS, Call
from .errors import LayoutError
from .kernels.checkpoints import number_of
from .kernels.chunk_tasks import CHUNK
from .kernels.delta_rule_backward import delta_rule_gradient, delta_rule_written
from .kernels.delta_rule_norms import delta_rule_sums, delta_rule_units
from .kernels.gate_gradients import gate_gradients
from .kernels.linear_attention import linear_attention
from .linear_attention_backward_call import stripes_of
from .ready import Launch, again, key_of
from .row_arguments import check_flag
from .runtime.arrays import ITEM_BYTES, allocator, view
from .scan_call import ROW_BYTES, check, plan, run, turned, whole_rows


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
    norm = check_flag("gated_delta_rule_backward", "use_qk_l2norm_in_kernel",
                      use_qk_l2norm_in_kernel)  # fmt: skip
    call = Call("gated_delta_rule_backward", q, k, v, g, beta, scale, initial_state, cu_seqlens,
                norm)  # fmt: skip
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
    """What the call gives, in order."""
    extents, sequences = call.check()
    (batch, length, heads, dim, dim_v) = extents
    check(call.name, "do", do, (batch, length, heads, dim_v), (view(call.q).dtype,), "of v")
    states = (sequences, heads, dim, dim_v)
    if d_state is not None:
        check(call.name, "d_final_state", d_state, states, ("f32",), "sequences x H x K x V")
    if call.factor == 0.0:
        raise LayoutError(f"{call.name}: gradients are those of a scale other than 0, got 0.0")
    empty = 0 in (*extents, sequences)
    if not empty and (dim % UNIT or dim_v % UNIT):
        return _padded(call, do, d_state, (dim, dim_v))
    shapes = _results(call, extents, states)
    results = len(shapes)
    shapes |= _beside(call, extents, sequences, d_state is not None)
    makers = [allocator(call.q, *x) for x in shapes.values()]
    made = dict(zip(shapes, (make() for make in makers), strict=True))
    if empty:
        for name in list(shapes)[:results]:
            made[name][...] = 0
        if d_state is not None and "d_initial" in made:
            made["d_initial"][...] = d_state
    else:
        work = _Gradients(call, whole_rows(do), d_state, made, sequences)
        run(key, given, tuple(made.values()), makers, work.launches)
    return tuple(made.values())[:results]


Shapes = dict[str, tuple[tuple[int, ...], str]]  # and dtypes, of arrays by name


def _results(call: Call, extents: tuple[int, ...], states: tuple[int, ...]) -> Shapes:
    """What a call gives, in order."""
    tokens, dtype = extents[:3], view(call.q).dtype
    names = (("dq", call.q), ("dk", call.k), ("dv", call.v))
    shapes = {name: (tuple(view(x).shape), dtype) for name, x in names}
    shapes["dbeta"] = tokens, "f32"
    if call.g is not None:
        shapes["dg"] = tokens, "f32"
    if call.state is not None:
        shapes["d_initial"] = states, "f32"
    return shapes


def _beside(call: Call, extents: tuple[int, ...], sequences: int, last: bool) -> Shapes:
    """Memory for what passes from kernel to kernel."""
    batch, length, heads, dim, dim_v = extents
    tokens, dtype, parts = extents[:3], view(call.q).dtype, -(-dim_v // CHUNK)
    shapes = {name: ((*tokens, dim_v), dtype) for name in ("n", "u")}
    shapes |= {name: ((*tokens, dim), dtype) for name in ("of_q", "of_k", "later", "before")}
    inner = ((batch, heads, parts, length), "f32")
    shapes |= {"parts": inner, "inner": inner}
    if call.norm:
        shapes |= {name: (tuple(view(call.q).shape), dtype) for name in ("unit_q", "unit_k")}
    if call.g is not None:
        blocks = number_of(batch * length, sequences)
        shapes["outer"] = (batch, heads, -(-dim // CHUNK), length), "f32"
        shapes["checkpoints"] = (blocks, heads, dim_v, dim), "f32"
        shapes["products"] = (blocks, heads, parts), "f32"
        if last:
            shapes["last"] = (sequences, heads, dim, dim_v), "f32"
    return shapes


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
        made: arrays to write, by name: results; n, u; dq and the three parts of dk of each head;
            parts of dbeta and of products v dv; q and k over their norms; products q dq,
            checkpoints of states and their products, the final state; where wanted.
        sequences: how many there are.
    """

    call: Call
    do: Any
    d_state: Any
    made: dict[str, Any]
    sequences: int

    def launches(self, eased: bool) -> tuple[Launch, ...]:
        """In their order."""
        call, made, found = self.call, self.made, []
        q, k, v = (whole_rows(x) for x in (call.q, call.k, call.v))
        self.dim = DIMS[view(q).shape[3] > DIMS[0]]
        units = (q, k)
        if call.norm:
            units = (made["unit_q"], made["unit_k"])
            both = tuple(turned(x) for x in (q, k, *units))
            found.append(Launch(delta_rule_units, both, (), {"dim": self.dim}))
        found += self.of_values(units, v)
        found += self.of_keys(units, eased)
        if call.g is not None:
            found.append(self.of_gates())
        of_heads = (made[name] for name in ("of_q", "of_k", "later", "before"))
        results = (made[name] for name in ("dq", "dk", "dbeta"))
        tensors = (*(turned(x) for x in (q, k, *of_heads)), made["parts"],
                   *(turned(x) for x in results))  # fmt: skip
        wanted = {"dim": self.dim, "norm": call.norm}
        return *found, Launch(delta_rule_sums, tensors, (), wanted)

    def of_values(self, units: Any, v: Any) -> list[Launch]:
        """What tokens write, and dv; both scans of states."""
        call, made = self.call, self.made
        gates = None if call.g is None else turned(call.g)
        points = [made[name] for name in ("checkpoints", "products") if name in made]
        q, k, v, n, u, do, dv, beta = (
            turned(x) for x in (*units, v, made["n"], made["u"], self.do, made["dv"], call.beta)
        )
        found = []
        for kernel, tensors, numbers, states, kept in (
            (delta_rule_written, (k, v, beta, n, u), (), (call.state, made.get("last")),
             points[:1]),
            (delta_rule_gradient, (q, k, do, u, v, beta, dv, made["parts"], made["inner"]),
             (call.factor,), (self.d_state, made.get("d_initial")), points),
        ):  # fmt: skip
            rest = tuple(x for x in (gates, call.starts, *states, *kept) if x is not None)
            params = {
                "dim": self.dim, "g": gates is not None, "packed": call.starts is not None,
                "start": states[0] is not None, "end": states[1] is not None,
                "checkpoints": bool(kept),
            }  # fmt: skip
            found.append(Launch(kernel, tensors, (*numbers, *rest), params))
        return found

    def of_keys(self, units: Any, eased: bool) -> list[Launch]:
        """dq, and the parts of dk, of each head: scans of linear attention."""
        (q, k), call, made = units, self.call, self.made
        n, dv, factor = made["n"], made["dv"], call.factor
        start, d_end = (
            None if x is None else x.swapaxes(2, 3) for x in (call.state, self.d_state)
        )
        dots = (q, made["outer"]) if "outer" in made else ()
        return [
            self.scan(self.do, n, k, made["of_q"], factor, start, dots, eased=eased),
            self.scan(n, self.do, q, made["of_k"], factor, d_end, reverse=True, eased=eased),
            self.scan(n, dv, k, made["later"], 1.0, reverse=True, strict=True, eased=eased),
            self.scan(dv, n, k, made["before"], 1.0, start, strict=True, eased=eased),
        ]

    def scan(
        self, q: Any, k: Any, v: Any, out: Any, scale: float, start: Any = None, dots: Any = (),
        *, reverse: bool = False, strict: bool = False, eased: bool = False,
    ) -> Launch:  # fmt: skip
        """A scan of linear attention whose values are shared by heads; see `Call.launch` there."""
        call, (_, _, heads, dim) = self.call, view(q).shape
        given = (None if call.g is None else turned(call.g), *(turned(x) for x in dots[:1]),
                 *dots[1:], call.starts, start)  # fmt: skip
        rest = tuple(x for x in given if x is not None)
        tensors = tuple(turned(x) for x in (q, k, v, out))
        params = plan(
            q, (*tensors, *rest), DIMS[dim > DIMS[0]], view(v).shape[3], (self.sequences, heads),
            more=len(dots) // 2, eased=eased, gated=call.g is not None,
        )  # fmt: skip
        wanted = {
            "g": call.g is not None, "dots": bool(dots), "packed": call.starts is not None,
            "start": start is not None, "reverse": reverse, "strict": strict,
            "grouped": view(v).shape[2] != heads,
        }  # fmt: skip
        return Launch(linear_attention, tensors, (scale, *rest), {**wanted, **params})

    def of_gates(self) -> Launch:
        """dg: o has the decays of all sums up to its token, and v their inverses."""
        call, made = self.call, self.made
        before = (call.state, made["d_initial"]) if "d_initial" in made else ()
        after = (made["last"], self.d_state) if "last" in made else ()
        packed = () if call.starts is None else (call.starts,)
        _, length, heads, _ = view(call.v).shape
        stripes = stripes_of(call.v, self.sequences * heads, length)
        tensors = (made["outer"], made["inner"], made["products"], turned(made["dg"]))
        wanted = {"packed": bool(packed), "first": bool(before), "last": bool(after)}
        return Launch(gate_gradients, tensors, (stripes, *packed, *before, *after), wanted)
