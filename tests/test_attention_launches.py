"""Calls of `tc.attention_backward` with GPU tensors: launches made ready are the slow path's."""

from __future__ import annotations

import gc
import itertools
import weakref
from types import SimpleNamespace

import pytest
import test_matmul_launches as common
from test_matmul_launches import Tensor, gpu  # noqa: F401

import tilecat as tc
from tilecat import ready
from tilecat.kernels.attention_backward import attention_backward
from tilecat.kernels.attention_rows import attention_delta, attention_dq
from tilecat.runtime.arrays import view

B, H, L, D = 2, 4, 200, 64
START, STEP = 1 << 30, 1 << 26


@pytest.fixture(autouse=True)
def fresh():
    """Nothing is known of earlier calls, or of earlier drivers."""
    ready.forget()
    for kernel in (attention_delta, attention_backward, attention_dq):
        kernel._ready.clear()
        kernel._prepared.clear()
        for compiled in kernel._compiled.values():
            compiled._launcher = None


def tensor(heads=H, length=L, dim=D, **more):
    rows = heads * length * dim, length * dim, dim, 1
    return Tensor((B, heads, length, dim), stride=more.pop("stride", rows), **more)


def lse(**more):
    return Tensor((B, H, L), "float32", stride=(H * L, L, 1), **more)


def call(*given, **options):
    """The gradients, allocated where every call's are."""
    common.FRESH = itertools.count(START + (1 << 40), STEP)
    return tc.attention_backward(*given, **options)


def calls():
    """Calls that differ in one thing each: dout, q, k, v, out, lse, and options."""
    given = tuple(tensor(ptr=START + i * STEP) for i in range(5))
    given += (lse(ptr=START + 5 * STEP),)
    dout, q, k, v, out, sums = given
    inner = (H * L * D, D, H * D, 1)
    yield "the same", given, {}
    yield "elsewhere", (dout, q.like(ptr=1 << 20), *given[2:]), {}
    yield "beside 16 bytes", (dout, q, k.like(ptr=k.data_ptr() + 2), *given[3:]), {}
    yield "one tensor for three", (dout, q, q, q, out, sums), {}
    yield "heads inside", (dout, q.like(stride=inner), *given[2:]), {}
    groups = [tensor(heads=2, ptr=x.data_ptr()) for x in (k, v)]
    yield "fewer keys", (dout, q, *groups, out, sums), {}
    yield "causal", given, {"causal": True}
    yield "window", given, {"causal": "bottom-right", "window": (50, None)}
    yield "scale", given, {"scale": 0.5}
    yield "dtype", (*[x.like(dtype="float16") for x in given[:5]], sums), {}


def test_a_ready_call_is_that_of_the_slow_path_whatever_changes(gpu):  # noqa: F811
    warm: dict[str, list] = {}
    for _ in range(4):
        for name, given, options in calls():
            before = len(gpu.ran)
            call(*given, **options)
            warm.setdefault(name, []).append(gpu.ran[before:])
    for name, given, options in calls():
        ready.forget()
        before = len(gpu.ran)
        call(*given, **options)
        # The first of an alignment allocates twice: what it found known was for another. A key is
        # remembered the second time, or the third, if the first showed what a tensor is.
        assert warm[name][2:] == [gpu.ran[before:]] * 2, name
        assert len(gpu.ran) - before == 3, name


def test_a_known_call_looks_at_nothing_again(gpu, monkeypatch):  # noqa: F811
    _, given, options = next(calls())
    for _ in range(3):  # the first shows what a tensor is; a key is remembered the second time
        call(*given, **options)
    monkeypatch.setattr(tc.attention_backward_call, "_run", lambda *args: pytest.fail("slow"))
    for _ in range(2):
        made = call(*given, **options)
        assert [tuple(x.shape) for x in made] == [tuple(x.shape) for x in given[1:4]]
    assert len(gpu.ran) == 15


def test_outputs_of_the_forward_and_of_decoding_alone_are_allocated(gpu, monkeypatch):  # noqa: F811
    """A log-sum-exp that nobody asks for goes where all of them go."""
    q, k, v = (tensor(ptr=START + i * STEP) for i in range(3))
    short = q.like(shape=(B, 1, H, D), stride=(H * D, H * D, D, 1))
    caches = [x.like(shape=(B, L, H, D), stride=(L * H * D, H * D, D, 1)) for x in (k, v)]
    for function, given in ((tc.attention, (q, k, v)), (tc.attention_decode, (short, *caches))):
        ready.forget()
        sizes = []
        for read in (*(False,) * 3, *(True,) * 3):
            out = function(*given, return_lse=read)
            sizes.append(len(out) if isinstance(out, tuple) else 1)
        assert sizes == [*(1,) * 3, *(2,) * 3]
        counts = {len(known.makers) for known in ready._calls.values()}
        assert counts == {1, 2}


def test_what_is_remembered_keeps_no_tensor(gpu):  # noqa: F811
    """A cache of keys would stay on the device for ever."""
    shapes = {"q": (B, 1, H, D), "caches": (B, 4096, H, D)}
    q, k, v = (
        Tensor(shapes[name], ptr=START + i * STEP)
        for i, name in enumerate(("q", "caches", "caches"))
    )
    kept = [weakref.ref(x) for x in (q, k, v)]
    for _ in range(3):
        tc.attention_decode(q, k, v)
    assert ready._calls and len(gpu.ran) == 3
    del q, k, v
    gc.collect()
    assert [x() for x in kept] == [None] * 3


def test_launches_with_tensors_of_nobody_are_not_known(gpu):  # noqa: F811
    """A copy lies elsewhere in the next call; a tensor of an option stands in the key."""
    kernel = SimpleNamespace(movable=lambda *args, **params: lambda addresses: lambda stream: None)
    x, y = tensor(ptr=START), tensor(ptr=START + STEP)
    view(x)  # shows what a tensor is
    for options, rest, known in (
        ((), (y,), False), (((y,),), (y,), True), ((), (x,), True), ((), (2.0,), True),
        (((y,),), (tensor(ptr=START + STEP + 2),), False),
    ):  # fmt: skip
        ready.forget()
        key = ready.key_of((x,), ("test", *options))
        for _ in range(2):
            ready.remember(key, (x,), (), (), [ready.Launch(kernel, (x,), rest, {})])
        assert (ready.again(key, (x,)) is not None) is known
