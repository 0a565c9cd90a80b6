"""Ready-made operators on arrays: allocate, choose a configuration, call the kernel."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from .arch import arch_of
from .driver import raise_reports
from .errors import LayoutError, ResourceError
from .gemm_autotune import tune_first
from .gemm_call import BLOCK, GemmCall, Options, prepare
from .gemm_choice import WIDEST, Problem, choose, held
from .gemm_groups import Groups
from .gemm_parts import Places, places_of
from .kernels.gemm import matmul as matmul_kernel
from .model.gemm import standing_for
from .ready import Launch, again, present, remember, three_again, tokens
from .runtime import deferred
from .runtime.arrays import ITEM_BYTES, TENSORS, ArrayView, allocator, view
from .runtime.workspace import allocates

_eased: dict[Any, Problem] = {}  # problems whose best configuration would spill registers


@lru_cache(maxsize=16)
def num_sms(device: str) -> int:
    """SMs of a device; of "cpu", the CTAs the PTX machine runs."""
    if device == "cpu":
        return int(deferred.machine().DEFAULT_CTAS)
    return int(deferred.driver().device(int(device.partition(":")[2])).num_sms)


def matmul(
    a: Any, b: Any, out: Any = None, *, out_dtype: Any = None, alpha: Any = 1.0, beta: Any = 0.0,
    scale_a: Any = None, scale_b: Any = None, second: Any = None, epilogue: Any = (),
    target: str | None = None,
) -> Any:  # fmt: skip
    """`out = epilogue(alpha scale_a scale_b (a @ b) + beta out)`, rounded once.

    | a and b | sums | out, if nothing is said |
    |---|---|---|
    | bf16, f16 | f32 | the same |
    | f32, multiplied as tf32 (the low 13 bits are dropped) | f32 | f32 |
    | e4m3, e5m2, any two | f32, of which an H200 keeps about 14 bits | bf16 |
    | s8 | s32 | s32 |

    Args:
        a: [..., M, K], row-major or transposed, any strides; leading axes broadcast.
        b: [..., K, N], the same dtype and device. Of f32 and 8-bit types the tensor cores take K
            contiguous only (a row-major, b transposed): other operands are copied first.
        out: [..., M, N], or None to allocate it.
        out_dtype: bf16, f16, f32, e4m3, e5m2, or s32 of s8; None: that of out, or the table's.
        alpha: a number, or an f32 array of one element.
        beta: the same; 0 does not read out. `out += a @ b` is `tc.matmul(a, b, out, beta=1)`.
        scale_a: f32: a number, an array of one element, or one element a row of a, [..., M] or
            [..., M, 1]. With FP8 also one for each 128 of K, [..., M, K/128]; scale_b is
            [..., K/128, N/128] then, and the sums of each 128 are added in f32. Scales of blocks
            with M contiguous (`scale.T.contiguous().T`) are taken as they lie, others copied.
        scale_b: f32: a number, an array of one element, or one element a column of b, [..., N] or
            [..., 1, N]; or of blocks, see scale_a.
        second: another b: the first step of the epilogue takes the tiles of both products,
            `f(x, y, at, *args)`: `tc.matmul(x, w, second=v, epilogue=tc.epilogues.swiglu)` is
            `silu(x @ w) * (x @ v)`.
        epilogue: steps that f32 tiles of the result take before they are stored, in order: each a
            function `f(x, at)`, or a tuple of `f(x, at, *args)` and its run-time arguments, tensors
            and numbers. `tc.epilogues` has ready-made ones, and says how to write one.
        target: e.g. "sm_100a", whose text the PTX machine runs on arrays in CPU memory.

    Returns:
        out. CUDA arrays run on the GPU on the current stream, without waiting; NumPy arrays and
        CPU tensors run on the PTX machine.

    Where a stride is no multiple of 16 bytes (or an address), TMA cannot reach the array: threads
    copy it element by element, right and slow. Few tiles: CTAs share K, sums in a fixed order.

    Raises:
        LayoutError: shapes that do not fit, a read-only or overlapping out.
        DTypeError: dtypes not in the table. ResourceError: two devices; a CUDA array and no GPU.

    Example: `y = tc.matmul(x, w, epilogue=((tc.epilogues.bias, bias), tc.epilogues.gelu))`
    """
    more: tuple[Any, ...] = ()  # what is not as it is if nothing is said
    plain = scale_a is scale_b is second is out_dtype is None and epilogue == ()
    if not (plain and type(alpha) is type(beta) is float and alpha == 1 and beta == 0):
        more = (_name(out_dtype), alpha, beta, scale_a, scale_b, second, epilogue)
    elif target is None and three_again(a, b, out):
        return out
    key = _key(a, b, out, more) if target is None else None
    if (known := _again(key, a, b, out, not more)) is not None:
        return known
    call = prepare(a, b, out, Options(out_dtype, alpha, beta, (scale_a, scale_b), second, epilogue))
    return _run(call, key, (a, b, out)) if target is None else _on_machine(call, target)


def _again(key: Any, a: Any, b: Any, out: Any, plain: bool) -> Any:
    """The output of a call that is known, launched; else None."""
    if out is None:
        made = again(key, (a, b))
        return made and made[0]
    return None if again(key, (a, b, out), three=plain) is None else out


def _name(dtype: Any) -> Any:
    return getattr(dtype, "name", dtype)


def _run(call: GemmCall, key: Any, given: tuple[Any, ...]) -> Any:
    """Launches, and remembers how; the output."""
    launch, places = _launch(call)
    given = present(given)
    if key is not None:
        like, made = view(call.out), (call.out,)[len(given) - 2 :]
        makers = tuple(allocator(x, tuple(like.shape), like.dtype) for x in made)
        remember(key, given, makers, made, [launch],
                 shared=places.arguments if places.count else None)  # fmt: skip
    return call.out


def _key(a: Any, b: Any, out: Any, options: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """`key_of` of three tensors, written out: 0.4 us less of the 10 that a call takes."""
    if type(a) not in TENSORS or type(b) not in TENSORS:
        return None
    named = tokens(*options) if options else ()
    if named is None:
        return None
    try:
        if out is None:
            return (a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.get_device(),
                    b.get_device(), named)  # fmt: skip
        if type(out) not in TENSORS:
            return None
        return (a.shape, b.shape, out.shape, a.stride(), b.stride(), out.stride(), a.dtype,
                b.dtype, out.dtype, a.get_device(), b.get_device(), out.get_device(),
                named)  # fmt: skip
    except RuntimeError:  # a tensor without strides: sparse, nested
        return None


def _on_machine(call: GemmCall, target: str) -> Any:
    """The product by the text of a target, which the PTX machine runs.

    Raises:
        ArchError: no such target.
        ResourceError: arrays elsewhere than in CPU memory.
    """
    arch = arch_of(target)
    if (device := view(call.arrays[0]).device) != "cpu":
        raise ResourceError(
            f"matmul: the text of {target} runs on the PTX machine, on arrays in CPU memory, got "
            f"arrays on {device}",
            hint="a.cpu(), or target=None",
        )
    if 0 in view(call.out).shape:
        return call.out
    sms = standing_for(arch.target).sms
    problem = replace(_problem(call), target=arch.target, sms=sms, splits=False)
    arrays = _turned(*call.arrays) if problem.turned else call.arrays
    params = choose(problem)
    if call.params["second"]:
        params = {**params, "stages": min(params["stages"], 4)}
    with call.naming():
        ran = matmul_kernel.simulate(
            *arrays, *call.args, target=arch.target, **{**params, **call.params}
        )
    raise_reports("matmul", ran)
    return call.out


def _turned(a: Any, b: Any, out: Any) -> tuple[Any, Any, Any]:
    """Operands of `out.T = b.T @ a.T`."""
    return b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2)


def _launch(call: GemmCall) -> tuple[Launch, Places]:
    """Calls the kernel; with whole or narrower tiles where registers would spill.

    Returns:
        what ran; places for partial sums, the first of its further arguments.
    """
    problem = _problem(call)
    tune_first(problem, call.arrays[0])
    arrays = _turned(*call.arrays) if problem.turned else call.arrays
    steps, more = call.params["epilogue"], {k: v for k, v in call.params.items() if v}
    key = problem, steps, *(view(x).dtype for x in arrays)
    while True:
        eased = _eased.get(key, problem)
        params = choose(eased)
        if call.params["second"]:
            params = {**params, "stages": min(params["stages"], 4)}
        places = places_of(arrays, params, problem.sms)
        try:
            args = (*places.arguments(call.arrays[0]), *call.args)
            with call.naming(len(args) - len(call.args)):
                launch = Launch(matmul_kernel, arrays, args, {**params, **more})
                launch.run()
            return launch, places
        except ResourceError as error:
            if "spill" not in error.message:
                raise
            if places.count:
                _eased[key] = replace(eased, splits=False)
                continue
            if params.get("pingpong"):
                _eased[key] = replace(eased, sums=held(params) - 1)
                continue
            narrower = params["tile_n"] // 2
            if not steps or narrower < 64:
                raise
            _eased[key] = replace(eased, widest=narrower)


def grouped_matmul(
    a: Any, b: Any, out: Any = None, *, ends: Any = None, counts: Any = None, **options: Any
) -> Any:
    """`out[rows of e] = a[rows of e] @ b[e]` for each group e, as in a mixture of experts.

    How many rows a group has is read on the device: nothing waits, and no number of rows compiles.

    Args:
        a: with ends [M, K], the groups' rows one after another; with counts [E, M, K], of which
            each group uses the first. Dtypes and orders as in `tc.matmul`.
        b: [E, K, N].
        out: [M, N], or [E, M, N] with counts; rows that are no group's are not written. None to
            allocate it.
        ends: s32 [E], ascending: the row behind each group; the last is M.
        counts: s32 [E]: rows of each group, 0 to M.
        options: `out_dtype`, `alpha`, `beta`, scales, `second`, `epilogue` of `tc.matmul`. Tensors
            of epilogues may have E in front, as b has ([E, N] of a bias), and scales of b do.

    Returns:
        out.

    Raises:
        LayoutError: shapes that do not fit; ends or counts that do not add up, of CPU arrays. Of
            CUDA arrays what lies beyond a is ignored, since nothing waits for them.
        DTypeError: dtypes that are not multiplied; ends or counts of another dtype than s32.

    Example: `y = tc.grouped_matmul(x, w, ends=ends)`
    """
    if (ends is None) == (counts is None):
        raise LayoutError(f"grouped_matmul: takes ends or counts, got {ends=} and {counts=}")
    known = {"out_dtype": None, "alpha": 1.0, "beta": 0.0, "scale_a": None, "scale_b": None,
             "second": None, "epilogue": ()}  # fmt: skip
    if unknown := set(options) - set(known):
        raise LayoutError(
            f"grouped_matmul: no option {', '.join(sorted(unknown))}",
            hint=f"there are {', '.join(known)}",
        )
    given = {**known, **options}
    scales = given.pop("scale_a"), given.pop("scale_b")
    groups = Groups(counts if ends is None else ends, ends is not None)
    call = prepare(a, b, out, Options(scales=scales, groups=groups, **given))
    if 0 in view(call.out).shape:
        return call.out
    params = choose(_problem(call))
    params = {**params, "stages": min(params["stages"], 4)} if call.params["second"] else params
    plan = groups.plan(call.extents[0], params["tile_m"])
    with call.naming(len(plan)):
        matmul_kernel(*call.arrays, *plan, *call.args, **params, **call.params)
    return call.out


def _problem(call: GemmCall) -> Problem:
    m, n, k = call.extents
    left, right, out = map(view, call.arrays)
    plain = hasattr(call.arrays[0], "swapaxes") and not (call.args or call.params["epilogue"])
    # Sums of s8 need registers twice where they become floats, as two sums of any type do.
    widest = 192 if left.dtype == "s8" and out.dtype != "s32" else WIDEST
    widest = 128 if call.params["second"] else widest
    return Problem(
        m, n, k * ITEM_BYTES[left.dtype] // 2,
        layout="".join("N" if x.strides[-1] == 1 else "T" for x in (left, right)),
        planes=call.planes, sms=num_sms(left.device),
        dtype=left.dtype, widest=widest, sums=192 if widest == WIDEST else widest // 2,
        plain=plain and ITEM_BYTES[out.dtype] > 1, grouped=call.params["groups"],
        block=BLOCK if call.params["block_scales"] else 1,
        splits=allocates(call.arrays[0]) and not any(
            call.params[name] for name in ("second", "block_scales", "groups")),
        reached=all(_reached(x) for x in (left, right)),
    )  # fmt: skip


def _reached(x: ArrayView) -> bool:
    """Whether TMA reaches a matrix: its address, and all strides but the contiguous one's."""
    size = ITEM_BYTES[x.dtype]
    apart = [n * size for n, extent in zip(x.strides, x.shape, strict=True) if extent > 1]
    return 1 in x.strides and x.ptr % 16 == 0 and not any(n % 16 for n in apart if n != size)
