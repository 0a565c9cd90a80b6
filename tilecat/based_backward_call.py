"""Gradients of Based: a scan in reversed time for values, another kind of scan for q and k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .array_arguments import check_devices
from .based_call import STAGES, STAGES_WITH_NORMS, check_based
from .kernels.based import DIM, FEATURES, norm_gradients
from .kernels.based import based as kernel
from .kernels.based_gradient import based_gradient, sum_parts
from .kernels.chunk_tasks import CHUNK
from .ready import Launch, again, key_of
from .row_arguments import check_flag
from .runtime.arrays import ITEM_BYTES, allocator, view
from .scan_call import ROW_BYTES, check, run, whole_rows


def based_backward(
    do: Any, q: Any, k: Any, v: Any, scale: float | None = None, use_norm: bool = True,
    *, initial_state: Any = None, d_final_state: Any = None,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """Gradients of `tc.based`, given that of its output.

    With dw_ij = do_i.v_j and s as there: `dv_j = sum over i >= j of w_ij do_i`,
    `dq_i = scale sum over j <= i of dw_ij (1 + s_ij) k_j`, dk_j that of i >= j and q_i. Divided
    outputs: do over the sum of a row's w, and dw_ij less do_i.o_i, of a forward run again.

    Args:
        do: gradient of o, B x H x T x V.
        q, k, v, scale, use_norm, initial_state: of the call.
        d_final_state: gradient of the final state, f32 B x H x 160 x V; None: 0.

    Returns:
        dq, dk, dv, and the gradient of the initial state (None without one).
        Scope, streams and devices: as `tc.based`.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tc.based`.

    Example: `dq, dk, dv, _ = tc.based_backward(do, q, k, v)`
    """
    tensors = (do, q, k, v, initial_state, d_final_state)
    norm = check_flag("based_backward", "use_norm", use_norm)
    key = key_of(tensors, ("based_backward", scale, norm))
    given = tuple(x for x in tensors if x is not None)
    made = again(key, given) or _run(key, given, tensors, scale, norm)
    return made[0], made[1], made[2], made[3] if initial_state is not None else None


@dataclass(frozen=True)
class _Pass:
    """What the launches share.

    Args:
        do, q, k, v: given, with rows that TMA reaches; do over the sums of weights, if divided.
        factors: the scale, and its root.
        first, d_last: states, or None.
    """

    do: Any
    q: Any
    k: Any
    v: Any
    factors: tuple[float, float]
    first: Any
    d_last: Any

    def values(self, dv: Any, d_first: Any) -> Launch:
        """dv, and the gradient of the first state: the scan with q and k changed, reversed."""
        states = [x for x in (self.d_last, d_first) if x is not None]
        params = {"reverse": True, "start": self.d_last is not None, "end": d_first is not None}
        return Launch(kernel, (self.k, self.q, self.do, dv), (*self.factors, *states),
                      {**params, "stages": STAGES})  # fmt: skip

    def others(self, parts: tuple[Any, Any], sums: tuple[Any, Any] | None) -> list[Launch]:
        """Of each 64 columns dq and dk.

        Args:
            parts: of both. sums: gradients of the sums of weights, and ones, where divided.
        """
        blocks = -(-view(self.v).shape[3] // CHUNK)
        found = []
        for reverse, x, y, state, out in (
            (False, self.q, self.k, self.first, parts[0]),
            (True, self.k, self.q, self.d_last, parts[1]),
        ):
            pairs = [((self.do, self.v), out[:blocks], state)]
            if sums is not None:
                pairs.append((sums, out[blocks:], None))
            for pair, place, start in pairs:
                rest = (*self.factors, *(() if start is None else (start,)))
                found.append(Launch(
                    based_gradient, (x, y, *(pair[::-1] if reverse else pair), place), rest,
                    {"reverse": reverse, "start": start is not None},
                ))  # fmt: skip
        return found


def _run(
    key: Any, given: tuple[Any, ...], tensors: tuple[Any, ...], scale: Any, norm: bool
) -> tuple[Any, ...]:
    """Checks, allocates, launches."""
    do, q, k, v, first, d_last = tensors
    batch, heads, length, columns = shape = _check(tensors, scale, norm)
    dtype, rows, states = view(q).dtype, (batch, heads, length), (batch, heads, FEATURES, columns)
    blocks = -(-columns // CHUNK) + norm
    makers = [allocator(x, tuple(view(x).shape), dtype) for x in (q, k, v)]
    makers += [allocator(first, states, "f32")] if first is not None else []
    results = len(makers)
    makers += [allocator(q, (blocks, *rows, DIM), "f32")] * 2 if blocks > 1 else []
    if norm:
        pad = ROW_BYTES // ITEM_BYTES[dtype]
        makers += [allocator(v, shape, dtype)] * 2 + [allocator(q, rows, "f32")]
        makers += [allocator(q, (*rows, pad), dtype)] * 2
    made = tuple(make() for make in makers)
    if 0 in shape:
        for x in made:
            x[...] = 0
        if first is not None and d_last is not None:
            made[3][...] = d_last
        return made
    work = list(made[results:])
    parts = (work.pop(0), work.pop(0)) if blocks > 1 else (made[0][None], made[1][None])
    factor = DIM**-0.5 if scale is None else float(scale)
    factors, dv = (factor, factor**0.5), whole_rows(made[2])
    do, q, k, v = (whole_rows(x) for x in (do, q, k, v))
    launches: list[Launch] = []
    sums: tuple[Any, Any] | None = None
    if norm:
        o, d_out = (whole_rows(x) for x in work[:2])
        weights, sums = work[2], (work[3], work[4])
        launches += [
            Launch(kernel, (q, k, v, o), (*factors, weights),
                   {"norm": True, "sums": True, "stages": STAGES_WITH_NORMS}),
            Launch(norm_gradients, (do, o, weights, d_out, *sums), (), {}),
        ]  # fmt: skip
        do = d_out
    given_pass = _Pass(do, q, k, v, factors, first, d_last)
    launches.append(given_pass.values(dv, made[3] if first is not None else None))
    launches += given_pass.others(parts, sums)
    if blocks > 1:
        launches += [Launch(sum_parts, pair, (), {}) for pair in zip(parts, made, strict=False)]
    run(key, given, made, makers, lambda eased: tuple(launches))
    if dv is not made[2]:
        made[2][...] = dv[..., :columns]
    return made


def _check(tensors: tuple[Any, ...], scale: Any, norm: bool) -> tuple[int, int, int, int]:
    """B, H, T and V."""
    do, q, k, v, first, d_last = tensors
    shape = check_based("based_backward", (q, k, v, first), scale, norm)
    check("based_backward", "do", do, shape, (view(q).dtype,), "of v")
    if d_last is not None:
        states = (*shape[:2], FEATURES, shape[3])
        check("based_backward", "d_final_state", d_last, states, ("f32",), "B x H x 160 x V")
    check_devices("based_backward", {"do": do, "q": q, "d_final_state": d_last})
    return shape
