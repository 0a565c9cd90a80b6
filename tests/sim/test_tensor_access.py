"""tcgen05.ld and .st: every shape and number, packing, reductions, lanes, allocation rules."""

import numpy as np
import pytest

from tilecat import sim
from tilecat.errors import MachineError

from .tensor_kernel import run, text
from .texts import clean, kinds

REGISTERS = {"32x32b": 1, "16x64b": 1, "16x32bx2": 1, "16x128b": 2, "16x256b": 4}
COLUMNS = {"32x32b": 1, "16x64b": 2, "16x32bx2": 1, "16x128b": 4, "16x256b": 8}
NUMBERS = (1, 2, 4, 8, 16, 32, 64, 128)
FORMS = [(s, n) for s in REGISTERS for n in NUMBERS if REGISTERS[s] * n <= 128]
QUICK = (1, 4, 32)
TABLE = [f if f[1] in QUICK else pytest.param(*f, marks=pytest.mark.full) for f in FORMS]
SPLIT = 160


def place(shape: str, t: int, r: int, half: int = 0, packed: bool = False) -> tuple[int, int]:
    """Lane and column of lane t's register r: figures of 9.7.17.2.3.1, 9.7.17.8.2."""
    if shape == "32x32b":
        lane, column = t, r
    elif shape == "16x32bx2":
        lane, column = t % 16, r
    elif shape == "16x64b":
        lane, column = t // 4 + 8 * (t & 1), 2 * r + (t >> 1 & 1)
    elif shape == "16x128b":
        lane, column = t // 4 + 8 * (r & 1), 4 * (r >> 1) + t % 4
    else:
        lane, column = t // 4 + 8 * (r >> 1 & 1), 8 * (r >> 2) + 2 * (t % 4) + (r & 1)
    if packed:
        column = 2 * column + half
    return lane, column + (SPLIT if shape == "16x32bx2" and t >= 16 else 0)


def access(op: str, shape: str, number: int, packed: bool = False, lane: str = "%r9") -> str:
    """The instruction on registers %w0 on."""
    count = REGISTERS[shape] * number
    data = "{" + ", ".join(f"%w{k}" for k in range(count)) + "}"
    mod = {"ld": ".pack::16b", "st": ".unpack::16b"}[op] if packed else ""
    split = [str(SPLIT)] if shape == "16x32bx2" else []
    operands = [data, f"[{lane}]", *split] if op == "ld" else [f"[{lane}]", *split, data]
    return (f"tcgen05.{op}.sync.aligned.{shape}.x{number}{mod}.b32 {', '.join(operands)};"
            f" tcgen05.wait::{op}.sync.aligned;")  # fmt: skip


def moves(op: str, count: int, pointer: str) -> str:
    """Registers %w from or to global memory, `count` words a thread."""
    start = f"ld.param.u64 %d3, [{pointer}]; mul.wide.u32 %d4, %r1, {4 * count};"
    lines = [start, "add.u64 %d3, %d3, %d4;"]
    for k in range(count):
        operands = f"%w{k}, [%d3+{4 * k}]" if op == "ld" else f"[%d3+{4 * k}], %w{k}"
        lines.append(f"{op}.global.b32 {operands};")
    return "\n".join(lines)


WIDTH = 320  # columns that the widest access touches


@pytest.mark.parametrize("shape, number", TABLE)
@pytest.mark.parametrize("packed", [False, True])
def test_loads(shape, number, packed):
    if packed and (COLUMNS[shape] * number > 128 or (shape, number) == ("16x32bx2", 128)):
        return  # wider than tensor memory, or than the split
    count = REGISTERS[shape] * number
    words = np.arange(128 * WIDTH, dtype=np.uint32).reshape(128, WIDTH) * np.uint32(2654435761)
    before = access("ld", shape, number, packed) + moves("st", count, "out")
    result, got = run_whole(before, words, filled=WIDTH, out=np.zeros((128, count), np.uint32))
    clean(result)
    for t in range(128):
        for r in range(count):
            parts = []
            for half in range(2):
                lane, column = place(shape, t % 32, r, half, packed)
                parts.append(int(words[t // 32 * 32 + lane, column]))
            want = parts[0] & 0xFFFF | (parts[1] & 0xFFFF) << 16 if packed else parts[0]
            assert got[t, r] == want, (t, r)


def run_whole(before: str, words: np.ndarray, *, filled=0, read=0, out=None, **options):
    """Run with `before` executed by all threads; `out` may be the test's own array."""
    if out is None:
        return run(text("", filled=filled, read=read, before=before), np.zeros(16, np.uint8), words,
                   read, **options)  # fmt: skip
    ptx = text("", filled=filled, read=0, before=before)
    args = [sim.Pointer(a) for a in (np.zeros(49152, np.uint8), words, out)]
    return sim.run(ptx, grid=1, args=args, smem_bytes=49184, **options), out


@pytest.mark.parametrize("shape, number", TABLE)
@pytest.mark.parametrize("packed", [False, True])
def test_stores(shape, number, packed):
    if packed and (COLUMNS[shape] * number > 128 or (shape, number) == ("16x32bx2", 128)):
        return  # wider than tensor memory, or than the split
    count = REGISTERS[shape] * number
    values = np.random.default_rng(count).integers(0, 1 << 32, (128, count), np.uint32)
    zero = "\n".join(  # everything is written first, so that all of it can be read
        f"tcgen05.st.sync.aligned.32x32b.x32.b32 [%r9+{c}], {{{', '.join(['%w0'] * 32)}}};"
        for c in range(0, WIDTH, 32)
    )
    before = "mov.b32 %w0, 0;" + zero + "tcgen05.wait::st.sync.aligned;"
    before += moves("ld", count, "words") + access("st", shape, number, packed)
    result, out = run_whole(before, values, read=WIDTH)
    clean(result)
    want = np.zeros((128, WIDTH), np.uint32)
    for t in range(128):
        for r in range(count):
            for half in range(1 + packed):
                lane, column = place(shape, t % 32, r, half, packed)
                part = int(values[t, r])
                part = part >> 16 * half & 0xFFFF if packed else part
                want[t // 32 * 32 + lane, column] = part
    np.testing.assert_array_equal(out, want)


WAIT_LOAD, WAIT_STORE = "tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::st.sync.aligned;"
REDUCTIONS = [("max", ".f32"), ("min", ".f32"), ("max.abs", ".f32"), ("min.NaN", ".f32"),
              ("max", ".s32"), ("min", ".u32")]  # fmt: skip


@pytest.mark.parametrize("shape", ["32x32b", "16x32bx2"])
@pytest.mark.parametrize("how, kind", REDUCTIONS)
def test_loads_with_a_reduction(shape, how, kind):
    values = np.random.default_rng(3).standard_normal((128, WIDTH)).astype(np.float32)
    values[5, 2] = np.nan
    tail = f", {SPLIT}" if shape == "16x32bx2" else ""
    names = ", ".join(f"%w{k}" for k in range(8))
    before = (f"tcgen05.ld.red.sync.aligned.{shape}.x8.{how}{kind} {{{names}}}, %w8, [%r9]{tail};"
              + WAIT_LOAD + moves("st", 9, "out"))  # fmt: skip
    out = np.zeros((128, 9), np.uint32)
    ptx = text("", filled=WIDTH, read=0, before=before, target="sm_103a")
    args = [sim.Pointer(a) for a in (np.zeros(49152, np.uint8), values, out)]
    clean(sim.run(ptx, grid=1, args=args, smem_bytes=49184))
    for t in range(128):
        cells = [place(shape, t % 32, r) for r in range(8)]
        seen = np.array([values[t // 32 * 32 + lane, column] for lane, column in cells])
        dtype = {"f32": np.float32, "s32": np.int32, "u32": np.uint32}[kind[1:]]
        seen = np.abs(seen) if "abs" in how else seen.view(dtype)
        one = (np.fmax if "max" in how else np.fmin) if kind == ".f32" else None
        if "NaN" in how:
            one = np.minimum
        one = one or (np.maximum if "max" in how else np.minimum)
        want, got = one.reduce(seen), out[t, 8:9].view(dtype)[0]
        assert got == want or np.isnan(got) and np.isnan(want)


def test_reductions_need_a_later_chip():
    line = "tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {%w0, %w1}, %w2, [%r9];"
    with pytest.raises(MachineError, match="not supported on target sm_100a"):
        sim.parse(text("", filled=0, read=0, before=line))
    with pytest.raises(MachineError, match="at least .x2"):
        sim.parse(text("", filled=0, read=0, target="sm_103a",
                       before=line.replace(".x2", ".x1").replace(", %w1}", "}")))  # fmt: skip


def reports(before: str, *, filled: int = 32, **options) -> set[str]:
    """Kinds of the reports of a kernel."""
    words = np.zeros((128, 64), np.uint32)
    result, _ = run(text("", filled=filled, read=0, before=before, columns=64, **options),
                    np.zeros(16, np.uint8), words, 0)  # fmt: skip
    return kinds(result)


LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%w0}, "
STORE = "tcgen05.st.sync.aligned.32x32b.x1.b32 "
ACCESSES = [
    (f"{LOAD} [%r9]; {WAIT_LOAD}", set()),
    (f"{LOAD} [%r9+40]; {WAIT_LOAD}", {"uninitialised"}),
    (f"{LOAD} [%r9+64]; {WAIT_LOAD}", {"tcgen05"}),  # past the allocation
    (f"{LOAD} [%r5]; {WAIT_LOAD}", {"tcgen05"}),  # lanes of another warp
    (f"add.u32 %r10, %r9, 65536; {LOAD} [%r10]; {WAIT_LOAD}", {"tcgen05"}),  # from lane 1
    (f"add.u32 %r10, %r9, %r1; {LOAD} [%r10]; {WAIT_LOAD}", {"tcgen05"}),  # an address a thread
    (f"{STORE} [%r9], {{%w0}}; {LOAD} [%r9]; {WAIT_LOAD} {WAIT_STORE}", {"race"}),
    (f"{STORE} [%r9], {{%w0}}; {WAIT_STORE} {LOAD} [%r9]; {WAIT_LOAD}", set()),
    (f"{LOAD} [%r9]; {STORE} [%r9], {{%w0}}; {WAIT_LOAD} {WAIT_STORE}", {"race"}),
    (f"{LOAD} [%r9]; {WAIT_LOAD} {STORE} [%r9], {{%w0}}; {WAIT_STORE}", set()),
    (f"{LOAD} [%r9];", {"race"}),  # dealloc overtakes it
]  # fmt: skip


@pytest.mark.parametrize("before, wanted", ACCESSES)
def test_rules_of_access(before, wanted):
    assert reports("mov.b32 %w0, 0;" + before) == wanted


ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r7], "
DEALLOC = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 "
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"


def alloc(lines: str, columns: int = 64, extra: str = "") -> set[str]:
    """Kinds of the reports where warp 0 executes lines after its allocation."""
    before = f"setp.ge.u32 %p5, %r1, 32; @%p5 bra NOT; {lines} NOT:\n{extra}"
    words = np.zeros((128, 64), np.uint32)
    result, _ = run(text("", filled=0, read=0, before=before, columns=columns),
                    np.zeros(16, np.uint8), words, 0)  # fmt: skip
    return kinds(result)


SECOND = ALLOC.replace("%r7", "%r42")
AGAIN = f"add.u32 %r42, %r7, 8; {SECOND} 32; ld.shared.b32 %r30, [%r42]; "
ALLOCATIONS = [
    (f"{AGAIN} {DEALLOC} %r30, 32;", set()),
    (AGAIN, {"exit"}),
    (f"{RELINQUISH} {AGAIN} {DEALLOC} %r30, 32;", {"tcgen05"}),
    (f"{AGAIN} {DEALLOC} %r30, 32; {SECOND} 64; ld.shared.b32 %r30, [%r42]; {DEALLOC} %r30, 64;",
     {"tcgen05"}),  # it grows
    (f"mov.u32 %r31, 48; {ALLOC} %r31;", {"tcgen05"}),
    (f"mov.u32 %r31, 16; {ALLOC} %r31;", {"tcgen05"}),
    (f"mov.u32 %r31, 1024; {ALLOC} %r31;", {"tcgen05"}),
    (f"{AGAIN} {DEALLOC} %r30, 64;", {"tcgen05"}),
    (f"{AGAIN} add.u32 %r30, %r30, 1; {DEALLOC} %r30, 32;", {"tcgen05"}),
    (f"{AGAIN} {DEALLOC} %r30, 32; {DEALLOC} %r30, 32;", {"tcgen05"}),
]  # fmt: skip


@pytest.mark.parametrize("lines, wanted", ALLOCATIONS)
def test_rules_of_allocation(lines, wanted):
    assert alloc(lines) == wanted


def test_alloc_blocks_until_columns_are_free():
    assert alloc(f"{ALLOC} 512;", columns=512) == {"deadlock"}
    free = f"""setp.lt.u32 %p5, %r1, 32; setp.ge.u32 %p6, %r1, 64; or.pred %p5, %p5, %p6;
    @%p5 bra FREE; add.u32 %r40, %r7, 8;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r40], 512;
    ld.shared.b32 %r41, [%r40]; {DEALLOC} %r41, 512; FREE:"""
    begin = f"{DEALLOC} %r5, 512;"
    after = f"""bar.sync 0; setp.lt.u32 %p5, %r1, 32; @!%p5 bra HELD;
    {ALLOC} 512; ld.shared.b32 %r5, [%r7]; HELD: bar.sync 0;"""
    assert alloc(begin, columns=512, extra=free + after) == set()


@pytest.mark.parametrize("line, message", [
    (f"{ALLOC} 48;", "power of two"), (f"{ALLOC} 1024;", "power of two"),
    (f"{DEALLOC} [%r5], 32;", "operand form"), (f"{DEALLOC} %r5, 0;", "power of two"),
    ("tcgen05.alloc.exclusive.cta_group::1.sync.aligned.shared::cta.b32 [%r7], 576;",
     "not supported on target sm_100a"),
    ("tcgen05.ld.sync.aligned.16x256b.x1.b32 {%w0, %w1}, [%r9];", "4 registers"),
    ("tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {%w0}, [%r9];", "not implemented|operand form"),
    ("tcgen05.ld.sync.aligned.16x256b.x64.b32 {%w0}, [%r9];", "at most 128 registers"),
    ("tcgen05.ld.sync.aligned.32x32b.x1.unpack::16b.b32 {%w0}, [%r9];", "not implemented"),
])  # fmt: skip
def test_forms_the_manual_does_not_have_are_refused(line, message):
    with pytest.raises(MachineError, match=message):
        sim.parse(text("", filled=0, read=0, before=line))


EXCLUSIVE = {"target": "sm_107a", "version": "9.4"}


@pytest.mark.parametrize("columns, wanted", [(576, set()), (560, {"tcgen05"}), (608, {"tcgen05"})])
def test_exclusive_allocation(columns, wanted):
    ptx = text("", filled=0, read=0, columns=512, **EXCLUSIVE)
    ptx = ptx.replace("tcgen05.alloc.", "tcgen05.alloc.exclusive.")
    ptx = ptx.replace("tcgen05.dealloc.", "tcgen05.dealloc.exclusive.")
    ptx = ptx.replace("[%r7], 512;", "[%r7], %r33;").replace("%r5, 512;", "%r5, %r33;")
    ptx = ptx.replace("fence.proxy.async", f"mov.u32 %r33, {columns}; fence.proxy.async", 1)
    result, _ = run(ptx, np.zeros(16, np.uint8), np.zeros((128, 1)), 0)
    assert kinds(result) == wanted


def test_exclusive_allocation_is_alone_and_freed_as_such():
    ptx = text("", filled=0, read=0, columns=64, **EXCLUSIVE)
    mixed = ptx.replace("tcgen05.alloc.", "tcgen05.alloc.exclusive.")
    result, _ = run(mixed, np.zeros(16, np.uint8), np.zeros((128, 1)), 0)
    assert kinds(result) == {"tcgen05"} and "no such allocation" in str(result)
    both = f"setp.ge.u32 %p5, %r1, 32; @%p5 bra NOT; {AGAIN} NOT:"
    second = text("", filled=0, read=0, columns=64, before=both, **EXCLUSIVE)
    second = second.replace("tcgen05.alloc.", "tcgen05.alloc.exclusive.", 1)
    result, _ = run(second, np.zeros(16, np.uint8), np.zeros((128, 1)), 0)
    assert kinds(result) == {"tcgen05"} and "exclusive" in str(result)
