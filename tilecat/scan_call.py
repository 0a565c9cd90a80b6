"""What calls of linear recurrences share: arrays checked, and the shape of the kernel chosen."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .arch import ARCHS, DEFAULT_TARGET
from .array_arguments import array_of, tile_of, view_of
from .attention_call import is_short
from .errors import DTypeError, LayoutError, ResourceError
from .kernels.chunk_tasks import CHUNK
from .operators import num_sms
from .ready import Launch, remember
from .runtime.arrays import ITEM_BYTES, ArrayView, allocator, shape_of, tma_ok, view

HALVES = ("bf16", "f16")
FEATURES = (32, 64, 96, 128, 192, 256)  # columns of tiles of features
TILE_BYTES = 2 * CHUNK * CHUNK  # of 64 tokens and 64 columns
DEPTH = 2  # of the rings of scores and of outputs
MAX_STAGES = 6
ROW_BYTES = 16  # rows are multiples of, where TMA stores them
BESIDE = 4096  # bytes of shared memory: factors, barriers, scratch, alignment
FULL = 0.66  # of the SMs: fewer CTAs cannot take all of the memory's rate
# Registers of the score role and of two warpgroups of the state role: what ptxas 13.5 needs for up
# to 128 features (docs/design/chunk-scan.md); together with the producer's all there are.
REGISTERS = (96, 192)
PAIRED = (80, 136)  # of one of two CTAs of an SM, with up to 64 features
WIDE = (112, 240)  # of one warpgroup of the state role, with more than 128 features
# Of two warpgroups of the score role that take chunks in turn, and of each of the state role.
IN_TURN = {64: (88, 136), 128: (112, 200)}


def check(
    name: str, what: str, value: Any, shape: tuple[int, ...], dtypes: tuple[str, ...], axes: str
) -> ArrayView:
    """`array_of` an array of a known shape.

    Raises:
        LayoutError, DTypeError: as there.
    """
    return array_of(name, what, value, dtypes, shape, axes)


def check_rates(name: str, value: Any, heads: int) -> None:
    """A of Mamba-2: f32 [heads], not positive (in CPU memory that is checked).

    Raises:
        LayoutError: another shape, or a positive element. DTypeError: another dtype, or no array.
    """
    rates = check(name, "A", value, (heads,), ("f32",), "[heads]")
    if rates.device == "cpu" and (np.asarray(rates.array) > 0).any():
        raise LayoutError(f"{name}: A is negative, got {float(np.asarray(rates.array).max())}",
                          hint="A = -exp(A_log)")  # fmt: skip


def check_rank(name: str, what: str, value: Any, axes: str) -> ArrayView:
    """The view of an array of 16-bit floats with 4 axes.

    Raises:
        LayoutError: other axes. DTypeError: another dtype, or no array.
    """
    array = view_of(name, what, value)
    if len(array.shape) != 4:
        raise LayoutError(f"{name}: {what} is {axes}, got the shape {tuple(array.shape)}")
    if array.dtype not in HALVES:
        raise DTypeError(f"{name}: {what} is {' or '.join(HALVES)}, got {array.dtype}")
    return array


def check_number(name: str, what: str, value: Any) -> float:
    """A finite number.

    Raises:
        LayoutError: it is none.
    """
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        raise LayoutError(f"{name}: {what} is a finite number, got {value!r}")
    return float(value)


def check_features(name: str, what: str, count: int) -> int:
    """Columns of the tile that holds so many features.

    Raises:
        LayoutError: there is none.
    """
    return tile_of(name, what, count, FEATURES)


def check_starts(name: str, starts: Any, batch: int, length: int) -> int:
    """How many sequences a packed batch has; without `starts` the batch.

    Raises:
        LayoutError: several batch entries, or (in CPU memory) offsets that do not ascend from 0 to
            the number of tokens. DTypeError: other than s32.
    """
    if starts is None:
        return batch
    shape = shape_of(starts)
    if len(shape) != 1 or shape[0] < 1:
        raise LayoutError(
            f"{name}: cu_seqlens has one axis, one longer than there are sequences, got {starts!r}"
        )
    array = check(name, "cu_seqlens", starts, shape, ("s32",), "sequences + 1")
    if batch != 1:
        raise LayoutError(
            f"{name}: with cu_seqlens all sequences lie in one batch entry, got {batch}",
            hint="x.reshape(1, batch * length, ...)",
        )
    if array.device == "cpu":
        values = np.asarray(starts)
        if values[0] != 0 or (np.diff(values) < 0).any() or values[-1] != length:
            raise LayoutError(
                f"{name}: cu_seqlens ascends from 0 to the {length} tokens there are, got "
                f"{reprlib.repr(values.tolist())}"
            )
    return shape[0] - 1


def plan(
    like: Any, tensors: tuple[Any, ...], features: int, columns: int, heads: tuple[int, int],
    *, shared: bool = False, more: int = 0, eased: bool = False, gated: bool = False,
    scores: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Parameters of a kernel: heads and slices of 64 columns of a CTA, stages, registers.

    Args:
        like: an array, for the device.
        tensors: all that the kernel takes tiles of. Where TMA does not reach one, a warpgroup
            copies, another stores, and a third would have too few registers.
        features: columns of tiles of features.
        columns: of V.
        heads: sequences, and heads of each (of a group, where they share features).
        shared: whether heads share features.
        more: further inputs like V.
        eased: the state role had too few registers.
        gated: gates of tokens are loaded.
        scores: they take longer than the state: two warpgroups make them, in turn.
    """
    sequences, of_each = heads
    blocks, units = -(-columns // CHUNK), sequences * of_each
    enough = FULL * num_sms(view(like).device)
    count, slices, ctas, turns = 1, 1, 1, 1
    if features <= 64 and blocks == 1 and gated and not eased and units >= 2 * enough:
        ctas = 2  # an H200: 0.271 ms, two heads of a CTA 0.298 (B 16, H 16, T 8192, 2026-11)
    elif features <= 128 and not eased and all(reached(x) for x in tensors):
        pairs = of_each % 2 == 0 and units // 2 >= enough
        if blocks > 1 and units * -(-blocks // 2) >= enough:
            slices = 2
        elif blocks == 1 and pairs and not (scores and features > 64):
            count = 2
        turns = 2 if scores and (count == 2 or features > 64 and slices == 1) else 1
    stage = (1 if shared else count) * 2 * CHUNK * 2 * features
    stage += (1 + more) * count * slices * TILE_BYTES
    beside = DEPTH * (count + count * slices) * TILE_BYTES + BESIDE
    arch = next(arch for arch in ARCHS if arch.target == DEFAULT_TARGET)
    room = arch.limit("shared_bytes_per_cta") if ctas == 1 else (
        arch.limit("shared_bytes_per_sm") // ctas - arch.limit("shared_bytes_reserved")
    )  # fmt: skip
    registers = PAIRED if ctas > 1 else REGISTERS if count * slices > 1 else (None, None)
    if features > 128 and not eased and all(reached(x) for x in tensors):
        registers = WIDE
    if turns == 2:
        registers = IN_TURN[64 if features <= 64 else 128]
    return {
        "dim": features, "heads": count, "slices": slices, "blocks_per_sm": ctas,
        "stages": max(1, min(MAX_STAGES, (room - beside) // stage)), "registers": registers,
        "turns": turns,
    }  # fmt: skip


def reached(x: Any) -> bool:
    """Whether TMA reaches an array."""
    array = view(x)
    axes = sorted(range(len(array.shape)), key=lambda axis: (array.strides[axis], -axis))
    return tma_ok(array, tuple(axes)) is None


def whole_rows(x: Any) -> Any:
    """An array whose rows TMA reaches and stores: itself, or a copy, zeros behind its columns."""
    array = view(x)
    unit = ROW_BYTES // ITEM_BYTES[array.dtype]
    *outer, columns = array.shape
    if reached(x) and columns % unit == 0:
        return x
    made = allocator(x, (*outer, -(-columns // unit) * unit), array.dtype)()
    made[..., columns:] = 0
    made[..., :columns] = x
    return made


def turned(x: Any) -> Any:
    """A view with heads before tokens."""
    return x.swapaxes(1, 2)


def outputs(
    like: Any, shape: tuple[int, ...], states: tuple[int, ...] | None
) -> tuple[list[Callable[[], Any]], tuple[Any, ...]]:
    """What a call writes, of the library and dtype of `like`, and f32 states; and their makers."""
    makers = [allocator(like, shape, view(like).dtype)]
    if states is not None:
        makers.append(allocator(like, states, "f32"))
    return makers, tuple(make() for make in makers)


def untouched(made: tuple[Any, ...], before: Any) -> tuple[Any, ...]:
    """Outputs of a call without tokens: zeros, and the states as they were."""
    made[0][...] = 0
    for states in made[1:]:
        states[...] = 0 if before is None else before
    return made


def run(
    key: Any, given: tuple[Any, ...], made: tuple[Any, ...], makers: list[Callable[[], Any]],
    launches: Callable[[bool], tuple[Launch, ...]],
) -> None:  # fmt: skip
    """Launches, and remembers how.

    Args:
        key, given, made, makers: see `ready.remember`.
        launches: kernels, with plans that are eased or not.
    """
    try:
        chosen = launches(False)
        for launch in chosen:
            launch.run()
    except ResourceError as error:
        if not is_short(error):
            raise
        chosen = launches(True)
        for launch in chosen:
            launch.run()
    if key is not None:
        remember(key, given, tuple(makers), made, chosen)
