"""The benchmark's bookkeeping, without a GPU: rows, budget, files, tables."""

import json
import types

import numpy as np
import pytest
from rich.console import Console

import tilecat.bench as bench
from tilecat.bench import attention, gemm, record, session, show
from tilecat.bench.plot import plot
from tilecat.bench.roof import ROOFS, Roof, put_over, roof_of
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
    assert len(labels) == 2 * len(gemm.SPEC.shapes) + 20
    assert {"4096^3 NN", "4352^3 NT", "1000x1016x520 NN", "8448x8448x4096 NN"} <= set(labels)
    assert {"D128 B16 N3072", "D64 B4 N12288 causal"} <= set(labels)
    few = bench.make_tasks(("gemm", "attention"), ("640x512x64", "D64 B2 N100"))
    assert [task.label for task in few] == ["640x512x64 NN", "640x512x64 NT", "D64 B2 N100",
                                          "D64 B2 N100 causal"]  # fmt: skip
    backward = bench.make_tasks(("backward",), ("D64 B2 N100",))
    assert [task.label for task in backward] == ["D64 B2 N100", "D64 B2 N100 causal"]
    assert len(bench.make_tasks(("backward",))) == 20
    decode = [task.label for task in bench.make_tasks(("decode", "varlen"))]
    assert {"B16 Hkv8 N8192", "B64 Hkv1 N131072", "B64 Hkv8 N8192 page 16"} <= set(decode)
    assert decode[-2:] == ["16 of 2048", "16 of 2048 causal"]
    assert [task.table for task in bench.make_tasks(bench.ALL)[:3]] == ["host", "depth", "grid"]
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
    said = "gemm NN against torch.mm: geometric mean 1.500 over 1 problems, lowest 1.500"
    assert f"{said} (4096^3 NN)" in text


def row_of(label, ratio, **more):
    row = {"table": "gemm", "label": label, "layout": label[-2:], "group": "more"}
    return row | {"ratio": {"torch.mm": {"median": ratio}}} | more


def test_summaries_have_every_problem_of_the_list_and_the_lowest():
    rows = [row_of("a NN", 2.0), row_of("b NT", 0.5), row_of("c NN", 8.0, group="own")]
    rows += [{"table": "gemm", "label": "d NN", "failed": "no"}, row_of("e NN", 1.0, table="grid")]
    found = show.summaries(rows)
    assert list(found) == ["gemm", "gemm NN", "gemm NT"]
    assert found["gemm"]["torch.mm"] == {
        "geomean": 1.0, "lowest": 0.5, "of": "b NT", "problems": 2
    }  # fmt: skip
    assert found["gemm NN"]["torch.mm"]["geomean"] == 2.0


def test_roof_is_the_nearer_of_tensor_cores_and_memory():
    roof = Roof(flops=1e15, memory_bytes=4e12, source="a data sheet")
    assert roof.tflops(2e12, 1e9) == 1000  # 2 ms of products, 0.25 ms of bytes
    assert roof.tflops(2e12, 16e9) == 500  # 4 ms of bytes
    rows = [{"flops": 2e12, "bytes": 16e9, "tflops": {}}, {"failed": "no"}]
    put_over(rows, roof)
    assert rows[0]["roof_tflops"] == 500 and "roof_tflops" not in rows[1]
    put_over(rows[1:], None)
    assert roof_of("GPU 1") is None and roof_of("NVIDIA H200") is ROOFS["NVIDIA H200"]
    assert all(roof.source for roof in ROOFS.values())


def test_batch_first_is_every_task_once():
    tasks = attention.batch_first(3, 4, 2)
    seen = [dict(tasks.locate(t)) for t in range(tasks.count)]
    assert [s["tile"] for s in seen] == [0] * 8 + [1] * 8 + [2] * 8
    assert len({tuple(s.values()) for s in seen}) == 24
    assert [(s["head"], s["batch"]) for s in seen[:3]] == [(0, 0), (0, 1), (1, 0)]


def test_attention_in_another_order_has_the_same_bits():
    args = attention.SPEC.example({"B": 2, "H": 2, "Hkv": 1, "Lq": 150, "Lk": 100})
    attention.kernel(*args)
    first = [args[index].copy() for index in attention.SPEC.outputs]
    for index in attention.SPEC.outputs:
        args[index].fill(float("nan"))
    attention.kernel(*args, order=attention.batch_first)
    for index, wanted in zip(attention.SPEC.outputs, first, strict=True):
        np.testing.assert_array_equal(args[index], wanted)


def test_tables_of_one_parameter_each():
    tasks = bench.make_tasks(("depth", "grid", "order"))
    assert [(t.table, t.label) for t in tasks] == [
        ("depth", "4096^3"),
        *(("grid", f"4096x4096x{k}") for k in (64, 128, 256, 512, 1024)),
        ("order", "16384^3"),
        ("order", "attention D128 B16 N3072"),
    ]
    for variants in (gemm._by_depth(), gemm._by_grid(), gemm._by_order()):
        first, *rest = variants.values()
        changed = {key for other in rest for key in first if other[key] != first[key]}
        assert len(changed) == 1, "one parameter alone"


def test_plot_draws_speeds(bench_times, tmp_path):
    pytest.importorskip("matplotlib")
    rows = rows_of_every_kind(bench_times)
    put_over(rows, ROOFS["NVIDIA H200"])
    assert plot(rows, "GPU", tmp_path / "roof.png") is not None
    path = plot(rows_of_every_kind(bench_times), "GPU", tmp_path / "plot.png")
    assert path is not None and path.stat().st_size > 5000
    assert plot([], "GPU", tmp_path / "none.png") is None


def test_run_without_a_gpu_says_so(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ResourceError, match="PyTorch"):
        bench.run(("gemm",))


def test_run_writes_rows_roofs_and_their_summary(bench_times, monkeypatch, tmp_path):
    torch = torch_stub()
    torch.manual_seed = lambda seed: None
    torch.cuda.get_device_name = lambda: "NVIDIA H200"
    monkeypatch.setattr(bench, "require_gpu", lambda: torch)
    facts = {"device": "NVIDIA H200", "date": "2026-12-01"}
    monkeypatch.setattr(record, "environment", lambda torch, commit: facts)
    monkeypatch.setattr(record, "smi", dict)
    monkeypatch.setattr(record, "smi_under_load", lambda torch: {})
    late = session.Task("gemm", "x NN", lambda found: {"skipped": "out of time"})
    tasks = [session.Task("gemm", "4096^3 NN", comparison), late]
    monkeypatch.setattr(bench, "make_tasks", lambda tables, shapes: tasks)
    console = Console(width=120, record=True)
    path = bench.run(("gemm",), out=tmp_path / "h200.json", with_plot=False, console=console)
    data = json.loads(path.read_text())
    assert data["roof"]["memory_bytes"] == 4.8e12 and "data sheet" in data["roof"]["source"]
    assert [row.get("roof_tflops") for row in data["rows"]] == [989.5, None]
    assert data["summary"]["gemm"]["torch.mm"]["lowest"] == 1.5
    assert "lowest 1.500 (4096^3 NN)" in console.export_text()
