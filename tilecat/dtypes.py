"""Element types: one row a dtype, with its bits, its names elsewhere, and its rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .errors import DTypeError

FLOAT, INT, UINT, PRED = "float", "int", "uint", "pred"


@dataclass(frozen=True, repr=False)
class DType:
    """One element type.

    Example: `bf16` has bits=16, exponent_bits=8, mantissa_bits=7, is `.bf16` in PTX,
    `__nv_bfloat16` in CUDA C++ and `torch.bfloat16`; `bf16.round(1.001)` is 1.0, since its
    neighbours above one are 2**-7 apart.

    Args:
        name: tilecat's name, also the module attribute.
        bits: bits of one element in memory (4 and 6 for the packed storage types, 1 for pred).
        kind: "float", "int", "uint" or "pred".
        exponent_bits: stored exponent bits, 0 for integers.
        mantissa_bits: stored mantissa bits without the leading one, 0 for integers.
        ptx: the type's suffix in PTX, without its dot (PTX ISA, Types).
        cuda: its name in CUDA C++.
        torch: its attribute of the torch module, "" where torch has none.
        storage: name of its NumPy or ml_dtypes scalar type.
    """

    name: str
    bits: int
    kind: str
    exponent_bits: int
    mantissa_bits: int
    ptx: str
    cuda: str
    torch: str
    storage: str

    @property
    def numpy(self) -> np.dtype:
        """Its NumPy dtype; 4- and 6-bit types take a whole byte there."""
        return np.dtype(getattr(ml_dtypes, self.storage, None) or self.storage)

    @property
    def nbytes(self) -> int:
        """Bytes of one element.

        Raises:
            DTypeError: the type is narrower than a byte.
        """
        if self.bits % 8:
            raise DTypeError(
                f"dtype: {self.name} has {self.bits} bits, no whole number of bytes",
                hint="count its packed bytes in a u8 tile",
            )
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type, block-scale and storage types included."""
        return self.kind == FLOAT

    @property
    def is_signed(self) -> bool:
        """Whether it has negative values."""
        return self.kind == INT or (self.is_float and self.name != "e8m0")

    @property
    def max_value(self) -> float | int:
        """The largest finite value."""
        if self.kind == PRED:
            return 1
        if not self.is_float:
            return int(np.iinfo(self.numpy).max)
        if self.name == "tf32":
            return (2 - 2.0**-10) * 2.0**127
        return float(ml_dtypes.finfo(self.numpy).max)

    def round(self, array: Any, *, saturate: bool = False) -> np.ndarray:
        """The values of `array` rounded to this type, nearest even.

        Args:
            array: anything NumPy takes.
            saturate: clamp finite values and infinities to the largest finite value, as
                `cvt.satfinite` does; without it they overflow as the format says (infinity
                in e5m2, NaN in e4m3). Integers always saturate and take NaN to 0, as `cvt`
                from float does (PTX ISA, cvt).

        Returns:
            float32 where the input is float32 or narrower and holds the result, else float64.
        """
        x = np.asarray(array)
        narrow = x.dtype.itemsize <= 4 and x.dtype.kind not in "iub" and self.is_float
        with np.errstate(over="ignore", invalid="ignore"):
            return self._rounded(x.astype(np.float64), saturate).astype(
                np.float32 if narrow else np.float64
            )

    def _rounded(self, x: np.ndarray, saturate: bool) -> np.ndarray:
        if self.kind == PRED:
            return x != 0
        if not self.is_float:
            info = np.iinfo(self.numpy)
            # float(2**63 - 1) would be 2**63: the ends must be values of the type.
            top = float(info.max) if self.bits < 64 else np.nextafter(float(info.max), 0.0)
            return np.nan_to_num(np.clip(np.rint(x), float(info.min), top), nan=0.0)
        if saturate:
            top = self.max_value
            x = np.clip(x, -top if self.is_signed else 0.0, top)
        if self.name == "tf32":
            return _round_mantissa(x, self.mantissa_bits)
        if self.mantissa_bits < 23:
            x = _round_to_odd(x)
        return x.astype(self.numpy).astype(np.float64)

    def __repr__(self) -> str:
        """`bf16`."""
        return self.name

    def __str__(self) -> str:
        """`bf16`."""
        return self.name


def _round_to_odd(x: np.ndarray) -> np.ndarray:
    """To float32 so that a second rounding, to a shorter type, comes out as if there were none.

    ml_dtypes casts float64 through float32; nearest-even twice would move 1 + 2**-8 + 2**-30
    onto bf16's tie and below it. Inexact values get an odd last bit, which is never a tie.
    """
    y = x.astype(np.float32)
    away = np.abs(y.astype(np.float64)) > np.abs(x)
    y = np.where(away, np.nextafter(y, np.float32(0)), y)
    inexact = (y.astype(np.float64) != x) & np.isfinite(x)
    return np.where(inexact, (y.view(np.uint32) | np.uint32(1)).view(np.float32), y)


def _round_mantissa(x: np.ndarray, mantissa_bits: int) -> np.ndarray:
    """Nearest even with f32's exponent range and a shorter mantissa (tf32)."""
    _, exponent = np.frexp(x)
    quantum = np.ldexp(1.0, np.maximum(exponent - 1, -126) - mantissa_bits)
    rounded = np.where(np.isfinite(x), np.rint(x / quantum) * quantum, x)
    return np.where(np.abs(rounded) >= 2.0**128, np.copysign(np.inf, x), rounded)


# Widths: PTX ISA, Alternate Floating-Point Data Formats and Packed Data types;
# OCP Microscaling Formats v1.0 for e8m0, e2m1, e2m3, e3m2.
# tf32 has f32's storage: 32 bits of which the tensor cores read 19. b4x16_p64 is e2m1 in shared
# memory beside 8-bit elements, of arrays with two a byte (PTX ISA 5.5.1.1): 16 elements are 8 bytes
# and a gap of 8, so that a tile is as large as one of bytes.
DTYPES: tuple[DType, ...] = (
    DType("f32", 32, FLOAT, 8, 23, "f32", "float", "float32", "float32"),
    DType("f16", 16, FLOAT, 5, 10, "f16", "__half", "float16", "float16"),
    DType("bf16", 16, FLOAT, 8, 7, "bf16", "__nv_bfloat16", "bfloat16", "bfloat16"),
    DType("tf32", 32, FLOAT, 8, 10, "tf32", "float", "float32", "float32"),
    DType("e4m3", 8, FLOAT, 4, 3, "e4m3", "__nv_fp8_e4m3", "float8_e4m3fn", "float8_e4m3fn"),
    DType("e5m2", 8, FLOAT, 5, 2, "e5m2", "__nv_fp8_e5m2", "float8_e5m2", "float8_e5m2"),
    DType("s8", 8, INT, 0, 0, "s8", "signed char", "int8", "int8"),
    DType("u8", 8, UINT, 0, 0, "u8", "unsigned char", "uint8", "uint8"),
    DType("s32", 32, INT, 0, 0, "s32", "int", "int32", "int32"),
    DType("u32", 32, UINT, 0, 0, "u32", "unsigned int", "uint32", "uint32"),
    DType("s64", 64, INT, 0, 0, "s64", "long long", "int64", "int64"),
    DType("u64", 64, UINT, 0, 0, "u64", "unsigned long long", "uint64", "uint64"),
    DType("pred", 1, PRED, 0, 0, "pred", "bool", "bool", "bool"),
    DType("e8m0", 8, FLOAT, 8, 0, "ue8m0", "__nv_fp8_e8m0", "float8_e8m0fnu", "float8_e8m0fnu"),
    DType("e2m1", 4, FLOAT, 2, 1, "e2m1", "__nv_fp4_e2m1", "float4_e2m1fn_x2", "float4_e2m1fn"),
    DType("e2m3", 6, FLOAT, 2, 3, "e2m3", "__nv_fp6_e2m3", "", "float6_e2m3fn"),
    DType("e3m2", 6, FLOAT, 3, 2, "e3m2", "__nv_fp6_e3m2", "", "float6_e3m2fn"),
    DType("b4x16_p64", 8, UINT, 0, 0, "b4x16_p64", "", "", "uint8"),
)

(f32, f16, bf16, tf32, e4m3, e5m2, s8, u8, s32, u32, s64, u64, pred, e8m0, e2m1, e2m3, e3m2,
 b4x16_p64) = DTYPES  # fmt: skip
SHARED_ONLY = (tf32, b4x16_p64)  # of tiles alone: arrays have f32, and u8


def _named(rows: tuple[DType, ...]) -> str:
    return ", ".join(row.name for row in rows)


def by_name(name: str) -> DType:
    """The dtype called `name`.

    Raises:
        DTypeError: there is none.
    """
    for row in DTYPES:
        if row.name == name:
            return row
    raise DTypeError(
        f"dtype: no element type of that name, got name={name!r}",
        hint=f"the element types are {_named(DTYPES)}",
    )


def from_numpy(dtype: Any) -> DType:
    """The dtype whose elements a NumPy (or ml_dtypes) array of `dtype` holds; f32 for float32.

    Raises:
        DTypeError: no element type matches.
    """
    wanted = np.dtype(dtype)
    for row in DTYPES:
        if row.numpy == wanted:
            return row
    known = ", ".join(f"{row.numpy.name} ({row.name})" for row in DTYPES if row not in SHARED_ONLY)
    raise DTypeError(
        f"dtype: no element type for this array, got dtype={wanted.name} (NumPy)",
        hint=f"convert it to one of {known}",
    )


def from_torch_name(name: str) -> DType:
    """The dtype of a torch tensor from its type's name: "bfloat16" or "torch.bfloat16".

    Raises:
        DTypeError: no element type matches.
    """
    bare = name.removeprefix("torch.")
    for row in DTYPES:
        if row.torch and row.torch == bare:
            return row
    known = ", ".join(
        f"{row.torch} ({row.name})" for row in DTYPES if row.torch and row not in SHARED_ONLY
    )
    raise DTypeError(
        f"dtype: no element type for this tensor, got dtype={bare} (torch)",
        hint=f"convert it to one of {known}",
    )


@dataclass(frozen=True, init=False)
class DTypeVar:
    """A kernel's dtype parameter: stands for one of several types, as a TypeVar does.

    Example: `T = DTypeVar("T", bf16, f16)`, then `A: gl[T, "M", "K"], B: gl[T, "K", "N"]`:
    a call binds T from its first tensor and checks the others against it.

    Args:
        name: its name in messages.
        choices: the types it may stand for.
    """

    name: str
    choices: tuple[DType, ...]

    def __init__(self, name: str, *choices: DType):
        """Check and keep the choices."""
        for choice in choices:
            if not isinstance(choice, DType):
                raise DTypeError(
                    f"DTypeVar: the choices of {name} must be element types, "
                    f"got choice={choice!r} ({type(choice).__name__})",
                    hint=f"the element types are {_named(DTYPES)}",
                )
        if not choices:
            raise DTypeError(
                f"DTypeVar: {name} must have at least one choice, got none",
                hint=f'write DTypeVar("{name}", bf16, f16)',
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "choices", choices)

    def check(self, dtype: DType) -> DType:
        """`dtype`, if it is one of the choices.

        Raises:
            DTypeError: it is not.
        """
        if dtype in self.choices:
            return dtype
        raise DTypeError(
            f"dtype: {self.name} cannot stand for {dtype!r}, "
            f"got dtype={dtype!r} ({type(dtype).__name__})",
            hint=f"{self.name} is one of {_named(self.choices)}",
        )

    def __repr__(self) -> str:
        """`T`."""
        return self.name
