"""Tensor maps of 4-bit elements, with the gap that .kind::f8f6f4 wants and without."""

import numpy as np
import pytest

from tilecat import sim
from tilecat.errors import MachineError

from .test_tma import copy_text
from .texts import clean, kernel, run

ROWS, COLS = 8, 256  # elements of 4 bits
LOAD = """mov.u32 %r1, %tid.x; mov.u32 %r2, smem; add.u32 %r3, %r2, 32768;
mov.b64 %d1, mapA; cvta.param.u64 %d1, %d1; ld.param.u64 %d2, [out];
setp.ne.u32 %p1, %r1, 0; @%p1 bra GO;
mbarrier.init.shared::cta.b64 [%r3], 1; fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], COUNT;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2],
  [%d1, {COL, ROW}], [%r3];
GO: bar.sync 0;
W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0; @!%p2 bra W;
shl.b32 %r4, %r1, 3; add.u32 %r5, %r2, %r4; ld.shared.b64 %d3, [%r5];
cvt.u64.u32 %d4, %r4; add.u64 %d4, %d4, %d2; st.global.b64 [%d4], %d3;"""


def _load(array, kind: str, box: tuple[int, int], at: tuple[int, int], count: int, swizzle: int):
    """The first words of 8 bytes that a load brings to shared memory, as bytes."""
    words = -(-box[0] * box[1] // 16) * (2 if kind.endswith("p64") else 1)
    out = np.zeros((words, 8), np.uint8)
    body = LOAD.replace("COUNT", str(count)).replace("COL", str(at[0])).replace("ROW", str(at[1]))
    text = kernel(body, ".param .align 64 .b8 mapA[128], .param .u64 out", words)
    clean(run(text, [sim.TensorMap(array, box, swizzle, kind), sim.Pointer(out)]))
    return out


def _source() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (ROWS, COLS // 2)).astype(np.uint8)


@pytest.mark.parametrize("col", [0, 128, 256])
@pytest.mark.parametrize("row", [0, 6])
def test_sixteen_elements_and_a_gap(row, col):
    """128 elements a row of 128 bytes; the mbarrier counts the packed bytes."""
    source = _source()
    out = _load(source, "b4x16_p64", (128, 4), (col, row), 4 * 64, 0).reshape(4, 8, 16)
    padded = np.pad(source, ((0, 4), (0, 128)))
    want = padded[row : row + 4, col // 2 : col // 2 + 64].reshape(4, 8, 8)
    np.testing.assert_array_equal(out[:, :, :8], want)


def test_the_gap_is_swizzled_along():
    source = _source()
    out = _load(source, "b4x16_p64", (128, 8), (0, 0), 8 * 64, 128).reshape(8, 8, 16)
    for row in range(8):
        for chunk in range(8):
            want = source[row, 8 * chunk : 8 * chunk + 8]
            np.testing.assert_array_equal(out[row, chunk ^ row, :8], want)


def test_packed_elements_have_no_gap():
    source = _source()
    out = _load(source, "b4x16", (64, 8), (96, 0), 8 * 32, 0).reshape(8, 32)
    np.testing.assert_array_equal(out, source[:, 48:80])


@pytest.mark.parametrize(
    "shape, box, swizzle, message",
    [
        ((8, 96), (128, 4), 128, "a multiple of 128 elements a row, got 192"),
        ((8, 128), (64, 4), 0, "inner box 128, got 64"),
        ((8, 128), (128, 4), 64, "swizzle 0 or 128, got 64"),
    ],
)
def test_padded_maps_that_the_driver_refuses(shape, box, swizzle, message):
    with pytest.raises(MachineError, match=message):
        _load(np.zeros(shape, np.uint8), "b4x16_p64", box, (0, 0), 64, swizzle)


def test_padded_elements_can_only_be_loaded():
    source, target = _source(), np.zeros((ROWS, COLS // 2), np.uint8)
    args = [sim.TensorMap(x, (128, 4), 0, "b4x16_p64") for x in (source, target)]
    assert "can only be loaded" in str(run(copy_text(2, (0, 0), (0, 0), 256), args))
