"""Matrix multiplication: one kernel; dtypes, batches, epilogues and scales are its parameters."""

from __future__ import annotations

from functools import partial

import tilecat as tc
from tilecat import DTypeVar, bf16, e4m3, e5m2, f16, f32, gl, inout, s8, s32, st, tf32, u8

from . import epilogues
from .block_scales import BlockScales
from .epilogues import Step, plane
from .groups import in_groups
from .split import slots_of, whole_product
from .tensor_scales import TensorScales

TA = DTypeVar("TA", bf16, f16, f32, e4m3, e5m2, s8, u8)
TB = DTypeVar("TB", bf16, f16, f32, e4m3, e5m2, s8, u8)
TC = DTypeVar("TC", bf16, f16, f32, e4m3, e5m2, s32)
STEP_BYTES = 128  # of K a step: the widest swizzle, of A and of a transposed B
# A thread's, of an epilogue beside the sums of two tiles. Bias and GELU, which spill 8 bytes, took
# 1524 us at 8192^3 (128 x 192, H200, 2026-11), the plain product 1522, tiles without spills 1574.
SPILL_BYTES = 32
GROUPED = {"grouped": tc.grouped, "snake": tc.snake}
ORDERS = {**GROUPED, "row": tc.row_major, "column": tc.column_major}


def multiplied_as(tensor, other):
    """The dtype of an operand's shared tiles: tf32 of f32; of e2m1 beside bytes, with gaps."""
    if tensor.dtype == u8 != other.dtype:
        return tc.dtypes.b4x16_p64
    return tf32 if tensor.dtype == f32 else tensor.dtype


def order_of(tensor, k_last):
    """The order of an operand's shared tiles: as in memory, or K contiguous where that is a rule.

    Only 16-bit types may have M or N contiguous (PTX ISA 9.7.15.5.1, wgmma's shared operands).
    """
    if tensor.dtype.bits == 16:
        return tensor.order
    tc.require(
        not tensor.tma or tensor.order == k_last,
        f"matmul: {tensor.dtype} is multiplied with K contiguous in memory, got {tensor!r} in "
        f"{tensor.order} order",
        hint="x.T.contiguous().T",
    )
    return k_last


def cols_of(tensor, other, tile_k, tile_n):
    """The shared tile of a step's columns of B, or of a second one."""
    return st[multiplied_as(tensor, other), tile_k, tile_n, order_of(tensor, "col")]


def require_params(args, epilogue, tile_m, cache, stacked, needs):
    """Rules of parameters; and of further arguments, `needs` besides those of the epilogue."""
    tc.require(isinstance(tile_m, int) and tile_m > 0 and tile_m % 64 == 0,
               f"matmul: tile_m is a multiple of 64, got {tile_m=}")  # fmt: skip
    tc.require(isinstance(stacked, int) and stacked > 0 and tile_m % (64 * stacked) == 0,
               f"matmul: tile_m is a multiple of 64 rows times stacked, got {tile_m=}, {stacked=}",
               hint="stacked=1")  # fmt: skip
    tc.require(isinstance(cache, tuple) and len(cache) == 3,
               f"matmul: cache has a priority of A, B and C each, got {cache=}",
               hint='cache=("evict_first", "", "")')  # fmt: skip
    tc.require(isinstance(epilogue, tuple) and all(isinstance(x, Step) for x in epilogue),
               f"matmul: the kernel's epilogue is a tuple of steps, got {epilogue=}",
               hint="tc.matmul(a, b, epilogue=tc.epilogues.gelu) makes them")  # fmt: skip
    needs += sum(step.count for step in epilogue)
    tc.require(len(args) >= needs,
               "matmul: groups, a second B, scales of blocks and steps of an epilogue come with "
               f"{needs} arguments behind C here, got {len(args)}",
               hint="tc.matmul and tc.grouped_matmul bring them")  # fmt: skip


def tasks_of(A, B, C, args, *, tile_m, tile_n, tile_k, group, cluster, groups, order, split_k,
             stream_k, pingpong, block_scales, one):  # fmt: skip
    """The order of tiles, what parts of K share, and the arguments that are left."""
    one = one and not (groups or pingpong or block_scales)
    tc.require(split_k == stream_k == 1 or one,
               "matmul: one plain product, on a persistent grid, has its K split, got "
               f"{split_k=}, {stream_k=}")  # fmt: skip
    tc.require(1 in (split_k, stream_k), "matmul: split_k is of all tiles, stream_k of those of "
               f"the last wave alone, got {split_k=}, {stream_k=}")  # fmt: skip
    tc.require(order in ORDERS or callable(order),
               f"matmul: order is {', '.join(ORDERS)}, or a function of block rows and columns, "
               f"got {order=}", hint='order="grouped"')  # fmt: skip
    tc.require(cluster == 1 or order in GROUPED,
               f"matmul: clusters go with the orders {', '.join(GROUPED)}, and a schedule of the "
               f"caller's says its own, got {cluster=}, {order=}", hint="cluster=1")  # fmt: skip
    tc.require(order == "grouped" or not groups,
               f"matmul: groups of rows have the order 'grouped', got {order=}")  # fmt: skip
    if groups:
        table, total, *args = args
        tasks = in_groups(table, total, tc.cdiv(B.cols, tile_n), rows=group)
    else:
        make = order if callable(order) else ORDERS[order]
        options = {"rows": group, "cluster": cluster} if order in GROUPED else {}
        tasks = make(tc.cdiv(A.rows, tile_m), tc.cdiv(B.cols, tile_n), **options)
        tasks = tc.batched(tasks, *(C.size(axis) for axis in range(C.rank - 2)))
    cut, parts = (tc.stream_k, stream_k) if stream_k != 1 else (tc.split_k, split_k)
    if parts == 1:
        return cut(tasks, 1, tc.cdiv(A.cols, tile_k)), (), args
    slots = slots_of(args[:2], tile_n, tile_m // 64 * tasks.cluster)
    return cut(tasks, parts, tc.cdiv(A.cols, tile_k), slots=slots), args[:2], args[2:]


def load_rows(a, A, C, task, k, groups, cache):
    """Loads tiles of A, below one another: a consumer's each."""
    lead, n = plane(A, C, task.batch, "MK"), a.count
    for i in range(n):
        rows = A.at(*lead, task.first + i * 64, k * a.kind.cols) if groups else None
        place = rows or A[*lead, task.row * n + i, k]
        tc.load_async(a[i], place, multicast="row", cache=cache)


def load_cols(pairs, C, task, k, groups, scales, cache):
    """Loads a tile of B, or of both, for all consumers; then the scales of a step."""
    for b, B in pairs:
        place = B[*plane(B, C, task.batch, "KN"), k, task.col]
        tc.load_async(b, place, multicast="col", cache=cache)
    if scales:
        scales.load(task, k, task.first if groups else None)


def mma_step(tiles, a, rows, right):
    """Adds a step's products to the sums of each tile of 64 rows."""
    for row, sums in zip(rows, tiles, strict=True):
        for acc, b in zip(sums, right, strict=False):
            tc.mma_AB(acc, a[row], b)


def depths(stages):
    """Stages of A's own ring (None: it has none), and of the others'."""
    return stages if isinstance(stages, tuple) and len(stages) == 2 else (None, stages)


def shares(n, stacked, pingpong, epilogue):
    """Of a task's `n` tiles of 64 rows those of a consumer, and the number of consumers."""
    if pingpong and epilogue:
        tc.allow_spills(SPILL_BYTES)
    return (n, 2) if pingpong else (stacked, n // stacked)


def sums_of(pipe, dtype, cols, products, count):
    """A consumer's accumulators: of each of `count` tiles of 64 rows, one a product."""
    acc = pipe.accumulator(dtype, 64, cols)
    every = [acc, *(pipe.accumulator(dtype, 64, cols) for _ in range(1, products * count))]
    return [every[i : i + products] for i in range(0, len(every), products)]


def scales_of(pipe, args, C, tile, block_scales, groups):
    """Scales at the head of the arguments, if there are some, and the others.

    A group's rows begin anywhere, and TMA reaches scales of rows from multiples of four on.
    """
    pipe.loads_by_threads = bool(block_scales and groups)
    if isinstance(block_scales, str):
        return TensorScales.take(pipe, args, C, tile, block_scales)
    tile_m, tile_n, _ = tile
    return BlockScales.take(pipe, args, C, tile_m // 64, tile_n) if block_scales else ((), args)


def first_of(task, row, tile_m, tile_n, groups):
    """Batch, row and column at which a tile of 64 rows begins."""
    first = task.first if groups else task.row * tile_m
    return (*task.batch, first + row * 64, task.col * tile_n)


def rows_of(pipe, each, consumers, pingpong):
    """Numbers of a consumer's tiles of 64 rows in a task's."""
    return range(each) if pingpong else [pipe.consumer + i * consumers for i in range(each)]


def place_in(C, task, place, n, row, groups):
    """Where a tile of 64 rows goes; of a group, nowhere beyond the group's rows."""
    if not groups:
        return C[*task.batch, task.row * n + row, task.col]
    return C[*task.batch[: C.rank - 2], : task.last, :].at(*place()[1:])


@tc.kernel
def matmul(A: gl[TA, ..., "M", "K"], B: gl[TB, ..., "K", "N"], C: inout[TC, ..., "M", "N"], *args,
           tile_m=128, tile_n=256, tile_k=0, stages=4, group=8, cluster=1, order="grouped",
           epilogue=(), second=False, block_scales=False, groups=False, split_k=1, stream_k=1,
           persistent=True, pingpong=False, stacked=1, cache=("", "", ""), pairs=False,
           wide_k=False, collectors="", early_a=False, exclusive=False, oversized=False):
    """C = epilogue(A @ B), fp32 sums (s32 of s8).

    Args:
        A, B, C: see `tc.matmul`. stages: of the ring; or a pair: of A's own, and of the rest's.
        args: with parts of K, sums and flags (`whole_product`); with `groups`, a table and a number
            of slots (`plan_groups`); with `second`, a second B; with `block_scales`, f32 scales of
            A [..., K/128, M] and B [..., K/128, N/128], or packed ones; then the epilogue's.
        order: of tiles: grouped, snake (`group` block rows), row, column; or what makes a schedule.
        epilogue: steps; with `second`, the first takes both tiles. cache: L2 priorities of A, B, C.
        split_k: parts of K; stream_k: of tiles of the last wave. persistent: or one task a CTA.
        pingpong: consumers take tiles in turn. stacked: a consumer's tiles of 64 rows, of one B.
        pairs, wide_k, collectors, early_a, exclusive, oversized: of `tc.lcf`, for Blackwell, Rubin.
    """
    needs, (of_a, stages) = 2 * groups + second + 2 * bool(block_scales), depths(stages)
    require_params(args, epilogue, tile_m, cache, stacked, needs)
    n, tile_k = tile_m // 64, tile_k or STEP_BYTES // A.dtype.nbytes
    each, consumers = shares(n, stacked, pingpong, epilogue)
    tasks, shared, args = tasks_of(A, B, C, args, tile_m=tile_m, tile_n=tile_n, tile_k=tile_k,
                                   group=group, cluster=cluster, groups=groups, order=order,
                                   split_k=split_k, stream_k=stream_k, pingpong=pingpong,
                                   block_scales=block_scales, one=persistent is True and not second)
    pipe = tc.lcf(consumers=consumers, stages=stages, tasks=tasks, steps=tc.cdiv(A.cols, tile_k),
                  pingpong="tasks" if pingpong else False, cluster=tasks.cluster, pairs=pairs,
                  persistent=persistent, wide_k=wide_k, collectors=collectors, early_a=early_a,
                  exclusive=exclusive, oversized=oversized)  # fmt: skip
    more, *args = args if second else (None, *args)
    a = pipe.input(st[multiplied_as(A, B), 64, tile_k, order_of(A, "row")], count=n,
                   ring="a" if early_a or of_a else "stage", stages=of_a)  # fmt: skip
    b = pipe.input(cols_of(B, A, tile_k, tile_n))
    b2 = pipe.input(cols_of(more, A, tile_k, tile_n)) if second else None
    scales, args = scales_of(pipe, args, C, (tile_m, tile_n, tile_k), block_scales, groups)
    columns = epilogues.Columns(epilogue, consumers, tile_n)
    c = pipe.output(st[C.dtype, 64, tile_n])
    tiles = sums_of(pipe, s32 if A.dtype == s8 else f32, tile_n, 1 + second, each)
    rows = partial(rows_of, pipe, each, consumers, pingpong)

    @pipe.load
    def _(task, k):
        k = task.first_step + k
        load_rows(a, A, C, task, k, groups, cache[0])
        load_cols(((b, B), (b2, more))[: 1 + second], C, task, k, groups, scales, cache[1])

    if scales:
        scales.add_steps(pipe, tiles, a, b, rows)
    else:
        pipe.compute(lambda task, k: mma_step(tiles, a, rows(), (b, b2)))

    @pipe.finish
    def _(task):
        vectors, last = columns.begin(pipe.consumer), task.last if groups else None
        for row, sums in zip(rows(), tiles, strict=True):
            place = partial(first_of, task, row, tile_m, tile_n, groups)
            with whole_product(sums[0], shared, task, row, n, tasks.cluster):
                result = epilogues.apply(epilogue, args, sums, C, place, vectors, last, B)
                c.store(place_in(C, task, place, n, row, groups), result, cache=cache[2])
