"""The text a reader sees: names of registers, source lines, parameters, addresses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from language.bodies import TILE, run, traced

import tilecat as tc
from tilecat import bf16, f32, gl, rt, s32, st
from tilecat.codegen.module import ExtentParam, PointerParam, ScalarParam, StrideParam
from tilecat.kernels.attention import attention
from tilecat.kernels.gemm import matmul
from tilecat.ptx.instructions import f32_literal, identifier

SHIPPED = (lambda: matmul.compile(), lambda: attention.compile(D=64, consumers=3, pingpong=True))


def locs(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith(".loc")]


# ---- lines


@pytest.mark.parametrize("compiled", SHIPPED)
def test_lines_change_only_before_an_instruction(compiled):
    lines = [line.strip() for line in compiled().ptx.splitlines()]
    for line, after in zip(lines, lines[1:], strict=False):
        if line.startswith(".loc"):
            assert re.match(r"@?[a-z%]", after), f"{line} before {after}"
    places = locs(compiled().ptx)
    assert all(a != b for a, b in zip(places, places[1:], strict=False))


@pytest.mark.parametrize("compiled", SHIPPED)
def test_instructions_stand_under_the_line_that_asked_for_them(compiled):
    """Each wgmma under a line with mma, each stmatrix under one with store."""
    text = compiled().ptx
    path = re.search(r'\.file 1 "(.*)"', text)[1]  # type: ignore[index]
    source = open(path, encoding="utf-8").read().splitlines()
    current, seen = "", set()
    for line in text.splitlines():
        if match := re.match(r"    \.loc 1 (\d+) (\d+)", line):
            current = source[int(match[1]) - 1][int(match[2]) - 1 :]
        for word, call in (("wgmma.mma", "tc.mma_AB"), ("stmatrix", ".store("), ("ex2", "tc.exp2")):
            if word in line:
                assert call in current, f"{line.strip()[:60]} under {current}"
                seen.add(word)
    assert {"wgmma.mma", "stmatrix"} <= seen


# ---- names


@pytest.mark.parametrize("compiled", SHIPPED)
def test_registers_have_names_that_say_something(compiled):
    text = compiled().ptx
    declared = re.findall(r"^    \.reg \.\w+ %([^\s;<]+)", text, re.M)
    assert len(declared) == len(set(declared))
    stems = {re.sub(r"\d+_?$", "", name) for name in declared}
    assert not stems & {"x", "r", "value", "binary"}
    used = set(re.findall(r"%([A-Za-z_]\w*)", text))
    special = {"tid", "ctaid", "nctaid"}
    families = {name for name in declared if name.endswith("_")}
    for name in used - special:
        family = re.sub(r"\d+$", "", name)
        assert name in declared or family in families, name


def test_gemm_names_what_it_holds():
    text = matmul.compile().ptx
    names = "stage_slot stage_phase A_M_blocks group row col consumer acc_"
    for name in names.split():
        assert re.search(rf"\.reg \.\w+ %{name}[;<]", text), name
    for param in ("A_M", "B_N", "A_K", "map_A", "map_B", "map_C"):
        assert re.search(rf"\.param .* {param}\b", text), param


@pytest.mark.parametrize(
    ("text", "name"),
    [("matmul", "matmul"), ("größe", "gr__e"), ("_", "n_"), ("λ", "n_"), ("M*2", "M_2"),
     ("3d", "n_3d"), ("<lambda>", "lambda"), ("_x_", "x")],
)  # fmt: skip
def test_identifiers_are_ptxs(text: str, name: str):
    assert identifier(text) == name


def test_parameters_of_like_names_stay_apart():
    @tc.kernel
    def k(A: tc.inout[f32, "M1", "M", "M"], A_M: gl[f32, "M"], n: s32):
        with tc.warpgroup():
            x = tc.load(A[0, 0, 0], TILE) + A.size(0).to(f32) + n.to(f32)
            tc.store(A[0, 0, 0], x + A_M.size(0).to(f32))

    module = k.compile().module
    names = [param.name for param in module.params]
    assert len(set(names)) == len(names)
    kinds = {type(p) for p in module.params}
    assert kinds == {ExtentParam, PointerParam, ScalarParam, StrideParam}
    a = np.zeros((2, 16, 16), np.float32)
    k(a, np.zeros(16, np.float32), 100, grid=1)
    assert (a[0] == 118).all() and not a[1].any()


# ---- parameters, literals


def test_parameters_are_scalars_and_what_is_used_of_tensors():
    def body(k: Any) -> None:
        _ = k.x

    text = traced(body).ptx
    assert re.findall(r"\.param \.\w+ (\w+)", text) == [
        "arg_n", "arg_s", "X_M", "X_N", "ptr_X", "X_stride_M", "X_stride_N",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "literal"),
    [(0.0, "0f00000000"), (-0.0, "0f80000000"), (1.5, "0f3FC00000"), (1e300, "0f7F800000"),
     (-np.inf, "0fFF800000"), (1e-46, "0f00000000")],
)  # fmt: skip
def test_literals_are_the_nearest_f32(value: float, literal: str):
    assert f32_literal(value) == literal


def test_nan_fills_a_tile():
    assert np.isnan(run(lambda k: tc.full(TILE, float("nan")))).all()


# ---- addresses


def test_lane_addresses_are_computed_once_for_tiles_of_one_layout():
    def body(k: Any) -> None:
        one, two = tc.shared(st[bf16, 64, 64]), tc.shared(st[bf16, 64, 64])
        y = tc.cast(tc.load(k.X[0, 0], rt[f32, 64, 64]), bf16)
        tc.store(one, y)
        tc.store(two, y)
        tc.sync()
        tc.load(one)

    text = traced(body).ptx
    lane = [n for n in re.findall(r"\.reg \.b32 %(lane_byte\d*);", text)]
    assert len(lane) == 4  # one offset, and its three flips of the swizzle
    assert text.count("stmatrix") == 8 and text.count("ldmatrix") == 4


def test_text_is_the_same_every_time():
    first, second = (traced(lambda k: tc.exp2(k.x) * k.s).ptx for _ in range(2))
    assert first == second
