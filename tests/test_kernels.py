"""Every shipped kernel on the PTX machine against float64: right, and without a report."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import reference
from cases import CASES, Case, bases, outside, views

import tilecat as tc
from tilecat import gemm_choice, kernels
from tilecat.errors import LayoutError
from tilecat.kernels import KERNELS, Shape
from tilecat.kernels.row_specs import ROWS
from tilecat.kernels.spec import rounding

SEEDS = (0, 1, 2)


def expected(case: Case, args: list) -> tuple[reference.Reference, ...]:
    """References of the outputs, in their order."""
    if case.kernel == "matmul":
        return (reference.matmul(args[0], args[1]),)
    return reference.attention(*args[:3], args[-1])


BOTH = KERNELS[:2]  # products and attention, whose cases are those of the GPU tests too


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel_on_the_machine_is_right_and_clean(case):
    for seed in SEEDS:
        arrays = bases(case, seed)
        args = views(case, arrays)
        result = case.spec.kernel.simulate(*args, seed=seed, grid=case.grid, **case.options)
        assert not result.reports, str(result)
        for index, exact in zip(case.spec.outputs, expected(case, args), strict=True):
            reference.assert_close(args[index], exact, args[index].dtype)
            untouched = outside(case, index, arrays[index]).astype(np.float64)
            assert np.isnan(untouched).all(), "written outside the output"


def test_cases_cover_both_kernels_and_every_configuration_a_call_can_choose():
    assert {case.kernel for case in CASES} == {spec.name for spec in BOTH}
    names = "tile_m", "tile_n", "stages"
    tiles = {(*(o[n] for n in names), o.get("pingpong", 0)) for o in _options("matmul")}
    chosen = set(gemm_choice.TILES)
    assert chosen <= tiles, f"not in CASES: {chosen - tiles}"
    pairs = {(o["D"], o["consumers"]) for o in _options("attention")}
    wanted = {(dim, n) for dim in (32, 64, 128) for n in (1, 2, 3) if n < 3 or dim < 128}
    assert wanted <= pairs, f"not in CASES: {wanted - pairs}"


def _options(kernel: str) -> list[dict]:
    return [case.options for case in CASES if case.kernel == kernel]


@pytest.mark.parametrize("spec", BOTH, ids=lambda spec: spec.name)
def test_spec_reference_agrees_with_the_yardstick(spec):
    args = spec.example({name: min(value, 48) for name, value in spec.small if value > 64}, seed=3)
    ours = spec.reference(*args)
    case = Case(spec.name, (1,) * len(spec.small))
    for mine, exact in zip(ours, expected(case, args), strict=True):
        np.testing.assert_allclose(mine, exact.value, rtol=1e-12, atol=1e-12)
    for index, value in zip(spec.outputs, ours, strict=True):
        assert np.isnan(args[index].astype(np.float64)).all()
        args[index][...] = value
    assert spec.error(args) <= rounding("bf16")
    args[spec.outputs[0]].flat[5] = np.nan
    assert not spec.error(args) <= 1e9


@pytest.mark.parametrize("spec", KERNELS[2:], ids=lambda spec: spec.name)
def test_others_of_the_list_are_their_references(spec):
    """Which have tests of their own: tests/test_delta_rule.py, tests/test_rows_calls.py, ..."""
    for seed in SEEDS[: 1 + (spec.name not in {row.name for row in ROWS})]:
        args = spec.example(seed=1)
        result = spec.kernel.simulate(*args, grid=2, seed=seed, **spec.config().params)
        assert not result.reports, str(result)
        assert spec.error(args) <= rounding("bf16")
    args[spec.outputs[0]].flat[5] = np.nan
    assert not spec.error(args) <= 1e9
    assert spec.flops(dict(spec.small)) > 0 and spec.num_bytes(dict(spec.small), 2) > 0


def test_spec_counts_work_and_bytes():
    gemm, attention = BOTH
    cube = gemm.shape("4096^3").extents
    assert gemm.flops(cube) == 2 * 4096**3 and gemm.num_bytes(cube, 2) == 6 * 4096**2
    head = attention.shape("D128 B16 N3072").extents
    assert attention.flops(head) == 4 * 16 * 16 * 3072**2 * 128
    assert attention.num_bytes(head, 2) == 16 * 16 * 3072 * (4 * 128 * 2 + 4)


def test_spec_shapes_are_complete_and_have_a_configuration():
    for spec in KERNELS:
        names = [shape.name for shape in spec.shapes]
        assert len(set(names)) == len(names)
        for shape in spec.shapes:
            assert isinstance(shape, Shape) and set(shape.extents) == set(dict(spec.small))
            assert spec.config(shape.extents).fits(shape.extents)
        pairs = itertools.combinations(spec.configs, 2)
        assert all(a.name != b.name for a, b in pairs)


@pytest.mark.parametrize("scale", [-0.2, 0.0, float("nan"), float("inf"), np.float32(-1)])
def test_attention_refuses_a_scale_that_is_not_positive(scale):
    q, k, v, *_ = KERNELS[1].example({"Lq": 16, "Lk": 16})
    with pytest.raises(LayoutError, match="scale of the scores is positive"):
        tc.attention(q, k, v, scale=scale)


def test_spec_errors_name_what_there_is():
    gemm, attention = BOTH
    with pytest.raises(LayoutError, match="no extent Q; has M, N, K"):
        gemm.example({"Q": 3})
    with pytest.raises(LayoutError, match="no shape '5\\^3'"):
        gemm.shape("5^3")
    with pytest.raises(LayoutError, match="no configuration fits the extents D=96"):
        attention.config({"D": 96})
    with pytest.raises(LayoutError, match="no configuration is called 'D96'"):
        attention.config(name="D96")
    for extents, got in (({"H": 3, "Hkv": 2}, "H=3, Hkv=2"), ({"Lk": 0}, "Lk=0")):
        with pytest.raises(LayoutError, match="Hkv that divides H, and keys") as caught:
            attention.example(extents)
        assert got in caught.value.message


def test_a_new_shape_compiles_nothing_whatever_its_log_sum_exp_looks_like():
    spec = KERNELS[1]
    options = {**spec.config({"D": 32}).params}
    before = []
    for extents in ((1, 1, 1, 5, 9, 32), (2, 2, 1, 64, 8, 32), (1, 3, 3, 1, 200, 32)):
        args = views(case := Case("attention", extents), bases(case))
        assert not spec.kernel.simulate(*args, **options).reports
        reference.assert_close(args[4], expected(case, args)[1], np.float32)
        before.append(spec.kernel.compiles)
    assert len(set(before)) == 1, before


@pytest.mark.parametrize(("name", "limit"), [("attention", 101), ("attention_forward", 200),
                                             ("attention_backward", 300)])  # fmt: skip
def test_attention_stays_short(name, limit):
    """Lines of the module, its text at the top among them: 21 of the compact one are no code."""
    source = Path(kernels.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= limit
