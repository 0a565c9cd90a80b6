"""Which configuration and order attention gets; the replay of shares is what the schedule deals."""

import math

import numpy as np
import pytest

import tilecat as tc
from tilecat import attention_choice, gl, inout, s32
from tilecat.attention_choice import Problem, choose, order_of


def problem(dim=128, queries=1536, heads=64, right=0, sms=132, **more):
    given = {"dim_v": dim, "keys": queries, "group": 1, "left": None, "shift": 0, **more}
    return Problem(dim, queries=queries, heads=heads, right=right, sms=sms, **given)


@tc.kernel
def owners(Seen: inout[s32, "T", "B", "H"], Owner: gl[s32, "T", "B", "H"], planes: s32,
           turned: s32):  # fmt: skip
    """How often each task is taken, and by which CTA."""
    order = tc.longest_first(
        Seen.size(0), Seen.size(2), Seen.size(1), planes=planes, turned=turned & 1
    )
    with tc.one_thread():
        for number in tc.range(tc.cta_id(), order.count, tc.num_ctas()):
            task = order.task(number)
            place = task.tile, task.batch, task.head
            tc.store(Seen[*place], tc.load(Seen[*place], s32) + 1)
            tc.store(Owner[*place], tc.cta_id())


@pytest.mark.parametrize("tiles, batch, heads, planes, grid", [
    (4, 2, 5, 10, 3), (4, 2, 5, 4, 3), (7, 1, 5, 2, 4), (3, 3, 3, 1, 5), (1, 2, 2, 3, 3),
    (5, 2, 2, 3, 100),
])  # fmt: skip
@pytest.mark.parametrize("turned", [0, 1])
def test_replayed_shares_are_those_of_the_schedule(tiles, batch, heads, planes, grid, turned):
    seen, owner = np.zeros((tiles, batch, heads), np.int32), np.zeros((tiles, batch, heads), "i4")
    owners(seen, owner, planes, turned, grid=grid)
    assert (seen == 1).all()
    case = problem(queries=tiles * 128, heads=batch * heads, sms=grid)
    blocks = attention_choice._blocks(case, 128, 128)
    assert np.allclose(np.diff(blocks), -1) and len(blocks) == tiles  # the last tile first
    shares = np.zeros(grid)
    np.add.at(shares, owner, blocks[::-1, None, None])
    replayed = attention_choice._longest_share(blocks, case, planes, turned)
    assert math.isclose(replayed, shares.max(), rel_tol=1e-12)


def test_blocks_are_counted_as_the_kernel_does():
    """Against a plain loop over queries and keys."""
    for left, right, shift, queries, keys in (
        (None, 0, 0, 300, 300), (70, 0, 0, 500, 400), (None, 0, -100, 200, 100),
        (30, 5, 77, 129, 500), (0, None, 0, 200, 300),
    ):  # fmt: skip
        case = problem(queries=queries, keys=keys, left=left, right=right, shift=shift)
        rows, columns = np.arange(queries)[:, None] + shift, np.arange(keys)
        seen = np.ones((queries, keys), bool)
        if left is not None:
            seen &= columns >= rows - left
        if right is not None:
            seen &= columns <= rows + right
        found = attention_choice._blocks(case, 128, 48)[::-1] - attention_choice.OVERHEAD
        for tile, count in enumerate(found):
            used = np.flatnonzero(seen[tile * 128 : tile * 128 + 128].any(0)) // 48
            assert round(count) == (used[-1] - used[0] + 1 if used.size else 1)


def test_orders_share_evenly_and_keep_l2():
    for dim, queries, heads in ((64, 1536, 256), (64, 12288, 64), (128, 768, 256), (128, 6144, 64)):
        case = problem(dim, queries, heads)
        params, (planes, turned) = choose(case)
        blocks = attention_choice._blocks(case, 64 * params["consumers"], params["tile_k"])
        even = blocks.sum() * heads / case.sms
        assert attention_choice._longest_share(blocks, case, planes, turned) < 1.05 * even
        few = planes <= attention_choice.STREAMS * 64 * params["consumers"]
        assert few or planes * queries * dim * 4 <= attention_choice.L2_BYTES


@pytest.mark.parametrize("dims, tile_k, consumers", [
    ((64, 64), 128, 3), ((40, 64), 128, 3), ((96, 80), 112, 3), ((128, 128), 176, 2),
    ((192, 128), 128, 2), ((130, 192), 112, 2), ((256, 32), 80, 2),
])  # fmt: skip
def test_head_dims_decide(dims, tile_k, consumers):
    params, order = choose(problem(dims[0], 6144, dim_v=dims[1], right=None))
    assert (params["tile_k"], params["consumers"], order) == (tile_k, consumers, ())
    assert params["order"] == "sequence" and params["pingpong"]
    assert choose(problem(dims[0], 6144, dim_v=dims[1], right=None), 1)[0]["tile_k"] == tile_k - 32


def test_lengths_decide():
    assert choose(problem(queries=768, right=None))[0]["tile_k"] == 128  # 5 of 176 waste more
    assert choose(problem(queries=50))[0]["consumers"] == 1
    few = choose(problem(64, 768, heads=8, right=None))[0]
    assert few["consumers"] == 1 and not few["pingpong"]  # 96 tasks for 132 SMs
    packed, order = choose(problem(queries=2048, heads=256, packed=True, right=None))
    assert packed["order"] == "sequence" and order == ()
    packed, order = choose(problem(queries=2048, heads=256, packed=True))
    assert packed["order"] == "longest" and packed["tile_k"] == 128 and order == (4,)
    assert choose(problem(queries=1 << 17, heads=64, group=8, packed=True))[1] == (8,)
    assert choose(problem(128, 6144, right=None, step=32))[0]["tile_k"] == 160  # of 176
    grouped = problem(queries=4096, heads=64, group=8)
    assert order_of(grouped, 128, 128)[0] % 8 == 0 or order_of(grouped, 128, 128)[0] > 8
