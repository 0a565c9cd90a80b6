"""The streaming template: rows by warps, the next loaded while one is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from convert_rows import OFFSET, SEED, philox
from failures import fails

import tilecat as tc
from pipeline.schedules import check_schedules
from tilecat import bf16, f32, gl, rt, rv, sv
from tilecat.check.access import shared_accesses
from tilecat.errors import DTypeError, LayoutError, ScopeError

BF16 = bf16.numpy


@tc.kernel
def rms_norm(X: gl[bf16, "M", "D"], W: gl[bf16, "D"], Y: gl[f32, "M", "D"], eps: f32,
             *, D, warps=4, blocks=1):  # fmt: skip
    """Y = X / sqrt(mean(X^2) + eps) * W, a row a warp."""
    rows = tc.rows(X.rows, warps=warps, blocks_per_sm=blocks)
    kind = rv[f32, D, "plain"]

    @rows.start
    def _():
        return tc.load(W[0], kind)

    @rows.load
    def _(row):
        return tc.load(X[row, 0], kind)

    @rows.compute
    def _(row, x, w):
        mean = tc.reduce_vector("sum", x * x) * (1.0 / D)
        tc.store(Y[row, 0], x * tc.rsqrt(mean + eps) * w)


@pytest.mark.parametrize(("warps", "rows", "width"), [(4, 37, 96), (8, 5, 256), (4, 1, 32)])
def test_norm_of_rows(warps: int, rows: int, width: int):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((rows, width)).astype(BF16), rng.random(width).astype(BF16)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * w.astype(np.float64)

    def check(args: list[Any]) -> None:
        # f32 sums of squares, a division and two products: 2**-23 each, 2**-22 of rsqrt.approx
        np.testing.assert_allclose(args[2], exact, rtol=(width + 8) * 2.0**-23)

    def make() -> list[Any]:
        return [x, w, np.full((rows, width), np.nan, np.float32), 1e-5]

    check_schedules(rms_norm, make, check, D=width, warps=warps, seeds=(0, 2))


@tc.kernel
def rotary(X: gl[f32, "H", "N", 64], C: gl[f32, "N", 32], S: gl[f32, "N", 32],
           Y: gl[f32, "H", "N", 64]):  # fmt: skip
    """Halves (a, b) of each row become (a cos - b sin, b cos + a sin); 16 rows a warp."""
    blocks = tc.cdiv(X.size(1), 16)
    rows = tc.rows(X.size(0) * blocks, warps=4)
    half = rt[f32, 16, 32]

    @rows.load
    def _(row):
        head, block = row // blocks, row % blocks
        return (tc.load(X[head, block, 0], half), tc.load(X[head, block, 1], half),
                tc.load(C[block, 0], half), tc.load(S[block, 0], half))  # fmt: skip

    @rows.compute
    def _(row, a, b, cos, sin):
        tc.store(Y[row // blocks, row % blocks, 0], a * cos - b * sin)
        tc.store(Y[row // blocks, row % blocks, 1], b * cos + a * sin)


def test_rotary_of_blocks_of_rows():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 50, 64)).astype(np.float32)
    angle = rng.standard_normal((50, 32)) * 10
    c, s = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    a, b = x[..., :32].astype(float), x[..., 32:].astype(float)
    exact = np.concatenate([a * c - b * s, b * c + a * s], -1)

    def check(args: list[Any]) -> None:
        np.testing.assert_allclose(args[3], exact, atol=2.0**-21 * abs(exact).max())

    check_schedules(rotary, lambda: [x, c, s, np.full_like(x, np.nan)], check, seeds=(0, 2))


def test_ctas_that_share_an_sm_are_in_the_text():
    compiled = rms_norm.compile(D=64, blocks=8)
    assert ".minnctapersm 8" in compiled.ptx and compiled.module.min_blocks == 8


@tc.kernel
def softmax_shared(X: gl[bf16, "M", "D"], Y: gl[f32, "M", "D"], S: gl[f32, "P", "D"], *, D,
                   cluster=1, ahead=1):  # fmt: skip
    """Rows by all warps of a CTA or cluster; sums of the rows of each CTA, part by part."""
    rows = tc.rows(X.rows, shared_by="cta", cluster=cluster, ahead=ahead)
    kind = rv[f32, -(-D // (256 * rows.parts)) * 256, "plain", 8]

    @rows.start
    def _():
        return tc.zeros(kind)

    @rows.load
    def _(row):
        return tc.load(X[row, rows.part], kind, fill=float("-inf"))

    @rows.compute
    def _(row, x, total):
        e = tc.exp(x - rows.reduce("max", x))
        y = e / rows.reduce("sum", e)
        tc.store(Y[row, rows.part], y)
        total += y

    @rows.finish
    def _(total):
        tc.store(S[tc.cta_id() // cluster, rows.part], total)


@pytest.mark.parametrize(("cluster", "ahead", "width"),
                         [(1, 1, 1000), (1, 0, 77), (2, 1, 2048), (4, 0, 1023)])
def test_rows_that_warps_share(cluster: int, ahead: int, width: int):
    x = np.random.default_rng(0).standard_normal((11, width)).astype(BF16)
    e = np.exp(x.astype(float) - x.astype(float).max(1, keepdims=True))
    exact = e / e.sum(1, keepdims=True)
    sums = np.array([exact[i::2].sum(0) for i in range(2)])

    def check(args: list[Any]) -> None:
        np.testing.assert_allclose(args[1], exact, rtol=2.0**-17)
        np.testing.assert_allclose(args[2], sums, rtol=2.0**-17)

    def make() -> list[Any]:
        return [x, *(np.full(s, np.nan, np.float32) for s in (x.shape, (2, width)))]

    check_schedules(softmax_shared, make, check, grid=2 * cluster, seeds=(0, 2), D=width,
                    cluster=cluster, ahead=ahead)  # fmt: skip


@tc.kernel
def shifted_rows(X: gl[bf16, "M", "D"], Y: gl[f32, "M", "D"], *, D, cluster=1, stages=2, chunks=1):
    """Y = X - max(X), rows in shared memory, the last chunk shorter, those behind it empty."""
    rows = tc.rows(X.rows, shared_by="cta", cluster=cluster, ahead=0, stages=stages)
    pieces = -(-D // (256 * rows.parts * chunks))
    each = 256 * pieces
    x = rows.input(sv[bf16, each], fill=float("-inf"), chunks=chunks)

    @rows.load
    def _(row):
        number = rows.part * chunks + x.chunk
        place = X.at(row, number * each)
        with tc.when(number < D // each):
            x.load(place)
        with tc.when(number == D // each):
            x.load(place, D % each)
        with tc.when(number > D // each):
            x.load(place, 0)

    @rows.compute
    def _(row):
        top = tc.full(rv[f32, 256, "plain", 8], float("-inf"))
        for _ in x.parts():
            for i in range(pieces):
                tc.maximum(top, tc.cast(piece(i), f32), out=top)
        top = rows.reduce("max", top)
        for chunk in x.parts(last=chunks > 1):
            for i in range(pieces):
                place = (rows.part * chunks + chunk) * pieces + i
                tc.store(Y[row, place], tc.cast(piece(i), f32) - top)

    def piece(i):
        return tc.load(x.vector.part(i, pieces), rv[bf16, 256, "plain", 8])


@pytest.mark.parametrize(("cluster", "stages", "width", "chunks"),
                         [(1, 1, 512, 1), (1, 3, 2000, 1), (2, 2, 2040, 1), (1, None, 3000, 2),
                          (2, 4, 4000, 3)])  # fmt: skip
def test_rows_in_shared_memory(cluster: int, stages: int | None, width: int, chunks: int):
    x = np.random.default_rng(0).standard_normal((9, width)).astype(BF16)
    exact = x.astype(np.float32) - x.astype(np.float32).max(1, keepdims=True)

    def check(args: list[Any]) -> None:
        np.testing.assert_array_equal(args[1], exact)

    params = {"D": width, "cluster": cluster, "stages": stages, "chunks": chunks}
    check_schedules(shifted_rows, lambda: [x, np.full(x.shape, np.nan, np.float32)], check,
                    grid=2 * cluster, **params)  # fmt: skip
    accesses = shared_accesses(shifted_rows.compile(**params).kernel)
    assert all(access.ways == 1 for access in accesses), accesses


@tc.kernel
def meeting(X: gl[bf16, "M", "D"], Y: gl[f32, "M", 2], *, D, warps=4, cluster=1):
    """Sum and largest of each row, of one meeting of its warps."""
    rows = tc.rows(X.rows, warps=warps, shared_by="cta", cluster=cluster, ahead=0)

    @rows.load
    def _(row):
        return tc.load(X[row, rows.part], rv[f32, D // rows.parts, "plain", 8], fill=0)

    @rows.compute
    def _(row, x):
        own = tc.reduce_vector("sum", x), tc.reduce_vector("max", x)
        sums, tops = rows.gather((own[0], 0.0), (own[1], float("-inf")))
        sums, tops = tc.reduce_vector("sum", sums), tc.reduce_vector("max", tops)
        with tc.when(rows.part == 0):
            tc.store(Y.at(row, 0), sums)
            tc.store(Y.at(row, 1), tops)


@pytest.mark.parametrize(("warps", "cluster"), [(4, 1), (12, 1), (4, 2), (16, 4)])
def test_scalars_of_all_warps_meet_once(warps: int, cluster: int):
    width = 256 * warps * cluster
    x = -np.random.default_rng(0).integers(1, 9, (7, width)).astype(BF16)
    exact = np.stack([x.astype(float).sum(1), x.astype(float).max(1)], 1)

    def check(args: list[Any]) -> None:
        np.testing.assert_array_equal(args[1], exact)

    check_schedules(meeting, lambda: [x, np.full((7, 2), np.nan, np.float32)], check,
                    grid=2 * cluster, D=width, warps=warps, cluster=cluster)  # fmt: skip
    accesses = shared_accesses(meeting.compile(D=width, warps=warps, cluster=cluster).kernel)
    assert all(access.ways == 1 for access in accesses), accesses


def test_chunks_are_of_one_input():
    @tc.kernel
    def k(X: gl[bf16, "M", 4096]):
        rows = tc.rows(X.rows, shared_by="cta", stages=2)
        rows.input(sv[bf16, 256])
        rows.input(sv[bf16, 256], chunks=2)

    fails(k.compile, LayoutError,
          "rows.input: rows in chunks are of one input, got 2 inputs",
          at="rows.input(sv[bf16, 256], chunks=2)", hint="chunks=1")  # fmt: skip


def looped(*loops: dict[str, bool], leave: bool = False) -> tc.KernelFunction:
    """Loops over a row's two chunks, one behind another."""

    @tc.kernel
    def k(X: gl[bf16, "M", 4096], Y: gl[bf16, "M", 4096]):
        rows = tc.rows(X.rows, shared_by="cta", stages=2)
        x = rows.input(sv[bf16, 256], chunks=2)

        @rows.load
        def _(row):
            x.load(X.at(row, (rows.part * 2 + x.chunk) * 256))

        @rows.compute
        def _(row):
            for options in loops:
                for chunk in x.parts(**options):
                    piece = tc.load(x.vector, rv[bf16, 256, "plain", 8])
                    tc.store(Y[row, rows.part * 2 + chunk], piece)
                    if leave:
                        break

    return k


@pytest.mark.parametrize("unroll", [False, True])
def test_chunks_given_back_are_not_read_again(unroll: bool):
    fails(looped({"last": True}, {"unroll": unroll}).compile, LayoutError,
          "x.parts: the loop with last=True gives a row's chunks back, got another loop behind it",
          at="for chunk in x.parts(", hint="last=True in the last loop")  # fmt: skip


def test_a_loop_over_chunks_is_not_left():
    fails(looped({"last": True, "unroll": True}, leave=True).compile, ScopeError,
          "x.parts: a loop over a part's chunks cannot be left by break or return",
          at="for chunk in x.parts(", hint="tc.when around what is not for all chunks")  # fmt: skip


def test_what_meets_are_scalars():
    @tc.kernel
    def k(X: gl[f32, "M", 1024]):
        rows = tc.rows(X.rows, shared_by="cta")

        @rows.load
        def _(row):
            return tc.load(X[row, rows.part], rv[f32, 256, "plain", 8])

        @rows.compute
        def _(row, x):
            rows.gather((1.0, 0.0))

    fails(k.compile, LayoutError,
          "gather: one to four f32 scalars, got (1.0,)",
          at="rows.gather(")  # fmt: skip


@tc.kernel
def row_sums_of_ctas(X: gl[f32, "M", 512], S: gl[f32, "CTAS", 512], *, run=8):
    rows = tc.rows(X.rows, warps=8)
    kind = rv[f32, 512, "plain", run]

    @rows.start
    def _():
        return tc.zeros(kind)

    @rows.load
    def _(row):
        return tc.load(X[row, 0], kind)

    @rows.compute
    def _(row, x, total):
        total += x

    @rows.finish
    def _(total):
        rows.combine(total)
        with tc.when(rows.has_sum):
            tc.store(S[tc.cta_id(), 0], total)


@pytest.mark.parametrize("run", [1, 8])
def test_sums_over_rows_of_a_cta(run: int):
    x = np.random.default_rng(0).integers(-8, 9, (37, 512)).astype(np.float32)
    exact = np.array([x[np.arange(37) // 8 % 2 == i].sum(0) for i in range(2)])

    def check(args: list[Any]) -> None:
        np.testing.assert_array_equal(args[1], exact)

    check_schedules(row_sums_of_ctas, lambda: [x, np.full((2, 512), np.nan, np.float32)], check,
                    seeds=(0, 2), run=run)  # fmt: skip
    accesses = shared_accesses(row_sums_of_ctas.compile(run=run).kernel)
    assert accesses and all(access.ways == 1 for access in accesses), accesses


@tc.kernel
def random_rows(X: gl[f32, "M", "D"], Y: gl[f32, "M", "D"], *, D, run):
    rows = tc.rows(X.rows)

    @rows.load
    def _(row):
        return tc.load(X[row, 0], rv[f32, D, "plain", run])

    @rows.compute
    def _(row, x):
        tc.store(Y[row, 0], tc.uniform(x, SEED, row=row, col=8, offset=OFFSET))


@pytest.mark.parametrize("run", [4, 8])
def test_random_numbers_of_a_vector_are_those_of_a_tile(run: int):
    y = np.full((7, 512), np.nan, np.float32)
    random_rows(np.zeros_like(y), y, D=512, run=run, grid=1)
    row, col = np.indices(y.shape)
    zero = np.zeros_like(row)
    words = np.choose((col + 8) % 4, philox(((col + 8) // 4, row, zero + OFFSET, zero), (SEED, 0)))
    np.testing.assert_array_equal(y, words // 256 * 2.0**-24)


# ---- bad input


def test_random_numbers_of_a_vector_want_runs():
    fails(lambda: random_rows.compile(D=512, run=2), LayoutError,
          "random_bits: a vector has its values in runs of 4 or 8, got rv[f32, 512, plain, 2] of a "
          "warp", at="tc.uniform(", hint='rv[f32, 512, "plain", 4]')  # fmt: skip


def test_packed_vectors_are_not_reduced():
    @tc.kernel
    def k(X: gl[bf16, 256]):
        with tc.warpgroup(), tc.warps():
            tc.reduce_vector("sum", tc.load(X[0], rv[bf16, 256, "plain", 8]))

    fails(k.compile, DTypeError,
          "sum: a vector of 32-bit values, got rv[bf16, 256, plain, 8] of a warp",
          at="tc.reduce_vector(",
          hint="packed ones are loaded, stored, cast and computed with: tc.cast(x, tc.f32)",
          )  # fmt: skip


def test_runs_of_vectors_fill_a_warp():
    with pytest.raises(LayoutError, match="a multiple of 256, got 1000"):
        rv[f32, 1000, "plain", 8]
    with pytest.raises(LayoutError, match="a run is of 1, 2, 4 or 8 adjacent values, got 3"):
        rv[f32, 1024, "plain", 3]
    with pytest.raises(DTypeError, match="32-bit elements, got bf16"):
        rv[bf16, 1024, "plain"]
    with pytest.raises(LayoutError, match="1, 2, 4 or 8 adjacent columns, got 16"):
        rt[bf16, 16, 64, "row", 16]
    with pytest.raises(LayoutError, match="are a multiple of 32, got columns=48"):
        rt[bf16, 16, 48, "row", 8]


def test_rows_are_shared_by_warp_or_cta():
    @tc.kernel
    def k(X: gl[f32, "M", 64]):
        tc.rows(X.rows, shared_by="grid")

    fails(k.compile, LayoutError,
          "rows: a row is shared by \"warp\" or \"cta\", got shared_by='grid'", at="tc.rows(",
          hint='shared_by="cta"')  # fmt: skip


def test_finish_takes_what_start_returns():
    @tc.kernel
    def k(X: gl[f32, "M", 64]):
        rows = tc.rows(X.rows)

        @rows.load
        def _(row):
            return tc.load(X[row, 0], rv[f32, 64, "plain"])

        @rows.compute
        def _(row, x):
            pass

        @rows.finish
        def _(total):
            pass

    fails(k.compile, ScopeError,
          "rows.finish: gets 0 arguments, what start has returned, got a hole of 1",
          at="@rows.finish")  # fmt: skip


def test_holes_return_registers():
    @tc.kernel
    def k(X: gl[f32, "M", 64]):
        rows = tc.rows(X.rows)

        @rows.load
        def _(row):
            return 3

        @rows.compute
        def _(row, x):
            pass

    error = pytest.raises(ScopeError, k.compile).value
    assert error.message == "rows.load: returns register tiles and vectors, got 3"


def test_compute_takes_what_load_returns():
    @tc.kernel
    def k(X: gl[f32, "M", 64]):
        rows = tc.rows(X.rows)

        @rows.load
        def _(row):
            return tc.load(X[row, 0], rv[f32, 64, "plain"])

        @rows.compute
        def _(row):
            pass

    fails(
        k.compile, ScopeError,
        "rows.compute: gets 2 arguments, the row and what load and start have returned, "
        "got a hole of 1",
        at="@rows.compute",
    )  # fmt: skip


def test_warps_are_whole_warpgroups():
    @tc.kernel
    def k(X: gl[f32, "M", 64]):
        tc.rows(X.rows, warps=6)

    fails(k.compile, LayoutError, "rows: warps of a CTA are a multiple of 4, got warps=6",
          at="tc.rows(", hint="warps=4")  # fmt: skip


def test_rows_need_their_holes():
    @tc.kernel
    def k(X: gl[f32, "M", 64]):
        tc.rows(X.rows)

    fails(k.compile, ScopeError, "rows: the hole `load` is not filled", at="tc.rows(",
          hint="@rows.load")  # fmt: skip


def test_plain_vector_of_a_warpgroup_is_reduced():
    @tc.kernel
    def k(X: gl[f32, 256], Y: gl[f32, 1]):
        with tc.warpgroup():
            tc.store(Y[0], tc.reduce_vector("sum", tc.load(X[0], rv[f32, 256, "plain"])))

    x, y = np.arange(256, dtype=np.float32), np.zeros(1, np.float32)
    k(x, y, grid=1)
    assert y[0] == x.sum()
