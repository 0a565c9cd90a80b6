"""A call of decoding: its arguments checked, and the kernel's made of them."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from .array_arguments import check_devices, tile_of
from .attention_call import results_of
from .attention_choice import TILE_DIMS, tile_dim
from .attention_options import HALVES, Options, check_array, check_positive
from .errors import DTypeError, LayoutError
from .kernels.attention_decode import BESIDE, QUERY_PARTS, ROWS
from .kernels.attention_decode import attention_decode as kernel
from .kernels.attention_scores import Edges
from .operators import num_sms
from .ready import Launch, Results, again, allocate, key_of, present, remember
from .row_arguments import check_flag, first_that_fits
from .runtime.arrays import ITEM_BYTES, ArrayView, shape_of, tma_ok, view
from .runtime.workspace import workspace

MAX_QUERIES = 16
NARROW_DTYPE = "e4m3"
PAGES = (16, 32, 64, 128, 192, 256)  # rows of a page: parts or multiples of a block of keys
NARROW_SHARED = 128  # columns up to which two CTAs of 8-bit caches share an SM
NARROW = 64  # columns up to which blocks have 128 keys, not 64
# Of keys and values under way an SM (trials on an H200: docs/design/attention-forward.md). More
# gain nothing, and whatever else a task reads and writes waits behind them.
FLIGHT_BYTES = 64 << 10
FLIGHT_PAGES = 96 << 10  # of pages, each of which is a load of its own
SHARED_BYTES = 220 << 10  # of stages and queries; an SM of Hopper has 227 KiB for a CTA
MAX_STAGES = 8
# Of an H200 (cudaDeviceProp.l2CacheSize). Keys and values that go first: 16 x 8192 keys of a head,
# 64 MiB, 31.1 us rather than 34.4; of four times as many 82 rather than 80 (2026-11-30).
L2_BYTES = 60 << 20
# What a part costs beside its blocks, in keys: its queries, sums and the way through memory.
OVERHEAD = 80
LONG = 8192  # keys that a part of sequences of several lengths has at least; of many rows twice
SHARES = 4  # parts of such that an SM is to have, if they are so long
MAX_SPLITS = 128
SPILLS = 1 << 9  # bytes a thread, where fewer consumers do not fit in registers either
_fitting: dict[Any, int] = {}  # how many configurations further than the first to try


def attention_decode(
    q: Any, k_cache: Any, v_cache: Any, *, cache_seqlens: Any = None, block_table: Any = None,
    causal: bool = False, window: tuple[int | None, int | None] | None = None,
    scale: float | None = None, softcap: float | None = None, sinks: Any = None,
    scale_k: Any = None, scale_v: Any = None, out: Any = None, lse: Any = None,
    return_lse: bool = False,
) -> Any:  # fmt: skip
    """Attention of each sequence's last few queries over its cache, as in decoding.

    A score is `scale q k^T`; then, where given, `softcap tanh(score / softcap)`; then -inf where
    the key is hidden. Keys of a sequence are shared out among SMs: how many take part in one
    follows from the device and the shapes, not from the lengths, which are read on the device.

    Args:
        q: B x Lq x H x D, bf16 or f16; Lq 1 to 16, D at most 256.
        k_cache: B x Lk x Hkv x D, the dtype of q or e4m3; Hkv divides H. With block_table pages x
            page size x Hkv x D, of 16, 32, 64, 128, 192 or 256 rows a page.
        v_cache: the same, its last axis Dv.
        cache_seqlens: s32 [B]: keys of each sequence, the last Lq of them those of q; taken for 0
            if less, for what there is room for if more. None: all that there is room for. What lies
            behind them may be anything, NaN too.
        block_table: s32 [B, pages of a sequence]: where its pages lie. Of what lies on a device
            entries are not checked: one outside the pools stands for a page of zeros.
        causal: query i sees no key behind its own, the Lq - i th from the end.
        window: (left, right): a query sees keys from `left` before its own to `right` behind it;
            None for no limit on a side.
        scale: of the scores, positive; 1/sqrt(D) if None.
        softcap: positive and at most 16384, or None.
        sinks: f32 [H]: a score of each head without a value.
        scale_k, scale_v: of e4m3, both: f32 B x Hkv that keys and values are multiplied by. Scores
            of such keys keep about 13 bits of their largest term on Hopper.
        out: B x Lq x H x Dv of q's dtype to write, contiguous, or None to allocate it.
        lse: f32 B x H x Lq to write the log-sum-exp to, contiguous, or None.
        return_lse: also return it.

    Returns:
        out, or (out, lse), as `tc.attention` has them: 0 and -inf where no key is seen. CUDA arrays
        run on the GPU on the current stream, without waiting; NumPy arrays and CPU tensors run on
        the PTX machine.

    Raises:
        LayoutError: shapes that do not fit, heads that do not divide, more than 16 queries, pages
            of another size; lengths and pages of arrays in CPU memory that are not there.
        DTypeError: dtypes other than those above.
        ResourceError: arrays on two devices; a CUDA array and no GPU.

    Example: `y = tc.attention_decode(q, k, v, cache_seqlens=lengths, block_table=table)`
    """
    return_lse = check_flag("attention_decode", "return_lse", return_lse)
    causal = check_flag("attention_decode", "causal", causal)
    tensors = q, k_cache, v_cache, cache_seqlens, block_table, scale_k, scale_v, out, lse
    key = key_of(tensors, ("decode", return_lse, causal, window, scale, softcap, sinks))
    given = present(tensors)
    made = again(key, given)
    if made is None:
        options = Options("bottom-right" if causal else False, window, scale, softcap, None, None,
                          None, sinks, None)  # fmt: skip
        call = _Call(q, k_cache, v_cache, cache_seqlens, block_table, options, (scale_k, scale_v))
        made = call.run(key, given, out, lse, return_lse)
    return results_of(made, out, lse, return_lse)


class _Call:
    """Arguments of a call, checked.

    Raises:
        LayoutError, DTypeError, ResourceError: they do not fit.
    """

    def __init__(
        self, q: Any, k: Any, v: Any, lengths: Any, table: Any, options: Options,
        scales: tuple[Any, Any],
    ):  # fmt: skip
        self.arrays, self.lengths, self.table = (q, k, v), lengths, table
        query, keys, values = views = view(q), view(k), view(v)
        _check_shapes(*views, paged=table is not None)
        self.batch, self.queries, self.heads, self.dim = query.shape
        self.dtype, self.dim_v, self.groups = query.dtype, values.shape[3], keys.shape[2]
        self.sms, self.page = num_sms(query.device), 0
        self.room = keys.shape[1]
        if table is not None:
            self.page = _check_pages(keys, values)
            columns = (*shape_of(table), 0, 0)[1]
            check_array("block_table", table, (self.batch, columns), ("s32",), "B x pages")
            self.room = self.page * columns
        if lengths is not None:
            check_array("cache_seqlens", lengths, (self.batch,), ("s32",), "B")
        if query.device == "cpu":
            _check_entries(lengths, table, keys.shape[0], self.page, self.room)
        self.scales = _scales(scales, views, (self.batch, self.groups))
        self.scale = self.dim**-0.5 if options.scale is None else options.scale
        check_positive("scale", self.scale, "for a negative scale, negate q")
        self.sinks = options.sinks
        self.edges, self.limits = _edges(options, self.queries)
        shape = (self.batch, self.heads, self.queries, self.room)
        self.mods, self.more = options.mods(shape)

    def run(
        self, key: Any, given: tuple[Any, ...], out: Any, lse: Any, read: bool
    ) -> tuple[Any, ...]:
        """Launches; what was not given of output and (if it is read) log-sum-exp."""
        q = self.arrays[0]
        whole = (self.batch, self.queries, self.heads, self.dim_v)
        rows = (self.batch, self.heads, self.queries)
        _check_result("out", out, whole, self.dtype, "B x Lq x H x Dv")
        _check_result("lse", lse, rows, "f32", "B x H x Lq")
        found = allocate(q, out, lse, read, (whole, rows), self.dtype)
        out, lse = found.arrays
        if 0 in whole or self.room == 0:
            out[...] = 0
            lse[...] = -math.inf if self.sinks is None else self.sinks[None, :, None]
            return found.made
        lines = [self.params(2), self.params(1), {**self.params(1), "spills": SPILLS}]
        known = (self.dtype, *lines[0].values(), self.page, self.edges, self.mods)
        first_that_fits(kernel, _fitting, known, lines,
                        lambda line: self._launch(key, given, found, dict(line)))  # fmt: skip
        return found.made

    def _launch(
        self, key: Any, given: tuple[Any, ...], found: Results, params: dict[str, Any]
    ) -> None:
        (q, k, v), (out, lse) = self.arrays, found.arrays
        splits = params.pop("splits")
        memory = self.memory(splits, params["consumers"]) if splits > 1 else _nothing
        args = [x for x in (self.table, self.lengths) if x is not None]
        args += [*self.scales, *memory(q), *self.limits, *self.more]
        launch = Launch(
            kernel,
            (q.reshape(-1, self.dim), k, v, out.reshape(-1, self.dim_v), lse.reshape(-1)),
            (float(self.scale), self.batch, self.queries, self.heads, splits, *args),
            {**params, "page": self.page, "ragged": self.lengths is not None, "split": splits > 1,
             "edges": self.edges, "mods": self.mods},
        )  # fmt: skip
        launch.run()
        unread = found.shared or _nothing
        remember(key, given, found.makers, found.made, [launch],
                 shared=lambda like: (*memory(like), *unread(like)))  # fmt: skip

    @property
    def rows(self) -> int:
        """Queries of the heads that share keys."""
        return self.heads // self.groups * self.queries

    def params(self, most: int) -> dict[str, Any]:
        """Tiles, of consumers at most so many, and how many tasks share a sequence."""
        wide, wide_v = tile_dim(self.dim), tile_dim(self.dim_v)
        widest = max(wide, wide_v)
        narrow = bool(self.scales)
        blocks = 2 if narrow and widest <= NARROW_SHARED and most > 1 else 1
        most = 1 if narrow or widest == TILE_DIMS[-1] else most
        consumers = min(-(-self.rows // ROWS), most)
        tile_k = 64 if widest > NARROW or self.page == 192 or narrow else 128
        stage = tile_k * (wide + wide_v) * (2 - narrow)
        parts = QUERY_PARTS[self.dtype] if narrow else 2 * consumers
        taken = parts * ROWS * wide + 2 * tile_k * wide_v * narrow
        room = (SHARED_BYTES // blocks - taken) // stage
        flight = FLIGHT_PAGES if self.page else FLIGHT_BYTES
        stages = min(max(flight // blocks // stage, 2), room, MAX_STAGES)
        units = self.batch * self.groups * -(-self.rows // (ROWS * consumers))
        keys = self.room
        if self.edges.left:
            keys = min(keys, self.limits[0] + self.queries + tile_k)
        part = LONG * (1 + (self.rows > 16)) if self.lengths is not None else None
        splits = splits_of(units, keys, tile_k, self.sms * blocks, part)
        return {"dim": wide, "dim_v": wide_v, "tile_k": tile_k, "consumers": consumers,
                "blocks": blocks, "stages": stages, "splits": splits,
                "cache": self.priority(consumers)}  # fmt: skip

    def priority(self, consumers: int) -> str:
        """Of keys and values in L2: first to go where they are read once, and a little too many.

        L2 then keeps what it would have to write to memory to make room for them.
        """
        once = self.rows <= ROWS * consumers
        size = self.batch * self.groups * self.room * (self.dim + self.dim_v)
        size *= ITEM_BYTES[view(self.arrays[1]).dtype]
        return "evict_first" if once and L2_BYTES < size <= 2 * L2_BYTES else ""

    def memory(self, splits: int, consumers: int) -> Callable[[Any], tuple[Any, Any]]:
        """Sums of parts, each row with its log-sum-exp, and counters; of the current stream.

        It outlives the call, and so holds nothing of it.
        """
        tiles = -(-self.rows // (ROWS * consumers)) * consumers
        parts = self.batch * self.groups * tiles * splits
        rows, columns = min(self.rows, ROWS), tile_dim(self.dim_v) + BESIDE
        return partial(workspace, places=parts, rows=rows, cols=columns, dtype="f32")


def _nothing(_: Any) -> tuple[Any, ...]:
    return ()


@lru_cache(maxsize=4096)
def splits_of(units: int, keys: int, tile_k: int, sms: int, part: int | None) -> int:
    """Tasks that share the keys of one unit, so that the SM with most to do has least.

    Args:
        units: sequences times heads of keys (times tiles of their queries).
        keys: that a unit has, at most.
        tile_k: of a block.
        sms: of the device.
        part: keys that a part has at least, where units may have fewer keys and several parts even
            out shares; None where all have as many.
    """
    def time(splits: int) -> float:
        share = -(-keys // (splits * tile_k)) * tile_k
        return -(-units * splits // sms) * (share + OVERHEAD * (1 + (splits > 1)))

    most = max(min(-(-keys // tile_k), MAX_SPLITS), 1)
    least = min(-(-SHARES * sms // max(units, 1)), keys // part, most) if part else 1
    return min(range(max(least, 1), most + 1), key=time)


def _edges(options: Options, queries: int) -> tuple[Edges, list[int]]:
    """Edges from the end, and their arguments; none where the only query sees all there is."""
    edges, limits = options.edges()
    edges = replace(edges, from_end=True)
    if queries == 1 and edges.right:
        edges, limits = replace(edges, right=False), limits[: edges.left]
    return edges, limits


def _scales(
    scales: tuple[Any, Any], views: tuple[ArrayView, ...], shape: tuple[int, int]
) -> tuple[Any, ...]:
    """Factors of keys and values of 8 bits; () of others.

    Raises:
        LayoutError: one of them alone, none of 8 bits, some of others; another shape.
        DTypeError: other than f32.
    """
    given = [name for name, x in zip(("scale_k", "scale_v"), scales, strict=True) if x is not None]
    narrow = views[1].dtype == NARROW_DTYPE
    if len(given) != 2 * narrow:
        raise LayoutError(
            f"attention_decode: caches of {NARROW_DTYPE} have scale_k and scale_v, others none, "
            f"got {' and '.join(given) or 'none'} of {views[1].dtype}"
        )
    for name in given:
        check_array(name, scales[name == "scale_v"], shape, ("f32",), "B x Hkv")
    return scales if narrow else ()


def _check_shapes(query: ArrayView, keys: ArrayView, value: ArrayView, *, paged: bool) -> None:
    lead = ("pages", "page size") if paged else ("B", "Lk")
    arrays = {"q": query, "k_cache": keys, "v_cache": value}
    axes = {"q": "B x Lq x H x D", "k_cache": f"{' x '.join(lead)} x Hkv x D"}
    axes["v_cache"] = axes["k_cache"] + "v"
    shown = ", ".join(f"{name} {tuple(array.shape)}" for name, array in arrays.items())
    for name, array in arrays.items():
        if len(array.shape) != 4:
            raise LayoutError(f"attention_decode: {name} is {axes[name]}, got {shown}")
        if query.dtype not in HALVES or array.dtype not in (query.dtype, NARROW_DTYPE):
            raise DTypeError(
                f"attention_decode: q, k_cache and v_cache have one dtype, {' or '.join(HALVES)}, "
                f"or the caches {NARROW_DTYPE}, got "
                + ", ".join(f"{n} of {x.dtype}" for n, x in arrays.items())
            )
        dim = array.shape[3]
        tile_of("attention_decode", "the head dim", dim, TILE_DIMS, f"{name} with {dim}")
    check_devices("attention_decode", arrays)
    if keys.dtype != value.dtype:
        raise DTypeError(
            f"attention_decode: k_cache and v_cache have one dtype, got {keys.dtype} and "
            f"{value.dtype}"
        )
    batch, queries, heads, dim = query.shape
    agree = keys.shape[:3] == value.shape[:3] and keys.shape[3] == dim
    if not agree or not paged and keys.shape[0] != batch:
        raise LayoutError(
            "attention_decode: extents agree in "
            + ", ".join(f"{name} {form}" for name, form in axes.items()) + f", got {shown}"
        )
    if not 1 <= queries <= MAX_QUERIES:
        raise LayoutError(
            f"attention_decode: 1 to {MAX_QUERIES} queries a sequence, got {queries}",
            hint="tc.attention, whose tensors are B x heads x length x dim",
        )
    groups = keys.shape[2]
    if heads and (groups == 0 or heads % groups):
        raise LayoutError(
            f"attention_decode: the heads of the caches divide those of q, got {groups} and {heads}"
        )


def _check_pages(keys: ArrayView, value: ArrayView) -> int:
    """Rows of a page.

    Raises:
        LayoutError: another number than TMA and blocks of keys allow, or pools it cannot reach.
    """
    page = keys.shape[1]
    if page not in PAGES:
        raise LayoutError(
            f"attention_decode: a page has {', '.join(map(str, PAGES))} rows, got k_cache with "
            f"{page}"
        )
    for name, array in (("k_cache", keys), ("v_cache", value)):
        obstacle = tma_ok(array, (3, 2, 1, 0)) if array.shape[0] else None
        if obstacle is not None:
            raise LayoutError(
                f"attention_decode: pages are loaded by TMA, which {name} does not allow: "
                f"{obstacle}",
                hint="rows of a multiple of 16 bytes, and contiguous",
            )
    return page


def _check_result(
    name: str, value: Any, shape: tuple[int, ...], dtype: str, axes: str
) -> None:
    if value is None:
        return
    array = check_array(name, value, shape, (dtype,), axes)
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    for extent, stride, step in zip(shape, array.strides, steps, strict=True):
        if extent > 1 and stride != step:
            raise LayoutError(
                f"attention_decode: {name} is contiguous, got strides {tuple(array.strides)}",
                hint=f"no {name}, and return_lse" if name == "lse" else f"no {name}",
            )


def _check_entries(lengths: Any, table: Any, pages: int, page: int, room: int) -> None:
    """Of arrays in CPU memory: lengths that there is room for, and pages that there are.

    Raises:
        LayoutError: others.
    """
    used = None
    if lengths is not None:
        used = view(lengths).array
        if (used < 0).any() or (used > room).any():
            raise LayoutError(
                f"attention_decode: cache_seqlens are 0 to {room}, the keys there is room for, "
                f"got {reprlib.repr(used.tolist())}"
            )
    if table is None:
        return
    entries = view(table).array
    first = np.arange(entries.shape[1]) * page
    mine = np.broadcast_to(True, entries.shape) if used is None else first < used[:, None]
    wrong = mine & ((entries < 0) | (entries >= pages))
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise LayoutError(
            f"attention_decode: pages are 0 to {pages - 1}, got block_table[{row}, {column}] = "
            f"{entries[row, column]}"
        )
