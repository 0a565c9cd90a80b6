"""What a tuner may choose of a kernel: candidates, and a model of their time to prune them by.

The model ranks candidates; its microseconds are no prediction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..arch import DEFAULT_TARGET
from ..model.gemm import CLOCK_HZ, LAUNCH_CYCLES, cycles, traffic_cycles
from ..model.l2 import Problem
from ..model.orders import order_bytes
from ..model.rates import rates_of

Extents = Mapping[str, int]
Params = Mapping[str, Any]


@dataclass(frozen=True)
class Space:
    """Candidates of a kernel on one architecture.

    Args:
        axes: values of each compile-time parameter that is tuned.
        legal: (parameters, bytes an element) -> whether they are worth a trace; the checks of the
            compiler have the last word.
        same: (parameters, extents) -> parameters whose kernel does the same for these extents.
        micros: (parameters, extents, bytes an element) -> modelled microseconds on the GPU that
            the space is for.
        ring: the parameter that is a ring's depth, or None.
        depths: how many of the deepest rings that fit are candidates.
        order: parameters that say in which order tiles come, and nothing else.
        read_bytes: (parameters, extents, bytes an element) -> modelled bytes from memory that an
            order reads, to compare with those of other orders of these tiles.
        orders: how many orders of the same tiles are candidates, those that read least.
    """

    axes: tuple[tuple[str, tuple[Any, ...]], ...]
    legal: Callable[[Params, int], bool]
    same: Callable[[Params, Extents], Params]
    micros: Callable[[Params, Extents, int], float]
    ring: str | None = "stages"
    depths: int = 2
    order: tuple[str, ...] = ()
    read_bytes: Callable[[Params, Extents, int], float] = lambda params, extents, width: 0.0
    orders: int = 2

    def families(self, item_bytes: int) -> Iterator[tuple[dict[str, Any], ...]]:
        """Candidates that differ in the ring's depth alone, the deepest first."""
        rings = sorted(dict(self.axes).get(self.ring or "", ()), reverse=True)
        names = [name for name, _ in self.axes if name != self.ring]
        for values in itertools.product(*(v for name, v in self.axes if name != self.ring)):
            base = dict(zip(names, values, strict=True))
            family = [{**base, self.ring: depth} for depth in rings] if rings else [base]
            legal = tuple(params for params in family if self.legal(params, item_bytes))
            if legal:
                yield legal

    def ranked(
        self,
        candidates: list[dict[str, Any]],
        extents: Extents,
        item_bytes: int,
        *,
        within: float = math.inf,
    ) -> list[dict[str, Any]]:
        """Candidates that differ for these extents, by modelled time; of tiles the best orders.

        Args:
            candidates: parameters.
            extents: of the problem.
            item_bytes: bytes an element.
            within: only those up to this factor from the least time.
        """
        distinct: dict[tuple[tuple[str, Any], ...], dict[str, Any]] = {}
        for params in candidates:
            distinct.setdefault(tuple(sorted(self.same(params, extents).items())), params)
        timed = [(self.micros(p, extents, item_bytes), n, p)
                 for n, p in enumerate(distinct.values())]  # fmt: skip
        timed.sort(key=lambda row: row[:2])
        limit = timed[0][0] * within if timed else 0.0
        close = [params for micros, _, params in timed if micros <= limit]
        return self._in_best_orders(close, extents, item_bytes)

    def _in_best_orders(
        self, candidates: list[dict[str, Any]], extents: Extents, item_bytes: int
    ) -> list[dict[str, Any]]:
        """Of candidates that differ in their order alone those that read the fewest bytes."""
        alike: dict[tuple[tuple[str, Any], ...], list[dict[str, Any]]] = {}
        for params in candidates:
            rest = tuple((name, x) for name, x in params.items() if name not in self.order)
            alike.setdefault(rest, []).append(params)
        chosen = {
            id(params)
            for some in alike.values()
            for params in sorted(some, key=lambda p: self.read_bytes(p, extents, item_bytes))[
                : self.orders
            ]
        }
        return [params for params in candidates if id(params) in chosen]


# ---- matmul

# Rows of a consumer's tile, and columns of a swizzle panel of 16-bit elements.
_ROWS = 64
_STEP = 64
_SMS = 132  # of an H200 (cudaDeviceProp::multiProcessorCount, 2026-11)


def _gemm_legal(params: Params, item_bytes: int) -> bool:
    tile_m, tile_n, group = params["tile_m"], params["tile_n"], params["group"]
    accumulator = tile_n // 2  # registers a thread for 64 rows of f32
    parts = params["split_k"], params["stream_k"]
    if params["order"] != "grouped" and (group < 8 or parts != (1, 1)):
        return False
    # With parts of K the tiles are few, or only the last wave differs: their order matters little.
    plain = (params["cluster"], params["tile_k"], group) == (1, 64, 8)
    most = {1: 128, 2: 128, 3: 96}  # what the consumers' share of the registers leaves for it
    held = accumulator, most.get(tile_m // _ROWS, 0)
    if params["pingpong"]:  # two consumers, each with all rows of a tile; 240 registers a thread
        held = accumulator * tile_m // _ROWS, 192
        if parts != (1, 1) or params["tile_k"] != 64 or group not in (8, 16) or tile_m > 128:
            return False
    return (
        held[0] <= held[1]
        and (parts == (1, 1) or 1 in parts and plain and tile_n % 64 == 0)
        and group % params["cluster"] == 0
        and params["stages"] * (tile_m + tile_n) * params["tile_k"] * item_bytes < 232448
    )


def _gemm_same(params: Params, extents: Extents) -> Params:
    """A group of at least all block rows is one group, whatever its size, and has no next to meet.

    Whole waves leave no tail to share, and so do steps that one CTA has to itself.
    """
    rows = math.ceil(extents["M"] / params["tile_m"])
    tiles = rows * math.ceil(extents["N"] / params["tile_n"])
    tail = tiles % _SMS and extents["K"] > params["tile_k"]
    one = params["group"] >= rows
    return {
        **params, "group": min(params["group"], max(rows, params["cluster"])),
        "order": "grouped" if one else params["order"],
        "stream_k": params["stream_k"] if tail else 1,
    }  # fmt: skip


def gemm_micros(params: Params, extents: Extents, item_bytes: int) -> float:
    """The model's cycles, or what memory needs for A, B and C read and written once, on an H200.

    A thousandth of the cycles stays beside the memory's, and ranks what memory bounds.
    """
    m, n, depth = extents["M"], extents["N"], extents["K"] * item_bytes // 2
    busy = cycles(params, m, n, depth, _SMS)
    most = max(busy, traffic_cycles(m, n, depth)) + busy / 1000
    return (most + LAUNCH_CYCLES) / CLOCK_HZ * 1e6


def _gemm_read_bytes(params: Params, extents: Extents, item_bytes: int) -> float:
    """By the model of the L2; steps are alike for every order, so any depth of them will do."""
    m, n, k = (extents[name] for name in "MNK")
    tiles = Problem(m, n, k, params["tile_m"], params["tile_n"], _STEP, 8 * item_bytes)
    _, rates = rates_of(DEFAULT_TARGET)
    return order_bytes(tiles, params["order"], params["group"], rates, params["cluster"])


GEMM_SPACE = Space(
    axes=(
        ("tile_m", (64, 128, 192)),
        ("tile_n", (32, 64, 128, 160, 192, 224, 256)),
        ("tile_k", (64, 128)),
        ("stages", tuple(range(2, 9))),
        ("order", ("grouped", "snake")),
        ("group", (4, 8, 16, 32)),
        ("cluster", (1, 2)),
        ("split_k", (1, 2, 4, 8)),
        ("stream_k", (1, 4)),
        ("pingpong", (0, 1)),
    ),
    legal=_gemm_legal,
    same=_gemm_same,
    micros=gemm_micros,
    depths=3,
    order=("order", "group"),
    read_bytes=_gemm_read_bytes,
)
