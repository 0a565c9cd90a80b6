"""Calls of the delta rule, gated and plain: of sequences, and of one token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .array_arguments import check_devices, tile_of
from .errors import LayoutError
from .kernels.delta_rule import delta_rule as kernel
from .kernels.delta_rule_step import delta_rule_step as step_kernel
from .ready import Launch, again, key_of
from .row_arguments import check_flag
from .runtime.arrays import allocator, shape_of, view
from .scan_call import (
    HALVES,
    check,
    check_number,
    check_rank,
    check_starts,
    outputs,
    run,
    turned,
    untouched,
    whole_rows,
)

AXES = "batch x length x heads x dim"
DIMS = (64, 128)  # columns of tiles of queries and keys


def gated_delta_rule(
    q: Any, k: Any, v: Any, g: Any, beta: Any, scale: float | None = None,
    initial_state: Any = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """`S_t = exp(g_t) (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T`, `o_t = scale S_t^T q_t`.

    Args:
        q, k: B x T x Hk x K, bf16 or f16, any strides; K at most 128, computed as 64 or 128.
        v: B x T x H x V; Hk divides H: H / Hk heads share queries and keys.
        g: f32 B x T x H: log-decays, usually <= 0; below -88 all before a token is forgotten, -inf
            too. None: 0.
        beta: f32 B x T x H, 0 to 1, or to 2 where eigenvalues may be negative. With keys alike and
            beta near 2 nothing is forgotten, and the roundings of 16-bit operands add up.
        scale: of the output; 1/sqrt(K) if None.
        initial_state: f32 [sequences, H, K, V]: S before the first token; None: 0.
        output_final_state: also give S after the last token.
        use_qk_l2norm_in_kernel: q and k are divided by the root of their squares' sum + 1e-6, in
            f32. Without it, keys longer than 1 let S grow.
        cu_seqlens: s32 [sequences + 1]: where sequences begin along T, ascending from 0 to T; then
            B is 1. (In CUDA memory it is not read before the launch.) Tokens behind a sequence
            must be finite.

    Returns:
        (o, state): o B x T x H x V of v's dtype, contiguous; state f32 [sequences, H, K, V], or
        None. CUDA arrays run on the GPU on the current stream, without waiting; NumPy arrays and
        CPU tensors run on the PTX machine.

    Raises:
        LayoutError: shapes that do not fit, heads that do not divide, a K above 128, cu_seqlens
            that disagree with T. DTypeError: dtypes other than those above.
        ResourceError: arrays on two devices, no GPU.

    Source: Yang, Kautz and Hatamizadeh, Gated Delta Networks (2024).

    Example: `o, _ = tc.gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)`
    """
    call = Call("gated_delta_rule", q, k, v, g, beta, scale, initial_state, cu_seqlens,
                use_qk_l2norm_in_kernel)  # fmt: skip
    return call.forward(output_final_state)


def delta_rule(
    q: Any, k: Any, v: Any, beta: Any, scale: float | None = None, initial_state: Any = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """The delta rule: `tc.gated_delta_rule` where nothing decays.

    Args:
        q, k, v, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
            cu_seqlens: see `tc.gated_delta_rule`.

    Returns:
        (o, final state or None), as `tc.gated_delta_rule`.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tc.gated_delta_rule`.

    Source: Yang et al., Parallelizing Linear Transformers with the Delta Rule (2024).

    Example: `o, _ = tc.delta_rule(q, k, v, beta, use_qk_l2norm_in_kernel=True)`
    """
    call = Call("delta_rule", q, k, v, None, beta, scale, initial_state, cu_seqlens,
                use_qk_l2norm_in_kernel)  # fmt: skip
    return call.forward(output_final_state)


@dataclass(eq=False)
class Call:
    """One call: what it was given. `name` is the function's, for errors."""

    name: str
    q: Any
    k: Any
    v: Any
    g: Any
    beta: Any
    scale: Any
    state: Any
    starts: Any
    norm: bool

    @property
    def given(self) -> tuple[Any, ...]:
        """Its arrays."""
        every = (self.q, self.k, self.v, self.g, self.beta, self.state, self.starts)
        return tuple(x for x in every if x is not None)

    @property
    def factor(self) -> float:
        """The scale."""
        return float(view(self.q).shape[3] ** -0.5 if self.scale is None else self.scale)

    def forward(self, wants_state: bool) -> tuple[Any, Any]:
        """The output, and the state after the last token if it is wanted."""
        tensors = (self.q, self.k, self.v, self.g, self.beta, self.state, self.starts)
        self.norm = check_flag(self.name, "use_qk_l2norm_in_kernel", self.norm)
        wants_state = check_flag(self.name, "output_final_state", wants_state)
        key = key_of(tensors, (self.name, self.scale, self.norm, wants_state))
        made = again(key, self.given) or self._forward(key, wants_state)
        return made[0], made[1] if wants_state else None

    def _forward(self, key: Any, wants_state: bool) -> tuple[Any, ...]:
        (batch, length, heads, dim, dim_v), sequences = self.check()
        shape, states = (batch, length, heads, dim_v), (sequences, heads, dim, dim_v)
        makers, made = outputs(self.v, shape, states if wants_state else None)
        if 0 in shape or sequences == 0:
            return untouched(made, self.state)
        q, k, v, out = (whole_rows(x) for x in (self.q, self.k, self.v, made[0]))
        gates = None if self.g is None else turned(self.g)
        rest = (gates, self.starts, self.state, made[1] if wants_state else None)
        params = {
            "dim": DIMS[dim > DIMS[0]], "g": self.g is not None, "norm": self.norm,
            "packed": self.starts is not None, "start": self.state is not None,
            "end": wants_state,
        }  # fmt: skip
        tensors = tuple(turned(x) for x in (q, k, v, self.beta, out))
        launch = Launch(kernel, tensors, (self.factor, *(x for x in rest if x is not None)), params)
        run(key, self.given, made, makers, lambda eased: (launch,))
        if out is not made[0]:
            made[0][...] = out[..., : view(made[0]).shape[3]]
        return made

    def check(self) -> tuple[tuple[int, int, int, int, int], int]:
        """B, T, H, K and V, and how many sequences there are.

        Raises:
            LayoutError: axes that do not fit, a K that has no tile, no finite scale.
            DTypeError: dtypes that are not multiplied. ResourceError: several devices.
        """
        name = self.name
        query, value = (check_rank(name, n, x, AXES) for n, x in (("q", self.q), ("v", self.v)))
        (batch, length, groups, dim), (heads, dim_v) = query.shape, value.shape[2:]
        tile_of(name, "K, of q and k,", dim, DIMS)
        check(name, "k", self.k, (batch, length, groups, dim), (query.dtype,), "of q")
        check(name, "v", self.v, (batch, length, heads, dim_v), (query.dtype,), "B x T x H x V")
        check_groups(name, heads, groups)
        if self.scale is not None:
            check_number(name, "scale", self.scale)
        sequences = check_starts(name, self.starts, batch, length)
        for what, x, shape, axes in (
            ("g", self.g, (batch, length, heads), "B x T x H"),
            ("beta", self.beta, (batch, length, heads), "B x T x H"),
            ("initial_state", self.state, (sequences, heads, dim, dim_v), "sequences x H x K x V"),
        ):
            if x is not None or what == "beta":
                check(name, what, x, shape, ("f32",), axes)
        arrays = {"q": self.q, "k": self.k, "v": self.v, "g": self.g, "beta": self.beta}
        check_devices(name, {**arrays, "initial_state": self.state, "cu_seqlens": self.starts})
        return (batch, length, heads, dim, dim_v), sequences


def check_groups(name: str, heads: int, groups: int) -> None:
    """Refuses heads of v that are not as many for each of q.

    Raises:
        LayoutError: they are not.
    """
    if heads and (groups == 0 or heads % groups):
        raise LayoutError(
            f"{name}: the heads of q and k divide those of v, got {groups} and {heads}"
        )


def gated_delta_rule_step(
    q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
) -> Any:  # fmt: skip
    """One token of `tc.gated_delta_rule`, for decoding; the state changes in place.

    Args:
        q, k: B x Hk x K, bf16 or f16; K at most 128.
        v: B x H x V.
        g, beta: f32 B x H; g None: 0.
        state: f32 B x H x K x V, which becomes the state after the token.
        scale, use_qk_l2norm_in_kernel: as of `tc.gated_delta_rule`.

    Returns:
        The token's output, B x H x V.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tc.gated_delta_rule`.

    Example: `o = tc.gated_delta_rule_step(q, k, v, g, beta, state)`
    """
    name, arrays = "gated_delta_rule_step", (q, k, v, g, beta, state)
    norm = check_flag(name, "use_qk_l2norm_in_kernel", use_qk_l2norm_in_kernel)
    key = key_of(arrays, (name, scale, norm))
    given = tuple(x for x in arrays if x is not None)
    found = again(key, given)
    if found is not None:
        return found[0]
    batch, heads, dim, dim_v = _check_step(name, *arrays, scale)
    makers = [allocator(v, (batch, heads, dim_v), view(v).dtype)]
    made = (makers[0](),)
    if 0 in (batch, heads, dim_v):
        return made[0]
    factor = float(dim**-0.5 if scale is None else scale)
    launch = Launch(
        step_kernel, (q, k, v, beta, state, *made), (factor, *(() if g is None else (g,))),
        {"dim": DIMS[dim > DIMS[0]], "g": g is not None, "norm": norm},
    )  # fmt: skip
    run(key, given, made, makers, lambda eased: (launch,))
    return made[0]


def _check_step(
    name: str, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, scale: Any
) -> tuple[int, int, int, int]:
    """B, H, K and V."""
    shapes = []
    for what, x in (("q", q), ("v", v)):
        shape = shape_of(x)
        if len(shape) != 3:
            raise LayoutError(f"{name}: {what} is batch x heads x dim, got the shape {shape}")
        check(name, what, x, shape, HALVES, "batch x heads x dim")
        shapes.append(shape)
    (batch, groups, dim), (_, heads, dim_v) = shapes
    tile_of(name, "K, of q and k,", dim, DIMS)
    dtype = view(q).dtype
    check(name, "k", k, (batch, groups, dim), (dtype,), "of q")
    check(name, "v", v, (batch, heads, dim_v), (dtype,), "B x H x V")
    check_groups(name, heads, groups)
    if scale is not None:
        check_number(name, "scale", scale)
    for what, x in (("g", g), ("beta", beta)):
        if x is not None or what == "beta":
            check(name, what, x, (batch, heads), ("f32",), "B x H")
    check(name, "state", state, (batch, heads, dim, dim_v), ("f32",), "B x H x K x V")
    check_devices(name, {"q": q, "k": k, "v": v, "g": g, "beta": beta, "state": state})
    return batch, heads, dim, dim_v
