"""Calls of linear attention: plain, with decays of heads (lightning) or of tokens (simple GLA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .array_arguments import check_devices
from .errors import LayoutError
from .kernels.chunk_tasks import CHUNK, WHOLE
from .kernels.linear_attention import linear_attention as kernel
from .ready import Launch, again, key_of
from .row_arguments import check_flag
from .runtime.arrays import allocator, view
from .scan_call import (
    check,
    check_features,
    check_number,
    check_rank,
    check_starts,
    outputs,
    plan,
    run,
    turned,
    untouched,
)
from .scan_segments import Segments, cut

AXES = "batch x length x heads x dim"


def linear_attention(
    q: Any, k: Any, v: Any, scale: float | None = None, *, initial_state: Any = None,
    output_final_state: bool = False, cu_seqlens: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Causal linear attention: `o_t = scale q_t S_t`, `S_t = S_(t-1) + k_t v_t`.

    Args:
        q, k, v, scale, initial_state, output_final_state, cu_seqlens: see `tc.simple_gla`.

    Returns:
        (o, final state or None), as `tc.simple_gla`.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tc.simple_gla`.

    Example: `o, state = tc.linear_attention(q, k, v, output_final_state=True)`
    """
    call = Call("linear_attention", q, k, v, None, None, scale, initial_state, cu_seqlens)
    return call.forward(output_final_state)


def simple_gla(
    q: Any, k: Any, v: Any, g: Any = None, g_gamma: Any = None, scale: float | None = None,
    *, initial_state: Any = None, output_final_state: bool = False, cu_seqlens: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Gated linear attention: `o_t = scale q_t S_t`, `S_t = exp(g_t + g_gamma) S_(t-1) + k_t v_t`.

    Args:
        q, k: B x T x H x K, bf16 or f16, any strides; K at most 256, computed as the next of 32,
            64, 96, 128, 192 and 256.
        v: B x T x H x V.
        g: f32 B x T x H: log-decays, usually <= 0; below -88 all before a token is forgotten, -inf
            too. None: 0.
        g_gamma: f32 [H]: log-decay of each head, added to g; None: 0.
        scale: of the output; 1/sqrt(K) if None.
        initial_state: f32 [sequences, H, K, V]: S before the first token; None: 0.
        output_final_state: also give S after the last token.
        cu_seqlens: s32 [sequences + 1]: where sequences begin along T, ascending from 0 to T; then
            B is 1. (In CUDA memory it is not read before the launch.)

    Returns:
        (o, state): o B x T x H x V of v's dtype, contiguous; state f32 [sequences, H, K, V], or
        None. CUDA arrays run on the GPU on the current stream, without waiting; NumPy arrays and
        CPU tensors run on the PTX machine.

    Raises:
        LayoutError: shapes that do not fit, cu_seqlens that disagree with T, a K that has no tile.
        DTypeError: dtypes other than those above. ResourceError: arrays on two devices, no GPU.

    Source: Qin et al., Lightning Attention-2 (2024); Dao and Gu, Mamba-2 (2024), section 6.

    Example: `o, _ = tc.simple_gla(q, k, v, g)`
    """
    call = Call("simple_gla", q, k, v, g, g_gamma, scale, initial_state, cu_seqlens)
    return call.forward(output_final_state)


def lightning_attn(
    q: Any, k: Any, v: Any, layer_idx: int, num_layers: int, scale: float | None = None,
    *, initial_state: Any = None, output_final_state: bool = False, cu_seqlens: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Lightning attention: `tc.simple_gla` with the decays of a layer's heads.

    Head h decays by `-8 h / H (1 - layer_idx / num_layers)` a token (Qin et al., 2024).

    Args:
        q, k, v, scale, initial_state, output_final_state, cu_seqlens: see `tc.simple_gla`.
        layer_idx: number of the layer, from 0.
        num_layers: how many there are.

    Returns:
        (o, final state or None), as `tc.simple_gla`.

    Raises:
        LayoutError: a layer that is none of them; else as `tc.simple_gla`.

    Example: `o, _ = tc.lightning_attn(q, k, v, layer_idx=3, num_layers=24)`
    """
    gamma = lightning_decays(q, layer_idx, num_layers)
    call = Call("lightning_attn", q, k, v, None, gamma, scale, initial_state, cu_seqlens)
    return call.forward(output_final_state)


_decays: dict[Any, Any] = {}


def lightning_decays(q: Any, layer_idx: int, num_layers: int) -> Any:
    """The decays of a layer's heads, f32 [H], where q is; made once.

    Raises:
        LayoutError: a layer that is none.
    """
    ints = all(isinstance(x, int) and not isinstance(x, bool) for x in (layer_idx, num_layers))
    if not ints or not 0 <= layer_idx < num_layers:
        raise LayoutError(
            f"lightning_attn: layer_idx is an int from 0 to num_layers - 1, got {layer_idx=!r}, "
            f"{num_layers=!r}"
        )
    heads = check_rank("lightning_attn", "q", q, AXES).shape[2]
    key = heads, layer_idx, num_layers, type(q), view(q).device
    if key not in _decays:
        made = allocator(q, (heads,), "f32")()
        for head in range(heads):
            made[head] = -8 / heads * (1 - layer_idx / num_layers) * head
        _decays[key] = made
    return _decays[key]


@dataclass(frozen=True, eq=False)
class Scan:
    """One scan of a call.

    Args:
        q, k, v, out: of the scan, batch x tokens x heads x dim.
        start, end: states before and after, or None.
        dots: a tensor like out, and their products; or nothing.
        checkpoints: see the kernel; or nothing.
        reverse: in reversed time.
    """

    q: Any
    k: Any
    v: Any
    out: Any
    start: Any = None
    end: Any = None
    dots: tuple[Any, ...] = ()
    checkpoints: tuple[Any, ...] = ()
    reverse: bool = False


@dataclass(eq=False)
class Call:
    """One call: what it was given. `name` is the function's, for errors."""

    name: str
    q: Any
    k: Any
    v: Any
    g: Any
    gamma: Any
    scale: Any
    state: Any
    starts: Any

    def given(self, *more: Any) -> tuple[Any, ...]:
        """Its arrays, and further ones."""
        every = (self.q, self.k, self.v, self.g, self.gamma, self.state, self.starts, *more)
        return tuple(x for x in every if x is not None)

    def key(self, *more: Any) -> Any:
        """What it depends on beside addresses; None where nothing is remembered."""
        return key_of(
            (self.q, self.k, self.v, self.g, self.gamma, self.state, self.starts, *more),
            (self.name, self.scale, len(more)),
        )

    def forward(self, wants_state: bool) -> tuple[Any, Any]:
        """The output, and the state after the last token if it is wanted."""
        key = self.key()
        wants_state = check_flag(self.name, "output_final_state", wants_state)
        key = None if key is None else (wants_state, *key)
        made = again(key, self.given()) or self._forward(key, wants_state)
        return made[0], made[1] if wants_state else None

    def _forward(self, key: Any, wants_state: bool) -> tuple[Any, ...]:
        (batch, length, heads, dim, dim_v), sequences = self.check()
        shape, states = (batch, length, heads, dim_v), (sequences, heads, dim, dim_v)
        makers, made = outputs(self.v, shape, states if wants_state else None)
        if 0 in shape or sequences == 0:
            return untouched(made, self.state)
        segments = self.cut(dim, dim_v)
        makers += segments.makers(self.v, sequences, heads, (dim_v, dim), self.decayed)
        made += tuple(make() for make in makers[len(made) :])
        segments = segments.holding(made[1 + wants_state :])
        scan = Scan(self.q, self.k, self.v, made[0], self.state, made[1] if wants_state else None)
        run(key, self.given(), made, makers, lambda eased: self.launches(scan, segments, eased))
        return made

    @property
    def decayed(self) -> bool:
        """Whether states decay."""
        return self.g is not None or self.gamma is not None

    def cut(self, dim: int, dim_v: int) -> Segments:
        """How sequences are cut."""
        batch, length, heads, _ = view(self.v).shape
        return cut(self.q, batch * heads, dim, dim_v, 0 if self.starts is not None else length)

    def launches(self, scan: Scan, segments: Segments, eased: bool) -> tuple[Launch, ...]:
        """A scan, perhaps of segments; eased: see `plan`."""
        return segments.launches(
            lambda *states, local=False: self._launch(scan, states, segments, local, eased),
            scan.start, scan.end, reverse=scan.reverse, turned=True,
        )  # fmt: skip

    def tokens_of(self, scan: Scan, segments: Segments) -> int | None:
        """Tokens of a segment; None where the kernel has none.

        Of more than 128 features a sequence is one segment where it is not cut: ptxas 13.5 spills
        the plain number of tasks, for want of a register.
        """
        length, dim = view(scan.q).shape[1], view(scan.q).shape[3]
        whole = dim > WHOLE and self.starts is None
        return segments.tokens or (-(-length // CHUNK) * CHUNK if whole else None)

    def _launch(
        self, scan: Scan, states: tuple[Any, Any], segments: Segments, local: bool, eased: bool
    ) -> Launch:
        beside = () if local else scan.dots
        other = tuple(turned(x) for x in beside[:1]) + beside[1:]
        points = () if local else scan.checkpoints
        gates = () if self.g is None else (turned(self.g),)
        cuts = (self.tokens_of(scan, segments), segments.fades if local else None)
        rest = (self.gamma, *other, self.starts, *states, *points, *cuts)
        rest = (*gates, *(x for x in rest if x is not None))
        tensors = tuple(turned(x) for x in (scan.q, scan.k, scan.v, scan.out))
        batch, _, groups, dim = view(scan.q).shape
        heads = view(scan.out).shape[2]
        count = batch if self.starts is None else max(view(self.starts).shape[0] - 1, 1)
        features, columns = check_features(self.name, "K", dim), view(scan.v).shape[3]
        params = plan(
            scan.q, (*tensors, *other[:1]), features, columns,
            (count * segments.count, heads), more=len(beside) // 2, eased=eased,
            gated=self.g is not None,
        )  # fmt: skip
        start, end = states
        wanted = {
            "g": self.g is not None, "gamma": self.gamma is not None, "dots": bool(beside),
            "packed": self.starts is not None, "start": start is not None,
            "end": end is not None, "checkpoints": bool(points), "products": len(points) > 1,
            "reverse": scan.reverse,
            "segmented": cuts[0] is not None, "local": local, "shared": groups != heads,
            "grouped": view(scan.v).shape[2] != heads,
        }  # fmt: skip
        return Launch(kernel, tensors, (self.factor, *rest), {**wanted, **params})

    @property
    def factor(self) -> float:
        """The scale."""
        return float(view(self.q).shape[3] ** -0.5 if self.scale is None else self.scale)

    def check(self) -> tuple[tuple[int, int, int, int, int], int]:
        """B, T, H, K and V, and how many sequences there are.

        Raises:
            LayoutError: axes that do not fit, a K that has no tile, no finite scale.
            DTypeError: dtypes that are not multiplied. ResourceError: several devices.
        """
        name = self.name
        query, value = (check_rank(name, n, x, AXES) for n, x in (("q", self.q), ("v", self.v)))
        (batch, length, heads, dim), dim_v = query.shape, value.shape[3]
        check_features(name, "K, of q and k,", dim)
        check(name, "k", self.k, (batch, length, heads, dim), (query.dtype,), "of q")
        check(name, "v", self.v, (batch, length, heads, dim_v), (query.dtype,), "B x T x H x V")
        if self.scale is not None:
            check_number(name, "scale", self.scale)
        sequences = check_starts(name, self.starts, batch, length)
        for what, x, shape, axes in (
            ("g", self.g, (batch, length, heads), "B x T x H"),
            ("g_gamma", self.gamma, (heads,), "[H]"),
            ("initial_state", self.state, (sequences, heads, dim, dim_v), "sequences x H x K x V"),
        ):
            if x is not None:
                check(name, what, x, shape, ("f32",), axes)
        arrays = {"q": self.q, "k": self.k, "v": self.v, "g": self.g, "g_gamma": self.gamma}
        check_devices(name, {**arrays, "initial_state": self.state, "cu_seqlens": self.starts})
        return (batch, length, heads, dim, dim_v), sequences
