"""The PTX machine runs another compiler's kernels and gets the numbers right, at any schedule.

The texts in `sm_90a/` were compiled by Triton 3.9 from the kernels of this folder; nothing in
them was made by tilecat, and the machine's authors did not choose their instructions.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from reference import Reference, assert_close

from tilecat import sim
from tilecat.errors import MachineError

from . import references
from .cases import CASES, Case
from .inputs import arrays_of, numpy_dtype

FOLDER = Path(__file__).parent / "sm_90a"
LAUNCHES = json.loads((FOLDER / "launch.json").read_text())
MAX_BYTES = 1_500_000
SEEDS = (0, 1, 2)  # async work at issue, as late as possible, at random
NUMBERS = {"i32": int, "i64": int, "fp32": float}
MAP_DTYPES = {10: "bfloat16", 6: "float16", 7: "float32"}  # element codes of the parameters


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
    launch = LAUNCHES[case.name]
    text = (FOLDER / f"{case.name}.ptx").read_text() if text is None else text
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


def _marked(case: Case, seed: int):
    slow = case.slow or case.heavy and seed != SEEDS[-1]
    marks = pytest.mark.slow if slow else ()
    return pytest.param(case, seed, id=f"{case.name}-{seed}", marks=marks)


@pytest.mark.parametrize(
    ("case", "seed"), [_marked(case, seed) for case in CASES for seed in SEEDS]
)
def test_machine_runs_foreign_kernel(case, seed):
    result, arrays, expected = run_case(case, seed)
    assert not result.reports, "\n".join(str(report) for report in result.reports)
    for name, value in expected.items():
        assert_matches(arrays[name], value)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_launch_facts_fit_case(case):
    launch = LAUNCHES[case.name]
    text = (FOLDER / f"{case.name}.ptx").read_text()
    entry = re.search(r"\.entry\s+(\w+)\s*\((.*?)\)", text, re.S)
    assert entry[1] == launch["entry"]
    assert entry[2].count(".param") == len(launch["params"])
    assert int(re.search(r"\.reqntid\s+(\d+)", text)[1]) == launch["threads"]
    outputs = {arg.name for arg in case.args if getattr(arg, "role", "in") != "in"}
    with np.errstate(all="ignore"):
        expected = getattr(references, case.reference)(arrays_of(case), case)
    assert set(expected) == outputs
    for arg in case.args:
        if arg.name in expected and isinstance(expected[arg.name], np.ndarray):
            assert expected[arg.name].dtype == numpy_dtype(arg.dtype)


def test_texts_hold_no_path_and_stay_small():
    files = sorted(FOLDER.iterdir())
    assert {path.stem for path in files} == {case.name for case in CASES} | {"launch"}
    assert sum(path.stat().st_size for path in files) < MAX_BYTES
    for path in files:
        text = path.read_text()
        assert not re.search(r'\.file\s+\d+\s+"[^"]*/', text), path.name
        letters = re.sub(r"\s*\.b8\s+(\d+)[^\n]*\n", lambda m: chr(int(m[1]) % 128), text)
        assert not re.search(r"/\w+/\w+", letters), path.name


def test_launch_beyond_shared_memory_is_refused():
    launch = LAUNCHES["vector_add"]
    args = arguments(launch, arrays_of(CASES[[case.name for case in CASES].index("vector_add")]))
    text = (FOLDER / "vector_add.ptx").read_text()
    with pytest.raises(MachineError, match="at most 232448 bytes of shared memory"):
        sim.run(text, grid=(2, 1, 1), args=args, smem_bytes=232449)
