"""The command line: what it prints, its exit codes, and its words for wrong input."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import tilecat as tc
from tilecat.cli import demo, main
from tilecat.codegen.module import ExtentParam, PointerParam, ScalarParam, TensorMapParam
from tilecat.kernels import KERNELS
from tilecat.kernels.gemm import matmul

ADD = (Path(__file__).parents[1] / "docs" / "examples" / "add.ptx").read_text(encoding="utf-8")
SCALE = '''
import tilecat as tc
from tilecat import bf16, f32, gl, st

@tc.kernel
def product(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"], *, stages=2):
    """C = A @ B."""
    pipe = tc.lcf(consumers=1, stages=stages, steps=tc.cdiv(A.cols, 64),
                  tasks=tc.row_major(tc.cdiv(A.rows, 64), tc.cdiv(B.cols, 64)))
    a, b = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 64])
    c = pipe.output(st[bf16, 64, 64])
    acc = pipe.accumulator(f32, 64, 64)

    @pipe.load
    def _(task, k):
        tc.load_async(a, A[task.row, k])
        tc.load_async(b, B[k, task.col])

    @pipe.compute
    def _(task, k):
        tc.mma_AB(acc, a, b)

    @pipe.finish
    def _(task):
        c.store(C[task.row, task.col], acc)
'''


def call(*words: str, code: int = 0) -> str:
    """What a command prints, both streams; its exit code must be `code`."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def add(tmp_path: Path) -> Path:
    path = tmp_path / "add.ptx"
    path.write_text(ADD)
    return path


@pytest.fixture
def product(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SCALE)
    return f"{path}:product"


def test_every_command_has_help_with_examples():
    for name in main.commands:
        assert "Examples:" in call(name, "--help"), name
    assert "Examples:" in call("--help")
    assert call("--version").startswith("tilecat ")


def test_script_starts_without_torch():
    probe = "import sys, tilecat.cli; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_machine_runs_ptx_and_saves_arrays(add, tmp_path):
    saved = tmp_path / "y.npy"
    x = np.arange(1000, dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    arrays = ("--array", f"X={tmp_path / 'x.npy'}", "--array", "Y=f32:1000:ones")
    out = call("machine", add, *arrays, "--arg", "X", "--arg", "Y", "--arg", "1000",
               "--grid", "8", "--save", f"Y={saved}")  # fmt: skip
    assert "0 reports" in out
    np.testing.assert_array_equal(np.load(saved), x + 1)


def test_machine_takes_a_launch_file(add, tmp_path):
    file = tmp_path / "launch.toml"
    file.write_text(
        "grid = 8\n[arrays.X]\ndtype = 'f32'\nshape = [1000]\nfill = 'arange'\n"
        "[arrays.Y]\ndtype = 'f32'\nshape = [1000]\nfill = 'ones'\n"
        "[[args]]\npointer = 'X'\n[[args]]\npointer = 'Y'\n[[args]]\nvalue = 1000\n"
    )
    found = json.loads(call("machine", add, "--launch", file, "--json"))
    assert found["reports"] == []
    assert found["arrays"]["Y"]["max"] == 1000.0
    assert found["stats"]["bytes written"] == 4000


def test_machine_overlooks_a_kind(add):
    arrays = ["--array", "X=f32:1000", "--array", "Y=f32:1000"]
    words = [*arrays, "--arg", "X", "--arg", "Y", "--arg", "1024", "--grid", "8"]
    assert "bounds" in call("machine", add, *words, "--overlook", "race", code=1)
    found = json.loads(call("machine", add, *words, "--overlook", "bounds", "--json"))
    assert found["reports"] == []


def test_machine_reports_accesses_outside_arrays(add):
    arrays = ("--array", "X=f32:1000", "--array", "Y=f32:1000")
    out = call("machine", add, *arrays, "--arg", "X", "--arg", "Y", "--arg", "1024",
               "--grid", "8", code=1)  # fmt: skip
    assert "bounds" in out and "ld.global.f32 %f1, [%rd4]" in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--array", "X=f32:10a"), "numbers joined by `x`"),
        (("--array", "X=f99:10"), "no dtype 'f99'"),
        (("--array", "X=f32:10:blue"), "no fill 'blue'"),
        (("--array", "X"), "NAME=DTYPE:SHAPE"),
        (("--array", "X=none.npy"), "cannot read"),
        (("--arg", "X"), "no array 'X'"),
        (("--arg", "map:X"), "map:ARRAY:BOX"),
        (("--arg", "1 2"), "an array's name"),
        (("--grid", "4x0"), "positive"),
        (("--save", "X"), "NAME=FILE.npy"),
        (("--array", "X=f32:8x8", "--arg", "map:X:8"), "one number for each"),
        (("--array", "X=f32:8x8", "--arg", "map:X:8x8:48"), "0, 32, 64 or 128"),
        ((), "takes 3 arguments, got 0; its parameters: x"),
    ],
)
def test_machine_says_what_is_wrong_with_a_launch(add, words, text):
    assert text in call("machine", add, *words, code=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[1]]", "keys and values are wanted, got [[1]]"),
        ('{"grid": "x"}', "grid is a number, or a list of them, got 'x'"),
        ('{"grid": [1, "2"]}', "grid is a number, or a list of them, got [1, '2']"),
        ('{"arrays": 4}', "arrays is a table of tables, got 4"),
        ('{"arrays": {"X": 4}}', "arrays is a table of tables"),
        ('{"args": 4}', "args is a list, got 4"),
        ('{"seed": "a"}', "seed is a number, 0 or more, got 'a'"),
        ('{"smem_bytes": -1}', "smem_bytes is a number, 0 or more, got -1"),
    ],
)
def test_machine_says_what_is_wrong_with_a_file_of_a_launch(add, tmp_path, text, said):
    (tmp_path / "launch.json").write_text(text)
    printed = " ".join(call("machine", add, "--launch", tmp_path / "launch.json", code=2).split())
    assert said in printed


def test_machine_refuses_what_it_does_not_know(tmp_path):
    path = tmp_path / "odd.ptx"
    path.write_text(ADD.replace("add.f32 %f3", "frobnicate.f32 %f3"))
    arrays = ("--array", "X=f32:128", "--array", "Y=f32:128")
    out = call("machine", path, *arrays, "--arg", "X", "--arg", "Y", "--arg", "128", code=1)
    assert "frobnicate" in out and "Traceback" not in out and "click" not in out
    assert "does not exist" in call("machine", tmp_path / "none.ptx", code=2)


def test_machine_runs_what_emit_writes(tmp_path):
    """The GEMM's own text, launched from a description, gives the GEMM's numbers."""
    path = tmp_path / "matmul.ptx"
    call("emit", "matmul", "-p", "tile_m=64,tile_n=64,stages=2", "-o", path)
    module = matmul.compile(tile_m=64, tile_n=64, stages=2).module
    assert path.read_text().strip() == module.text.strip()
    shapes, names, args = {"A": (96, 72), "B": (72, 80), "C": (96, 80)}, "ABC", []
    for param in module.params:
        name = names[param.arg]
        if isinstance(param, TensorMapParam):
            args.append({"map": name, "box": param.box, "swizzle_bytes": param.swizzle_bytes})
        elif isinstance(param, ExtentParam):
            args.append({"value": shapes[name][param.dim]})
        else:
            assert isinstance(param, PointerParam | ScalarParam)
            args.append({"pointer": name})
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal(shapes[n]).astype(ml_dtypes.bfloat16) for n in "AB"}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array.view(np.uint16))
    described = {
        "grid": [2],
        "smem_bytes": module.smem_bytes,
        "arrays": {n: {"file": f"{n}.npy", "dtype": "bf16"} for n in "AB"}
        | {"C": {"dtype": "bf16", "shape": shapes["C"], "fill": "nan"}},
        "args": args,
    }
    (tmp_path / "launch.json").write_text(json.dumps(described))
    saved = tmp_path / "c.npy"
    call("machine", path, "--launch", tmp_path / "launch.json", "--save", f"C={saved}")
    c = np.load(saved).view(ml_dtypes.bfloat16).astype(np.float64)
    exact = arrays["A"].astype(np.float64) @ arrays["B"].astype(np.float64)
    assert np.linalg.norm(c - exact) <= 2**-8 * np.linalg.norm(exact)


def test_list_names_kernels_configurations_and_shapes():
    assert "matmul" in call("list") and "attention" in call("list")
    assert "4096^3" in call("list", "matmul")
    assert "there are matmul, attention" in call("list", "nix", code=2)


def test_check_says_what_a_kernel_uses():
    out = call("check", "matmul", "--config", "128x256")
    assert "384 threads" in out and "0 bytes spilled" in out
    assert "4 x wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16" in out


def test_check_lists_accesses_to_shared_memory_with_both_names_and_lines():
    out = call("check", "attention", "--config", "D64", "--target", "sm_90a")
    row = next(line for line in out.splitlines() if "StoreShared" in line)
    source = (Path(tc.__file__).parent / "kernels" / "attention.py").read_text().splitlines()
    store, made = (1 + next(i for i, line in enumerate(source) if text in line)
                   for text in ("out.store(", "out = pipe.output("))  # fmt: skip
    assert row.split()[:6] == ["StoreShared", f"attention.py:{store}", "out",
                               f"attention.py:{made}", "store:", "rt[f32,"]  # fmt: skip
    assert row.split()[-4:] == ["4", "stmatrix", "16", "1-way"]


def test_check_shows_the_rule_a_kernel_breaks():
    out = call("check", "matmul", "-p", "stages=9", code=1)
    assert "stages=9" in out and "gemm.py" in out and "Traceback" not in out


@pytest.mark.parametrize(
    ("stage", "text"),
    [("ir", "Mma.mma_AB("), ("ptx", ".visible .entry matmul"), ("sass", "HGMMA")],
)
def test_emit_stops_after_a_stage(stage, text):
    assert text in call("emit", "matmul", "--stage", stage, "--target", "sm_90a")


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a", "sm_107a"])
def test_emit_writes_one_source_for_each_target(target):
    text = call("emit", "matmul", "--target", target)
    assert f".target {target}" in text and "tcgen05.mma.cta_group::1.kind::f16" in text
    assert "UTCHMMA" in call("emit", "matmul", "--stage", "sass", "--target", target)


@pytest.mark.parametrize(
    ("name", "machine"), [("matmul_mxfp8", "UTCQMMA"), ("matmul_fp4", "UTCOMMA")]
)
def test_emit_writes_products_with_scales(name, machine):
    file = Path(tc.__file__).parent / "kernels" / "gemm_scaled.py"
    text = call("emit", f"{file}:{name}", "--stage", "sass", "--target", "sm_103a")
    assert machine in text and "UTCCP" in text


@pytest.mark.parametrize("name", ["ssd", pytest.param("delta_rule", marks=pytest.mark.full)])
def test_emit_writes_kernels_that_take_further_arguments(name):
    assert f".entry {name}(" in call("emit", name)


def test_emit_rejects_unknown_stages_targets_and_parameters():
    assert "'ir', 'ptx', 'sass'" in call("emit", "matmul", "--stage", "cuda", code=2)
    assert "sm_90a" in call("emit", "matmul", "--target", "sm_80", code=2)
    assert "tile_q" in call("emit", "matmul", "-p", "tile_q=1", code=1)
    assert "NAME=VALUE" in call("emit", "matmul", "-p", "tile_m", code=2)


def test_true_and_false_are_no_words():
    words = ("emit", "matmul", "-p", "tile_m=64,tile_n=64,stages=2", "-p")
    assert "pingpong=False" in call(*words, "pingpong=false")
    assert "persistent=False" in call(*words, "persistent=False")
    assert "pingpong=True" in call(*words, "pingpong=true")


def test_sim_compares_with_the_reference():
    out = call("sim", "matmul", "--shape", "M=70,N=90,K=40", "--dtype", "f16", "--seeds", "2", "-v")
    assert out.count("right: relative error") == 2 and "1-way" in out
    out = call("sim", "attention", "--shape", "H=2,Hkv=1,Lq=70,Lk=90", "--seed", "3")
    assert "right: relative error" in out and "0 reports" in out


def test_sim_rejects_wrong_extents():
    assert "whole number" in call("sim", "matmul", "--shape", "M=a", code=2)
    assert "no extent 'Q'; there are M, N, K" in call("sim", "matmul", "--shape", "Q=1", code=2)
    assert "no 'x'; there are" in call("sim", "matmul", "--config", "x", code=2)


def test_a_kernel_of_a_package_may_import_its_neighbours(tmp_path):
    package = tmp_path / "neighbours_of_a_kernel"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("STAGES = 3\n")
    (package / "mine.py").write_text(
        "from .sizes import STAGES\n" + SCALE.replace("stages=2", "stages=STAGES", 1)
    )
    assert ".visible .entry product" in call("emit", f"{package / 'mine.py'}:product")
    assert "it has product" in call("emit", f"{package / 'mine.py'}:none", code=2)


def test_commands_take_a_users_own_kernel(product):
    assert "yes  product" in call("check", product)
    assert "--shape M=EXTENT is missing" in call("sim", product, code=2)
    out = call("sim", product, "--shape", "M=64,N=64,K=128")
    assert "no reference; 0 reports" in out
    file = product.partition(":")[0] if os.name != "nt" else product.rpartition(":")[0]
    assert "it has product" in call("check", f"{file}:nix", code=2)
    assert "no Python file" in call("check", "none.py:nix", code=2)


def test_doctor_lists_parts():
    found = {row["name"]: row for row in json.loads(call("doctor", "--json"))}
    assert found["numpy"]["found"] and found["python"]["found"]
    assert "ptxas" in call("doctor")


def test_gpu_commands_say_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for words in (("run", "matmul"), ("bench", "gemm")):
        out = call(*words, code=1)
        assert "PyTorch" in out and "Traceback" not in out


def test_sim_of_shapes_no_machine_takes_says_so():
    assert "Hkv that divides H" in call("sim", "attention", "--shape", "H=3,Hkv=2", code=1)
    assert "not enough memory" in call("sim", "matmul", "--shape", "M=1000000000000,K=1", code=1)


def test_demo_without_the_source_tree_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("tilecat.cli.demo.EXAMPLE", tmp_path / "none.py")
    assert "part of the source tree" in call("demo", code=1)


def test_demo_shows_each_variant_that_ran(monkeypatch, tmp_path):
    monkeypatch.setenv("TILECAT_CACHE_DIR", str(tmp_path))
    spec = replace(KERNELS[0], kernel=tc.kernel(matmul.function))
    monkeypatch.setattr(demo, "KERNELS", (spec,))
    a, b, c = np.ones((70, 64), np.float16), np.ones((40, 64), np.float16), np.ones((70, 40))
    spec.kernel(a, b.T, c.astype(np.float16), tile_m=64, tile_n=64, stages=2)
    out = Console(record=True, width=120, file=io.StringIO())
    demo.show_kernels(out)
    text = out.export_text()
    assert "matmul f16: tile_m=64, tile_n=64" in text and "B transposed" in text
    assert "a: 2 stages of 1 x f16 64x64, 8,192 bytes" in text
    assert "4 x wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16" in text
    assert "stmatrix" in text and ": 1-way" in text
    assert "matmul(" in (tmp_path / "ptx" / "matmul-0.sm_90a.ptx").read_text()


@pytest.mark.gpu
def test_run_compares_on_the_gpu():
    assert "right: relative error" in call("run", "matmul", "--shape", "M=300,N=520,K=200")
    assert "right: relative error" in call("run", "attention", "--dtype", "f16")


def test_ir_stands_under_the_lines_that_made_it():
    text = call("emit", "matmul", "--stage", "ir", "-p", "tile_m=64,tile_n=64")
    lines = [line.strip() for line in text.splitlines()]
    at = next(i for i, line in enumerate(lines) if line.startswith("Mma.mma_AB("))
    above = next(line for line in reversed(lines[:at]) if line.startswith("# "))
    assert "tc.mma_AB(acc, a[" in above
    assert text.count("{") == text.count("}") and "Binary.add(" in text
