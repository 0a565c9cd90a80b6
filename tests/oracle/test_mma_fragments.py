"""`mma.sync` fragments against the manual's own formulas, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from tilecat import sim
from tilecat.errors import MachineError
from tilecat.sim.mma_sync import ELEMENTS, LANES, TF32_MASK, form_of, multiply

WARPS = 2
OPS = (
    "m8n8k4.row.col.f64.f64.f64.f64", "m8n8k16.row.col.s32.s8.s8.s32",
    "m16n8k4.row.col.f32.tf32.tf32.f32", "m16n8k8.row.col.f32.tf32.tf32.f32",
    "m16n8k8.row.col.f32.bf16.bf16.f32", "m16n8k16.row.col.f32.f16.f16.f32",
    "m16n8k16.row.col.f16.f16.f16.f16", "m16n8k16.row.col.f64.f64.f64.f64",
    "m16n8k16.row.col.s32.u8.s8.s32", "m16n8k32.row.col.f32.e4m3.e5m2.f32",
    "m16n8k32.row.col.satfinite.s32.s8.u8.s32",
)  # fmt: skip


def place_a(bits: int, k: int, m: int, g: int, t: int, i: int) -> tuple[int, int]:
    """Row and column of element i of A, as PTX ISA 9.7.14.5.1-.11 give them."""
    if m == 8:
        return g, t if bits == 64 else t * 4 + i
    if bits == 64:
        return (g, i * 2 + t) if i % 2 == 0 else (g + 8, i * 2 - 2 + t)
    if bits == 32:
        return (g if i in (0, 2) else g + 8), (t if i < 2 else t + 4)
    if bits == 16:
        first = i < 2 or 4 <= i < 6
        return (g if first else g + 8), t * 2 + (i & 1) + (8 if i >= 4 else 0)
    first = i < 4 or 8 <= i < 12
    return (g if first else g + 8), t * 4 + (i & 3) + (16 if i >= 8 else 0)


def place_b(bits: int, g: int, t: int, i: int) -> tuple[int, int]:
    """Row and column of element i of B."""
    if bits >= 32:
        return t + 4 * i, g
    if bits == 16:
        return t * 2 + (i & 1) + (8 if i >= 2 else 0), g
    return t * 4 + (i & 3) + (16 if i >= 4 else 0), g


def place_c(g: int, t: int, i: int) -> tuple[int, int]:
    """Row and column of element i of C and D."""
    return (g if i < 2 else g + 8), t * 2 + (i & 1)


def fragment(matrix: np.ndarray, width: int, place) -> np.ndarray:
    """[registers, threads] holding a [warps, rows, columns] matrix."""
    count = matrix[0].size // LANES
    values = np.zeros((len(matrix) * LANES, count), matrix.dtype)
    for thread in range(len(values)):
        lane = thread % LANES
        for i in range(count):
            values[thread, i] = matrix[(thread // LANES, *place(lane >> 2, lane % 4, i))]
    return np.ascontiguousarray(values.view(f"u{width}").T)


def numbers(generator: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    dtype = ELEMENTS[kind]
    if dtype.kind in "iu":
        return generator.integers(0, 128, shape).astype(dtype)
    return generator.standard_normal(shape).astype(np.float32).astype(dtype)


def exact(matrix: np.ndarray, kind: str) -> np.ndarray:
    if kind == "tf32":
        matrix = (matrix.view(np.uint32) & TF32_MASK).view(np.float32)
    return matrix.astype(np.int64 if matrix.dtype.kind in "iu" else np.float64)


@pytest.mark.parametrize("op", OPS)
def test_mma_sync_matches_manual_layout(op):
    form = form_of(f"mma.sync.aligned.{op}")
    generator = np.random.default_rng(len(op))
    a = numbers(generator, (WARPS, form.m, form.k), form.a)
    b = numbers(generator, (WARPS, form.k, form.n), form.b)
    c = numbers(generator, (WARPS, form.m, form.n), form.c)
    bits, width = 8 * a.itemsize, 8 if form.a == "f64" else 4
    fragments = (
        fragment(a, width, lambda g, t, i: place_a(bits, form.k, form.m, g, t, i)),
        fragment(b, width, lambda g, t, i: place_b(bits, g, t, i)),
        fragment(c, width, place_c),
    )
    assert tuple(len(x) for x in fragments) == form.registers()[1:]
    d = exact(a, form.a) @ exact(b, form.b) + exact(c, form.c)
    expected = fragment(d.astype(ELEMENTS[form.d]), width, place_c)
    np.testing.assert_array_equal(multiply(form, *fragments), expected)


def test_mma_sync_integer_sum_saturates_only_when_told():
    a = np.full((4, 32), 0x7F7F7F7F, np.uint32)
    b = np.full((2, 32), 0x7F7F7F7F, np.uint32)
    c = np.full((4, 32), 2**31 - 1, np.uint32)
    wraps = multiply(form_of("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"), a, b, c)
    held = form_of("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32")
    assert (wraps == (2**31 - 1 + 32 * 127 * 127) % 2**32).all()
    assert (multiply(held, a, b, c) == 2**31 - 1).all()


def test_movmatrix_transposes_each_warps_matrix():
    """Thread l holds row l / 4, elements 2 (l mod 4) and the next, of an 8 x 8 matrix."""
    text = """
        .version 8.0
        .target sm_90a
        .address_size 64
        .visible .entry turns(.param .u64 out) .maxntid 64, 1, 1 {
            .reg .b32 %t, %a, %h; .reg .b64 %p, %o;
            mov.u32 %t, %tid.x;
            shl.b32 %a, %t, 1;
            add.u32 %h, %a, 1;
            shl.b32 %h, %h, 16;
            or.b32 %a, %a, %h;
            movmatrix.sync.aligned.m8n8.trans.b16 %a, %a;
            ld.param.u64 %p, [out];
            cvt.u64.u32 %o, %t;
            shl.b64 %o, %o, 2;
            add.u64 %p, %p, %o;
            st.global.b32 [%p], %a;
            ret;
        }
    """
    out = np.zeros((WARPS, 8, 8), np.uint16)
    result = sim.run(text, grid=(1, 1, 1), args=[sim.Pointer(out)], smem_bytes=0)
    assert not result.reports
    wanted = np.arange(WARPS * 64, dtype=np.uint16).reshape(WARPS, 8, 8).transpose(0, 2, 1)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize(
    "op",
    [
        "m16n8k16.row.col.f32.f16.bf16.f32", "m16n8k8.col.row.f32.f16.f16.f32",
        "m16n8k64.row.col.s32.s4.s4.s32", "m16n8k16.row.col.satfinite.f32.f16.f16.f32",
        "m16n8k32.row.col.f32.f16.f16.f32",
    ],
)  # fmt: skip
def test_mma_sync_refuses_forms_outside_table(op):
    with pytest.raises(MachineError):
        form_of(f"mma.sync.aligned.{op}")
