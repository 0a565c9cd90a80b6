"""f32x2 and the min and max of three: what sm_100 and later have."""

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
