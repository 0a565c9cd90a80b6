"""A of a product in tensor memory: stored from registers, of each type, on the PTX machine."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, f32, gl, rt, st, tt
from tilecat.arch import ARCHS
from tilecat.dtypes import DType
from tilecat.errors import DTypeError, LayoutError, TileError

TARGETS = [arch.target for arch in ARCHS if "tcgen05" in arch.features]
FORMS = [
    # A, B, sums, allowed relative error of a product
    (tc.bf16, tc.bf16, tc.f32, 0.0),
    (tc.f16, tc.f16, tc.f32, 0.0),
    (tc.tf32, tc.tf32, tc.f32, 2.0**-9),
    (tc.e4m3, tc.e4m3, tc.f32, 0.0),
    (tc.e5m2, tc.e4m3, tc.f32, 0.0),
    (tc.s8, tc.s8, tc.s32, 0.0),
]


def product(a: DType, b: DType, sums: DType, rows: int, n: int, k: int, options: dict) -> Any:
    """C = A B, A through registers into tensor memory, by rows / 64 warpgroups."""
    stored = {"tf32": f32}
    groups = rows // 64

    @tc.kernel
    def kernel(
        A: gl[stored.get(a.name, a), "M", "K"], B: gl[stored.get(b.name, b), "K", "N"],
        C: gl[sums, "M", "N"],
    ):  # fmt: skip
        left, right = tc.shared(st[a, 64, k], groups), tc.shared(st[b, k, n, "col"])
        acc, p = tc.tmem(tt[sums, rows, n]), tc.tmem(tt[a, rows, k])
        loaded, done = tc.barrier(), tc.barrier()
        with tc.warpgroup(groups) as number:
            with tc.when(tc.warp_id() == 0), tc.elected():
                loaded.expect(*(left[i] for i in range(groups)), right)
                for i in range(groups):
                    tc.load_async(left[i], A[i, 0], loaded)
                tc.load_async(right, B[0, 0], loaded)
            loaded.wait(0)
            tc.store(p, tc.load(left[number]))
            tc.cta_sync()
            with tc.when(tc.warp_id() == 0), tc.warps():
                for first in range(0, k, k // 2):
                    part, other = p[:, first : first + k // 2], right[first : first + k // 2, :]
                    tc.mma_AB(acc, part, other, accumulate=first > 0, **options)
                tc.mma_commit(done)
            done.wait(0)
            tc.store(C[number, 0], tc.load(acc))
            tc.free_tmem(128 * groups)

    return kernel


def arrays(a: DType, b: DType, sums: DType, shape: tuple[int, int, int]) -> list[np.ndarray]:
    m, n, k = shape
    rng = np.random.default_rng(n)
    found = []
    for dtype, size in ((a, (m, k)), (b, (n, k))):
        if dtype.is_float:
            found.append(rng.standard_normal(size).astype(np.float32).astype(dtype.numpy))
        else:
            found.append(rng.integers(-128, 128, size).astype(dtype.numpy))
    return [found[0], found[1].T, np.full((m, n), 7, sums.numpy)]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize(("a", "b", "sums", "relative"), FORMS, ids=lambda v: str(v))
@pytest.mark.parametrize("target", TARGETS)
def test_a_in_tensor_memory_is_right(
    target: str, a: DType, b: DType, sums: DType, relative: float, rows: int, seed: int
):
    if a == tc.s8 and target != "sm_100a":
        pytest.skip("kind::i8 is sm_100a's")
    k, n = 256 // a.nbytes, 48
    kernel = product(a, b, sums, rows, n, k, {"negate_a": True} if a == bf16 else {})
    left, right, c = arrays(a, b, sums, (rows, n, k))
    result = kernel.simulate(left, right, c, target=target, grid=1, seed=seed)
    assert not result.reports, str(result.reports[0])
    wide = np.float64 if sums == f32 else np.int64
    want = left.astype(wide) @ right.astype(wide) * (-1 if a == bf16 else 1)
    bound = np.abs(left.astype(wide)) @ np.abs(right.astype(wide))
    assert (np.abs(c - want) <= (relative + (k + 1) * 2.0**-24) * bound * (sums == f32)).all()


def test_the_text_of_a_in_tensor_memory():
    kernel = product(bf16, bf16, f32, 128, 48, 128, {})
    made = kernel.compile(*arrays(bf16, bf16, f32, (128, 48, 128)), target="sm_100a")
    stores = re.findall(r"tcgen05.st.sync.aligned.16x128b.x16.b32 \[\S+\]", made.ptx)
    assert len(stores) == 1 and made.resources.spill_bytes == 0
    assert re.findall(r"tcgen05\.mma\S* \[%tmem\], \[%tmem\+(\d+)\]", made.ptx) == [
        str(64 + 8 * step) for step in range(8)
    ]  # fmt: skip
    assert len(re.findall("UTCHMMA", made.sass)) == 8


def attention(keys: int, dim: int) -> Any:
    """softmax(Q K^T / sqrt(dim)) V of 128 queries; P goes to V's product in tensor memory."""

    @tc.kernel
    def kernel(
        Q: gl[bf16, "M", "D"], K: gl[bf16, "N", "D"], V: gl[bf16, "N", "D"], out: gl[f32, "M", "D"]
    ):
        q, k = tc.shared(st[bf16, 128, dim]), tc.shared(st[bf16, keys, dim])
        v = tc.shared(st[bf16, keys, dim])
        scores, sums = tc.tmem(tt[f32, 128, keys]), tc.tmem(tt[f32, 128, dim])
        p = tc.tmem(tt[bf16, 128, keys])
        loaded, scored, done = tc.barrier(), tc.barrier(), tc.barrier()
        with tc.warpgroup(2) as number:
            with tc.when(tc.warp_id() == 0), tc.warps():
                loaded.expect(q, k, v)
                with tc.elected():
                    for tile, source in ((q, Q), (k, K), (v, V)):
                        tc.load_async(tile, source[0, 0], loaded)
                loaded.wait(0)
                tc.mma_ABt(scores, q, k, accumulate=False)
                tc.mma_commit(scored)
            scored.wait(0)
            x = tc.load(scores) * (dim**-0.5)
            x = tc.exp(x - tc.row_max(x))
            total = tc.row_sum(x)
            tc.store(p, tc.cast(x, bf16))
            tc.cta_sync()
            with tc.when(tc.warp_id() == 0), tc.warps():
                tc.mma_AB(sums, p, v, accumulate=False)
                tc.mma_commit(done)
            done.wait(0)
            tc.store(out[number, 0], tc.load(sums) / total)
            tc.free_tmem(256)

    return kernel


@pytest.mark.parametrize("target", ["sm_100a", "sm_107a"])
@pytest.mark.parametrize("seed", range(3))
def test_attention_keeps_p_in_tensor_memory(target: str, seed: int):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((128, 64)).astype(ml_dtypes.bfloat16) for _ in range(3))
    out = np.full((128, 64), np.nan, np.float32)
    result = attention(128, 64).simulate(q, k, v, out, target=target, grid=1, seed=seed)
    assert not result.reports, str(result.reports[0])
    q64, k64, v64 = (x.astype(np.float64) for x in (q, k, v))
    weights = np.exp((q64 @ k64.T) / 8)
    want = weights @ v64 / weights.sum(1, keepdims=True)
    assert np.abs(out - want).max() < 2.0**-8 * np.abs(v64).max()  # P is rounded to bf16


# ---- errors


def refused(body: Any, kind: type[TileError], text: str, target: str = "sm_100a") -> None:
    @tc.kernel
    def example(A: gl[bf16, "M", "K"]):
        p = tc.tmem(tt[bf16, 128, 64])
        acc = tc.tmem(tt[f32, 128, 64])
        s = tc.shared(st[bf16, 64, 64])
        with tc.warpgroup(2):
            body(p, acc, s)

    with pytest.raises(kind, match=re.escape(text)) as error:
        example.compile(target=target)
    assert "test_tensor_a.py" in str(error.value)


def issued(make: Any) -> Any:
    """A body in which a warp issues a product."""

    def body(p: Any, acc: Any, s: Any) -> None:
        with tc.when(tc.warp_id() == 0), tc.warps():
            make(p, acc, s)

    return body


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda p, acc, s: tc.mma_AtB(acc, p, s), LayoutError,
         "mma_AtB: A in tensor memory is M x K, row by lane, and has no transpose"),
        (lambda p, acc, s: tc.mma_AB(p, p, s), DTypeError,
         "mma_AB: sums in tensor memory are f32, s32 or f16, got acc=tt[bf16, 128, 64]"),
        (lambda p, acc, s: tc.mma_AB(acc, p[:, :32], s), LayoutError,
         "got a=128x32, b=64x64 (as used), acc=128x64"),
        (lambda p, acc, s: tc.mma_AB(acc, p[:, :24], s[:24, :]), LayoutError,
         "columns cut at multiples of 16, got rows 0 to 127, columns 0 to 23"),
        (lambda p, acc, s: tc.mma_AB(acc, acc, s), DTypeError, "the tensor core multiplies"),
        (lambda p, acc, s: tc.mma_AB(acc, s, p), LayoutError, "wanted a tile, got tt[bf16"),
    ],
)  # fmt: skip
def test_products_with_a_in_tensor_memory_have_rules(make: Any, kind: type, text: str):
    refused(issued(make), kind, text)


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (lambda p, acc, s: tc.store(p, tc.zeros(rt[f32, 64, 64])), DTypeError,
         "store: dtypes must agree"),
        (lambda p, acc, s: tc.store(p, tc.zeros(rt[bf16, 64, 32])), LayoutError,
         "store: shapes must agree"),
    ],
)  # fmt: skip
def test_stores_of_a_have_rules(body: Any, kind: type, text: str):
    refused(body, kind, text)


def test_a_of_bytes_is_regrouped_first():
    @tc.kernel
    def example(A: gl[bf16, "M", "K"]):
        p = tc.tmem(tt[tc.e4m3, 64, 64])
        with tc.warpgroup():
            tc.store(p, tc.cast(tc.zeros(rt[f32, 64, 64]), tc.e4m3))

    with pytest.raises(LayoutError, match="the fragment of an A goes to") as error:
        example.compile(target="sm_100a")
    assert "tc.regroup(x)" in str(error.value)


def test_columns_of_an_a_are_its_bytes():
    assert tt[tc.e4m3, 128, 64].columns == 16 and tt[bf16, 64, 64].columns == 32
    assert tt[tc.tf32, 128, 64].columns == 64
    with pytest.raises(LayoutError, match="columns of e4m3 are a multiple of 32, got cols=48"):
        tt[tc.e4m3, 128, 48]
    with pytest.raises(DTypeError, match="sums of f32, s32 or f16, or an A of bf16, f16, tf32"):
        tt[tc.u32, 128, 64]
