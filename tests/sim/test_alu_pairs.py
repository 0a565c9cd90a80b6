"""f32x2, operands of 16 bits, min and max of three, redux of f32: what sm_100 and later have."""

import ml_dtypes
import numpy as np
import pytest

from tilecat.errors import MachineError

from .test_alu import execute
from .test_alu_float import bits, float_pairs, same

U64 = np.dtype("u8")


def _packed(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.stack([bits(low), bits(high)], 1).copy().view("u8").ravel()


@pytest.mark.parametrize("op", ["add.rn", "sub.rz", "mul", "mul.ftz", "fma.rn", "fma.rp.ftz"])
def test_f32x2_is_f32_twice(op):
    a, b = float_pairs()
    c = np.roll(a, 7)
    columns = [a, b, c][: 3 if op.startswith("fma") else 2]
    swapped = [column[::-1].copy() for column in columns]
    got = execute(f"{op}.f32x2", [_packed(x, y) for x, y in zip(columns, swapped, strict=True)],
                  U64, chip="sm_100a").view("f4").reshape(-1, 2)  # fmt: skip
    for half, given in enumerate((columns, swapped)):
        want = execute(f"{op}.f32", [bits(x) for x in given], np.dtype("u4"))
        same(got[:, half], want.view("f4"))


@pytest.mark.parametrize("mods", ["", ".NaN", ".abs", ".ftz.NaN.abs"])
@pytest.mark.parametrize("name", ["min", "max"])
def test_min_max_of_three(name, mods):
    a, b = float_pairs()
    c = np.roll(b, 5) * np.float32(0.75)
    got = execute(f"{name}{mods}.f32", [bits(x) for x in (a, b, c)], np.dtype("u4"),
                  chip="sm_100a").view("f4")  # fmt: skip
    stack = np.stack([a, b, c]).astype(np.float64)
    if "abs" in mods:
        stack = np.abs(stack)
    if "ftz" in mods:
        stack = np.where(np.abs(stack) < 2.0**-126, 0.0, stack)
    reduce = {"min": np.fmin, "max": np.fmax, "min.NaN": np.minimum, "max.NaN": np.maximum}
    want = reduce[name + (".NaN" if "NaN" in mods else "")].reduce(stack)
    np.testing.assert_array_equal(got.astype(np.float64), want.astype("f4").astype(np.float64))


@pytest.mark.parametrize(("op", "count"), [("max.f32", 3), ("fma.rn.f32x2", 3)])
def test_hopper_has_neither(op, count):
    column = np.zeros(32, np.uint64 if "x2" in op else np.uint32)
    with pytest.raises(MachineError, match="not supported on target sm_90a"):
        execute(op, [column] * count, column.dtype)


@pytest.mark.parametrize("op", ["max.f64", "max.f16x2", "max.xorsign.abs.f32"])
def test_three_operands_are_for_f32(op):
    column = np.zeros(32, np.uint64 if "64" in op else np.uint32)
    with pytest.raises(MachineError, match="max: "):
        execute(op, [column] * 3, column.dtype, chip="sm_100a")


def test_f32x2_does_not_saturate():
    with pytest.raises(MachineError, match="not implemented"):
        execute("fma.rn.sat.f32x2", [np.zeros(32, np.uint64)] * 3, U64, chip="sm_100a")


@pytest.mark.parametrize("op", ["add.f32.f16", "sub.rz.f32.bf16", "add.rn.sat.f32.bf16",
                                "fma.rn.f32.f16", "fma.rp.sat.f32.bf16"])  # fmt: skip
def test_operands_of_16_bits_are_widened(op):
    """The same as the f32 form of the values, which the conversion does not change."""
    short = np.float16 if op.endswith(".f16") else ml_dtypes.bfloat16
    a, c = float_pairs()
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = [a.astype(short), np.roll(a, 11).astype(short)][: 2 if op[0] == "f" else 1]
    got = execute(op, [*(bits(x) for x in narrow), bits(c)], np.dtype("u4"), chip="sm_100a")
    wide = [*(x.astype(np.float32) for x in narrow), c]
    want = execute(op.rsplit(".", 1)[0], [bits(x) for x in wide], np.dtype("u4"))
    same(got.view("f4"), want.view("f4"))


@pytest.mark.parametrize("op", ["mul.f32.f16", "add.ftz.f32.f16", "fma.rn.f32.f32"])
def test_other_mixed_forms_do_not_exist(op):
    kinds = [np.uint16] * (2 if op[0] == "f" else 1) + [np.uint32]
    with pytest.raises(MachineError, match="not implemented"):
        execute(op, [np.zeros(32, kind) for kind in kinds], np.dtype("u4"), chip="sm_100a")


REDUX = [
    ("max", [1, -3, 2.5], 2.5), ("min", [1, -3, 2.5], -3.0), ("max.abs", [1, -3, 2.5], 3.0),
    ("max", [np.nan, -3, 2], 2.0), ("max.NaN", [np.nan, -3, 2], np.nan),
    ("min", [np.nan] * 3, np.nan), ("max", [-0.0, 0.0, -0.0], 0.0), ("min", [0.0, -0.0, 0.0], -0.0),
    ("min.abs.NaN", [-0.0, 4, 5], 0.0),
]  # fmt: skip


@pytest.mark.parametrize("op, values, want", REDUX)
def test_redux_of_floats(op, values, want):
    column = np.resize(np.array(values, np.float32), 32)
    form = f"redux.sync.{op}.f32 %r10, %r1, 0xffffffff;"
    got = execute("", [bits(column)], np.dtype("u4"), form=form, chip="sm_100a")
    same(got.view("f4"), np.full(32, want, np.float32))
    if np.isnan(want):
        assert (got == 0x7FFFFFFF).all()
