"""Pipelines, raw PTX and debugging, ready-made operators."""

from __future__ import annotations

from tilecat.pipeline.output import Output
from tilecat.pipeline.ring import Scratch, Slots
from tilecat.pipeline.templates import Lcf

from .frame import Family
from .maps import FRAME, E

GEMM = """
@tc.kernel
def product(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"]):
    pipe = tc.lcf(consumers=1, stages=2, steps=tc.cdiv(A.cols, 64),
                  tasks={tasks})
    a, b = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 64])
    c = pipe.output(st[bf16, 64, 64])
    acc = pipe.accumulator(f32, 64, 64)

    @pipe.load
    def _(task, k):
        tc.load_async(a, A[task.row, k])
        tc.load_async(b, B[k, task.col])

    @pipe.compute
    def _(task, k):
        tc.mma_AB(acc, a, b)

    @pipe.finish
    def _(task):
        c.store(C[task.row, task.col], acc)

x = (np.arange(100 * 80).reshape(100, 80) % 5).astype(bf16.numpy)
c = np.zeros((100, 100), bf16.numpy)
product(x, x.T.copy(), c, grid=2)
"""
GEMM_CHECK = "np.allclose(c.astype(float), x.astype(float) @ x.astype(float).T, rtol=2**-8)"
SCRATCH = """
@tc.kernel
def folded(Q: gl[bf16, "M", 64], B: gl[bf16, 64, "N"], C: gl[bf16, "M", 64]):
    pipe = tc.lcf(consumers=2, stages=2, steps=tc.cdiv(B.cols, 64), pingpong=True,
                  tasks=tc.row_major(tc.cdiv(Q.rows, 128), 1))
    q, b = pipe.scratch(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 64])
    out = pipe.output(st[bf16, 64, 64])
    acc = tc.empty(rt[f32, 64, 64])

    @pipe.begin
    def _(task):
        for i in range(2):
            tc.load_async(q[i], Q[task.row * 2 + i, 0])

    @pipe.load
    def _(task, step):
        tc.load_async(b, B[0, step])

    @pipe.consume
    def _(task, steps):
        q.wait()
        for step in tc.range(steps):
            b.wait()
            with pipe.turn():
                tc.mma_AB(acc, q, b, accumulate=step > 0)
            tc.mma_wait()
            b.release()
        q.release()

    @pipe.finish
    def _(task):
        out.store(C[task.row * 2 + pipe.consumer, 0], acc)

q, b = np.ones((128, 64), bf16.numpy), np.ones((64, 128), bf16.numpy)
c = np.zeros((128, 64), bf16.numpy)
folded(q, b, c, grid=1)
"""
ATTENTION_TASKS = """
@tc.kernel
def scaled(X: gl[f32, "B", "H", "L", 64], Y: gl[f32, "B", "H", "L", 64]):
    order = tc.sequence_first(tc.cdiv(X.size(2), 64), X.size(1), X.size(0))
    with tc.warpgroup():
        for number in tc.range(tc.cta_id(), order.count, tc.num_ctas()):
            task = order.task(number)
            x = tc.load(X[task.batch, task.head, task.tile, 0], rt[f32, 64, 64])
            tc.store(Y[task.batch, task.head, task.tile, 0], x * 2.0)

x = np.ones((2, 3, 70, 64), np.float32)
y = np.zeros_like(x)
scaled(x, y, grid=2)
"""
PIPELINES = Family(
    "pipelines",
    "Pipelines and orders of tasks",
    """
The user fills holes, the template owns rings of stages, mbarriers, phases, arrive counts, byte
counts, roles and register budgets. Tasks are taken by a persistent grid in the order that a
schedule gives.
""",
    ("lcf", "pipe", "pipe.input", "pipe.scratch", "pipe.output", "pipe.accumulator",
     "pipe.consumer", "pipe.begin", "pipe.load", "pipe.compute", "pipe.consume", "pipe.finish",
     "pipe.turn", "input", "input.wait", "input.release", "scratch", "scratch.wait",
     "scratch.release", "output", "output.store", "Schedule", "row_major", "grouped",
     "sequence_first"),
    (
        E("lcf pipe pipe.input pipe.output pipe.accumulator pipe.load pipe.compute pipe.finish "
          "input "
          "output output.store row_major Schedule",
          GEMM.format(tasks="tc.row_major(tc.cdiv(A.rows, 64), tc.cdiv(B.cols, 64))"), GEMM_CHECK),
        E("pipe.scratch pipe.begin pipe.consume pipe.turn pipe.consumer input.wait input.release "
          "scratch scratch.wait scratch.release", SCRATCH, "(c.astype(float) == 128).all()"),
        E("grouped",
          GEMM.format(tasks="tc.grouped(tc.cdiv(A.rows, 64), tc.cdiv(B.cols, 64), rows=2)"),
          GEMM_CHECK),
        E("sequence_first", ATTENTION_TASKS, "(y == 2).all()"),
    ),
    objects={"pipe": Lcf, "input": Slots, "scratch": Scratch, "output": Output},
    notes={"pipe": Lcf.__doc__ or "", "input": Slots.__doc__ or "",
           "scratch": Scratch.__doc__ or "", "output": Output.__doc__ or ""},
)  # fmt: skip

ESCAPE = Family(
    "escape",
    "Raw PTX and debugging",
    "What the language has no word for, and what helps to find out what a kernel does.",
    ("inline", "print", "device_assert"),
    (
        E("inline", "tc.inline(\"fma.rn.f32 $0, $0, $1, $2;\", x, 2.0, s, writes=(0,))\ny = x",
          "np.allclose(Y, 2 * X + 0.5)"),
        E("print", "tc.print(\"n is\", n)\ny = x", "np.array_equal(Y, X)"),
        E("device_assert", "tc.device_assert(n < 10, \"n is small\")\ny = x",
          "np.array_equal(Y, X)"),
    ),
    FRAME,
)  # fmt: skip

OPERATORS = Family(
    "operators",
    "Ready-made operators",
    "On NumPy arrays and CPU tensors they run on the PTX machine, on CUDA tensors on the GPU.",
    ("matmul", "attention"),
    (
        E("matmul", "a = np.ones((70, 40), np.float16)\nc = tc.matmul(a, a.T)", "(c == 40).all()"),
        E("attention", "q = np.ones((1, 2, 70, 32), np.float16)\no = tc.attention(q, q, q)",
          "np.allclose(o, 1, rtol=1e-3)"),
    ),
)  # fmt: skip
