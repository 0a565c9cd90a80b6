"""Tasks of a packed batch, from offsets on the device: every row once, no other row touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from failures import fails

import tilecat as tc
from pipeline.schedules import check_schedules
from tilecat import bf16, f32, gl, s32, st
from tilecat.errors import LayoutError

BF16 = bf16.numpy


@tc.kernel
def by_sequence(X: gl[bf16, "T", "K"], W: gl[bf16, "S", "K", 64], starts: gl[s32, "n"],
                Y: gl[bf16, "U", 64]):  # fmt: skip
    """Y[rows of sequence i] = X[rows of sequence i] W[i]."""
    pipe = tc.lcf(consumers=1, stages=2, steps=tc.cdiv(X.cols, 64),
                  tasks=tc.ragged(starts, X.rows, chunk=64))  # fmt: skip
    x, w = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 64])
    y = pipe.output(st[bf16, 64, 64])
    acc = pipe.accumulator(f32, 64, 64)

    @pipe.load
    def _(task, k):
        tc.load_async(x, X[task.first :, :][task.chunk, k])
        tc.load_async(w, W[task.sequence, k, 0])

    @pipe.compute
    def _(task, k):
        tc.mma_AB(acc, x, w)

    @pipe.finish
    def _(task):
        y.store(Y[task.first : task.last, :][task.chunk, 0], acc)


LENGTHS = {
    "one": (100,),
    "aligned": (64, 128, 64),
    "odd": (1, 63, 65, 130, 7),
    "empty ones": (0, 50, 0, 0, 70, 0),
    "many": (3,) * 37,
    "none at all": (),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_every_row_of_every_sequence_is_computed_once(name: str):
    lengths, rng = LENGTHS[name], np.random.default_rng(0)
    total, starts = sum(lengths), np.cumsum([0, *lengths]).astype(np.int32)
    x = rng.standard_normal((max(total, 1), 128)).astype(BF16)
    w = rng.standard_normal((max(len(lengths), 1), 128, 64)).astype(BF16)

    def check(args: list[Any]) -> None:
        assert np.isnan(args[3][total:].astype(float)).all()
        for i, (first, last) in enumerate(zip(starts, starts[1:], strict=False)):
            if first < last:
                exact = reference.matmul(x[first:last], w[i])
                reference.assert_close(args[3][first:last], exact, BF16)

    def make() -> list[Any]:
        return [x, w, starts, np.full((total + 70, 64), np.nan, BF16)]

    check_schedules(by_sequence, make, check, seeds=(0, 2), grid=3)


@pytest.mark.parametrize("chunk", [0, 2.5, True])
def test_chunk_is_a_positive_int(chunk: Any):
    @tc.kernel
    def k(starts: gl[s32, "n"]):
        tc.ragged(starts, 5, chunk=chunk)

    fails(k.compile, LayoutError, f"ragged: chunk is a compile-time int from 1 up, got {chunk=}",
          at="tc.ragged(")  # fmt: skip


def test_offsets_are_integers_of_one_axis():
    @tc.kernel
    def k(starts: gl[f32, "n"]):
        tc.ragged(starts, 5)

    fails(k.compile, LayoutError,
          "ragged: offsets are an s32 tensor of one axis, got starts: gl[f32, n]",
          at="tc.ragged(", hint='starts: gl[s32, "sequences + 1"]')  # fmt: skip
