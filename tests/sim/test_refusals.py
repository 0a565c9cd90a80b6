"""What the machine does not know it refuses, with line and text; what the parser takes."""

import numpy as np
import pytest

from tilecat import sim
from tilecat.errors import MachineError

from .texts import clean, kernel, pointers, run

UNKNOWN = [
    "add.rz.f64 %e1, %e2, %e3;", "add.cc.u16 %h1, %h2, %h3;", "mov.v2.u32 %r1, %r2;",
    "ld.global.v3.b32 {%r1, %r2, %r3}, [%d1];", "isspacep.shared %p1, %d1;",
    "st.param.b32 [%r1], %r2;",
    "ld.shared.acquire.cta.b32 %r1, [%r2];", "call foo;", "brkpt;", "cvt.f32.f64 %f1, %e1;",
    "cvt.rn.f32.f16 %f1, %h1;", "mul.u32 %r1, %r2, %r3;", "bra.cond L;", "fence.proxy.weird;",
    "mbarrier.try_wait.parity.shared::cluster.b64 %p1, [%r1], 0;", "shl.u32 %r1, %r2, 1;",
    "cp.async.bulk.tensor.2d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r1], "
    "[%d1, {%r1, %r2}], [%r3];", "setp.lo.s32 %p1, %r1, %r2;", "tanh.approx.ftz.f32 %f1, %f2;",
    "setmaxnreg.inc.sync.aligned.u32 250;", "setmaxnreg.dec.sync.aligned.u32 16;",
    "tcgen05.wait::ld.sync.aligned;", "max.f32 %f1, %f2, %f3, %f4;", "add.u32 %r1, %d1, %r2;",
    "add.u32 %r1, %r2, %h1;", "mov.u32 %p1, %r1;", "selp.b32 %r1, %r2, %r3, %r4;",
    "mov.u32 %r1, %clock;", "mov.f32 %f1, 1;", "add.f32 %f1, %f2, 3;",
    "cp.async.bulk.wait_group %r1;", "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1}, [%r2];",
    "mbarrier.arrive.release.cluster.shared::cluster.b64 %d1, [%r1];", ".const .b32 x;",
    "bar.sync;", "elect.sync _|%r1, -1;", "mov.u64 %d1, %tid.x;", "mov.u32 %r1, nowhere;",
]  # fmt: skip


@pytest.mark.parametrize("line", UNKNOWN)
def test_unknown_forms_raise_with_line_and_text(line):
    text = kernel(f"mov.u32 %r1, smem; mov.u32 %r2, smem; mov.u32 %r3, smem;\n{line}")
    with pytest.raises(MachineError) as caught:
        run(text)
    number = next(i for i, one in enumerate(text.splitlines(), 1) if one == line)
    assert str(number) in caught.value.message
    assert line.rstrip(";").split()[0].split("{")[0] in caught.value.message


def test_nothing_is_refused_only_when_executed():
    text = kernel("bra END; add.rz.f64 %e1, %e2, %e3; END:")
    with pytest.raises(MachineError, match="instruction or modifier not implemented"):
        sim.parse(text)


@pytest.mark.parametrize("change, message", [
    (("ret;\n}", "ret;\n"), "closing brace"), (("mov.u32 %r1, 1;", "mov.u32 %r1, 1"), "parse|mov"),
    ((".maxntid 32, 1, 1", ""), "block size"), (("bra L;", "bra M;"), "no label M"),
    ((".minnctapersm 1", ".noreturn"), "directive .noreturn"),
    ((".maxntid 32, 1, 1", ".maxntid 33, 1, 1"), "multiple of 32"),
    (("mov.u32 %r1, 1;", "mov.u32 , 1;"), "an operand is missing"),
    (("mov.u32 %r1, 1;", "ld.shared.u32 %r1, [];"), "an operand is missing"),
    (("mov.u32 %r1, 1;", "mov.u32 %r1|%r2|%r3, 1;"), "two destinations"),
    (("mov.u32 %r1, 1;", ".loc 1 5"), "a .loc has file, line and column"),
])  # fmt: skip
def test_broken_texts(change, message):
    text = kernel("mov.u32 %r1, 1;\nbra L; L:")
    assert change[0] in text
    with pytest.raises(MachineError, match=message):
        run(text.replace(*change))


def test_arguments_are_checked():
    text = kernel("mov.u32 %r1, 0;", ".param .u64 a, .param .u32 b")
    array = np.zeros(4, np.float32)
    for args, message in (([sim.Pointer(array)], "2 arguments"), ([array, 1], "a wants a number"),
                          ([sim.Pointer(array), sim.Pointer(array)], "b has 4 bytes"),
                          ([sim.Pointer(array), 1.5], "b is .u32")):  # fmt: skip
        with pytest.raises(MachineError, match=message):
            run(text, args)
    clean(run(text, [sim.Pointer(array), -1]))


def test_scopes_labels_constants_and_comments():
    out = np.zeros(32, np.uint32)
    body = """/* a comment ; { */ mov.u32 %r30, 0x10; // another { ;
    { .reg .b32 t; mov.u32 t, 0b101; L: add.u32 %r30, %r30, t; bra M; M: }
    { .reg .b32 t; mov.u32 t, 017; bra L; L: add.u32 %r30, %r30, t; }
    mov.u32 %r2, WARP_SZ; add.u32 %r30, %r30, %r2; mov.f32 %f1, 0f40490FDB; mov.f32 %f2, 2.5;
    add.f32 %f1, %f1, %f2; cvt.rzi.u32.f32 %r3, %f1; add.u32 %r30, %r30, %r3;
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2;
    st.global.u32 [%d1 + -0], %r30;"""
    clean(run(kernel(body, ".param .u64 .ptr .global .align 4 out"), pointers(out)))
    assert set(out.tolist()) == {16 + 5 + 15 + 32 + 5}


def test_static_and_dynamic_shared_arrays_do_not_overlap():
    out = np.zeros(4, np.uint32)
    body = """.shared .align 16 .b8 first[100]; .shared .align 128 .b32 second[4];
    mov.u32 %r1, first; mov.u32 %r2, second; mov.u32 %r3, smem; mov.u32 %r9, %tid.x;
    setp.ne.u32 %p1, %r9, 0; @%p1 bra END; ld.param.u64 %d1, [out];
    st.global.v2.u32 [%d1], {%r1, %r2}; st.global.u32 [%d1+8], %r3; END:"""
    clean(run(kernel(body, ".param .u64 out"), pointers(out)))
    first, second, dynamic, _ = out.tolist()
    assert second % 128 == 0 and second >= first + 100
    assert dynamic % 1024 == 0 and dynamic >= second + 16
