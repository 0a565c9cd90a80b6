"""Runs a kept text on the PTX machine: arguments, arrays, expected numbers."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
from reference import Reference, assert_close

from tilecat import sim

from . import references
from .cases import Case
from .inputs import arrays_of

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)  # async work at issue, as late as possible, at random
NUMBERS = {"i32": int, "i64": int, "fp32": float}
# Element codes of the parameters.
MAP_DTYPES = {10: "bfloat16", 6: "float16", 7: "float32"}


def text_of(case: Case) -> str:
    """The text that another compiler has made of a case."""
    return (HERE / case.folder / f"{case.name}.ptx").read_text()


@functools.cache
def launches(folder: str) -> dict[str, dict]:
    """What a launch needs beside the texts of a folder, by name."""
    return json.loads((HERE / folder / "launch.json").read_text())


def arguments(launch: dict, arrays: dict[str, np.ndarray]) -> list:
    """The machine's arguments in the order of the entry's parameters."""
    args: list = []
    for param in launch["params"]:
        kind = param["kind"]
        if kind == "number":
            args.append(NUMBERS[param["type"]](param["value"]))
        elif kind == "pointer":
            args.append(sim.Pointer(arrays[param["array"]]))
        elif kind == "scratch":
            poison = np.full(max(param["bytes"], 16), 0xFF, np.uint8)
            args.append(sim.Pointer(poison))
        else:
            dtype = MAP_DTYPES[param["element_code"]]
            array = arrays[param["array"]]
            box = tuple(param["box"])
            args.append(sim.TensorMap(array, box, param["swizzle_bytes"], dtype))
    return args


def run_case(case: Case, seed: int, text: str | None = None) -> tuple[sim.Result, dict, dict]:
    """The machine's result, the arrays after the run and the expected ones."""
    launch = launches(case.folder)[case.name]
    text = text_of(case) if text is None else text
    arrays = arrays_of(case)
    with np.errstate(all="ignore"):
        expected = getattr(references, case.reference)(
            {name: array.copy() for name, array in arrays.items()}, case
        )
    args = arguments(launch, arrays)
    result = sim.run(
        text, grid=tuple(launch["grid"]), args=args, smem_bytes=launch["smem_bytes"], seed=seed
    )
    return result, arrays, expected


def assert_matches(actual: np.ndarray, expected: Reference | np.ndarray) -> None:
    """Within the bound of a `Reference`; equal, NaN for NaN, to an array."""
    if isinstance(expected, Reference):
        assert_close(actual, expected, actual.dtype)
        return
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    with np.errstate(invalid="ignore"):  # signalling NaN among the bit patterns
        if actual.dtype.kind not in "iu":
            actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(actual, expected)
