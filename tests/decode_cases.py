"""Random calls of `tc.attention_decode`, and what they must give in float64."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import reference
from mma_cases import FP8_ON_GPU

PAGES = (16, 32, 64, 128, 192, 256)
DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn}


@dataclass(frozen=True)
class Decode:
    """A call: B sequences of `lengths` keys (None: all that there is room for), Lq queries each.

    Args:
        page: rows of a page, or 0.
        options: further keyword arguments.
        cache: dtype of keys and values, if another; e4m3 with scales.
    """

    queries: int
    heads: int
    groups: int
    room: int
    dim: int
    lengths: tuple[int, ...]
    dim_v: int = 0
    page: int = 0
    dtype: str = "bf16"
    ragged: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    cache: str = ""

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q, keys and values: NaN in keys and values behind a sequence."""
        rng, batch = np.random.default_rng(self.seed), len(self.lengths)
        sizes = ((self.queries, self.heads, self.dim), (self.room, self.groups, self.dim),
                 (self.room, self.groups, self.dim_v or self.dim))  # fmt: skip
        kinds = (self.dtype, *(self.cache or self.dtype,) * 2)
        q, *caches = [rng.standard_normal((batch, *size)).astype(DTYPES[kind])
                      for size, kind in zip(sizes, kinds, strict=True)]  # fmt: skip
        for entry, length in enumerate(self.lengths):
            for cache in caches:
                cache[entry, length:] = np.nan
        return q, caches[0], caches[1]

    def scales(self) -> dict[str, np.ndarray]:
        """Of keys and values of 8 bits."""
        rng, shape = np.random.default_rng(self.seed + 2), (len(self.lengths), self.groups)
        if not self.cache:
            return {}
        return {name: rng.uniform(0.3, 3, shape).astype(np.float32)
                for name in ("scale_k", "scale_v")}  # fmt: skip

    def paged(self, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, ...]:
        """Pools of pages in random order, and the table; entries behind a sequence are no pages."""
        rng, batch = np.random.default_rng(self.seed + 1), len(self.lengths)
        each = -(-self.room // self.page)
        table = rng.permutation(batch * each + 3)[: batch * each].reshape(batch, each)
        pools = []
        for cache in (keys, values):
            pool = np.full((batch * each + 3, self.page, *cache.shape[2:]), np.nan, cache.dtype)
            for entry, places in enumerate(table):
                for number, place in enumerate(places):
                    rows = cache[entry, number * self.page : (number + 1) * self.page]
                    pool[place, : len(rows)] = rows
            pools.append(pool)
        table = table.astype(np.int32)
        for entry, length in enumerate(self.lengths):
            table[entry, -(-length // self.page) :] = (-1, 1 << 30)[entry % 2]
        return (*pools, table)

    def call(self) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
        """Arguments and keyword arguments."""
        q, keys, values = self.arrays()
        options = {**self.options, **self.scales()}
        if self.ragged:
            options["cache_seqlens"] = np.array(self.lengths, np.int32)
        if self.page:
            keys, values, options["block_table"] = self.paged(keys, values)
        return (q, keys, values), options

    def check(self, run: Callable[..., Any], *, gpu: bool = False) -> None:
        """Runs it into poisoned results, and compares every element.

        Args:
            run: `run(q, k, v, out, lse, **options)` with NumPy arrays; writes out and lse.
            gpu: whether sums of products of 8 bits keep fewer bits.
        """
        (q, keys, values), options = self.call()
        out = np.full((*q.shape[:3], values.shape[3]), np.nan, q.dtype)
        lse = np.full((q.shape[0], q.shape[2], q.shape[1]), np.nan, np.float32)
        run(q, keys, values, out, lse, **options)
        q, *caches = self.arrays()
        keys, values = (
            x if not self.cache else x.astype(np.float64) * scale[:, None, :, None]
            for x, scale in zip(caches, self.scales().values() or caches, strict=True)
        )
        for entry, length in enumerate(self.lengths):
            part = [x[entry : entry + 1].swapaxes(1, 2) for x in (q, keys, values)]
            part[1:] = [x[:, :, :length] for x in part[1:]]
            aligned = FP8_ON_GPU if gpu and self.cache else 0.0
            wanted, sums = reference.attention(
                *part, self.options.get("scale"), self.change, aligned
            )
            if (sinks := self.options.get("sinks")) is not None:
                wanted, sums = _with_sinks(wanted, sums, sinks[:, None])
            reference.assert_close(out[entry : entry + 1].swapaxes(1, 2), wanted, out.dtype)
            reference.assert_close(lse[entry : entry + 1], sums, np.float32)

    def change(self, scores: np.ndarray) -> np.ndarray:
        """What options do to scores [1, H, Lq, keys] of a sequence."""
        queries, keys = scores.shape[2:]
        distance = np.arange(keys) - (np.arange(queries)[:, None] + keys - queries)
        left, right = self.options.get("window") or (None, None)
        right = min(0, right or 0) if self.options.get("causal") else right
        if (cap := self.options.get("softcap")) is not None:
            scores = cap * np.tanh(scores / cap)
        hidden = np.zeros(distance.shape, bool)
        hidden |= False if left is None else distance < -left
        hidden |= False if right is None else distance > right
        return np.where(hidden, -np.inf, scores)


def _with_sinks(
    out: reference.Reference, lse: reference.Reference, sinks: np.ndarray
) -> tuple[reference.Reference, reference.Reference]:
    total = np.logaddexp(lse.value, sinks)
    none = lse.value == -np.inf  # there 0 and the sink itself come out
    share = np.exp(np.where(none, 0, lse.value - np.where(none, 0, total)))[..., None]
    error = np.where(none[..., None], 0, out.error * share + np.abs(out.value) * share * 2.0**-19)
    sums = np.where(none, 2.0**-22 * np.abs(sinks), lse.error + 2.0**-20)
    sums = np.where(total == -np.inf, 0, sums)
    return reference.Reference(out.value * share, error), reference.Reference(total, sums)


def random_decode(number: int, longest: int, wide: bool) -> Decode:
    """A call.

    Args:
        number: its seed.
        longest: keys of a sequence, at most.
        wide: whether there are many heads and large head dims too.
    """
    rng = random.Random(number)
    groups, share = rng.choice((1, 2, 3)), rng.choice((1, 4, 5, 8, *((16, 32) if wide else ())))
    dim = rng.choice((64, 128, 32, 40, 96, *((192, 256) if wide else ())))
    queries = rng.choice((1, 1, 1, 2, 3, 5, 16))
    page = rng.choice((0, 0, *PAGES))
    room = round(longest ** rng.uniform(0.3, 1))
    room = -(-room // page) * page if page else room
    ragged = rng.random() < 0.8
    lengths = [rng.randint(0, room) if ragged else room for _ in range(rng.randint(1, 4))]
    if ragged and rng.random() < 0.3:
        lengths[0] = rng.choice((0, 1, queries))
    options: dict[str, Any] = {}
    if rng.random() < 0.5:
        options["causal"] = True
    if rng.random() < 0.3:
        options["window"] = (rng.choice((0, 7, 100)), rng.choice((None, 0, 3)))
    if rng.random() < 0.2:
        options["softcap"] = 5.0
    if rng.random() < 0.2:
        options["scale"] = 0.3
    if rng.random() < 0.2:
        sinks = np.random.default_rng(number).standard_normal(groups * share).astype(np.float32)
        options["sinks"] = sinks
    value_dim = rng.choice((0, 0, 64, 24))
    dtype, cache = rng.choice(("bf16", "bf16", "f16")), rng.choice(("",) * 5 + ("e4m3",))
    if cache:
        dim, value_dim = -(-dim // 16) * 16, -(-value_dim // 16) * 16
    return Decode(
        queries, groups * share, groups, room, dim, tuple(lengths),
        value_dim, page, dtype, ragged, options, number, cache,
    )  # fmt: skip
