"""Options of a call of attention: checked, and turned into what the kernel takes."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .array_arguments import array_of, view_of
from .captured import MAX_FUNCTIONS, remembered
from .errors import DTypeError, LayoutError
from .kernels import score_mods
from .kernels.attention_factors import BLOCK
from .kernels.attention_scores import FAR, Edges, Mods
from .kernels.epilogues import Step
from .runtime.arrays import ArrayView, shape_of

SCALES = (2.0**-149, float(np.finfo(np.float32).max))  # positive and finite in f32
MAX_CAP = 1 << 14  # with which a score is off by 2**-8: see `Scores.apply`
ALIGNED = {False: False, True: False, "top-left": False, "bottom-right": True}
FLOATS = ("f32", "bf16", "f16")
NAMES = ("cu_seqlens_q", "cu_seqlens_k")
HALVES = ("bf16", "f16")


@dataclass(frozen=True, eq=False)
class Options:
    """Keyword arguments of `tc.attention` that change the kernel or its arguments."""

    causal: Any
    window: Any
    scale: Any
    softcap: Any
    bias: Any
    mask_mod: Any
    score_mod: Any
    sinks: Any
    starts: tuple[Any, Any] | None
    factors: tuple[Any, Any, Any] | None = None

    def sequences(self, rows: int, key_rows: int) -> tuple[Any, ...]:
        """Where sequences of queries and of keys begin; () without.

        Args:
            rows, key_rows: of the packed batch.

        Raises:
            LayoutError: one without the other, of several sequences, or (in CPU memory) starts that
                do not ascend from 0 to the last row.
            DTypeError: other than s32.
        """
        if self.starts is None:
            return ()
        for name, value, ends in zip(NAMES, self.starts, (rows, key_rows), strict=True):
            if value is None:
                raise LayoutError(f"attention: takes both {' and '.join(NAMES)}, got no {name}")
            shape = shape_of(self.starts[0])
            if len(shape) != 1 or shape[0] < 1:
                raise LayoutError(
                    f"attention: {name} has one axis, one longer than there are sequences, got "
                    f"{value!r}"
                )
            array = check_array(name, value, shape, ("s32",), "sequences + 1")
            if array.device == "cpu":
                _check_starts(name, np.asarray(value), ends)
        return self.starts

    def scales(self, shape: tuple[int, int, int, int], groups: int) -> tuple[Any, ...]:
        """Factors of q, k and v; () where none are given.

        Args:
            shape: of the scores: B, H, Lq, Lk.
            groups: heads of k and v.

        Raises:
            LayoutError: some of them alone, of other shapes, or of a packed batch.
            DTypeError: other than f32.
        """
        if self.factors is None:
            return ()
        if self.starts is not None or any(x is None for x in self.factors):
            raise LayoutError(
                "attention: scale_q, scale_k and scale_v come together, and not with cu_seqlens"
            )
        batch, heads, queries, keys = shape
        by_block = len(shape_of(self.factors[0])) == 3
        for name, value, count, rows in zip(
            ("scale_q", "scale_k", "scale_v"), self.factors, (heads, groups, groups),
            (queries, keys, keys), strict=True,
        ):  # fmt: skip
            blocks = (-(-rows // BLOCK),) if by_block else ()
            axes = f"B x heads{f' x blocks of {BLOCK}' if by_block else ''}"
            check_array(name, value, (batch, count, *blocks), ("f32",), axes)
        return self.factors

    def edges(self) -> tuple[Edges, list[int]]:
        """What the kernel knows of the edges while tracing, and their arguments.

        Raises:
            LayoutError: no alignment of that name, or a window that is none.
        """
        known = isinstance(self.causal, bool | str) and self.causal in ALIGNED
        if not known:
            raise LayoutError(
                f"attention: causal is False, True (top-left), 'top-left' or 'bottom-right', got "
                f"causal={self.causal!r}"
            )
        left, right = self._window()
        if self.causal:
            right = 0 if right is None else min(right, 0)
        edges = Edges(left is not None, right is not None, ALIGNED[self.causal])
        return edges, [edge for edge in (left, right) if edge is not None]

    def _window(self) -> tuple[int | None, int | None]:
        window = (None, None) if self.window is None else self.window
        fits = isinstance(window, tuple | list) and len(window) == 2
        if not fits or not all(x is None or _is_int(x) and x >= 0 for x in window):
            raise LayoutError(
                "attention: window is (left, right), keys before and behind a query's own, 0 or "
                f"more, or None for no limit, got window={self.window!r}",
                hint="window=(1023, 0)",
            )
        left, right = (None if x is None or x >= FAR else int(x) for x in window)
        return left, right

    def mods(self, shape: tuple[int, ...]) -> tuple[Mods, list[Any]]:
        """What changes scores, and the arguments.

        Args:
            shape: of the scores: B, H, Lq, Lk.

        Raises:
            LayoutError: a bias, sinks or functions that do not fit.
            DTypeError: their dtypes.
        """
        args: list[Any] = []
        if self.softcap is not None:
            check_positive("softcap", self.softcap, "None for no soft cap")
            _check_cap(self.softcap)
            args.append(float(self.softcap))
        if self.sinks is not None:
            check_array("sinks", self.sinks, shape[1:2], ("f32",), "H")
            args.append(self.sinks)
        found = [] if self.bias is None else [_bias(self.bias, shape)]
        if self.score_mod is not None:
            found.append(_function("score_mod", self.score_mod, "f(s, at, *args)", 2))
        args += [arg for _, more in found for arg in more]
        steps = tuple(Step(function, len(more)) for function, more in found)
        mask = None
        if self.mask_mod is not None:
            function, more = _function("mask_mod", self.mask_mod, "f(at, *args)", 1)
            mask = Step(function, len(more))
            args += more
        score = _chain(steps) if len(steps) > 1 else next(iter(steps), None)
        return Mods(self.softcap is not None, score, mask, self.sinks is not None), args


def _check_starts(name: str, starts: np.ndarray, rows: int) -> None:
    if starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] > rows:
        raise LayoutError(
            f"attention: {name} ascends from 0 to at most the {rows} rows there are, got "
            f"{reprlib.repr(starts.tolist())}"
        )


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_positive(name: str, value: Any, hint: str) -> None:
    """Refuses what is no positive, finite number.

    Raises:
        LayoutError: it is not.
    """
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not (number and SCALES[0] <= value <= SCALES[1]):
        raise LayoutError(
            f"attention: the {name} of the scores is positive and finite, got {name}={value!r}",
            hint=hint,
        )


def _check_cap(cap: Any) -> None:
    if cap > MAX_CAP:
        raise LayoutError(
            f"attention: a softcap is at most {MAX_CAP}, since scores are off by 2**-22 of it, got "
            f"softcap={cap!r}",
            hint="None for no soft cap",
        )


def check_array(
    name: str, value: Any, shape: tuple[int, ...], dtypes: tuple[str, ...], axes: str
) -> ArrayView:
    """`array_of` of a call of attention.

    Raises:
        LayoutError, DTypeError: as there.
    """
    return array_of("attention", name, value, dtypes, shape, axes)


def _bias(bias: Any, shape: tuple[int, ...]) -> tuple[Callable[..., Any], list[Any]]:
    """The step that adds a bias, and its argument."""
    array = view_of("attention", "bias", bias)
    got = tuple(array.shape)
    wanted = shape[len(shape) - len(got) :]
    fits = 2 <= len(got) <= 4 and got[-1] == shape[3]
    if not fits or any(x not in (1, y) for x, y in zip(got, wanted, strict=True)):
        raise LayoutError(
            f"attention: bias broadcasts to B x H x Lq x Lk = {shape} from 2 axes or more, the "
            f"last of them Lk, got the shape {got}"
        )
    if array.dtype not in FLOATS:
        raise DTypeError(
            f"attention: bias is {', '.join(FLOATS)}, got {array.dtype}",
            hint="of conditions: 0 where a key is seen and -inf elsewhere, or a mask_mod",
        )
    if got[-2] == 1 != shape[2]:
        return score_mods.key_bias, [bias.reshape(*got[:-2], got[-1])]
    return score_mods.bias, [bias]


def _function(name: str, given: Any, form: str, count: int) -> tuple[Callable[..., Any], list[Any]]:
    """A function and its run-time arguments.

    Raises:
        LayoutError: no function, or one that does not take them.
    """
    function, *args = given if isinstance(given, tuple) and given else (given,)
    if not callable(function):
        raise LayoutError(
            f"attention: {name} is a function {form}, or a tuple of one and its arguments, got "
            f"{given!r}",
            hint="score_mod=(tc.score_mods.alibi, slopes)",
        )
    function = remembered(function)
    _check_takes(name, function, form, count + len(args))
    return function, args


@lru_cache(maxsize=MAX_FUNCTIONS)
def _check_takes(name: str, function: Callable[..., Any], form: str, count: int) -> None:
    try:
        inspect.signature(function).bind(*[None] * count)
    except (TypeError, ValueError) as error:
        shown = getattr(function, "__name__", type(function).__name__)
        raise LayoutError(
            f"attention: {name} is called as {form} with the arguments given beside it, got "
            f"{shown}: {error}"
        ) from None


@lru_cache(maxsize=MAX_FUNCTIONS)
def _chain(steps: tuple[Step, ...]) -> Step:
    """Steps one after another, as one."""

    def chain(s: Any, at: Any, *args: Any) -> Any:
        for step in steps:
            s, args = step.function(s, at, *args[: step.count]), args[step.count :]
        return s

    return Step(chain, sum(step.count for step in steps))
