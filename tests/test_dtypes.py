"""Element types: their fields against ml_dtypes, and rounding against lists of all values."""

from __future__ import annotations

import math
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as hs

from tilecat import dtypes
from tilecat.dtypes import DTYPES, SHARED_ONLY, DType, DTypeVar, bf16, e4m3, e5m2, f16, f32, tf32
from tilecat.errors import DTypeError

FLOATS = [row for row in DTYPES if row.is_float]
NARROW = [row for row in FLOATS if row.bits <= 8]


def all_values(dtype: DType) -> np.ndarray:
    """Every finite value of a float type of at most 16 bits, sorted; from its bits alone."""
    values = []
    bias = 127 if dtype.name == "e8m0" else 2 ** (dtype.exponent_bits - 1) - 1
    for bits in range(2 ** (dtype.exponent_bits + dtype.mantissa_bits)):
        exponent, mantissa = bits >> dtype.mantissa_bits, bits & (2**dtype.mantissa_bits - 1)
        fraction = mantissa / 2**dtype.mantissa_bits
        if dtype.name == "e8m0":
            values.append(2.0 ** (exponent - bias))
        elif exponent == 0:
            values.append(fraction * 2.0 ** (1 - bias))
        else:
            values.append((1 + fraction) * 2.0 ** (exponent - bias))
    # The codes that are not finite: e8m0's 255, e4m3's last, the top exponent of IEEE-like types.
    drop = {"e8m0": 1, "e4m3": 1, "e5m2": 4, "f16": 1024, "bf16": 128}.get(dtype.name, 0)
    positive = np.array(values[: len(values) - drop])
    return positive if dtype.name == "e8m0" else np.concatenate([-positive[:0:-1], positive])


def nearest_even(x: float, dtype: DType, values: np.ndarray) -> float:
    """The value of `values` nearest to x inside their range; of two, the one of even mantissa."""
    high = int(np.searchsorted(values, x))
    if high == len(values) or high == 0 or values[high] == x:
        return float(values[min(high, len(values) - 1)])
    low_value, high_value = values[high - 1], values[high]
    if x - low_value != high_value - x:
        return float(low_value if x - low_value < high_value - x else high_value)
    # In a sorted list that holds 0 once, even mantissas are at even distance from 0.
    zero = int(np.searchsorted(values, 0.0))
    return float(low_value if (high - 1 - zero) % 2 == 0 else high_value)


def test_table_names_are_unique_and_module_attributes():
    assert len({row.name for row in DTYPES}) == len(DTYPES) == 18
    for row in DTYPES:
        assert getattr(dtypes, row.name) is row
        assert dtypes.by_name(row.name) is row
        assert str(row) == repr(row) == row.name


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_fields_match_ml_dtypes(dtype: DType):
    if dtype is tf32:
        assert (dtype.exponent_bits, dtype.mantissa_bits, dtype.numpy) == (8, 10, np.float32)
        return
    info = ml_dtypes.finfo(dtype.numpy)
    sign = 0 if dtype.name == "e8m0" else 1
    assert sign + dtype.exponent_bits + dtype.mantissa_bits == dtype.bits == info.bits
    assert dtype.max_value == float(info.max)


@pytest.mark.parametrize("dtype", [row for row in DTYPES if row.bits >= 8], ids=str)
def test_nbytes_is_the_numpy_itemsize(dtype: DType):
    assert dtype.nbytes == dtype.numpy.itemsize == dtype.bits // 8


def test_nbytes_rejects_packed_types():
    with pytest.raises(DTypeError, match="dtype: e2m1 has 4 bits, no whole number of bytes"):
        _ = dtypes.e2m1.nbytes


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_round_matches_ml_dtypes_on_all_halves(dtype: DType):
    bits = np.arange(65536, dtype=np.uint16)
    for source in (np.float16, ml_dtypes.bfloat16):
        x = bits.view(source).astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            wanted = x.astype(dtype.numpy).astype(np.float32)
            wide = x.astype(np.float64)
        np.testing.assert_array_equal(dtype.round(x), wanted)
        np.testing.assert_array_equal(dtype.round(wide), wanted)


@pytest.mark.parametrize("dtype", [row for row in NARROW if row.name != "e8m0"], ids=str)
def test_round_takes_the_nearest_value(dtype: DType):
    values = all_values(dtype)
    np.testing.assert_array_equal(dtype.round(values), values)
    middles = (values[1:] + values[:-1]) / 2
    x = np.concatenate([middles, np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf)])
    wanted = [nearest_even(v, dtype, values) for v in x]
    np.testing.assert_array_equal(dtype.round(x), wanted)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@given(index=hs.integers(0, 2**15 - 2**11), nudge=hs.sampled_from([-1, 0, 1]))
def test_round_of_float64_is_not_rounded_twice(dtype: DType, index: int, nudge: int):
    values = all_values(dtype)
    low, high = values[index : index + 2]
    middle = (low + high) / 2
    x = middle if nudge == 0 else np.nextafter(middle, nudge * math.inf)
    assert dtype.round(x) == nearest_even(x, dtype, values)


@given(x=hs.floats(width=32))
def test_round_of_tf32_adds_and_truncates_bits(x: float):
    value = np.float32(x)
    if not np.isfinite(value):
        np.testing.assert_array_equal(tf32.round(value), value)
        return
    bits = int(value.view(np.uint32))
    bits = (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF  # nearest even on the 13 dropped bits
    assert tf32.round(value) == np.uint32(bits).view(np.float32)


def test_round_overflow_and_saturation():
    x = np.float32([464, 465, 1e9, -1e9, math.inf, math.nan])
    np.testing.assert_array_equal(e4m3.round(x), [448] + [math.nan] * 5)
    np.testing.assert_array_equal(e4m3.round(x, saturate=True), [448] * 3 + [-448, 448, math.nan])
    np.testing.assert_array_equal(
        e5m2.round([61439, 61440, -math.inf]), [57344, math.inf, -math.inf]
    )
    np.testing.assert_array_equal(e5m2.round([61440, -math.inf], saturate=True), [57344, -57344])


def test_round_of_integers_saturates_and_takes_nan_to_zero():
    x = [-1e30, -128.5, -2.5, 0.5, 1.5, 127.5, 1e30, math.nan]
    np.testing.assert_array_equal(dtypes.s8.round(x), [-128, -128, -2, 0, 2, 127, 127, 0])
    np.testing.assert_array_equal(dtypes.u8.round(x), [0, 0, 0, 0, 2, 128, 255, 0])
    np.testing.assert_array_equal(dtypes.s32.round(x)[[0, 6]], [-(2.0**31), 2.0**31 - 1])
    for wide in (dtypes.s64, dtypes.u64):
        ends = wide.round([-1e30, 1e30])
        assert [int(v) for v in ends.astype(wide.numpy)] == [int(v) for v in ends]


def test_round_keeps_float32_and_widens_what_needs_it():
    assert bf16.round(np.float32(1)).dtype == np.float32
    assert f32.round(np.float16(1)).dtype == np.float32
    assert bf16.round(1.0).dtype == np.float64
    assert dtypes.s32.round(np.float32(1)).dtype == np.float64
    assert bf16.round(np.zeros((0, 3), np.float32)).shape == (0, 3)
    np.testing.assert_array_equal(dtypes.pred.round([0, -0.0, 2, -3]), [0, 0, 1, 1])


@pytest.mark.parametrize("dtype", [row for row in DTYPES if row not in SHARED_ONLY], ids=str)
def test_from_numpy_and_torch_name_find_the_row(dtype: DType):
    assert dtypes.from_numpy(dtype.numpy) is dtype
    if dtype.torch:
        assert dtypes.from_torch_name(dtype.torch) is dtype
        assert dtypes.from_torch_name("torch." + dtype.torch) is dtype


def test_unknown_types_name_the_known_ones():
    with pytest.raises(DTypeError, match=re.escape("got dtype=complex64 (NumPy)")) as error:
        dtypes.from_numpy(np.complex64)
    assert "float32 (f32), float16 (f16), bfloat16 (bf16), float8_e4m3fn (e4m3)" in error.value.hint
    with pytest.raises(DTypeError, match=re.escape("got dtype=float64 (torch)")) as error:
        dtypes.from_torch_name("torch.float64")
    assert error.value.hint.startswith("convert it to one of float32 (f32), float16 (f16)")
    with pytest.raises(DTypeError, match=re.escape("got name='fp32'")) as error:
        dtypes.by_name("fp32")
    assert error.value.hint.startswith("the element types are f32, f16, bf16, tf32, e4m3")


def test_dtype_var_checks_its_choices():
    choice = DTypeVar("T", bf16, f16)
    assert choice.choices == (bf16, f16)
    assert choice.check(f16) is f16
    assert choice == DTypeVar("T", bf16, f16)
    assert hash(choice) == hash(DTypeVar("T", bf16, f16))
    with pytest.raises(DTypeError, match=re.escape("T cannot stand for f32")) as error:
        choice.check(f32)
    assert error.value.hint == "T is one of bf16, f16"
    with pytest.raises(DTypeError, match="got choice='bf16' \\(str\\)"):
        DTypeVar("T", "bf16")
    with pytest.raises(DTypeError, match="T must have at least one choice"):
        DTypeVar("T")
