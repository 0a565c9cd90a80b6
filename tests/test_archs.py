"""Architectures as data: every number has a unit, a source, and a word on how it is known."""

from __future__ import annotations

import pytest

from tilecat.arch import ARCHS, TCGEN05, Arch, arch_of
from tilecat.arch.spec import ANNOUNCED, ASSUMED, DOCUMENTED, MEASURED

TENSOR = [arch for arch in ARCHS if arch.tensor_forms]


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.target)
def test_numbers_have_unit_and_source(arch: Arch):
    for name, limit in (*arch.limits, *arch.rates):
        assert limit.value > 0 and limit.unit and len(limit.source) > 8, name
        assert limit.known in (DOCUMENTED, MEASURED, ANNOUNCED, ASSUMED), name
    assert all(x.known == ANNOUNCED for name, x in arch.rates if name != "sms")
    names = [name for name, _ in arch.limits]
    assert len(set(names)) == len(names)
    warps = arch.limit("threads_per_sm") // 32
    assert arch.limit("warps_per_sm") == warps
    assert arch.limit("threads_per_cta") <= arch.limit("threads_per_sm")


def test_the_four_targets_differ_where_the_manuals_say():
    hopper, blackwell, ultra, rubin = (
        arch_of(target) for target in ("sm_90a", "sm_100a", "sm_103a", "sm_107a")
    )
    assert [a.ptx_version for a in ARCHS] == ["8.0", "8.6", "8.8", "9.4"]
    assert {a.limit("shared_bytes_per_cta") for a in ARCHS} == {227 << 10}
    assert rubin.limit("shared_bytes_oversized") == 327 << 10
    assert not any(a.knows("shared_bytes_oversized") for a in (hopper, blackwell, ultra))
    assert {a.limit("tensor_columns") for a in TENSOR} == {512}
    assert {a.limit("tensor_lanes") for a in TENSOR} == {128}
    assert [a.target for a in ARCHS if a.knows("tensor_columns_exclusive")] == ["sm_107a"]
    assert rubin.limit("tensor_columns_exclusive") == 576
    assert [a.limit("threads_per_sm") for a in ARCHS] == [2048, 2048, 2048, 1024]
    assert "wgmma" in hopper.features and not any("wgmma" in a.features for a in TENSOR)


@pytest.mark.parametrize("arch", TENSOR, ids=lambda arch: arch.target)
def test_forms_read_32_bytes_of_k_and_64_in_the_wide_step(arch: Arch):
    bits = {"tf32": 32, "f16": 16, "bf16": 16, "e2m1": 4}
    assert len({form.key for form in arch.tensor_forms}) == len(arch.tensor_forms)
    for form in arch.tensor_forms:
        assert "PTX ISA 9.7.16" in form.source and TCGEN05 in str(form)
        # Narrow types lie in bytes of their own, but in the kinds of 4 bits alone.
        width = bits.get(form.a, 8) if form.kind not in ("f8f6f4", "mxf8f6f4") else 8
        assert form.k * width == 256, form
        assert form.wide_k in (0, 2 * form.k)
        assert bool(form.wide_k) == bool(form.wide_shapes)
        for shape in form.shapes:
            assert shape.ctas in (1, 2) and shape.m in (64, 128, 256)
            assert shape.n[-1] == 256 and all(n % shape.n[0] == 0 for n in shape.n)
    assert {form.wide_k > 0 for form in arch.tensor_forms} == {False, arch.target == "sm_107a"}


def test_integers_are_multiplied_on_one_of_them():
    found = [a.target for a in TENSOR if a.tensor_form("s8", "s8", "s32") is not None]
    assert found == ["sm_100a"]
    form = arch_of("sm_100a").tensor_form("s8", "u8", "s32")
    assert form is not None and not form.signs
    assert form.columns(64)[:5] == (8, 16, 24, 32, 48)
    assert form.columns(256, ctas=2)[:2] == (32, 64) and form.columns(32) == ()
