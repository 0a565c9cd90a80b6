"""Arrays for a case: random numbers for its inputs, poison for its outputs."""

from __future__ import annotations

import zlib

import ml_dtypes
import numpy as np

from .cases import Array, Case

DTYPES = {
    "fp64": np.float64, "fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16,
    "fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e5": ml_dtypes.float8_e5m2,
    "i8": np.int8, "u8": np.uint8, "i32": np.int32, "i64": np.int64,
    "e2m1x2": np.uint8, "ue8m0": np.uint8, "ue4m3": ml_dtypes.float8_e4m3fn,
}
INT32 = (-(2**31), 2**31)
# Bounds of random integers that a kernel does not take from the whole range of its type.
RANGES = {
    ("histogram", "x"): (0, 64), ("histogram", "top"): (0, 9), ("histogram", "total"): (-9, 9),
    ("scatter_add", "x"): (-8, 9), ("scatter_add", "index"): (0, 64),
    ("scatter_add", "y"): (-8, 9), ("scatter_add", "count"): (0, 9),
    ("last_program", "x"): (-99, 99), ("last_program", "ticket"): (0, 1),
    ("pick", "i"): (0, 64), ("spin_lock", "x"): (-9, 9), ("spin_lock", "y"): (-9, 9),
    ("spin_lock", "flag"): (0, 1),
    ("reductions", "i"): INT32, ("scans", "i"): INT32, ("integers", "x"): INT32,
}
EDGES = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-9, 3e-7, 65519.9, 65520.0, 448.0, 464.0,
         1e5, -1e5, 57344.0, 61440.0, 3.4e38, -3.4e38, 2.0**-24, 2.0**-25, 2.0**-10, 2.0**-17)


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's dtype of an element type; e2m1x2 is two in a byte, ue8m0 its byte."""
    return np.dtype(DTYPES[name])


def _integers(generator: np.random.Generator, case: Case, arg: Array) -> np.ndarray:
    low, high = RANGES.get((case.name, arg.name), (-100, 100))
    dtype = numpy_dtype(arg.dtype)
    if dtype.itemsize == 1:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max + 1
    return generator.integers(low, high, arg.shape).astype(dtype)


def _bit_patterns(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """All patterns of a type, or as many evenly spread as fit, infinities and NaN among them."""
    count = int(np.prod(shape))
    bits = (np.arange(count) * 65537 // count if dtype.itemsize == 2 else np.arange(count)) % (
        1 << 8 * dtype.itemsize
    )
    return bits.astype(f"u{dtype.itemsize}").view(dtype).reshape(shape)


def _input(generator: np.random.Generator, case: Case, arg: Array) -> np.ndarray:
    dtype = numpy_dtype(arg.dtype)
    if case.name == "gathered" and arg.name == "index":
        return generator.permutation(96)[: arg.shape[0]].astype(dtype)
    if arg.dtype == "ue8m0":  # 2^-7 to 2^6
        return generator.integers(120, 134, arg.shape).astype(dtype)
    if arg.dtype == "ue4m3":
        return generator.uniform(0.25, 4.0, arg.shape).astype(np.float32).astype(dtype)
    if case.name == "widen" and dtype.kind != "i":
        return _bit_patterns(dtype, arg.shape)
    if dtype.kind in "iu" or (case.name, arg.name) in RANGES:
        return _integers(generator, case, arg)
    if arg.name == "decay":
        return generator.uniform(0.5, 1.0, arg.shape).astype(dtype)
    numbers = generator.standard_normal(arg.shape)
    if case.name == "trigonometry":
        numbers *= 100
        numbers[:5] = (1e5, 3e6, 1e20, -7e10, 0.0)
    if case.name == "convert":
        numbers *= 10.0 ** generator.integers(-6, 6, arg.shape)
        numbers[: len(EDGES)] = EDGES
    return numbers.astype(np.float32 if dtype.itemsize < 4 else dtype).astype(dtype)


def arrays_of(case: Case) -> dict[str, np.ndarray]:
    """The case's arrays, the same at each call; what a kernel must write is all ones bits."""
    generator = np.random.default_rng(zlib.crc32(case.name.encode()))
    arrays = {}
    for arg in case.args:
        if not isinstance(arg, Array):
            continue
        dtype = numpy_dtype(arg.dtype)
        if arg.role == "out":
            bits = np.full(int(np.prod(arg.shape)) * dtype.itemsize, 0xFF, np.uint8)
            arrays[arg.name] = bits.view(dtype).reshape(arg.shape)
        else:
            arrays[arg.name] = _input(generator, case, arg)
    if case.name == "integers":
        arrays["y"] = np.where(arrays["y"] == 0, 3, arrays["y"]).astype(np.int32)
        arrays["y"][arrays["y"] == -7] = 5
    return arrays
