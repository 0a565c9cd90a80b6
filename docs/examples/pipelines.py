"""Pipelines, raw PTX and debugging, ready-made operators."""

from __future__ import annotations

from tilecat.kernels import epilogues, score_mods
from tilecat.pipeline.output import Output
from tilecat.pipeline.role import Role
from tilecat.pipeline.rows import Rows
from tilecat.pipeline.scratch import Scratch
from tilecat.pipeline.slots import Slots
from tilecat.pipeline.templates import Lcf, Lcsf, Roles

from .frame import Family
from .fused import FUSED, KEPT, SEVERAL_STAGES
from .maps import FRAME, E

READY = ("bias", "gelu", "scale", "row_scale", "col_scale", "relu", "gelu_tanh", "silu", "gate",
         "residual", "Dropout", "swiglu", "geglu")  # fmt: skip
SCORE_MODS = ("alibi", "bias", "key_bias", "same_document", "seen", "seen_keys")
OF_SCORES = ("tile", "of_queries", "of_keys", "of_head")

BATCHED = """
@tc.kernel
def planes(A: gl[bf16, "B", "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "B", "M", "N"]):
    tasks = tc.row_major(tc.cdiv(C.size(1), 64), tc.cdiv(C.size(2), 64))
    pipe = tc.lcf(consumers=1, stages=2, tasks=tc.batched(tasks, C.size(0)),
                  steps=tc.cdiv(A.size(2), 64))
    a, b = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 64])
    c, acc = pipe.output(st[bf16, 64, 64]), pipe.accumulator(f32, 64, 64)

    @pipe.load
    def _(task, k):
        tc.load_async(a, A[*task.batch, task.row, k])
        tc.load_async(b, B[k, task.col])

    @pipe.compute
    def _(task, k):
        tc.mma_AB(acc, a, b)

    @pipe.finish
    def _(task):
        c.store(C[*task.batch, task.row, task.col], acc)

a = np.ones((3, 70, 40), bf16.numpy) * np.arange(1, 4, dtype=bf16.numpy)[:, None, None]
b, c = np.ones((40, 72), bf16.numpy), np.empty((3, 70, 72), bf16.numpy)
planes(a, b, c)
"""

SPLIT = """
@tc.kernel
def product(A: gl[bf16, 64, "K"], B: gl[bf16, "K", 64], C: inout[f32, 64, 64],
            turns: inout[s32, 1, 1]):
    steps = tc.cdiv(A.cols, 64)
    pipe = tc.lcf(consumers=1, stages=2, steps=steps,
                  tasks=tc.split_k(tc.row_major(1, 1), 3, steps))
    a, b = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 64])
    acc = pipe.accumulator(f32, 64, 64)

    @pipe.load
    def _(task, k):
        tc.load_async(a, A[0, task.first_step + k])
        tc.load_async(b, B[task.first_step + k, 0])

    @pipe.compute
    def _(task, k):
        tc.mma_AB(acc, a, b)

    @pipe.finish
    def _(task):
        with tc.turn(turns.at(task.row, task.col), task.part, turns=3):
            tc.atomic_add(C[task.row, task.col], acc)

a, b = np.ones((64, 520), bf16.numpy), np.ones((520, 64), bf16.numpy)
c, turns = np.zeros((64, 64), np.float32), np.zeros((1, 1), np.int32)
product(a, b, c, turns)
"""
STREAM_K = """
@tc.kernel
def product(A: gl[bf16, "M", "K"], B: gl[bf16, "K", 64], C: inout[f32, "M", 64],
            sums: inout[f32, "L", 64], flags: inout[s32, "P"]):
    steps = tc.cdiv(A.cols, 64)
    pipe = tc.lcf(consumers=1, stages=2, steps=steps,
                  tasks=tc.stream_k(tc.row_major(tc.cdiv(A.rows, 64), 1), 4, steps))
    a, b = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 64])
    acc = pipe.accumulator(f32, 64, 64)

    @pipe.load
    def _(task, k):
        tc.load_async(a, A[task.row, task.first_step + k])
        tc.load_async(b, B[task.first_step + k, 0])

    @pipe.compute
    def _(task, k):
        tc.mma_AB(acc, a, b)

    @pipe.finish
    def _(task):
        with tc.when(~task.ends):
            tc.store(sums[task.slot, 0], acc)        # for the CTA that ends the tile
            tc.pass_turn(flags.at(task.slot), 0)
        with tc.when(task.ends):
            with tc.turn(flags.at(task.slot), 1, turns=2, count=task.partials):
                for i in tc.range(task.slot, task.slot + task.partials):
                    acc[:, :] += tc.load(sums[i, 0], rt[f32, 64, 64])
            tc.store(C[task.row, 0], acc)

a, b = np.ones((4 * 64, 520), bf16.numpy), np.ones((520, 64), bf16.numpy)  # 4 tasks on 3 CTAs
c, sums = np.zeros((4 * 64, 64), np.float32), np.zeros((3 * 64, 64), np.float32)
product(a, b, c, sums, np.zeros(3, np.int32), grid=3)
"""

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
STREAM = """
@tc.kernel
def scaled_rows(X: gl[bf16, "M", 64], W: gl[bf16, 64, 64], Y: gl[bf16, "M", 64],
                Z: gl[bf16, 64, 64]):
    pipe = tc.lcsf(consumers=1, stages=2, steps=tc.cdiv(X.rows, 64), tasks=tc.row_major(1, 1))
    x, w = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 64])
    y, z = pipe.output(st[bf16, 64, 64]), pipe.output(st[bf16, 64, 64], stages=1)
    acc, total = tc.empty(rt[f32, 64, 64]), tc.empty(rt[f32, 64, 64])

    @pipe.start
    def _(task):
        tc.fill(total, 0.0)

    @pipe.load
    def _(task, i):
        tc.load_async(x, X[i, 0])
        tc.load_async(w, W[0, 0])

    @pipe.compute
    def _(task, i):                                  # a step's result goes on to y
        tc.mma_AB(acc, x, w, accumulate=False)
        tc.mma_AtB(total, x, x)
        tc.mma_wait()
        tc.store(y, tc.cast(acc, bf16))

    @pipe.store
    def _(task, i):
        tc.store_async(Y[i, 0], y)

    @pipe.finish
    def _(task):                                     # a task's result goes on to z
        tc.store(z, tc.cast(total, bf16))

    @pipe.finish_store
    def _(task):
        tc.store_async(Z[0, 0], z)

x = (np.arange(128 * 64).reshape(128, 64) % 5).astype(bf16.numpy)
w = np.eye(64).astype(bf16.numpy)
y, z = np.zeros_like(x), np.zeros_like(w)
scaled_rows(x, w, y, z, grid=1)
"""
STREAM_CHECK = (
    "np.array_equal(x, y) and np.allclose(z.astype(float), x.T.astype(float) @ x, rtol=2**-8)"
)
TWO_ROLES = """
@tc.kernel
def linear_attention(Q: gl[bf16, "N", 64], K: gl[bf16, "N", 64], V: gl[bf16, "N", 64],
                     O: gl[bf16, "N", 64]):
    pipe = tc.roles(stages=2, tasks=tc.row_major(1, 1), steps=tc.cdiv(Q.rows, 64))
    score = pipe.role("score", registers=120)        # P = Q K^T, for the other role
    mix = pipe.role("mix")                           # O = P V
    q, k, v = (pipe.input(st[bf16, 64, 64]) for _ in range(3))
    p = pipe.ring(st[bf16, 64, 64], writer=score)
    o = pipe.ring(st[bf16, 64, 64], writer=mix)
    s, acc = tc.empty(rt[f32, 64, 64]), tc.empty(rt[f32, 64, 64])

    @pipe.load
    def _(task, i):
        for tile, tensor in ((q, Q), (k, K), (v, V)):
            tc.load_async(tile, tensor[i, 0])

    @score.compute
    def _(task, i):
        tc.mma_ABt(s, q, k, accumulate=False)
        tc.mma_wait()
        tc.store(p, tc.cast(s, bf16))

    @mix.compute
    def _(task, i):
        tc.mma_AB(acc, p, v, accumulate=False)
        tc.mma_wait()
        tc.store(o, tc.cast(acc, bf16))

    @pipe.store
    def _(task, i):
        tc.store_async(O[i, 0], o)

q = (np.arange(128 * 64).reshape(128, 64) % 3 == 0).astype(bf16.numpy)
o = np.zeros_like(q)
linear_attention(q, q, q, o, grid=1)
"""
TWO_ROLES_CHECK = "all(np.allclose(o[r].astype(float), q[r] @ q[r].T.astype(float) @ q[r], " \
    "rtol=2**-7) for r in (slice(0, 64), slice(64, 128)))"
ROWS = """
@tc.kernel
def rms_norm(X: gl[bf16, "M", "D"], W: gl[bf16, "D"], Y: gl[f32, "M", "D"], *, D):
    rows = tc.rows(X.rows, warps=4)
    kind = rv[f32, D, "plain"]                       # a row, spread over the lanes of a warp

    @rows.start
    def _():
        return tc.load(W[0], kind)

    @rows.load
    def _(row):                                      # one row ahead of compute
        return tc.load(X[row, 0], kind)

    @rows.compute
    def _(row, x, w):
        mean = tc.reduce_vector("sum", x * x) * (1.0 / D)
        tc.store(Y[row, 0], x * tc.rsqrt(mean) * w)

x, y = np.full((37, 64), 3, bf16.numpy), np.zeros((37, 64), np.float32)
rms_norm(x, np.full(64, 2, bf16.numpy), y, D=64, grid=2)
"""
RAGGED = """
@tc.kernel
def doubled(X: gl[f32, "T", 64], starts: gl[s32, "n"], Y: gl[f32, "T", 64]):
    order = tc.ragged(starts, X.rows, chunk=64)
    with tc.warpgroup():
        for number in tc.range(tc.cta_id(), order.count, tc.num_ctas()):
            task = order.task(number)
            with tc.when(task.rows > 0):
                x = tc.load(X[task.first :, :][task.chunk, 0], rt[f32, 64, 64])
                tc.store(Y[task.first : task.last, :][task.chunk, 0], x * 2.0)

x = np.ones((170, 64), np.float32)
y = np.zeros_like(x)
doubled(x, np.array([0, 100, 100, 170], np.int32), y, grid=2)
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
     "pipe.consumer", "pipe.setup", "pipe.begin", "pipe.start", "pipe.load", "pipe.compute",
     "pipe.operand", "pipe.transform", "pipe.consume", "pipe.finish",
     "pipe.turn", "input", "input.wait", "input.release", "input.next",
     "pipe.load_ahead", "scratch", "scratch.wait",
     "scratch.release", "output", "output.store", "lcsf", "stream", "stream.output",
     "stream.store", "stream.finish_store", "roles", "parts", "parts.role", "parts.ring", "role",
     "role.compute", "rows", "stream_rows", "stream_rows.start",
     "stream_rows.load", "stream_rows.compute", "ragged", "Schedule", "row_major",
     "column_major", "grouped", "snake", "custom_order", "batched", "split_k", "stream_k",
     "sequence_first", "longest_first"),
    (
        E("lcf pipe pipe.input pipe.output pipe.accumulator pipe.load pipe.compute pipe.finish "
          "input "
          "output output.store row_major Schedule",
          GEMM.format(tasks="tc.row_major(tc.cdiv(A.rows, 64), tc.cdiv(B.cols, 64))"), GEMM_CHECK),
        E("pipe.scratch pipe.begin pipe.consume pipe.turn pipe.consumer input.wait input.release "
          "scratch scratch.wait scratch.release", SCRATCH, "(c.astype(float) == 128).all()"),
        E("pipe.setup", KEPT, "(y == 1).all()"),
        E("pipe.operand pipe.transform", FUSED,
          ("(y == 128).all()", "text.count('tcgen05.st.sync.aligned.16x128b') == 1")),
        E("grouped",
          GEMM.format(tasks="tc.grouped(tc.cdiv(A.rows, 64), tc.cdiv(B.cols, 64), rows=2)"),
          GEMM_CHECK),
        E("column_major",
          GEMM.format(tasks="tc.column_major(tc.cdiv(A.rows, 64), tc.cdiv(B.cols, 64))"),
          GEMM_CHECK),
        E("snake",
          GEMM.format(tasks="tc.snake(tc.cdiv(A.rows, 64), tc.cdiv(B.cols, 64), rows=2)"),
          GEMM_CHECK),
        E("custom_order", GEMM.format(
            tasks="tc.custom_order(tc.cdiv(A.rows, 64) * 2, lambda t: {\"row\": t // 2, "
                  "\"col\": t % 2})"), GEMM_CHECK),
        E("lcsf pipe.start stream stream.output stream.store stream.finish_store", STREAM,
          STREAM_CHECK),
        E("roles parts parts.role parts.ring role role.compute", TWO_ROLES, TWO_ROLES_CHECK),
        E("input.next pipe.load_ahead", SEVERAL_STAGES,
          "np.array_equal(y, x.T.astype(float) @ x.astype(float))"),
        E("batched",
          BATCHED, "(c.astype(float) == 40 * np.arange(1, 4)[:, None, None]).all()"),
        E("split_k", SPLIT, ("(c == 520).all()", "turns[0, 0] == 0")),
        E("stream_k", STREAM_K, "(c == 520).all()"),
        E("rows stream_rows stream_rows.start stream_rows.load stream_rows.compute", ROWS,
          "np.allclose(y, 2)"),
        E("ragged", RAGGED, "(y == 2).all()"),
        E("sequence_first", ATTENTION_TASKS, "(y == 2).all()"),
        E("longest_first", ATTENTION_TASKS.replace(
            "sequence_first(tc.cdiv(X.size(2), 64), X.size(1), X.size(0))",
            "longest_first(tc.cdiv(X.size(2), 64), X.size(1), X.size(0), planes=4)"),
          "(y == 2).all()"),
    ),
    objects={"pipe": Lcf, "input": Slots, "scratch": Scratch, "output": Output, "stream": Lcsf,
             "parts": Roles, "role": Role, "stream_rows": Rows},
    notes={"pipe": Lcf.__doc__ or "", "input": Slots.__doc__ or "",
           "stream": Lcsf.__doc__ or "", "parts": Roles.__doc__ or "", "role": Role.__doc__ or "",
           "stream_rows": Rows.__doc__ or "",
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
    ("matmul", "epilogues", *(f"epilogues.{name}" for name in READY),
     *(f"at.{name}" for name in ("tile", "row_vector", "col_vector", "scalar")),
     "grouped_matmul", "attention", "attention_decode", "attention_backward", "fft_conv",
     "fft_conv_backward", "score_mods",
     *(f"score_mods.{name}" for name in SCORE_MODS),
     *(f"scores_at.{name}" for name in ("queries", "keys", *OF_SCORES))),
    (
        E("matmul", "a = np.ones((70, 40), np.float16)\nc = tc.matmul(a, a.T)", "(c == 40).all()"),
        E("epilogues epilogues.bias epilogues.gelu", """
x, w, bias = np.ones((70, 40), np.float16), np.ones((40, 64), np.float16), np.full(64, -40, "f4")
y = tc.matmul(x, w, epilogue=((tc.epilogues.bias, bias), tc.epilogues.gelu))
""", "(y == 0).all()"),
        E("epilogues.swiglu epilogues.geglu", """
x, w = np.ones((70, 40), np.float16), np.ones((40, 64), np.float16)
y = tc.matmul(x, w, second=-w, epilogue=tc.epilogues.swiglu)
z = tc.matmul(x, w, second=-w, epilogue=tc.epilogues.geglu)
""", "(y == -1600).all() and (z == -1600).all()"),
        E(" ".join(f"epilogues.{name}" for name in READY[2:-2]), """
x, r = np.ones((70, 40), np.float16), np.ones((70, 70), np.float16)
e, row = tc.epilogues, np.ones(70, np.float32)
y = tc.matmul(x, x.T, epilogue=(
    (e.scale, 0.5), (e.row_scale, row), (e.col_scale, row), e.relu, e.silu, e.gelu_tanh,
    (e.residual, r), (e.gate, r), (e.Dropout(0.0), 1)))
""", "(y == 21).all()"),
        E("at.tile at.row_vector at.col_vector at.scalar", """
def mine(x, at, mask, rows, cols, factor):
    x = x * at.tile(mask) + at.row_vector(rows) * at.scalar(factor)
    return tc.maximum(x, at.col_vector(cols))

x, mask = np.ones((70, 40), np.float16), np.zeros((70, 70), np.float16)
rows, cols = np.ones(70, np.float32), np.zeros(70, np.float32)
y = tc.matmul(x, x.T, epilogue=((mine, mask, rows, cols, 3.0),))
""", "(y == 3).all()"),
        E("grouped_matmul", """
x = np.ones((70, 40), np.float16)
w = np.ones((3, 40, 64), np.float16) * np.arange(3, dtype=np.float16)[:, None, None]
y = tc.grouped_matmul(x, w, ends=np.array([30, 30, 70], np.int32))
""", ("(y[:30] == 0).all()", "(y[30:] == 80).all()")),
        E("attention", "q = np.ones((1, 2, 70, 32), np.float16)\no = tc.attention(q, q, q)",
          "np.allclose(o, 1, rtol=1e-3)"),
        E("attention_decode", """
rng = np.random.default_rng(0)
pools = [rng.standard_normal((6, 16, 2, 32)).astype(bf16.numpy) for _ in range(2)]
q = rng.standard_normal((2, 1, 4, 32)).astype(bf16.numpy)
lengths, pages = (np.array(x, np.int32) for x in ([40, 17], [[5, 0, 3], [1, 4, -1]]))
y = tc.attention_decode(q, *pools, cache_seqlens=lengths, block_table=pages)
keys, values = (x[[1, 4]].reshape(32, 2, 32)[:17, 1].astype(float) for x in pools)
weights = np.exp(q[1, 0, 3].astype(float) @ keys.T / 32**0.5)
""", ("np.allclose(y[1, 0, 3], weights @ values / weights.sum(), atol=2**-7)",)),
        E("fft_conv fft_conv_backward",
          "u, k = np.ones((2, 3, 100), np.float16), np.full((3, 2), 0.5, np.float32)\n"
          "y = tc.fft_conv(u, k)  # causal: the first has none before it\n"
          "du, dk, _, _ = tc.fft_conv_backward(u, u, k)",
          ("np.allclose(y[..., 1:], 1, atol=2e-3) and abs(y[..., 0] - 0.5).max() < 2e-3",
           "np.allclose(dk, [200, 198], atol=0.5) and np.allclose(du[..., :99], 1, atol=2e-3)")),
        E("attention_backward", """
q, lse = np.ones((1, 2, 70, 128), np.float16), np.full((1, 2, 70), 128**0.5 + np.log(70), "f4")
dq, dk, dv = tc.attention_backward(q, q, q, q, q, lse)
""", ("np.allclose(dq, 0, atol=1e-3)", "np.allclose(dv, 1, rtol=1e-2)")),
        E(f"score_mods {' '.join(f'score_mods.{name}' for name in SCORE_MODS)}", """
q = np.ones((1, 2, 70, 32), np.float16)
slopes, row, bias = np.ones(2, np.float32), np.zeros(70, np.int32), np.zeros((70, 70), np.float16)

def three(s, at, slopes, bias, of_key):
    s = tc.score_mods.key_bias(tc.score_mods.bias(s, at, bias), at, of_key)
    return tc.score_mods.alibi(s, at, slopes)

o = tc.attention(q, q, q, score_mod=(three, slopes, bias, bias[0]),
                 mask_mod=(tc.score_mods.same_document, row, row))
below = tc.attention(q, q, q, mask_mod=(tc.score_mods.seen, np.tri(70, dtype=np.uint8)))
""", ("np.allclose(o, 1, rtol=1e-3)", "np.allclose(below, 1, rtol=1e-3)")),
        E(f"scores_at.queries scores_at.keys {' '.join(f'scores_at.{n}' for n in OF_SCORES)}", """
def mine(s, scores_at, bias, row, col, per_head):
    s = s + scores_at.tile(bias) + scores_at.of_queries(row) - scores_at.of_keys(col)
    return s * scores_at.of_head(per_head)

def before(scores_at):
    return scores_at.keys <= scores_at.queries

q, row, head = np.ones((1, 2, 70, 32), np.float16), np.ones(70, np.float32), np.ones(2, np.float32)
bias = np.zeros((70, 70), np.float32)
o = tc.attention(q, q, q, score_mod=(mine, bias, row, row, head), mask_mod=before)
""", "np.allclose(o, 1, rtol=1e-3)"),
    ),
    objects={"epilogues": epilogues, "at": epilogues.Where, "score_mods": score_mods,
             "scores_at": score_mods.At},
)  # fmt: skip
