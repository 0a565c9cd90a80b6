"""The PTX machine runs another compiler's kernels and gets the numbers right, at any schedule.

The texts in `sm_*a/` were compiled by Triton 3.9, those in `sm_*a_cute/` by CuTe DSL 4.8.1, from
the kernels of this folder; nothing in them was made by tilecat, and the machine's authors did not
choose their instructions.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilecat import sim
from tilecat.errors import MachineError

from . import references
from .cases import CASES, Case
from .cute_cases import CUTE_CASES
from .inputs import arrays_of, numpy_dtype
from .runs import HERE, SEEDS, arguments, assert_matches, launches, run_case, text_of
from .tensor_cases import TENSOR_CASES

ALL = CASES + TENSOR_CASES + CUTE_CASES
MAX_BYTES = 4_500_000
# Triton leaves out tcgen05.fence, which PTX asks for where threads hand tensor memory on.
OVERLOOKED = {"tcgen05-fence"}


def _id(case: Case) -> str:
    return case.name if case.target == 90 else f"{case.name}-{case.folder}"


def _marked(case: Case, seed: int):
    slow = case.slow or case.heavy and seed != SEEDS[-1]
    marks = pytest.mark.slow if slow else ()
    return pytest.param(case, seed, id=f"{_id(case)}-{seed}", marks=marks)


@pytest.mark.parametrize(
    ("case", "seed"), [_marked(case, seed) for case in ALL for seed in SEEDS]
)
def test_machine_runs_foreign_kernel(case, seed):
    result, arrays, expected = run_case(case, seed)
    found = {report.kind for report in result.reports}
    found -= set() if case.language == "cute" else OVERLOOKED
    assert found == set(case.reports), "\n".join(str(report) for report in result.reports)
    if "race" in found:
        return
    for name, value in expected.items():
        assert_matches(arrays[name], value)


@pytest.mark.parametrize("case", [pytest.param(case, id=_id(case)) for case in ALL])
def test_launch_facts_fit_case(case):
    launch = launches(case.folder)[case.name]
    text = text_of(case)
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
    folders = {case.folder for case in ALL}
    files = [path for folder in sorted(folders) for path in (HERE / folder).iterdir()]
    names = {(case.folder, case.name) for case in ALL} | {(f, "launch") for f in folders}
    assert {(path.parent.name, path.stem) for path in files} == names
    assert len(names) == len(files)
    for folder in folders:
        assert set(launches(folder)) == {case.name for case in ALL if case.folder == folder}
    assert sum(path.stat().st_size for path in files) < MAX_BYTES
    for path in files:
        text = path.read_text()
        assert not re.search(r'\.file\s+\d+\s+"[^"]*/', text), path.name
        letters = re.sub(r"\s*\.b8\s+(\d+)[^\n]*\n", lambda m: chr(int(m[1]) % 128), text)
        assert not re.search(r"/\w+/\w+", letters), path.name


def test_launch_beyond_shared_memory_is_refused():
    case = next(case for case in CASES if case.name == "vector_add")
    args = arguments(launches(case.folder)[case.name], arrays_of(case))
    with pytest.raises(MachineError, match="at most 232448 bytes of shared memory"):
        sim.run(text_of(case), grid=(2, 1, 1), args=args, smem_bytes=232449)
