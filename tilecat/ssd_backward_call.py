"""Gradients of Mamba-2's recurrence: those of the linear attention that it is, and around it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .array_arguments import check_devices
from .kernels.chunk_tasks import CHUNK
from .kernels.gate_gradients import sum_gates
from .kernels.norm import column_sums
from .kernels.ssd_backward import (
    TOKENS,
    ssd_gradients,
    ssd_operands,
    ssd_step_gradients,
    sum_heads,
)
from .linear_attention_backward_call import Backward, Shapes, beside
from .linear_attention_call import Call as Linear
from .operators import num_sms
from .ready import Launch, again, key_of, present
from .runtime.arrays import allocator, view
from .scan_call import check, run, turned
from .scan_segments import Segments, cut
from .ssd_call import NO_LIMIT, Call, options_of

TASKS = 8  # of kernels beside the scans an SM, at least, where sequences are long enough
NAMES = ("dx", "ddt", "dA", "dB", "dC", "dD", "dz", "d_bias", "d_initial")  # of results


def ssd_backward(
    dy: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int = 64, D: Any = None,
    z: Any = None, dt_bias: Any = None, initial_states: Any = None, seq_idx: Any = None,
    cu_seqlens: Any = None, dt_softplus: bool = False,
    dt_limit: tuple[float, float] = NO_LIMIT, *, d_final_states: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients of `tc.ssd`, given that of its output.

    Args:
        dy: gradient of y, batch x length x heads x P, of x's dtype.
        x, dt, A, B, C, chunk_size, D, z, dt_bias, initial_states, seq_idx, cu_seqlens, dt_softplus,
            dt_limit: of the call.
        d_final_states: gradient of the final states, f32 [sequences, heads, P, N]; None: 0.

    Returns:
        dx, ddt, dA, dB, dC, and those of D, z, dt_bias and initial_states (None without one), each
        of the shape and dtype of what it belongs to. Of dt that is clamped the gradient is 0.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tc.ssd`.

    Scope, streams and devices: as `tc.ssd`. `tc.simple_gla_backward` of `simple_gla(C, B, dt x,
    dt A)`, whose heads share B and C, and kernels before and after it. With z the forward is run
    again, without z.

    Example: `dx, ddt, dA, dB, dC, *_ = tc.ssd_backward(dy, x, dt, A, B, C, dt_softplus=True)`
    """
    options = options_of("ssd_backward", chunk_size, dt_softplus, dt_limit)
    arrays = x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens
    every = dy, *arrays, d_final_states
    key, given = key_of(every, ("ssd_backward", *options)), present(every)
    made = again(key, given) or _run(
        key, given, Call("ssd_backward", *arrays, *options), dy, d_final_states
    )
    found, wanted = iter(made), (x, dt, A, B, C, D, z, dt_bias, initial_states)
    return tuple(None if like is None else next(found) for like in wanted)


def _run(
    key: Any, given: tuple[Any, ...], call: Call, dy: Any, d_states: Any
) -> tuple[Any, ...]:
    """Checks, allocates, launches."""
    sequences, groups = call.check()
    shape, size = tuple(view(call.x).shape), view(call.B).shape[3]
    check(call.name, "dy", dy, shape, (view(call.x).dtype,), "of x")
    states = (sequences, *shape[2:], size)
    if d_states is not None:
        axes = "sequences x heads x P x N"
        check(call.name, "d_final_states", d_states, states, ("f32",), axes)
    check_devices(call.name, {"x": call.x, "dy": dy, "d_final_states": d_states})
    likes = call.x, call.dt, call.A, call.B, call.C, call.D, call.z, call.bias, call.states
    shapes: Shapes = {
        name: (tuple(view(x).shape), str(view(x).dtype))
        for name, x in zip(NAMES, likes, strict=True) if x is not None
    }  # fmt: skip
    results = len(shapes)
    if 0 in shape or sequences == 0:
        made = tuple(allocator(call.x, *x)() for x in shapes.values())
        for x in made:
            x[...] = 0
        if call.states is not None and d_states is not None:
            made[-1][...] = d_states
        return made
    work = _Backward(call, dy, d_states, sequences, groups)
    shapes |= work.memory()
    makers = [allocator(call.x, *x) for x in shapes.values()]
    arrays = tuple(make() for make in makers)
    work.made = dict(zip(shapes, arrays, strict=True))
    run(key, given, arrays, makers, work.launches)
    return arrays[:results]


@dataclass(eq=False)
class _Backward:
    """The launches of one call.

    Args:
        call, dy, d_states: given. sequences, groups: how many there are.
        made: arrays to write, by name: results, and memory for what passes between kernels.
    """

    call: Call
    dy: Any
    d_states: Any
    sequences: int
    groups: int
    made: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Extents, and how sequences are cut."""
        call = self.call
        self.batch, self.length, self.heads, self.dim = view(call.x).shape
        self.size = view(call.B).shape[3]
        length = 0 if call.starts is not None else self.length
        units, dims = self.batch * self.heads, (self.size, self.dim)
        tasks = self.batch * self.heads * -(-self.dim // CHUNK)
        cuts = max(1, min(-(-self.length // CHUNK), TASKS * num_sms(view(call.x).device) // tasks))
        self.segment = -(-self.length // (cuts * CHUNK)) * CHUNK
        self.forward = Segments() if call.z is None else cut(call.x, units, *dims, length)
        self.scans = cut(call.x, units, self.size, max(dims), length)

    def memory(self) -> Shapes:
        """What passes between kernels."""
        call, dtype = self.call, str(view(self.call.x).dtype)
        x, rows = tuple(view(call.x).shape), ((self.batch, self.heads, self.length), "f32")
        each = (*x[:3], self.size)
        dots = (-(-self.dim // CHUNK), *rows[0]), "f32"
        sums = (self.heads, self.batch, -(-self.length // TOKENS)), "f32"
        shapes: Shapes = {"values": (x, dtype), "gates": rows, "d_values": (x, dtype),
                          "d_gates": rows, "d_rates": sums, "dots": dots}  # fmt: skip
        if self.groups != self.heads:
            shapes |= {"dB_heads": (each, dtype), "dC_heads": (each, dtype)}
        if call.bias is not None:
            shapes["d_offsets"] = sums
        if call.z is not None:
            shapes |= {"n": (x, dtype), "dn": (x, dtype)}
        if call.D is not None:
            parts = self.batch * -(-self.length // self.segment)
            first = (parts, self.heads) if self.wide_skip else (self.heads, parts)
            shapes["d_skips"] = (*first, self.dim), "f32"
        extents = (*x[:3], self.size, self.dim)
        shapes |= beside(extents, self.sequences, self.d_states is not None)
        for name, segments in (("forward", self.forward), ("scans", self.scans)):
            rows_of = self.sequences * segments.count
            if segments.tokens:
                shapes[f"{name}_states"] = (rows_of, self.heads, self.dim, self.size), "f32"
                shapes[f"{name}_fades"] = (rows_of, self.heads), "f32"
        return shapes

    @property
    def wide_skip(self) -> bool:
        """Whether D has a number for each column."""
        return self.call.D is not None and len(view(self.call.D).shape) == 2

    def launches(self, eased: bool) -> tuple[Launch, ...]:
        """In their order."""
        call, found = self.call, list[Launch]()
        if call.z is not None:
            segments = self.holding("forward", self.forward)
            plain = replace(call, z=None)
            found += plain.launches(self.made["n"], None, self.groups, segments, eased)
        return (*found, self.operands(), *self.linear(eased), *self.gradients(), *self.sums())

    def holding(self, name: str, segments: Segments) -> Segments:
        """With the memory of that name."""
        made = (self.made.get(f"{name}_{what}") for what in ("states", "fades"))
        return segments.holding([x for x in made if x is not None])

    @property
    def d_inner(self) -> Any:
        """The gradient of `C h + D x`."""
        return self.dy if self.call.z is None else self.made["dn"]

    def operands(self) -> Launch:
        """Values and gates."""
        call, made = self.call, self.made
        more = {} if call.z is None else {
            "z": turned(call.z), "dy": turned(self.dy), "dn": turned(made["dn"]),
        }  # fmt: skip
        tensors = (turned(call.x), turned(call.dt), call.A, turned(made["values"]), made["gates"])
        return self.launch(ssd_operands, tensors, (self.segment,), more)

    def launch(
        self, kernel: Any, tensors: tuple[Any, ...], numbers: tuple[int, ...],
        more: dict[str, Any],
    ) -> Launch:  # fmt: skip
        """Of a kernel of steps."""
        call = self.call
        more = {"bias": call.bias, "sequences": call.seq_idx, **more}
        more = {name: x for name, x in more.items() if x is not None}
        params = {"softplus": call.softplus, "limits": call.limits, "names": tuple(more)}
        return Launch(kernel, tensors, (*numbers, *call.limit, *more.values()), params)

    def linear(self, eased: bool) -> tuple[Launch, ...]:
        """The gradients of `simple_gla(C, B, values, gates)`."""
        call, made = self.call, self.made
        scan = Linear(
            call.name, call.C, call.B, made["values"], made["gates"].swapaxes(1, 2), None, 1.0,
            None if call.states is None else call.states.swapaxes(2, 3), call.starts,
        )  # fmt: skip
        names = {"dq": "dC", "dk": "dB"} if self.groups == self.heads else {
            "dq": "dC_heads", "dk": "dB_heads",
        }  # fmt: skip
        found = {**made, **{name: made[other] for name, other in names.items()},
                 "dv": made["d_values"], "dg": made["d_gates"].swapaxes(1, 2)}  # fmt: skip
        if call.states is not None:
            found["d_initial"] = made["d_initial"].swapaxes(2, 3)
        d_last = None if self.d_states is None else self.d_states.swapaxes(2, 3)
        segments = self.holding("scans", self.scans)
        return Backward(scan, self.d_inner, d_last, found, self.sequences, segments).launches(eased)

    def gradients(self) -> tuple[Launch, Launch]:
        """dx, dz and parts of dD; ddt, and parts of dA and of the bias's gradient."""
        call, made = self.call, self.made
        more: dict[str, Any] = {}
        if call.D is not None:
            parts = made["d_skips"] if self.wide_skip else made["d_skips"].swapaxes(0, 1)
            more |= {"D": call.D, "dn": turned(self.d_inner), "d_skips": parts}
        if call.z is not None:
            others = {"z": call.z, "dy": self.dy, "n": made["n"], "dz": made["dz"]}
            more |= {name: turned(x) for name, x in others.items()}
        offsets = {} if call.bias is None else {"d_offsets": made["d_offsets"].swapaxes(0, 1)}
        dt = turned(call.dt), call.A
        large = (turned(call.x), *dt, turned(made["d_values"]), turned(made["dx"]), made["dots"])
        small = (*dt, made["dots"], made["d_gates"], turned(made["ddt"]),
                 made["d_rates"].swapaxes(0, 1))  # fmt: skip
        return (
            self.launch(ssd_gradients, large, (self.segment,), more),
            self.launch(ssd_step_gradients, small, (), offsets),
        )

    def sums(self) -> list[Launch]:
        """Over heads of a group, and of parts over tokens."""
        call, made = self.call, self.made
        found = []
        for name in ("dB", "dC") if self.groups != self.heads else ():
            both = turned(made[f"{name}_heads"]), turned(made[name])
            found.append(Launch(sum_heads, both, (), {}))
        pairs = [("d_rates", "dA")]
        pairs += [("d_offsets", "d_bias")] if call.bias is not None else []
        if self.wide_skip:
            parts, total = made["d_skips"], made["dD"]
            both = parts.reshape(1, len(parts), -1), total.reshape(-1)
            found.append(Launch(column_sums, both, (), {}))
        elif call.D is not None:
            pairs.append(("d_skips", "dD"))
        for name, total in pairs:
            parts = made[name].reshape(1, self.heads, -1)
            found.append(Launch(sum_gates, (parts, made[total]), (), {}))
        return found
