"""What Blackwell and Rubin cannot do, refused while tracing: each message, its line, its hint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, f32, gl, sc, st, tt, u8
from tilecat.errors import ArchError, LayoutError, ResourceError, ScopeError, TileError
from tilecat.kernels.gemm import matmul
from tilecat.runtime import compile as runtime_compile

e8m0 = tc.dtypes.e8m0


@pytest.fixture(autouse=True)
def no_assembler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The errors come before ptxas could see the text."""

    def assemble(*args: Any, **options: Any) -> None:
        raise AssertionError("assembled")

    monkeypatch.setattr(runtime_compile, "assemble", assemble)


def refused(kind: type[TileError], compile_: Any, message: str, line: str, hint: str) -> None:
    """An error of a kind says this, at a line whose text begins so, with this hint."""
    with pytest.raises(TileError) as caught:
        compile_()
    error = caught.value
    assert type(error) is kind and error.message == message
    shown = str(error).splitlines()
    assert shown[1].startswith("  --> ") and shown[2].startswith(f"   | {line}")
    assert shown[3].strip() == "| ^" or shown[3].endswith("^")
    assert error.hint == hint


def gemm(dtype: Any = bf16, target: str = "sm_107a", **params: Any) -> Any:
    """Compiles the GEMM for operands of a type."""
    a, b = np.zeros((256, 256), dtype.numpy), np.zeros((256, 256), dtype.numpy).T
    c = np.zeros((256, 256), np.int32 if dtype == tc.s8 else np.float32)
    return lambda: matmul.compile(a, b, c, target=target, **params)


def tiles(count: int, target: str, **options: Any) -> Any:
    """Compiles a kernel with tiles of 192 columns of tensor memory."""

    @tc.kernel
    def example(A: gl[bf16, "M", "K"]):
        tc.tmem(tt[f32, 128, 192], count, **options)
        with tc.warpgroup():
            tc.free_tmem()

    return lambda: example.compile(target=target)


def test_512_columns():
    refused(
        ResourceError, tiles(3, "sm_100a"),
        "tmem: tensor memory of a CTA on sm_100a has 512 columns, got 576 (sums=576)",
        "tc.tmem(tt[f32, 128, 192], count", "narrower tiles or fewer of them",
    )  # fmt: skip
    refused(
        ResourceError, gemm(target="sm_100a", tile_m=384, tile_n=256, stages=1),
        "tmem: tensor memory of a CTA on sm_100a has 512 columns, got 768 (acc=768)",
        "acc = pipe.accumulator(", "narrower tiles or fewer of them",
    )  # fmt: skip


def test_576_columns_without_exclusive():
    refused(
        ResourceError, tiles(3, "sm_107a"),
        "tmem: tensor memory of a CTA on sm_107a has 512 columns, got 576 (sums=576)",
        "tc.tmem(tt[f32, 128, 192], count",
        "narrower tiles or fewer of them; exclusive=True gives 576",
    )  # fmt: skip
    refused(
        ArchError, tiles(3, "sm_100a", exclusive=True),
        "tmem: exclusive=True: needs exclusive_columns, which sm_100a does not have",
        "tc.tmem(tt[f32, 128, 192], count", "exclusive=False: 512 columns",
    )  # fmt: skip
    refused(
        ArchError, gemm(target="sm_103a", exclusive=True),
        "lcf: exclusive=True, 576 columns of tensor memory, needs sm_107a, got sm_103a",
        "pipe = tc.lcf(", "exclusive=False: 512 columns",
    )  # fmt: skip


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_wide_k_on_blackwell(target: str):
    refused(
        ArchError, gemm(tc.e4m3, target, wide_k=True),
        f"lcf: wide_k=True, a K step of 64 bytes, needs sm_107a, got {target}",
        "pipe = tc.lcf(", "wide_k=False: K steps of 32 bytes",
    )  # fmt: skip


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_103a"])
def test_collector_of_b_before_rubin(target: str):
    refused(
        ArchError, gemm(target=target, collectors="b", tile_m=256, tile_n=128, stacked=2),
        f"lcf: collectors='b', a collector of B, needs sm_107a, got {target}",
        "pipe = tc.lcf(", 'collectors="a" where products share A, else ""',
    )  # fmt: skip


@pytest.mark.parametrize("target", ["sm_103a", "sm_107a"])
def test_products_of_integers_beyond_sm_100a(target: str):
    kinds = "kind::f16, tf32, f8f6f4"
    refused(
        ArchError, gemm(tc.s8, target),
        f"mma_AB: {target} has no tcgen05.mma kind::i8 s8 x s8 -> s32; it has {kinds}",
        "tc.mma_AB(acc, a[row], b)",
        "convert the operands, e.g. to tc.bf16: exact for integers of 8 bits",
    )  # fmt: skip


def test_328_kib_on_blackwell():
    refused(
        ArchError, gemm(target="sm_100a", stages=6, oversized=True),
        "lcf: oversized=True, 327 KiB of shared memory a CTA, needs sm_107a, got sm_100a",
        "pipe = tc.lcf(", "oversized=False: 227 KiB, fewer stages",
    )  # fmt: skip
    refused(
        ResourceError, gemm(target="sm_100a", stages=6),
        "matmul: shared memory of a CTA on sm_100a is 232448 bytes, got 328840 bytes (a=98304, "
        "b=196608, c=32768)",
        "a = pipe.input(", "stages=4 is the largest ring that fits (a stage is 49152 bytes)",
    )  # fmt: skip
    refused(
        ResourceError, gemm(target="sm_107a", stages=7, oversized=True),
        "matmul: shared memory of a CTA on sm_107a is 334848 bytes, got 378008 bytes (a=114688, "
        "b=229376, c=32768)",
        "a = pipe.input(", "stages=6 is the largest ring that fits (a stage is 49152 bytes)",
    )  # fmt: skip


def scaled(order: str, blocks: int = 4) -> Any:
    """Compiles a product of e2m1, two a byte, B in either order."""

    @tc.kernel
    def example(A: gl[bf16, "M", "K"]):
        a, b = tc.shared(st[u8, 128, 64]), tc.shared(st[u8, 64, 64, order])
        of_a, of_b = tc.tmem(sc[e8m0, 128, blocks]), tc.tmem(sc[e8m0, 64, blocks])
        acc = tc.tmem(tt[f32, 128, 64])
        with tc.warpgroup(2), tc.when(tc.warp_id() == 0), tc.warps():
            tc.mma_AB(acc, a, b, scale_a=of_a, scale_b=of_b)

    return lambda: example.compile(target="sm_100a")


def test_transposed_fp4():
    refused(
        LayoutError, scaled("row"),
        "mma_AB: e2m1 operands cannot be transposed: two elements of a byte lie along K, got B "
        "with N contiguous, b=st[u8, 64, 64]",
        "tc.mma_AB(acc, a, b, scale_a=of_a, scale_b=of_b)",
        "quantise the transposed matrix: tc.formats.quantize_nvfp4(x.T)",
    )  # fmt: skip


def test_unaligned_scales():
    refused(
        LayoutError, scaled("col", blocks=6),
        "sc: 4 scales of a row lie together, so that blocks are a multiple of 4, got blocks=6",
        "of_a, of_b = tc.tmem(sc[e8m0, 128, blocks])", "nearest legal: 4 and 8",
    )  # fmt: skip
    refused(
        LayoutError, scaled("col", blocks=12),
        "mma_AB: K=128 of e2m1 has 4 blocks of 32 or 8 blocks of 16 with scales in e8m0, got 12 "
        "of A",
        "tc.mma_AB(acc, a, b, scale_a=of_a, scale_b=of_b)", "tc.sc[tc.dtypes.e8m0, 128, 4]",
    )  # fmt: skip


def test_mixed_cta_groups():
    @tc.kernel
    def example(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"]):
        other = tc.tmem(tt[f32, 128, 64])
        tasks = tc.grouped(tc.cdiv(A.rows, 128), tc.cdiv(B.cols, 64), rows=2, cluster=2)
        pipe = tc.lcf(consumers=2, stages=2, tasks=tasks, steps=1, cluster=2, pairs=True)
        a = pipe.input(st[bf16, 64, 64], count=2)
        b = pipe.input(st[bf16, 64, 64, "col"])
        acc = pipe.accumulator(f32, 64, 64)

        @pipe.load
        def _(task, k):
            for i in range(2):
                tc.load_async(a[i], A[task.row * 2 + i, k])
            tc.load_async(b, B[k, task.col], multicast="col")

        @pipe.compute
        def _(task, k):
            tc.mma_AB(acc, a[pipe.consumer], b)
            tc.mma_AB(other, a[pipe.consumer], b)

        @pipe.finish
        def _(task):
            tc.relu(acc)

    operand = np.zeros((256, 256), bf16.numpy)
    refused(
        ScopeError, lambda: example.compile(operand, operand.T, target="sm_100a"),
        "mma_AB: the products of a kernel are all of one CTA (.cta_group::1) or all of pairs "
        "(.cta_group::2); by hand they are of one, got a pipeline with pairs=True",
        "tc.mma_AB(other, a[pipe.consumer], b)",
        "acc = pipe.accumulator(...) for these too, or pairs=False",
    )  # fmt: skip
