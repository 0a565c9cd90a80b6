"""A launch of any PTX, described by options or by a TOML or JSON file: arrays, arguments, grid."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from ..dtypes import DTYPES, SHARED_ONLY, by_name, from_numpy
from ..errors import DTypeError
from ..sim import Pointer, TensorMap

GRID_AXES = 3
MAX_MAP_AXES = 5
DTYPE_NAMES = ", ".join(
    row.name for row in DTYPES if row.bits % 8 == 0 and row not in SHARED_ONLY
)

_Fill = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
FILLS: dict[str, _Fill] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-1.0, 1.0, shape),
    "integers": lambda rng, shape: rng.integers(-8, 9, shape),
    "arange": lambda rng, shape: np.arange(np.prod(shape)).reshape(shape),
    "zeros": lambda rng, shape: np.zeros(shape),
    "ones": lambda rng, shape: np.ones(shape),
    "nan": lambda rng, shape: np.full(shape, np.nan),
}


class LaunchError(click.UsageError):
    """A launch description that cannot be understood."""


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched.

    Args:
        arrays: the arrays by name.
        args: arguments in the order of the entry's parameters: `TensorMap`, `Pointer` or a number.
        grid: CTAs an axis.
        smem_bytes: dynamic shared memory of a CTA.
    """

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    args: tuple[Any, ...] = ()
    grid: tuple[int, int, int] = (1, 1, 1)
    smem_bytes: int = 0


def extents(text: str, what: str) -> tuple[int, ...]:
    """`512x256` as (512, 256).

    Raises:
        LaunchError: it is not that.
    """
    if not re.fullmatch(r"\d+([x,]\d+)*", text):
        raise LaunchError(f"{what}: numbers joined by `x` are wanted (512x256), got {text!r}")
    return tuple(int(part) for part in re.split("[x,]", text))


def as_grid(values: tuple[int, ...]) -> tuple[int, int, int]:
    """One to three extents as three.

    Raises:
        LaunchError: too many, or one below 1.
    """
    if not 1 <= len(values) <= GRID_AXES or min(values) < 1:
        raise LaunchError(f"grid: one to three positive numbers are wanted, got {values}")
    x, y, z = (*values, 1, 1)[:GRID_AXES]
    return x, y, z


def _dtype(name: str, what: str) -> np.dtype:
    try:
        row = by_name(name)
    except DTypeError as error:
        raise LaunchError(f"{what}: no dtype {name!r}; there are {DTYPE_NAMES}") from error
    return row.numpy


def _load(path: Path, dtype: str | None, what: str) -> np.ndarray:
    """An array of a .npy file; NumPy has no bf16 and fp8, so these come as integers or bytes."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise LaunchError(f"{what}: cannot read {path} as a .npy file: {error}") from error
    if dtype is None:
        return np.array(array)
    wanted = _dtype(dtype, what)
    if array.dtype == wanted:
        return np.array(array)
    if array.dtype.itemsize == wanted.itemsize and array.dtype.kind in "Vu":
        return np.array(array).view(wanted)
    return array.astype(wanted)


def make_array(name: str, row: Mapping[str, Any], folder: Path, seed: int) -> np.ndarray:
    """An array from its description.

    Args:
        name: its name, for messages.
        row: `dtype`, `shape`, `fill`, or `file` with an optional `dtype`.
        folder: where relative files are looked for.
        seed: of the random fills.

    Raises:
        LaunchError: the description is wrong.
    """
    what = f"array {name}"
    unknown = set(row) - {"dtype", "shape", "fill", "file", "scale"}
    if unknown:
        raise LaunchError(
            f"{what}: unknown key {sorted(unknown)[0]!r}; keys are dtype, shape, fill, scale, file"
        )
    if "file" in row:
        return _load(folder / row["file"], row.get("dtype"), what)
    shape = row.get("shape")
    if not isinstance(shape, list | tuple) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise LaunchError(f"{what}: shape must be a list of whole numbers, got {shape!r}")
    fill = row.get("fill", "normal")
    if fill not in FILLS:
        raise LaunchError(f"{what}: no fill {fill!r}; there are {', '.join(FILLS)}")
    dtype = _dtype(str(row.get("dtype", "f32")), what)
    rng = np.random.default_rng([seed, *name.encode()])
    with np.errstate(invalid="ignore", over="ignore"):
        return (FILLS[fill](rng, tuple(shape)) * row.get("scale", 1)).astype(dtype)


def parse_array(text: str) -> tuple[str, dict[str, Any]]:
    """`A=bf16:512x512:normal` or `A=file.npy[:bf16]` as a name and its description.

    Raises:
        LaunchError: it is neither.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise LaunchError(
            f"--array: NAME=DTYPE:SHAPE[:FILL] or NAME=FILE.npy is wanted, got {text!r}"
        )
    file, dot, dtype = value.partition(".npy")
    if dot:
        described = {"file": f"{file}.npy"}
        return name, described | ({"dtype": dtype.lstrip(":")} if dtype else {})
    parts = value.split(":")
    if not 2 <= len(parts) <= 3:
        raise LaunchError(f"--array {name}: DTYPE:SHAPE[:FILL] is wanted, got {value!r}")
    row: dict[str, Any] = {"dtype": parts[0], "shape": extents(parts[1], f"--array {name}")}
    return name, row | ({"fill": parts[2]} if len(parts) == 3 else {})


def parse_arg(text: str) -> dict[str, Any]:
    """`map:A:64x128:128`, `A`, `512` or `0.5` as an argument's description.

    Raises:
        LaunchError: it is none of them.
    """
    if text.startswith("map:"):
        name, box, swizzle, *rest = (*text.split(":")[1:], "0", "0")[:4]
        if not name or box == "0":
            raise LaunchError(f"--arg: map:ARRAY:BOX[:SWIZZLE] is wanted, got {text!r}")
        row = {"map": name, "box": extents(box, f"--arg {text}")}
        return row | {"swizzle_bytes": int(swizzle) if swizzle.isdigit() else swizzle}
    if text.isidentifier() and text not in {"inf", "nan"}:
        return {"pointer": text}
    for kind in (lambda word: int(word, 0), float):
        try:
            return {"value": kind(text)}
        except ValueError:
            continue
    raise LaunchError(
        f"--arg: an array's name, map:ARRAY:BOX[:SWIZZLE] or a number is wanted, got {text!r}"
    )


def make_arg(index: int, row: Any, arrays: Mapping[str, np.ndarray]) -> TensorMap | Pointer | float:
    """An argument of the machine from its description.

    Raises:
        LaunchError: the description is wrong.
    """
    what = f"argument {index}"
    if isinstance(row, int | float):
        return row
    kinds = {"map", "pointer", "value"} & set(row) if isinstance(row, dict) else set()
    if len(kinds) != 1:
        raise LaunchError(f"{what}: one of map, pointer, value is wanted, got {row!r}")
    if "value" in row:
        return row["value"]
    name = row.get("map", row.get("pointer"))
    if name not in arrays:
        raise LaunchError(f"{what}: no array {name!r}; there are {', '.join(arrays) or 'none'}")
    return Pointer(arrays[name]) if "pointer" in row else _map(what, row, arrays[name])


def _map(what: str, row: Mapping[str, Any], array: np.ndarray) -> TensorMap:
    box, swizzle = tuple(row.get("box", ())), row.get("swizzle_bytes", 0)
    if len(box) != array.ndim or not 1 <= array.ndim <= MAX_MAP_AXES:
        raise LaunchError(
            f"{what}: box needs one number for each of the array's {array.ndim} axes "
            f"(at most {MAX_MAP_AXES}), innermost first, got {box}"
        )
    if swizzle not in (0, 32, 64, 128):
        raise LaunchError(f"{what}: swizzle_bytes must be 0, 32, 64 or 128, got {swizzle!r}")
    dtype = row.get("dtype") or from_numpy(array.dtype).name
    return TensorMap(array, box, swizzle, dtype)


def read_file(path: Path) -> dict[str, Any]:
    """The description in a .toml or .json file.

    Raises:
        LaunchError: the file is not that.
    """
    text = path.read_text(encoding="utf-8")
    try:
        described = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise LaunchError(f"{path}: {error}") from error
    if not isinstance(described, dict):
        raise LaunchError(f"{path}: keys and values are wanted, got {described!r}")
    unknown = set(described) - {"arrays", "args", "grid", "smem_bytes", "seed"}
    if unknown:
        raise LaunchError(
            f"{path}: unknown key {sorted(unknown)[0]!r}; keys are arrays, args, "
            "grid, smem_bytes, seed"
        )
    for key, value in described.items():
        fits, wanted = _KINDS[key]
        if not fits(value):
            raise LaunchError(f"{path}: {key} is {wanted}, got {value!r}")
    return described


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "arrays": (lambda x: isinstance(x, dict) and all(isinstance(v, dict) for v in x.values()),
               "a table of tables"),
    "args": (lambda x: isinstance(x, list), "a list"),
    "grid": (lambda x: all(map(_is_count, x if isinstance(x, list) else [x])),
             "a number, or a list of them"),
    "smem_bytes": (_is_count, "a number, 0 or more"),
    "seed": (_is_count, "a number, 0 or more"),
}  # fmt: skip


@dataclass(frozen=True)
class Description:
    """A launch in words, from a file and from options: options add arrays, replace the rest."""

    arrays: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    args: tuple[Any, ...] = ()
    grid: tuple[int, ...] = (1,)
    smem_bytes: int = 0
    seed: int = 0
    folder: Path = Path()

    @classmethod
    def from_file(cls, path: Path) -> Description:
        """The description a file holds."""
        read = read_file(path)
        grid = read.get("grid", 1)
        return cls(
            arrays=read.get("arrays", {}),
            args=tuple(read.get("args", ())),
            grid=(grid,) if isinstance(grid, int) else tuple(grid),
            smem_bytes=read.get("smem_bytes", 0),
            seed=read.get("seed", 0),
            folder=path.parent,
        )

    def with_options(
        self, arrays: tuple[str, ...], args: tuple[str, ...], **rest: Any
    ) -> Description:
        """The description with what the command line says; None in `rest` says nothing."""
        added = {}
        for name, row in map(parse_array, arrays):
            added[name] = row | (
                {"file": str(Path(row["file"]).resolve())} if "file" in row else {}
            )
        given = {key: value for key, value in rest.items() if value is not None}
        if args:
            given["args"] = tuple(parse_arg(text) for text in args)
        return replace(self, arrays={**self.arrays, **added}, **given)

    def make(self) -> Launch:
        """Make the arrays and the arguments."""
        arrays = {
            name: make_array(name, row, self.folder, self.seed) for name, row in self.arrays.items()
        }
        args = tuple(make_arg(k, row, arrays) for k, row in enumerate(self.args))
        return Launch(arrays, args, as_grid(self.grid), self.smem_bytes)
