"""Kernels, types, control flow, errors."""

from __future__ import annotations

import tilecat as tc
from tilecat.driver import Compiled
from tilecat.language.scalars import Scalar, Var

from .frame import Family
from .maps import FRAME, E

DOUBLE = """
@tc.kernel
def double(X: gl[f32, "M", "N"], Y: gl[f32, "M", "N"], *, cols=64):
    with tc.warpgroup():
        x = tc.load(X[tc.cta_id(), 0], rt[f32, 64, cols])
        tc.store(Y[tc.cta_id(), 0], x * 2.0)

x = np.ones((128, 64), np.float32)
y = np.zeros_like(x)
"""
BASICS = Family(
    "kernels",
    "Kernels",
    "A kernel is a Python function that is traced: Python runs once and records what tiles do.",
    ("kernel", "KernelFunction", "kernel.__call__", "kernel.compile", "kernel.simulate",
     "compiled", "compiled.ir", "compiled.ptx", "compiled.cubin", "compiled.sass",
     "compiled.resources", "require", "require_extent",
     "require_feature", "allow_spills"),
    (
        E("kernel kernel.__call__ KernelFunction",
          DOUBLE + "double(x, y, grid=2)  # NumPy arrays: the PTX machine; CUDA tensors: the GPU",
          "(y == 2).all()"),
        E("kernel.compile compiled compiled.ir compiled.ptx compiled.resources",
          DOUBLE + "compiled = double.compile(target=\"sm_90a\", cols=32)",
          ("'.visible .entry double' in compiled.ptx", "'Map.mul' in compiled.ir",
           "compiled.resources.spill_bytes == 0")),
        E("compiled.cubin compiled.sass",
          DOUBLE + "compiled = double.compile(target=\"sm_90a\")",
          ("compiled.cubin[:4] == b'\\x7fELF'",
          "'FMUL' in compiled.sass or 'FADD' in compiled.sass")),
        E("kernel.simulate",
          DOUBLE + "result = double.simulate(x, y, grid=2, seed=3)",
          ("result.reports == ()", "result.instructions > 0")),
        E("require_extent", """
@tc.kernel
def adds(X: tc.inout[f32, "M", 64], *vectors):
    with tc.warpgroup():
        x = tc.load(X[0, 0], rt[f32, 64, 64])
        for vector in vectors:
            tc.require_extent(vector, 0, X, 0)
            x += tc.load(vector[0], rv[f32, 64])
        tc.store(X[0, 0], x)

x, ones = np.zeros((64, 64), np.float32), np.ones(64, np.float32)
adds(x, ones, ones, grid=1)
""", "(x == 2).all()"),
        E("allow_spills", """
@tc.kernel
def doubled(X: inout[f32, "M", "N"]):
    tc.allow_spills(16)  # bytes of a thread: more is refused, where the GPU's text is assembled
    with tc.warpgroup():
        tc.store(X[0, 0], tc.load(X[0, 0], rt[f32, 64, 64]) * 2.0)

x = np.ones((64, 64), np.float32)
doubled(x, grid=1)
""", "(x == 2).all()"),
        E("require_feature", """
@tc.kernel
def wide(X: gl[f32, "M", "N"]):
    tc.require_feature("tcgen05", "wide: sums in tensor memory")
    with tc.warpgroup():
        tc.store(X[0, 0], tc.zeros(rt[f32, 64, 64]))

try:
    wide.compile(target="sm_90a")
except tc.ArchError as error:
    text = error.message
""", "text == 'wide: sums in tensor memory: needs tcgen05, which sm_90a does not have'"),
        E("require", """
@tc.kernel
def tiled(X: gl[f32, "M", "N"], *, cols):
    tc.require(cols % 16 == 0, f"tiled: cols is a multiple of 16, got {cols=}", hint="cols=64")
    with tc.warpgroup():
        tc.store(X[0, 0], tc.zeros(rt[f32, 64, cols]))

try:
    tiled(np.ones((64, 64), np.float32), cols=20)
except tc.LayoutError as error:
    text = error.message
""", "text == 'tiled: cols is a multiple of 16, got cols=20'"),
    ),
    objects={"kernel": tc.KernelFunction, "compiled": Compiled},
    notes={"compiled": "What `kernel.compile` gives, or a call has made: one specialisation for "
    "one "
                       "target, compiled as far as it is asked."},
)  # fmt: skip

LAYOUT_NOTE = "Where its elements lie: `tilecat layout '{}'` prints and draws it."
TYPES = Family(
    "types",
    "Types and dtypes",
    """
A type is a space, a dtype, a shape and a layout. `gl[...]` and `inout[...]` are the types of tensor
arguments, `st[...]` and `sv[...]` of shared tiles and vectors, `rt[...]` and `rv[...]` of
register tiles and vectors. Extents of tiles are compile-time ints, those of tensors run-time
values.
""",
    ("gl", "inout", "st", "sv", "rt", "rv", "DType", "DTypeVar", "bf16", "f16", "f32", "tf32",
    "e4m3",
     "e5m2", "s8", "u8", "s32", "u32", "dtypes", "layouts"),
    (
        E("gl", "kind = gl[bf16, \"M\", 64]  # two axes: a run-time extent named M, and 64",
          ("str(kind) == 'gl[bf16, M, 64]'", "kind.rank == 2")),
        E("inout", """
@tc.kernel
def scale(X: inout[f32, "M", 64]):
    with tc.warpgroup():
        tc.store(X[0, 0], tc.load(X[0, 0], rt[f32, 64, 64]) * 2.0)

x = np.ones((64, 64), np.float32)
scale(x, grid=1)
""", "(x == 2).all()"),
        E("st", "kind = st[bf16, 64, 128]  # two panels of 64 columns, swizzle 128",
          ("kind.layout.num_bytes == 64 * 128 * 2", "kind.layout.byte_offset(3, 70) == 8636")),
        E("sv", "kind = sv[f32, 64]", "kind.layout.num_bytes == 256"),
        E("rt", "kind = rt[f32, 64, 32]  # of a warpgroup: 16 elements in each of 128 threads",
          ("kind.registers == 16", "kind.layout.row_col(37, 6) == (25, 10)")),
        E("rv", "kind = rv[f32, 64]  # goes with the rows of a 64-row tile",
          ("kind.registers == 2", "kind.layout.position(37, 1) == 25")),
        E("DType bf16 f16 f32 tf32 e4m3 e5m2 s8 u8 s32 u32 dtypes",
          "names = [d.name for d in (bf16, f16, f32, tf32, e4m3, e5m2, s8, u8, s32, u32)]",
          ("names[4] == 'e4m3'", "tc.dtypes.by_name('bf16') is bf16", "e4m3.bits == 8")),
        E("DTypeVar", """
T = tc.DTypeVar("T", bf16, f16)  # the call's arrays decide

@tc.kernel
def copies(X: gl[T, 64, 64], Y: gl[T, 64, 64]):
    with tc.warpgroup():
        tc.store(Y[0, 0], tc.load(X[0, 0], rt[X.dtype, 64, 64]))

x = np.ones((64, 64), np.float16)
y = np.zeros_like(x)
copies(x, y, grid=1)
""", "(y == 1).all()"),
        E("layouts", "found = tc.layouts.bank_conflicts([128 * lane for lane in range(32)], 4)",
          "found == 32"),
    ),
    notes={
        "bf16": "bfloat16: 8 exponent and 7 mantissa bits.",
        "f16": "float16: 5 exponent and 10 mantissa bits.",
        "f32": "float32.",
        "tf32": "float32 of which the tensor cores keep 10 mantissa bits; f32 in memory.",
        "e4m3": "float8 of 4 exponent and 3 mantissa bits, without infinities (float8_e4m3fn).",
        "e5m2": "float8 of 5 exponent and 2 mantissa bits.",
        "s8": "int8, signed.", "u8": "uint8, unsigned.", "s32": "int32; indices are s32.",
        "u32": "uint32.",
        "dtypes": "The module of all dtypes: one row each, `by_name`, `round`.",
        "layouts": "The module of layouts as linear maps, and of bank conflicts.",
    },
)  # fmt: skip

CONTROL = Family(
    "control",
    "Control flow, scalars, scopes",
    """
Python's own `for`, `if` and functions run while tracing: loops unroll, and branches on
compile-time values decide what is recorded. What depends on run-time values is said with
`tc.range`, `tc.when` and `tc.select`. A run-time scalar is s32, u32, f32 or a condition; `+ - *
// % << >> & | ^ ~` and comparisons record instructions. `//` and `%` truncate toward zero.

A scope says which threads execute a statement together: the CTA, a warpgroup (128 threads), a
warp, or one thread.
""",
    ("warpgroup", "warps", "warp_id", "cta_id", "num_ctas", "one_thread", "range", "when",
     "otherwise", "var", "Var.set", "Var.get", "Scalar.to", "cdiv"),
    (
        E("range var", "total = tc.var(0)\nfor i in tc.range(n):\n    total += i\n"
                       "y = tc.full(rt[f32, 64, 64], total.to(f32))", "(Y == 10).all()"),
        E("var Var.set Var.get",
          "v = tc.var(1.0)\nbefore = v.get()\nv.set(4.0)\ny = x * before + v",
          "np.allclose(Y, X + 4)"),
        E("when otherwise",
          "with tc.when(n > 3):\n    x *= 2.0\nwith tc.otherwise():\n    x *= 3.0\ny = x",
          "np.array_equal(Y, 2 * X)"),
        E("Scalar.to", "y = tc.full(rt[f32, 64, 64], (n * 2).to(f32) + s)", "(Y == 10.5).all()"),
        E("cdiv", "y = tc.full(rt[f32, 64, 64], tc.cdiv(n, 2).to(f32))", "(Y == 3).all()"),
        E("warps warp_id", """
@tc.kernel
def example(X: gl[f32, 64, 64], Y: gl[f32, 64, 64]):
    with tc.warpgroup(), tc.warps():
        w = tc.warp_id()  # 0 to 3: each takes 16 rows
        tc.store(Y[w, 0], tc.load(X[w, 0], rt[f32, 16, 64]) * 2.0)

X = np.ones((64, 64), np.float32)
Y = np.zeros_like(X)
example(X, Y, grid=1)
""", "(Y == 2).all()"),
        E("warpgroup cta_id num_ctas", """
@tc.kernel
def example(X: gl[f32, "M", 64], Y: gl[f32, "M", 64]):
    with tc.warpgroup(2) as number:  # two warpgroups a CTA take blocks of 64 rows in turn
        for t in tc.range(tc.cta_id() * 2 + number, tc.cdiv(X.rows, 64), tc.num_ctas() * 2):
            tc.store(Y[t, 0], tc.load(X[t, 0], rt[f32, 64, 64]) * 2.0)

X = np.ones((500, 64), np.float32)
Y = np.zeros_like(X)
example(X, Y, grid=3)
""", "(Y == 2).all()"),
        E("one_thread", """
@tc.kernel
def example(counts: gl[s32, 4]):
    with tc.warpgroup():
        with tc.one_thread(64):
            tc.store(counts[tc.cta_id()], tc.cta_id() + 1)

counts = np.zeros(4, np.int32)
example(counts, grid=4)
""", "counts.tolist() == [1, 2, 3, 4]"),
    ),
    FRAME,
    {"Var": Var, "Scalar": Scalar},
)  # fmt: skip

ERRORS = Family(
    "errors",
    "Errors",
    "An error says the rule, what it got, the user's line with a caret, and the nearest legal "
    "choice.",
    ("TileError", "LayoutError", "DTypeError", "ScopeError", "SyncError", "ResourceError",
     "ArchError", "MachineError", "Loc"),
    (
        E("TileError LayoutError Loc", """
try:
    st[bf16, 64, 60]
except tc.TileError as error:
    kind, hint = type(error), error.hint
""", ("kind is tc.LayoutError", "hint == 'the nearest legal cols is 64'")),
    ),
)  # fmt: skip
