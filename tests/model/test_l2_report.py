"""benchmarks/l2_model.py without a GPU: counters as ncu writes them, beside the model."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "l2_model.py"
HEADER = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
PAIRS = ((4096, 4096, 4096, "row", 8), (2048, 4096, 512, "snake", 4))


@pytest.fixture
def benchmark(monkeypatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("l2_model", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PAIRS", PAIRS)
    return module


def log(counts: list[str]) -> str:
    """What `ncu --csv` and the benchmark print to one stream."""
    lines = ["==PROF== Connected to process 7", "device: NVIDIA H200, 132 SMs, L2 62914560"]
    lines += [f'==PROF== Profiling "matmul" - {n}: 0%....100% - 1 pass' for n in range(len(counts))]
    lines += ["==PROF== Disconnected from process 7", HEADER]
    for number, count in enumerate(counts):
        lines.append(f'"{number}","7","matmul","dram__bytes_read.sum","byte","{count}"')
        lines.append(f'"{number}","7","matmul","dram__bytes_write.sum","byte","12"')
    return "\n".join(lines) + "\n"


def test_second_launches_stand_beside_the_model(benchmark, tmp_path, capsys):
    source, target = tmp_path / "ncu.csv", tmp_path / "l2.json"
    source.write_text(log(["1", "170,932,736", "2", "12,582,912"]))
    benchmark.report(str(source), str(target))
    found = json.loads(target.read_text())
    assert found["device"] == "NVIDIA H200, 132 SMs, L2 62914560"
    first, second = found["rows"]
    # What an H200 read: A and B are more than the half of the L2 that is each SM's.
    assert first["predicted_bytes"] > 2 * first["least_bytes"] == 4 * 4096 * 4096 * 2
    assert (first["measured_bytes"], first["ratio"]) == (170932736, 1.0)
    assert second["predicted_bytes"] == (2048 + 4096) * 512 * 2
    assert (second["order"], second["ratio"]) == ("snake", 0.5)
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("counts", [[], ["1", "2"], ["1"] * 5], ids=len)
def test_a_log_of_other_launches_is_refused(benchmark, tmp_path, counts):
    source = tmp_path / "ncu.csv"
    source.write_text(log(counts) if counts else "==ERROR== no permission\n")
    with pytest.raises(SystemExit, match=f"of 4 launches is wanted, got {len(counts)}"):
        benchmark.report(str(source), str(tmp_path / "l2.json"))
    assert not (tmp_path / "l2.json").exists()
