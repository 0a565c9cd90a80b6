"""The tuner on this GPU: every candidate of a small problem right, the fastest beside torch.mm."""

import json

import pytest

from tilecat import tune

pytestmark = pytest.mark.gpu


def test_tuner_finds_right_candidates_and_times_them(tmp_path):
    settings = tune.Settings(budget_s=60, within=1.05)
    path = tune.tune("matmul", ("512^3",), layouts=("NT",), out=tmp_path / "t.json",
                     settings=settings)  # fmt: skip
    (row,) = json.loads(path.read_text())["problems"]
    assert row["failed"] == {} and all(error < 2**-8 for error in row["error"].values())
    times = {name: taken["median"] for name, taken in row["times_us"].items()}
    assert times.pop("torch.mm") > 1 and all(1 < us < 1000 for us in times.values())
