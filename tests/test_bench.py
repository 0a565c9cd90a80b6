"""The benchmark's bookkeeping, without a GPU: rows, budget, files, tables."""

import json
import types

import pytest
from rich.console import Console

import tilecat.bench as bench
from tilecat.bench import gemm, record, session, show
from tilecat.errors import LayoutError, ResourceError
from tilecat.testing import Times

SHAPE = gemm.SPEC.shape("4096^3")


def torch_stub():
    return types.SimpleNamespace(cuda=types.SimpleNamespace(empty_cache=lambda: None))


def a_session(**settings):
    made = session.Session(torch_stub(), **settings)
    made.say = lambda line: None
    return made


@pytest.fixture
def bench_times(monkeypatch):
    """do_bench that returns 1000 us for the first function, 1500 us for the next, ..."""

    def fake(functions, **settings):
        assert settings["repeats"] and settings["budget_s"] >= 0
        return tuple(Times((1000.0 + 500 * n,) * 3) for n in range(len(functions)))

    monkeypatch.setattr(session, "do_bench", fake)


def comparison(found):
    functions = {"tilecat": int, "torch.mm": int}
    return {"layout": "NN", "group": "peers", **found.compare(functions, gemm.SPEC, SHAPE)}


def test_compare_gives_speeds_and_ratios(bench_times):
    row = comparison(a_session())
    assert row["flops"] == 2 * 4096**3 and row["bytes"] == 6 * 4096**2
    assert row["tflops"] == {"tilecat": 137.4, "torch.mm": 91.63}
    assert row["ratio"] == {"torch.mm": {"median": 1.5, "p10": 1.5, "p90": 1.5}}
    assert row["times_us"]["torch.mm"]["rounds"] == 3


def test_session_keeps_going_after_a_failed_row(bench_times):
    def broken(found):
        raise RuntimeError("no such kernel\nmore text")

    seen = []
    made = a_session()
    made.report = lambda done, total: seen.append((done, total))
    made.run([session.Task("gemm", "x", broken), session.Task("gemm", "y", comparison)])
    assert made.rows[0]["failed"] == "RuntimeError: no such kernel"
    assert made.rows[1]["tflops"]["torch.mm"] == 91.63
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_session_skips_rows_when_time_is_up(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(session.time, "perf_counter", lambda: clock[0])
    shares = []

    def slow(found):
        shares.append(found.share_s)
        clock[0] += 60
        return {"tflops": {}, "ratio": {}}

    made = a_session(budget_s=100)
    made.run(
        [
            session.Task("gemm", name, slow, weight)
            for name, weight in (("a", 2), ("b", 1), ("c", 1))
        ]
    )
    assert shares == [50, 20]
    assert [row.get("skipped") for row in made.rows] == [None, None, "out of time"]


def test_tables_and_shapes_are_chosen_by_name():
    assert bench.chosen_tables(("all",)) == bench.ALL and bench.chosen_tables(()) == bench.ALL
    tasks = bench.make_tasks(("gemm", "attention"))
    labels = [task.label for task in tasks]
    assert len(labels) == 2 * len(gemm.SPEC.shapes) + 10
    assert {"4096^3 NN", "4352^3 NT", "1000x1016x520 NN", "8448x8448x4096 NN"} <= set(labels)
    assert "D128 B16 N3072" in labels
    few = bench.make_tasks(("gemm", "attention"), ("640x512x64", "D64 B2 N100"))
    assert [task.label for task in few] == ["640x512x64 NN", "640x512x64 NT", "D64 B2 N100"]
    assert [task.table for task in bench.make_tasks(bench.ALL)[:3]] == ["host", "depth", "order"]
    with pytest.raises(LayoutError, match="no table 'fft'"):
        bench.chosen_tables(("fft",))
    with pytest.raises(LayoutError, match="no shape 'big'"):
        bench.make_tasks(("gemm",), ("big",))


def test_peers_list_of_the_products_has_14_rows():
    peers = [shape for shape in gemm.SPEC.shapes if shape.group == "peers"]
    assert len(peers) == 14


def test_old_results_are_never_replaced_silently(tmp_path):
    old = tmp_path / "h200.json"
    old.write_text("{}")
    with pytest.raises(ResourceError, match="results of an earlier run") as caught:
        record.path_for("x", old, overwrite=False)
    assert "--overwrite" in caught.value.hint and "h200-20" in caught.value.hint
    assert record.path_for("x", old, overwrite=True) == old
    assert record.path_for("no such run", None, False).parts[:2] == ("benchmarks", "results")
    assert record.name_of("NVIDIA H200", ("gemm", "host")) == "h200-gemm-host"


def test_results_are_written_whole(tmp_path):
    path = tmp_path / "deep" / "file.json"
    record.write(path, {"rows": [1]})
    assert json.loads(path.read_text()) == {"rows": [1]}
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]


def test_source_hash_follows_the_source(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    first = record.source_hash(tmp_path)
    (tmp_path / "a.py").write_text("x = 2\n")
    assert record.source_hash(tmp_path) != first and len(first) == 64


def test_smi_reads_both_queries(monkeypatch):
    monkeypatch.setattr(record.shutil, "which", lambda name: "/usr/bin/nvidia-smi")

    def run(command, **_):
        fields = command[1].partition("=")[2].split(",")
        if len(fields) == 1:
            return types.SimpleNamespace(returncode=1, stdout="Field is not valid")
        return types.SimpleNamespace(returncode=0, stdout=", ".join(f"<{f}>" for f in fields))

    monkeypatch.setattr(record.subprocess, "run", run)
    assert record.smi()["clocks.sm"] == "<clocks.sm>" and len(record.smi()) == 8


def rows_of_every_kind(bench_times):
    made = a_session()
    variants = {"stages 1": int, "stages 2": int, "torch.mm": int}

    def compare(found):
        return found.compare(variants, gemm.SPEC, SHAPE, ours="stages 2")

    made.run(
        [
            session.Task("gemm", "4096^3 NN", comparison),
            session.Task("gemm", "late", lambda found: {"skipped": "out of time"}),
            session.Task("depth", "4096^3", compare),
            session.Task("configs", "4096^3", compare),
            session.Task("host", "calls", lambda found: {"host_us": {"torch.mm": 11.5}}),
        ]
    )
    return made.rows


def test_show_prints_every_table(bench_times):
    console = Console(width=120, record=True)
    show.show(rows_of_every_kind(bench_times), console)
    text = console.export_text()
    for part in ("137 ±0%", "1.500", "out of time", "stages 2", "11.50", "against torch.mm"):
        assert part in text, text
    assert "geometric mean, gemm NN: 1.500" in text


def test_plot_draws_speeds(bench_times, tmp_path):
    pytest.importorskip("matplotlib")
    path = show.plot(rows_of_every_kind(bench_times), "GPU", tmp_path / "plot.png")
    assert path is not None and path.stat().st_size > 5000
    assert show.plot([], "GPU", tmp_path / "none.png") is None


def test_run_without_a_gpu_says_so(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ResourceError, match="PyTorch"):
        bench.run(("gemm",))
