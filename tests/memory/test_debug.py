"""Prints, assertions and waits that end, on the PTX machine."""

from __future__ import annotations

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, f32, gl, rt, rv, s32, st, sv
from tilecat.errors import ResourceError, SyncError

X = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)


@tc.kernel
def talks(A: gl[f32, "M", "N"], n: s32):
    with tc.warpgroup():
        x = tc.load(A[0, 0], rt[f32, 64, 32])
        tc.print("tile", x, "count", n, n > 3)
        tc.print(tc.cast(x, bf16)[:, 0:16], "largest", tc.tile_max(x))
        tc.print("rows", tc.row_max(x), "columns", tc.col_max(x))
        vec = tc.shared(sv[f32, 64])
        tc.store(vec, tc.row_max(x))
        tile = tc.shared(st[f32, 64, 32])
        tc.store(tile, x)
        tc.sync()
        tc.print("shared", vec, tile)
        with tc.warps():
            tc.print("warp", tc.warp_id(), tc.full(rt[f32, 16, 16], 3.0))


def shown(array: np.ndarray) -> str:
    with np.printoptions(threshold=1024, edgeitems=4, linewidth=120, precision=5):
        return str(array)


def test_tiles_vectors_and_scalars_are_printed_whole(capsys: pytest.CaptureFixture[str]):
    talks(X, 5, grid=1)
    text = capsys.readouterr().out
    line = talks.function.__code__.co_firstlineno + 4
    head = f"[CTA 0, warpgroup 0, line {line}] "
    assert f"{head}tile: rt[f32, 64, 32]\n{shown(X)}\n" in text
    assert f"[CTA 0, thread 0, line {line}] count: s32 5\n" in text
    assert f"[CTA 0, thread 0, line {line}] pred True\n" in text
    half = X[:, :16].astype(bf16.numpy)
    assert f"rt[bf16, 64, 16]\n{shown(half)}\n" in text
    assert "largest: f32 2047.0\n" in text
    assert f"rows: rv[f32, 64]\n{shown(X.max(1))}\n" in text
    assert f"columns: rv[f32, 32, col]\n{shown(X.max(0))}\n" in text
    assert f"shared: rv[f32, 64]\n{shown(X.max(1))}\n" in text
    assert text.count(shown(X)) == 2
    assert "[CTA 0, thread 96, line" in text and "warp: s32 3\n" in text
    assert text.count(shown(np.full((16, 16), 3, np.float32))) == 4


def test_prints_of_loops_and_ctas_stay_apart(capsys: pytest.CaptureFixture[str]):
    @tc.kernel
    def loops(A: gl[f32, "M", "N"], n: s32):
        with tc.warpgroup():
            for i in tc.range(n):
                tc.print("v", tc.full(rv[f32, 64], i.to(f32)))
            _ = A.rows

    loops(X, 3, grid=2)
    text = capsys.readouterr().out
    for cta in range(2):
        for i in range(3):
            vector = shown(np.full(64, i, np.float32))
            assert text.count(f"[CTA {cta}, warpgroup 0, line") == 3
            assert text.count(vector) == 2


def test_what_does_not_fit_is_counted(capsys: pytest.CaptureFixture[str]):
    @tc.kernel
    def floods(A: gl[f32, "M", "N"], n: s32):
        with tc.warpgroup():
            x = tc.load(A[0, 0], rt[f32, 64, 32])
            for _ in tc.range(n):
                tc.print(x)

    floods(X, 600, grid=1)
    out = capsys.readouterr().out
    assert "bytes of output that did not fit the buffer" in out.splitlines()[-1]


def test_assertion_names_message_line_and_place():
    @tc.kernel
    def asserts(A: gl[f32, "M", "N"], n: s32):
        with tc.warpgroup():
            tc.device_assert(A.rows > n, "n is a row")

    asserts(X, 63, grid=1)
    error = pytest.raises(SyncError, asserts, X, 64, grid=1).value
    line = asserts.function.__code__.co_firstlineno + 3
    assert "device_assert: n is a row, got CTA 0, warp" in str(error)
    assert f"{__file__}:{line}" in str(error)


def test_limited_wait_names_the_barrier(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TILECAT_DEBUG_WAITS", "1")

    def hangs(A: gl[f32, "M", "N"]):
        ready = tc.barriers(3)
        with tc.warpgroup():
            with tc.when(A.rows < 0):
                ready[1].arrive()
            ready[1].wait(0)

    text = tc.kernel(hangs).compile().ptx
    assert "trap;" in text and ", 4000000;" in text
    monkeypatch.setattr("tilecat.driver.DEBUG_WAITS", 1)  # the machine's looks mostly block
    kernel, messages = tc.kernel(hangs), []
    for seed in range(2, 90, 4):
        messages += [r.message for r in kernel.simulate(X, grid=1, seed=seed).reports]
    assert any("waited in vain for mbarrier ready[1], got CTA 0" in m for m in messages), messages
    monkeypatch.delenv("TILECAT_DEBUG_WAITS")
    assert "trap;" not in tc.kernel(hangs).compile().ptx


@pytest.mark.parametrize("text", ["yes", "-1", "1.5"])
def test_looks_at_a_barrier_are_a_number(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("TILECAT_DEBUG_WAITS", text)
    with pytest.raises(ResourceError, match="TILECAT_DEBUG_WAITS is a number of looks") as found:
        tc.kernel(lone).compile()
    assert text in found.value.message


def lone(A: gl[f32, "M", "N"]):
    with tc.warpgroup():
        tc.store(A[0, 0], tc.zeros(rt[f32, 64, 64]))
