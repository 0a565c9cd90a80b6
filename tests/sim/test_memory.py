"""Shared and global memory: bytes, bounds, conflicts, races inside a chunk and between CTAs."""

import ml_dtypes
import numpy as np
import pytest

from tilecat import sim

from .texts import clean, kernel, kinds, pointers, run

COPY = """
mov.u32 %r1, %tid.x; mov.u32 %r2, smem; ld.param.u64 %d1, [src]; ld.param.u64 %d2, [dst];
ld.param.u32 %r9, [n]; setp.lt.u32 %p1, %r1, %r9;
mul.wide.u32 %d3, %r1, 2; add.u64 %d4, %d1, %d3; add.u64 %d5, %d2, %d3;
mov.b16 %h1, 0; @%p1 ld.global.b16 %h1, [%d4];
mad.lo.u32 %r3, %r1, 2, %r2; st.shared.b16 [%r3], %h1;
bar.sync 0;
xor.b32 %r4, %r1, 1; mad.lo.u32 %r4, %r4, 2, %r2; ld.shared.b16 %h2, [%r4];
@%p1 st.global.b16 [%d5], %h2;
"""
PARAMS = ".param .u64 src, .param .u64 dst, .param .u32 n"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("n", [128, 77])
def test_tile_copied_element_by_element_gives_no_report(n, seed):
    source, target = np.arange(1, 129, dtype=np.uint16), np.zeros(128, np.uint16)
    clean(run(kernel(COPY, PARAMS, 128), [*pointers(source, target), n], seed=seed))
    padded = np.where(np.arange(128) < n, source, 0)
    assert target[:n].tolist() == padded[np.arange(128) ^ 1][:n].tolist()
    assert not target[n:].any()


# Warp w writes bytes of every chunk that no other warp writes: lane l, byte 16 l + 4 w.
INTERLEAVED = """
mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31; shr.u32 %r3, %r1, 5; mov.u32 %r4, smem;
mad.lo.u32 %r5, %r2, 16, %r4; mad.lo.u32 %r5, %r3, 4, %r5;
st.shared.b32 [%r5], %r1; {first}
mad.lo.u32 %r6, %r1, 4, %r4; ld.shared.b32 %r7, [{read}]; {second}
ld.param.u64 %d1, [out]; mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2; st.global.b32 [%d1], %r7;
"""


@pytest.mark.parametrize("seed", range(8))
def test_warps_share_chunks_without_false_reports(seed):
    out = np.zeros(128, np.uint32)
    text = INTERLEAVED.format(first="bar.sync 0;", read="%r6", second="")
    clean(run(kernel(text, ".param .u64 out", 128), pointers(out), seed=seed))
    assert out.tolist() == [(i % 4) * 32 + i // 4 for i in range(128)]


@pytest.mark.parametrize("seed", range(6))
def test_race_inside_a_chunk_is_found(seed):
    out = np.zeros(128, np.uint32)
    text = INTERLEAVED.format(first="", read="%r6", second="")
    found = kinds(run(kernel(text, ".param .u64 out", 128), pointers(out), seed=seed))
    assert found & {"race", "uninitialised"}
    own = INTERLEAVED.format(first="", read="%r5", second="")  # each thread reads what it wrote
    clean(run(kernel(own, ".param .u64 out", 128), pointers(out), seed=seed))


def test_reading_bytes_nobody_wrote_is_reported():
    body = """mov.u32 %r1, smem; st.shared.b32 [%r1], 5; ld.shared.b16 %h1, [%r1+2];
    ld.shared.b8 %r3, [%r1+4];"""
    result = run(kernel(body))
    assert kinds(result) == {"uninitialised"} and result.reports[0].text.startswith("ld.shared.b8")
    assert "+0x4" in result.reports[0].message


def test_two_warps_that_write_different_bytes_to_one_place_race():
    body = """mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, {shift}; mov.u32 %r3, smem;
    st.shared.b32 [%r3], %r2;"""
    assert kinds(run(kernel(body.format(shift=5), threads=64))) == {"race"}
    for seed in range(4):  # replicated values are no race
        clean(run(kernel(body.format(shift=8), threads=64), seed=seed))


def test_widths_signs_and_vectors():
    data = np.array([0x80, 0x7F, 0xFF, 1, 2, 3, 4, 5, 0, 0x80, 6, 7, 8, 9, 10, 11], np.uint8)
    out = np.zeros(8, np.uint64)
    body = """ld.param.u64 %d1, [src]; ld.param.u64 %d2, [dst]; mov.u32 %r9, %tid.x;
    setp.ne.u32 %p1, %r9, 0; @%p1 bra END;
    ld.global.nc.L1::no_allocate.s8 %r1, [%d1]; ld.global.u8 %r2, [%d1];
    ld.global.s16 %r3, [%d1+8]; ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%d1];
    ld.global.v2.b64 {%d5, %d6}, [%d1];
    cvt.u64.u32 %d3, %r1; st.global.b64 [%d2], %d3;
    cvt.u64.u32 %d3, %r2; st.global.b64 [%d2+8], %d3;
    cvt.u64.u32 %d3, %r3; st.global.b64 [%d2+16], %d3;
    st.global.v4.b32 [%d2+32], {%r4, %r5, %r6, %r7}; st.global.v2.b64 [%d2+48], {%d5, %d6};
    END:"""
    clean(run(kernel(body, ".param .u64 src, .param .u64 dst"), pointers(data, out)))
    assert out[:3].tolist() == [0xFFFFFF80, 0x80, 0xFFFF8000]
    assert out[4:8].view(np.uint8).tolist() == data.tolist() * 2


def test_global_bounds_name_the_argument():
    small, other = np.zeros(8, np.float32), np.zeros(64, np.float32)
    body = """ld.param.u64 %d1, [weights]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4;
    add.u64 %d1, %d1, %d2; ld.global.f32 %f1, [%d1];"""
    result = run(kernel(body, ".param .u64 weights, .param .u64 other"), pointers(small, other))
    assert kinds(result) == {"bounds"}
    assert "byte 32 of argument weights, which has 32 bytes" in result.reports[0].message
    store = body.replace("ld.global.f32 %f1, [%d1]", "st.global.f32 [%d1], 0f3F800000")
    result = run(kernel(store, ".param .u64 weights, .param .u64 other"), pointers(small, other))
    assert kinds(result) == {"bounds"} and (small == 1).all() and not other.any()


def test_views_of_one_array_stay_aliases():
    base = np.arange(64, dtype=np.uint32)
    body = """ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0; @%p1 bra END; sub.u64 %d3, %d2, %d1; st.global.b64 [%d1], %d3; END:"""
    clean(run(kernel(body, ".param .u64 a, .param .u64 b"), pointers(base[:8], base[40:])))
    assert base[:2].view(np.uint64)[0] == 160


def test_misaligned_access_is_reported():
    result = run(kernel("mov.u32 %r1, smem; add.u32 %r1, %r1, 2; st.shared.b32 [%r1], 1;"))
    assert kinds(result) == {"align"}


def test_shared_bounds():
    assert kinds(run(kernel("mov.u32 %r1, 1048560; st.shared.b32 [%r1], 1;"))) == {"bounds"}
    assert kinds(run(kernel("mov.u32 %r1, 0; ld.shared.b32 %r2, [%r1];"))) == {"bounds"}


SUM = """ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; add.u32 %r3, %r1, %r2;
{op}"""


def test_atomics_of_several_ctas_add_up_and_are_no_race():
    out = np.zeros(2, np.uint32)
    body = SUM.format(op="red.global.add.u32 [%d1], %r3; atom.global.add.u32 %r4, [%d1+4], 1;")
    clean(run(kernel(body, ".param .u64 out", 64), pointers(out), grid=3))
    assert out.tolist() == [3 * sum(range(64)) + 64 * 3, 192]
    sums = np.zeros(1, np.float32)
    body = SUM.format(op="cvt.rn.f32.u32 %f1, %r3; red.global.add.f32 [%d1], %f1;")
    clean(run(kernel(body, ".param .u64 out", 32), pointers(sums), grid=2))
    assert sums[0] == 2 * sum(range(32)) + 32


def test_two_ctas_that_store_one_element():
    out = np.zeros(96, np.uint32)
    body = SUM.format(
        op="mul.wide.u32 %d2, {index}, 4; add.u64 %d1, %d1, %d2; st.global.u32 [%d1], %r1;"
    )
    text = kernel(body.replace("{index}", "%r3"), ".param .u64 out")
    result = run(text, pointers(out), grid=2)
    assert kinds(result) == {"global-race"} and "argument out" in result.reports[0].message
    apart = body.replace("{index}", "%r5").replace(
        "add.u32 %r3", "mad.lo.u32 %r5, %r2, 32, %r1; add.u32 %r3"
    )
    clean(run(kernel(apart, ".param .u64 out"), pointers(out), grid=3))


MATRIX = """mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mad.lo.u32 %r3, %r1, 16, %r2;
{fill}
bar.sync 0;
and.b32 %r4, %r1, 15; shr.u32 %r5, %r1, 4; {swizzle} mad.lo.u32 %r6, %r4, 128, %r2;
mad.lo.u32 %r6, %r5, 16, %r6;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r6];"""


@pytest.mark.parametrize(
    "swizzle, ways", [("", 8), ("and.b32 %r7, %r4, 7; xor.b32 %r5, %r5, %r7;", 1)]
)
def test_bank_conflicts_of_ldmatrix(swizzle, ways):
    fill = "\n".join(f"st.shared.v4.b32 [%r3+{512 * k}], {{%r1, %r1, %r1, %r1}};" for k in range(4))
    result = run(kernel(MATRIX.format(fill=fill, swizzle=swizzle)))
    clean(result)
    found = {c.text.split(".")[0]: c for c in result.conflicts if c.text.startswith("ldmatrix")}
    conflict = found["ldmatrix"]
    assert (conflict.ideal, conflict.wavefronts, conflict.ways) == (4, 4 * ways, ways)
    assert all(c.ways == 1 for c in result.conflicts if c.text.startswith("st.shared"))


@pytest.mark.parametrize("stride, size, wavefronts, ideal", [
    (4, "b32", 1, 1), (8, "b32", 2, 1), (128, "b32", 32, 1), (132, "b32", 1, 1), (0, "b32", 1, 1),
    (8, "b64", 2, 2), (16, "b64", 4, 2), (16, "v4.b32", 4, 4), (32, "v4.b32", 8, 4),
    (2, "b16", 1, 1),
])  # fmt: skip
def test_bank_conflicts_of_plain_loads(stride, size, wavefronts, ideal):
    target = {"b32": "%r9", "b64": "%d9", "b16": "%h9", "v4.b32": "{%r9, %r10, %r11, %r12}"}[size]
    body = f"mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mad.lo.u32 %r3, %r1, {stride}, %r2;"
    result = run(kernel(f"{body} ld.shared.{size} {target}, [%r3];"), races=False)
    (conflict,) = result.conflicts
    assert (conflict.wavefronts, conflict.ideal) == (wavefronts, ideal)


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_then_ldmatrix_move_8x8_blocks(trans, count):
    out = np.zeros((32, 4), np.uint32)
    words = "{" + ", ".join(f"%r{10 + k}" for k in range(count)) + "}"
    back = "{" + ", ".join(f"%r{20 + k}" for k in range(count)) + "}"
    body = f"""mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mad.lo.u32 %r3, %r1, 16, %r2;
    mul.lo.u32 %r4, %r1, 131074; add.u32 %r4, %r4, 65536; mov.u32 %r20, 0; mov.u32 %r21, 0;
    mov.u32 %r22, 0; mov.u32 %r23, 0;
    mov.b32 %r10, %r4; add.u32 %r11, %r4, 4194368; add.u32 %r12, %r11, 4194368;
    add.u32 %r13, %r12, 4194368;
    stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r3], {words};
    ldmatrix.sync.aligned.m8n8.x{count}.shared.b16 {back}, [%r3];
    ld.param.u64 %d1, [out]; mul.wide.u32 %d2, %r1, 16; add.u64 %d1, %d1, %d2;
    st.global.v4.b32 [%d1], {{%r20, %r21, %r22, %r23}};"""
    clean(run(kernel(body, ".param .u64 out"), pointers(out)))
    value = np.arange(32)
    for k in range(count):  # element (row, column) of matrix k: lane 4 row + column / 2
        matrix = np.zeros((8, 8), np.int64)
        for lane in value:
            low = 2 * lane + 64 * k
            matrix[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2] = low, low + 1
        want = matrix.T if trans else matrix
        got = np.zeros((8, 8), np.int64)
        for lane in value:
            word = int(out[lane, k])
            got[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2] = word & 0xFFFF, word >> 16
        np.testing.assert_array_equal(got, want)


def test_read_only_arrays_are_refused():
    array = np.zeros(4, ml_dtypes.bfloat16)
    array.flags.writeable = False
    body = "ld.param.u64 %d1, [out]; mov.b16 %h1, 1; st.global.b16 [%d1], %h1;"
    with pytest.raises(sim.launch.MachineError, match="out is read-only"):
        run(kernel(body, ".param .u64 out"), pointers(array))
