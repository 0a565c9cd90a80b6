"""Two products a step, what a CTA keeps, and several stages a step."""

FUSED = """
@tc.kernel
def layers(X: gl[bf16, "M", 64], U: gl[bf16, "H", 64], W: gl[bf16, "H", 64], Y: gl[f32, "M", 64]):
    pipe = tc.lcf(consumers=2, stages=2, tasks=tc.row_major(tc.cdiv(X.rows, 128), 1),
                  steps=tc.cdiv(U.rows, 64))
    x = pipe.input(st[bf16, 64, 64], count=2, ring="x", rate="task")
    u, w = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 64])
    hidden = pipe.accumulator(f32, 64, 64, rate="step")
    active, y = pipe.operand(bf16, 64, 64), pipe.accumulator(f32, 64, 64)

    @pipe.begin
    def _(task):
        for i in range(2):
            tc.load_async(x[i], X[task.row * 2 + i, 0])

    @pipe.load
    def _(task, step):
        tc.load_async(u, U[step, 0])
        tc.load_async(w, W[step, 0])

    @pipe.compute                                   # products alone
    def _(task, step):
        tc.mma_ABt(hidden, x[pipe.consumer], u)
        tc.mma_AB(y, active, w)

    @pipe.transform                                 # between them
    def _(task, step):
        tc.store(active, tc.cast(tc.relu(hidden), bf16))

    @pipe.finish
    def _(task):
        tc.store(Y[task.row * 2 + pipe.consumer, 0], y)

x, u = np.eye(64, dtype=bf16.numpy), np.full((128, 64), -1, bf16.numpy)
u[:64] = 2
w, y = np.ones((128, 64), bf16.numpy), np.empty((64, 64), np.float32)
layers(x, u, w, y)
text = layers.compile(target="sm_107a").ptx
"""
KEPT = """
@tc.kernel
def projected(X: gl[bf16, "M", 64], W: gl[bf16, 64, 64], Y: gl[bf16, "M", 64]):
    pipe = tc.lcf(consumers=1, stages=2, steps=1, tasks=tc.row_major(tc.cdiv(X.rows, 64), 1))
    x = pipe.input(st[bf16, 64, 64])
    w = pipe.input(st[bf16, 64, 64], ring="w", rate="cta")
    y, acc = pipe.output(st[bf16, 64, 64]), pipe.accumulator(f32, 64, 64)

    pipe.setup(lambda: tc.load_async(w, W[0, 0]))    # once, for all tasks of the CTA

    pipe.load(lambda task, step: tc.load_async(x, X[task.row, 0]))
    pipe.compute(lambda task, step: tc.mma_AB(acc, x, w))
    pipe.finish(lambda task: y.store(Y[task.row, 0], acc))

x, w = np.ones((200, 64), bf16.numpy), np.eye(64, dtype=bf16.numpy)
y = np.zeros_like(x)
projected(x, w, y, grid=2)
"""
SEVERAL_STAGES = """
@tc.kernel
def product(X: gl[bf16, "N", 64], W: gl[bf16, "N", 64], Y: gl[f32, 64, 64]):
    pipe = tc.roles(stages=4, tasks=tc.row_major(1, 1), steps=tc.cdiv(X.rows, 128))
    total = pipe.role("total")
    x = pipe.input(st[bf16, 64, 64])
    w = pipe.input(st[bf16, 64, 64], ring="w", ahead=True)  # by a thread of its own
    acc = tc.empty(rt[f32, 64, 64])

    def halves(tile, tensor, i):
        tc.load_async(tile, tensor[2 * i, 0])
        tile.next()                                          # two stages a step
        tc.load_async(tile, tensor[2 * i + 1, 0])

    pipe.load(lambda task, i: halves(x, X, i))
    pipe.load_ahead(lambda task, i: halves(w, W, i))
    total.start(lambda task: tc.fill(acc, 0.0))

    @total.compute
    def _(task, i):
        for half in range(2):
            tc.mma_AtB(acc, x, w)
            tc.mma_wait()
            if half == 0:
                x.next()
                w.next()

    total.finish(lambda task: tc.store(Y[0, 0], acc))

x = (np.arange(200 * 64).reshape(200, 64) % 3).astype(bf16.numpy)
y = np.zeros((64, 64), np.float32)
product(x, x, y, grid=1)
"""
