"""Random calls of tc.matmul and tc.grouped_matmul, each from its seed, with results in float64.

Dtypes, orders and strides of operands and of out, batches, groups, scales (of tensors, rows,
columns, blocks), alpha, beta, a second product, epilogues, odd sizes. The same problems run on the
PTX machine and on a GPU. Out lies in memory that no call may touch, and is poisoned itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gemm_cases
import numpy as np
import reference
from gemm_cases import VIEWS, Chain, gelu, numbers, poisoned, product, silu

import tilecat as tc
from tilecat.dtypes import by_name, from_numpy

PAIRS = ("bf16", "f16", "f32", "s8", "e4m3", "e5m2", "e4m3 e5m2", "bf16", "f16")
OUTS = ("bf16", "f16", "f32", "e4m3", "e5m2")
FUNCTIONS = {"gelu": gelu, "silu": silu, "relu": lambda x: np.maximum(x, 0)}
SLOPE = 1.2  # of any of them, at most
GELU_HALF = 2.0**-13  # GELU of outputs of 16 bits and fewer: `tc.gelu(x, approximate="half")`
LONGEST = 300
# Parameters of the kernel that few calls of tc.matmul take, or none.
TILES = {"tile_m": 64, "tile_n": 64, "stages": 2}
GRIDS: tuple[dict[str, Any], ...] = (
    {"split_k": 3}, {"split_k": 3, "cluster": 2}, {"stream_k": 3}, {"stream_k": 3, "cluster": 2},
    {"cluster": 2}, {"order": "snake"}, {"persistent": False}, {"persistent": False, "cluster": 2},
    {"stages": 1}, {"tile_m": 128, "pingpong": True},
)  # fmt: skip
GUARD_BYTES = 256  # before and after an output
PATTERN = 0xA5  # a byte of them


@dataclass
class Problem:
    """A call: `tc.NAME(a, b, out, **options)` with the reference of its result.

    Args:
        seed: what it follows from.
        name: of the function.
        a, b, out: arrays; out is poisoned, or holds what beta scales.
        options: keyword arguments.
        expected: the result in float64, and a bound of its error before it is rounded.
        exact: whether sums are whole numbers, stored as such.
        written: which elements of out are; None for all.
    """

    seed: int = 0
    name: str = "matmul"
    a: Any = None
    b: Any = None
    out: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    expected: reference.Reference | None = None
    exact: bool = False
    written: np.ndarray | None = None

    def __str__(self) -> str:
        arrays = (f"{k} {v.dtype}{v.shape} strides {v.strides}" for k, v in self._arrays())
        return f"seed {self.seed}: {self.name}({', '.join(arrays)}; {', '.join(self.options)})"

    def _arrays(self) -> tuple[tuple[str, np.ndarray], ...]:
        return ("a", self.a), ("b", self.b), ("out", self.out)

    def run(self, a: Any, b: Any, out: Any, options: dict[str, Any]) -> None:
        """The call, on these arrays."""
        getattr(tc, self.name)(a, b, out, **options)

    def on_cpu(self) -> np.ndarray:
        """The call on the PTX machine; the memory around out and out itself after it."""
        memory = self.out.base.copy()
        self.run(self.a, self.b, self.out_in(memory), self.options)
        return memory

    def out_in(self, memory: np.ndarray) -> np.ndarray:
        """Out, as it lies in a copy of its memory."""
        start = self.out.base.__array_interface__["data"][0]
        offset = self.out.__array_interface__["data"][0] - start
        return np.ndarray(self.out.shape, self.out.dtype, memory.data, offset, self.out.strides)

    def check(self, memory: np.ndarray) -> None:
        """What a call made of the memory of out: the numbers, and nothing around them.

        Args:
            memory: bytes, as of `self.out.base`.

        Raises:
            AssertionError: with the seed and the call.
        """
        try:
            self._check(memory)
        except AssertionError as error:
            raise AssertionError(f"{self}\n{error}") from None

    def _check(self, memory: np.ndarray) -> None:
        assert self.expected is not None
        written = slice(None) if self.written is None else self.written
        actual = self.out_in(memory)[written]
        wanted = reference.Reference(self.expected.value[written], self.expected.error[written])
        if self.exact:
            np.testing.assert_array_equal(actual, wanted.value)
        else:
            reference.assert_close(actual, wanted, self.out.dtype)
        after, before = memory.copy(), self.out.base.copy()
        for copy in (after, before):
            self.out_in(copy)[written] = 0
        assert (after == before).all(), "bytes beside the output were written"


def guarded(value: np.ndarray, view: str) -> np.ndarray:
    """The same numbers in one of VIEWS, in the middle of memory that is all PATTERN."""
    *lead, rows, cols = value.shape
    if view == "col":
        return guarded(np.ascontiguousarray(value.swapaxes(-1, -2)), "row").swapaxes(-1, -2)
    pitch = {"row": cols, "sliced": cols + 16, "skipped": 2 * cols}[view]
    size = math.prod(lead) * rows * pitch * value.itemsize
    memory = np.full(size + 2 * GUARD_BYTES, PATTERN, np.uint8)
    held = memory[GUARD_BYTES : GUARD_BYTES + size].view(value.dtype)
    made = held.reshape(*lead, rows, pitch)[..., :cols]
    made[...] = value
    return made


def problem(seed: int, longest: int = LONGEST, *, gpu: bool = False) -> Problem:
    """The problem of a seed; sizes spread evenly over their logarithms.

    Args:
        seed: of all.
        longest: extent.
        gpu: FP8 sums keep fewer bits there.
    """
    rng = np.random.default_rng(seed)
    kind = rng.choice([_plain, _groups, _blocks, _gated], p=[0.7, 0.14, 0.08, 0.08])
    made = kind(rng, longest, gpu)
    made.seed = seed
    return made


def one_of_each(longest: int, *, gpu: bool = False) -> list[Problem]:
    """The first problem of each kind: dtypes of a plain product, groups, blocks, two products."""
    found: dict[Any, Problem] = {}
    for seed in range(100):
        given = problem(seed, longest, gpu=gpu)
        plain = given.name == "matmul" and "second" not in given.options
        like = getattr(given.options.get("scale_a"), "shape", ())
        blocks = len(like) == given.a.ndim and like[-1] > 1
        dtypes = (given.a.dtype, given.b.dtype) if plain and not blocks else ()
        kind = (given.name, "second" in given.options, "ends" in given.options, blocks, dtypes)
        found.setdefault(kind, given)
    return list(found.values())


def product_in_parts(params: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """A, B, C for the kernel with one of GRIDS; sums and flags where parts of K share them."""
    rng = np.random.default_rng(0)
    a, b = (numbers(rng, shape, "bf16", "row") for shape in ((200, 264), (264, 328)))
    places = 600  # more than any of GRIDS has on 264 CTAs
    sums, flags = np.full((places * 64, 64), np.nan, np.float32), np.zeros(places, np.int32)
    shared = (sums, flags) if {"split_k", "stream_k"} & set(params) else ()
    return a, b, poisoned((200, 328), "bf16"), *shared


def _sizes(rng: np.random.Generator, longest: int) -> tuple[int, ...]:
    sizes = (round(longest ** rng.random()) for _ in range(3))
    if rng.random() < 0.6:
        return tuple(-(-size // 16) * 16 for size in sizes)
    return tuple(sizes)


def _dtypes(rng: np.random.Generator, pairs: tuple[str, ...]) -> tuple[str, str]:
    left, _, right = str(rng.choice(pairs)).partition(" ")
    return left, right or left


def _view(rng: np.random.Generator) -> str:
    return str(rng.choice(VIEWS))


def _plain(rng: np.random.Generator, longest: int, gpu: bool) -> Problem:
    left, right = _dtypes(rng, PAIRS)
    m, n, k = _sizes(rng, longest)
    batch = ((), (), (), (2,), (2, 3))[rng.integers(5)]
    lead = [tuple(1 if rng.random() < 0.3 else x for x in batch) for _ in range(2)]
    lead = [() if rng.random() < 0.2 else x for x in lead]
    a = numbers(rng, (*lead[0], m, k), left, _view(rng))
    b = numbers(rng, (*lead[1], k, n), right, _view(rng))
    shape = (*np.broadcast_shapes(*lead), m, n)
    chain, options = product(a, b, gpu=gpu), {}
    out = str(rng.choice(OUTS if left != "s8" else ("s32", "f32", "bf16")))
    if out == "s32":
        blank = guarded(poisoned(shape, out), _view(rng))
        return Problem(a=a, b=b, out=blank, expected=_reference(chain, out), exact=True)
    if left == "s8":
        options["alpha"] = 1e-4
        chain.times(1e-4)
    options |= _scales(rng, shape, chain)
    if left != "s8" and rng.random() < 0.3:
        options["alpha"] = -0.25
        chain.times(-0.25)
    target, more = _target(rng, shape, out)
    for beta in more.values():
        chain.plus(beta * target.astype(np.float64))
    steps = _steps(rng, shape, chain, out)
    options |= {**more, "epilogue": steps}
    return Problem(a=a, b=b, out=target, options=options, expected=_reference(chain, out))


def _target(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str
) -> tuple[np.ndarray, dict[str, float]]:
    """An output, and beta where it holds something."""
    if rng.random() < 0.7:
        return guarded(poisoned(shape, dtype), _view(rng)), {}
    beta = 1.0 if rng.random() < 0.5 else 0.5
    return guarded(numbers(rng, shape, dtype, "row"), _view(rng)), {"beta": beta}


def _reference(chain: Chain, dtype: str) -> reference.Reference:
    """The end of a chain; conversions to 8 bits saturate, products beyond f16 are not here."""
    if dtype in ("e4m3", "e5m2", "f16"):
        top = by_name(dtype).max_value
        chain.value = np.clip(chain.value, -top, top)
        chain.error = np.minimum(chain.error, top - np.abs(chain.value))
    return reference.Reference(chain.value, chain.error)


def _steps(
    rng: np.random.Generator, shape: tuple[int, ...], chain: Chain, out: str
) -> tuple[Any, ...]:
    """Some steps before an output of dtype `out`, taken by the reference as well."""
    made: list[Any] = []
    m, n = shape[-2:]
    random = partial(numbers, rng, view="row")
    for kind in rng.choice(["bias", "gelu", "silu", "relu", "gate", "residual", "mine"], 3):
        if rng.random() < 0.4:
            continue
        if kind == "bias":
            made.append((tc.epilogues.bias, random((n,), str(rng.choice(["f32", "bf16"])))))
            chain.plus(made[-1][1].astype(np.float64))
        elif kind in ("gate", "residual"):
            lead = shape[:-2] if rng.random() < 0.5 else ()
            tensor = random((*lead, m, n), str(rng.choice(["f32", "bf16", "f16"])))
            made.append((getattr(tc.epilogues, kind), tensor))
            (chain.times if kind == "gate" else chain.plus)(tensor.astype(np.float64))
        elif kind == "mine":
            factor = float(rng.standard_normal())
            made.append((lambda x, at, f: x * f + at.scalar(f), factor))
            chain.times(factor)
            chain.plus(factor)
        else:
            made.append(getattr(tc.epilogues, kind))
            half = kind == "gelu" and by_name(out).bits <= 16
            chain.through(FUNCTIONS[kind], SLOPE, GELU_HALF * half)
    return tuple(made)


def _scales(rng: np.random.Generator, shape: tuple[int, ...], chain: Chain) -> dict[str, Any]:
    m, n = shape[-2:]
    found = {}
    for name, size, like in (("scale_a", m, (m, 1)), ("scale_b", n, (1, n))):
        scale = rng.uniform(0.5, 2, like).astype(np.float32)
        match rng.integers(4):
            case 0:
                found[name] = float(scale.flat[0])
                chain.times(found[name])
            case 1:
                found[name] = scale.reshape(-1)[:1]
                chain.times(float(scale.flat[0]))
            case 2 if len(shape) == 2:
                found[name] = scale if rng.random() < 0.5 else scale.reshape(size)
                chain.times(scale.astype(np.float64))
    return found


# ---- scales of blocks, two products


def _blocks(rng: np.random.Generator, longest: int, gpu: bool) -> Problem:
    left, right = _dtypes(rng, ("e4m3", "e5m2", "e4m3 e5m2"))
    m, n, k = _sizes(rng, longest)
    batch = ((), (), (2,))[rng.integers(3)]
    a = numbers(rng, (*batch, m, k), left, _view(rng))
    b = numbers(rng, (*batch, k, n), right, _view(rng))
    blocks, wide = -(-k // 128), -(-n // 128)
    options: dict[str, Any] = {
        "scale_a": rng.uniform(0.5, 2, (*batch, m, blocks)).astype(np.float32),
        "scale_b": rng.uniform(0.5, 2, (*batch, blocks, wide)).astype(np.float32),
    }
    chain = gemm_cases.scaled_by_blocks(a, b, *options.values(), gpu=gpu)
    out = str(rng.choice(OUTS))
    target, more = _target(rng, (*batch, m, n), out)
    for beta in more.values():
        chain.plus(beta * target.astype(np.float64))
    options |= {**more, "epilogue": _steps(rng, target.shape, chain, out)}
    return Problem(a=a, b=b, out=target, options=options, expected=_reference(chain, out))


def _gated(rng: np.random.Generator, longest: int, gpu: bool) -> Problem:
    left, right = _dtypes(rng, ("bf16", "f16", "f32", "e4m3", "e4m3 e5m2"))
    m, n, k = _sizes(rng, longest)
    a = numbers(rng, (m, k), left, _view(rng))
    b, second = (numbers(rng, (k, n), right, _view(rng)) for _ in range(2))
    chain = gemm_cases.gated(a, b, second, gpu=gpu)
    out = str(rng.choice(OUTS))
    blank = guarded(poisoned((m, n), out), _view(rng))
    steps = (tc.epilogues.swiglu, *_steps(rng, (m, n), chain, out))
    options = {"second": second, "epilogue": steps}
    return Problem(a=a, b=b, out=blank, options=options, expected=_reference(chain, out))


# ---- groups of rows


def _groups(rng: np.random.Generator, longest: int, gpu: bool) -> Problem:
    left, right = _dtypes(rng, ("bf16", "f16", "f32", "e4m3", "e4m3 e5m2", "bf16"))
    _, n, k = _sizes(rng, longest)
    counts = rng.integers(0, max(longest // 4, 2), rng.integers(1, 12)) * (rng.random() < 0.9)
    counts[rng.integers(len(counts))] += 1
    ends, last = bool(rng.random() < 0.5), np.cumsum(counts)
    lead = (int(last[-1]),) if ends else (len(counts), int(counts.max()) + int(rng.integers(5)))
    places = [
        (slice(end - count, end),) if ends else (group, slice(0, count))
        for group, (count, end) in enumerate(zip(counts, last, strict=True))
    ]
    a = numbers(rng, (*lead, k), left, _view(rng))
    b = numbers(rng, (len(counts), k, n), right, _view(rng))
    out = str(rng.choice(OUTS))
    target, options = _group_options(rng, a, b, out)
    value, error = np.zeros(target.shape), np.zeros(target.shape)
    written = np.zeros(target.shape, bool)
    for group, place in enumerate(places):
        chain = _group_product(options, a[place], b[group], (place, group), gpu)
        for step in _of_group(options, target, group, place):
            step(chain)
        end = _reference(chain, out)
        value[place], error[place], written[place] = end.value, end.error, True
    options["ends" if ends else "counts"] = (last if ends else counts).astype(np.int32)
    expected = reference.Reference(value, error)
    return Problem(
        name="grouped_matmul", a=a, b=b, out=target, options=options, expected=expected,
        written=written,
    )  # fmt: skip


def _group_options(
    rng: np.random.Generator, a: np.ndarray, b: np.ndarray, out: str
) -> tuple[np.ndarray, dict[str, Any]]:
    """An output, and options: scales of rows and columns, of blocks, or a second product."""
    (*lead, k), (groups, _, n) = a.shape, b.shape
    blank, more = _target(rng, (*lead, n), out)
    kind, steps = rng.choice(["scales", "scales", "blocks", "gated"]), _group_steps(rng, groups, n)
    if kind == "gated":
        second = numbers(rng, b.shape, from_numpy(b.dtype).name, _view(rng))
        blank = guarded(poisoned(blank.shape, out), _view(rng))
        return blank, {"second": second, "epilogue": (tc.epilogues.swiglu, *steps)}
    if kind == "blocks" and a.dtype.itemsize == 1:
        blocks = -(-k // 128)
        shapes = (*lead, blocks), (groups, blocks, -(-n // 128))
    else:
        shapes = tuple(lead), (groups, n)
        shapes = tuple(shape if rng.random() < 0.3 else () for shape in shapes)
    for name, shape in zip(("scale_a", "scale_b"), shapes, strict=True):
        if shape:
            more[name] = rng.uniform(0.5, 2, shape).astype(np.float32)
    if rng.random() < 0.3:
        more["alpha"] = -0.5
    return blank, {**more, "epilogue": steps}


def _group_steps(rng: np.random.Generator, groups: int, n: int) -> tuple[Any, ...]:
    bias = (tc.epilogues.bias, numbers(rng, (groups, n), "f32", "row"))
    return tuple(step for step in (bias, tc.epilogues.silu) if rng.random() < 0.5)


def _group_product(
    options: dict[str, Any], a: np.ndarray, b: np.ndarray, at: tuple[Any, int], gpu: bool
) -> Chain:
    """The product of a group, gated or scaled by blocks; `at`: its rows, and its number."""
    place, group = at
    if "second" in options:
        return gemm_cases.gated(a, b, options["second"][group], gpu=gpu)
    if _by_blocks(options):
        scales = options["scale_a"][place], options["scale_b"][group]
        return gemm_cases.scaled_by_blocks(a, b, *scales, gpu=gpu)
    return product(a, b, gpu=gpu)


def _by_blocks(options: dict[str, Any]) -> bool:
    return getattr(options.get("scale_b"), "ndim", 0) == 3


def _of_group(
    options: dict[str, Any], out: np.ndarray, group: int, place: tuple[Any, ...]
) -> Iterator[Any]:
    """What follows the product of a group, on its rows of out, in order."""
    if "scale_a" in options and not _by_blocks(options):
        yield lambda x: x.times(options["scale_a"][place].astype(np.float64)[:, None])
    if "scale_b" in options and not _by_blocks(options):
        yield lambda x: x.times(options["scale_b"][group].astype(np.float64))
    if "alpha" in options:
        yield lambda x: x.times(options["alpha"])
    if "beta" in options:
        yield lambda x: x.plus(options["beta"] * out[place].astype(np.float64))
    for step in options["epilogue"]:
        if isinstance(step, tuple):
            yield lambda x, step=step: x.plus(step[1][group].astype(np.float64))
        elif step is tc.epilogues.silu:
            yield lambda x: x.through(silu, SLOPE)
