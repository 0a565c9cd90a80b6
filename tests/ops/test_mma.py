"""Every matrix instruction, at every legal N, on the PTX machine; see mma_cases."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from mma_cases import CASES, NAMES, MmaCase, arrays, check, kernel_of, run

import tilecat as tc
from tilecat import bf16, e4m3, f16, f32, gl, rt, s8, s32, st, tf32, u8
from tilecat.arch import ARCHS, MMA_SYNC, WGMMA
from tilecat.arch.hopper import HOPPER
from tilecat.errors import DTypeError, LayoutError, ScopeError
from tilecat.ops.mma import FORMS
from tilecat.tiles import SharedTileType


def simulated(kernel: tc.KernelFunction, *args: object) -> None:
    result = kernel.simulate(*args, grid=1)
    assert not result.reports, str(result)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_product_on_the_machine_is_right(case: MmaCase):
    given = arrays(case)
    check(case, run(case, given, simulated), given)


def test_every_form_has_an_emitter_and_a_case_at_every_n(capsys: pytest.CaptureFixture[str]):
    for form in HOPPER.mma_forms:
        mine = [case for case in CASES if case.form == form]
        assert mine, f"no case of {form}"
        assert {case.name for case in mine} == set(NAMES), f"functions of {form}"
        if form.instruction == WGMMA:
            assert {case.n for case in mine} >= set(form.n), f"N of {form}"
            assert {case.a for case in mine} >= {"registers"}, f"A of {form}"
        widest = max(mine, key=lambda case: case.m * case.n)  # spills would be errors
        text = kernel_of(widest).compile(*_examples(widest)).ptx
        types = f"{form.accumulator}.{form.a}.{form.b}"
        assert form.instruction.partition(".")[0] in text and types in text, f"text of {form}"
    counts = Counter(case.form.instruction for case in CASES)
    with capsys.disabled():
        print(f"\nmatrix products: {len(CASES)} cases, {dict(counts)}")
    assert set(counts) == {WGMMA, MMA_SYNC}


def _examples(case: MmaCase) -> list[object]:
    taken: list[object] = []
    run(case, arrays(case), lambda _, *args: taken.extend(args))
    return taken


def test_forms_have_a_source_and_a_key_of_their_own():
    for arch in ARCHS:
        assert len({form.key for form in arch.mma_forms}) == len(arch.mma_forms)
        assert all("PTX ISA" in form.source for form in arch.mma_forms)
    assert len(FORMS) == len(HOPPER.mma_forms) == 32


def test_cases_have_names_of_their_own():
    assert len({str(case) for case in CASES}) == len(CASES)


def test_a_wrong_product_is_seen():
    case = next(case for case in CASES if case.form.a == "bf16" and case.accumulate is True)
    given = arrays(case)
    other = replace(case, accumulate=False)
    with pytest.raises(AssertionError):
        check(case, run(other, given, simulated), given)


@pytest.mark.parametrize("warp", [False, True])
def test_operators_add_and_subtract_products(warp: bool):
    rows = 16 if warp else 64

    def body(A: object, B: object, D: object) -> None:
        a, acc = tc.load(A[0, 0], rt[bf16, rows, 64]), tc.zeros(rt[f32, rows, 64])  # type: ignore[index]
        b = tc.load(B[0, 0], rt[bf16, 64, 64])  # type: ignore[index]
        if warp:
            right = tc.swap_layout(b)
        else:
            right = tc.shared(st[bf16, 64, 64])
            tc.store(right, b)
            tc.sync()
        acc += a @ right
        acc += a @ right
        acc -= a @ right.T if not warp else a @ tc.swap_layout(right).T
        if not warp:
            tc.mma_wait()
        tc.store(D[0, 0], acc)  # type: ignore[index]

    @tc.kernel
    def products(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], D: gl[f32, "M", "N"]):
        with tc.warpgroup():
            if warp:
                with tc.warps(), tc.when(tc.warp_id() == 0):
                    body(A, B, D)
            else:
                body(A, B, D)

    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((n, 64)).astype(bf16.numpy) for n in (rows, 64))
    out = np.zeros((rows, 64), np.float32)
    products(a, b, out, grid=1)
    x, y = a.astype(np.float64), b.astype(np.float64)
    np.testing.assert_allclose(out, 2 * x @ y - x @ y.T, atol=1e-4)


# ---- rules, at the user's line


def fails(kind: type[Exception], body: object, *texts: str, scope: str = "warpgroup") -> str:
    """The message of a kernel of one call, which names the rule and the line."""

    def wrong():
        with tc.warpgroup():
            if scope == "warp":
                with tc.warps():
                    body()  # type: ignore[operator]
            else:
                body()  # type: ignore[operator]

    with pytest.raises(kind) as caught:
        tc.kernel(wrong).compile()
    message = str(caught.value)
    for text in texts:
        assert text in message, message
    assert "test_mma.py" in message and "hint: " in message, message
    return message


def test_mma_of_a_warp_rejects_b_in_row_order():
    def body():
        a, b = tc.zeros(rt[bf16, 16, 64]), tc.zeros(rt[bf16, 64, 32])
        tc.mma_AB(tc.zeros(rt[f32, 16, 32]), a, b)

    message = fails(
        LayoutError, body, "B of a warp's mma in registers has column order", "got b=rt[bf16",
        "in row order", "tc.swap_layout(b)", "tc.mma_AB(tc.zeros(rt[f32, 16, 32]), a, b)",
        scope="warp",
    )  # fmt: skip
    assert len(message.splitlines()) <= 8, message


def shared_product(a_kind: object, b_kind: object, acc_kind: object, name: str) -> object:
    def body():
        a, b = tc.shared(a_kind), tc.shared(b_kind)  # type: ignore[arg-type]
        getattr(tc, name)(tc.zeros(acc_kind), a, b, accumulate=False)  # type: ignore[arg-type]

    return body


RULES = (
    ("B of 8 bits with N contiguous", LayoutError, st[e4m3, 64, 64], st[e4m3, 64, 64],
     rt[f32, 64, 64], "mma_AB",
     ("B of e4m3 has K contiguous", 'tc.st[tc.e4m3, 64, 64, "col"] as K x N', "tc.mma_ABt")),
    ("B of tf32 with N contiguous", LayoutError, st[tf32, 64, 32], st[tf32, 32, 64],
     rt[f32, 64, 64], "mma_AB", ("B of tf32 has K contiguous", "only 16-bit types")),
    ("A of 8 bits with M contiguous", LayoutError, st[s8, 64, 64, "col"], st[s8, 64, 64, "col"],
     rt[s32, 64, 64], "mma_AB", ("A of s8 has K contiguous", "load A into registers")),
    ("transposed A of 8 bits", LayoutError, st[e4m3, 64, 64], st[e4m3, 64, 64, "col"],
     rt[f32, 64, 64], "mma_AtB", ("A of e4m3 has K contiguous", "tc.mma_AB")),
    ("N of bytes", LayoutError, st[s8, 64, 64], st[s8, 64, 40, "col"], rt[s32, 64, 40], "mma_AB",
     ("on s8 is 8, 24 or a multiple of 16, got N=40", "nearest legal: 32 and 48")),
    ("N", LayoutError, st[bf16, 64, 64], st[bf16, 64, 264, "col"], rt[f32, 64, 264], "mma_AB",
     ("N of a warpgroup's mma is at most 256, got N=264",)),
    ("sums of bf16", DTypeError, st[bf16, 64, 64], st[bf16, 64, 64], rt[f16, 64, 64], "mma_AB",
     ("the accumulator of bf16 x bf16 is f32, got a=bf16, b=bf16, acc=f16",)),
    ("sums of e4m3", DTypeError, st[e4m3, 64, 64], st[e4m3, 64, 64, "col"], rt[s32, 64, 64],
     "mma_AB", ("the accumulator of e4m3 x e4m3 is f32 or f16",)),
    ("two types", DTypeError, st[bf16, 64, 64], st[f16, 64, 64], rt[f32, 64, 64], "mma_AB",
     ("bf16 multiplies bf16, got a=bf16, b=f16", "tc.cast")),
    ("f32", DTypeError, st[f32, 64, 64], st[f32, 64, 64], rt[f32, 64, 64], "mma_AB",
     ("the tensor core multiplies bf16, f16, tf32, e4m3, e5m2, s8, u8, got a=f32",)),
    ("no swizzle", LayoutError, SharedTileType(bf16, 64, 64, "col", 0), st[bf16, 64, 64],
     rt[f32, 64, 64], "mma_AB", ("mma_AB: no wgmma descriptor can walk this tile as A",)),
    ("depth", LayoutError, st[bf16, 64, 64], st[bf16, 32, 64], rt[f32, 64, 64], "mma_AB",
     ("A is M x K, B is K x N", "b=32x64")),
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "a", "b", "acc", "name", "texts"), [r[1:] for r in RULES], ids=[r[0] for r in RULES]
)
def test_mma_rejects(kind, a, b, acc, name, texts):
    fails(kind, shared_product(a, b, acc, name), *texts)


def test_mma_of_integers_cannot_be_negated():
    def body():
        a, b = tc.shared(st[u8, 64, 32]), tc.shared(st[s8, 32, 64, "col"])
        tc.mma_AB(tc.zeros(rt[s32, 64, 64]), a, b, negate_a=True)

    fails(DTypeError, body, "only products of floats can be negated, got u8 x s8")


def test_sums_of_floats_do_not_saturate():
    def body():
        a, b = tc.shared(st[bf16, 64, 64]), tc.shared(st[bf16, 64, 64])
        tc.mma_AB(tc.zeros(rt[f32, 64, 64]), a, b, saturate=True)

    fails(DTypeError, body, "saturate is for s32 sums, got bf16 x bf16 -> f32")


def test_mma_of_a_warp_has_no_signs():
    def body():
        a, b = tc.zeros(rt[f16, 16, 16]), tc.zeros(rt[f16, 16, 16, "col"])
        tc.mma_AB(tc.zeros(rt[f32, 16, 16]), a, b, negate_b=True)

    fails(ScopeError, body, "negate_a and negate_b are of a warpgroup's mma", scope="warp")


def test_mma_of_a_warp_takes_registers():
    def body():
        b = tc.shared(st[f16, 16, 16])
        tc.mma_AB(tc.zeros(rt[f32, 16, 16]), tc.zeros(rt[f16, 16, 16]), b)

    fails(LayoutError, body, "register tiles, got b=st[f16", 'order="col"', scope="warp")


def test_converted_a_is_refused_where_its_fragment_is_another():
    def body():
        a, b = tc.cast(tc.zeros(rt[f32, 64, 64]), e4m3), tc.shared(st[e4m3, 64, 64, "col"])
        tc.mma_AB(tc.zeros(rt[f32, 64, 64]), a, b)

    fails(LayoutError, body, "a lane of A holds 4 adjacent elements of e4m3",
          "tc.regroup(a)", "tc.permuted_k")  # fmt: skip
