"""Gradients of Based's queries, or in reversed time of its keys.

    dx_i = scale sum over j <= i of (a_i.b_j) (1 + s_ij) y_j, s = scale x_i.y_j

is dq with x, y, a, b = q, k, do, v, and in reversed time (j >= i) dk with k, q, v, do. Within a
chunk it is a product of dS = (A B^T) (1 + s) with Y. What earlier chunks add is a product with
their state S = B^T phi(Y), the gradient of phi(x), from which it goes back to x in registers
(`tc.taylor_gradient`): neither features' gradients nor scores are stored.

    producer  x y a b [0] | x y a b [1] ...
    features              | phi(Y)[0]   | phi(Y)[1]   | ...
    state                 | S[0] = 0    | S[1]        | ...        S in registers, a copy handed on
    gradient                            | dX[0]       | dX[1] ...

Barriers: full and empty of each stage of x, y, a, b (bytes; an arrival of each of the three roles),
of phi(Y) and of S (128 threads; one a reading role). dX is stored from registers.

A task has 64 columns of a and b; dX is linear in their products, and `sum_parts` adds up what each
64 columns give.
"""

from __future__ import annotations

from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, st

from .based import DIM, FEATURES, T
from .chunk_tasks import CHUNK, chunk_of, tasks_of

U = DTypeVar("U", bf16, f16, f32)
REGISTERS = 88, 168, 208  # of the roles: features, state, gradient
ROWS = 128  # tokens at a time of what is done a token


class _Gradient:
    """What the roles do with a chunk.

    Args:
        pipe, tiles: the pipeline; x, y, a, b. scale: of scores; root: its root.
        reverse: time runs backwards.
    """

    def __init__(self, pipe: Any, tiles: Any, scale: Any, root: Any, reverse: bool):
        self.tiles, self.scale, self.root, self.reverse = tiles, scale, root, reverse
        self.dtype = dtype = tiles[0].kind.dtype
        self.roles = [
            pipe.role(name, registers=count)
            for name, count in zip(("features", "state", "gradient"), REGISTERS, strict=True)
        ]
        self.phi = pipe.ring(st[dtype, CHUNK, FEATURES], writer=self.roles[0], stages=2)
        self.state = pipe.ring(st[dtype, CHUNK, FEATURES], writer=self.roles[1], stages=1)
        self.total, self.back = (tc.empty(rt[f32, CHUNK, FEATURES]) for _ in range(2))
        self.s, self.products = (tc.empty(rt[f32, CHUNK, CHUNK]) for _ in range(2))
        self.inner = tc.empty(rt[f32, CHUNK, DIM])

    def make_features(self) -> None:
        """Features role: phi(Y)."""
        tc.store(self.phi, tc.taylor_features(tc.load(self.tiles[1]), self.root))

    def take_in(self) -> None:
        """State role: S as it is before the chunk, then with it."""
        tc.store(self.state, tc.cast(self.total, self.dtype))
        self.state.publish()
        tc.mma_AtB(self.total, self.tiles[3], self.phi)
        tc.mma_wait()

    def chunk(self) -> Any:
        """Gradient role: dX of a chunk, f32."""
        x, y, a, b = self.tiles
        tc.mma_ABt(self.s, x, y, accumulate=False)
        tc.mma_ABt(self.products, a, b, accumulate=False)
        tc.mma_wait()
        tc.fma(self.s, self.scale, 1.0, out=self.s)
        ds = tc.mul(self.products, self.s, out=self.products)
        made = tc.cast((tc.triu if self.reverse else tc.tril)(ds), self.dtype)
        tc.mma_AB(self.inner, made, y, accumulate=False)
        tc.mma_AB(self.back, a, self.state, accumulate=False)
        tc.mma_wait()
        self.state.release()
        before = tc.taylor_gradient(self.back, tc.load(x), self.root)
        return tc.fma(self.inner, self.scale, before)


@tc.kernel
def based_gradient(
    X: gl[T, "B", "H", "T", 16], Y: gl[T, "B", "H", "T", 16], A: gl[T, "B", "H", "T", "V"],
    B: gl[T, "B", "H", "T", "V"], dX: gl[U, "parts", "B", "H", "T", 16], scale: f32, root: f32,
    *args, stages=2, reverse=False, start=False,
):  # fmt: skip
    """Of each 64 columns of A and B dX; args: S before (reversed: behind) all, where wanted.

    S: f32 [B, H, 160, V], as `based` has it.
    """
    tasks = tasks_of(X.size(1), X.size(0), X.rows, tc.cdiv(A.cols, CHUNK))
    pipe = tc.roles(stages=stages, steps=1, tasks=tasks)
    x, y = (pipe.input(st[X.dtype, CHUNK, DIM]) for _ in range(2))
    a, b = (pipe.input(st[X.dtype, CHUNK, CHUNK]) for _ in range(2))
    work = _Gradient(pipe, (x, y, a, b), scale, root, reverse)
    features, state, gradient = work.roles
    first = args[0].permute(0, 1, 3, 2) if start else None

    @pipe.load
    def _(task, step):
        row = chunk_of(task, step, reverse).row
        for tile, tensor in ((x, X), (y, Y)):
            tc.load_async(tile, tensor.at(task.batch, task.head, row, 0))
        for tile, tensor in ((a, A), (b, B)):
            tc.load_async(tile, tensor.at(task.batch, task.head, row, task.block * CHUNK))

    features.compute(lambda task, step: work.make_features())

    @state.start
    def _(task):
        if first is None:
            tc.fill(work.total, 0.0)
        else:
            place = first.at(task.batch, task.head, task.block * CHUNK, 0)
            tc.copy(work.total, tc.load(place, work.total.type))

    state.compute(lambda task, step: work.take_in())

    @gradient.compute
    def _(task, step):
        row = chunk_of(task, step, reverse).row
        made = tc.cast(work.chunk(), dX.dtype)
        tc.store(dX.at(task.block, task.batch, task.head, row, 0), made)


@tc.kernel
def sum_parts(Parts: gl[f32, "parts", "B", "H", "T", 16], Sum: gl[T, "B", "H", "T", 16]):
    """The sum over the first axis."""
    blocks = tc.cdiv(Sum.rows, ROWS)
    with tc.warpgroup():
        for task in tc.range(tc.cta_id(), Sum.size(0) * Sum.size(1) * blocks, tc.num_ctas()):
            batch, head = task // blocks // Sum.size(1), task // blocks % Sum.size(1)
            row = task % blocks * ROWS
            total = tc.zeros(rt[f32, ROWS, DIM])
            for part in tc.range(Parts.size(0)):
                tc.copy(total, total + tc.load(Parts.at(part, batch, head, row, 0), total.type))
            tc.store(Sum.at(batch, head, row, 0), tc.cast(total, Sum.dtype))
