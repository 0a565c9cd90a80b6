"""PTX to cubin: results, cache, and what ptxas's log becomes."""

import multiprocessing
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.ptx_texts import copy_tile, scale, spilling, tiny, wgmma
from tilecat.errors import ArchError, ResourceError, TileError
from tilecat.runtime import assembler, cache, compile, deferred, ptxas_log

MINIMUM = ".minnctapersm 1"


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("??/*.entry"))


def kernel_entry(folder: Path, module) -> Path:
    version = compile.ptxas(cache.current()).version
    key = compile._key(module.text, ("-v", f"-arch={module.target}"), version)
    return cache.current().path(key)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_assemble_makes_an_elf_and_counts_registers(target):
    made = compile.assemble(tiny(target=target))
    assert made.cubin.startswith(b"\x7fELF")
    assert 4 <= made.registers <= 32
    assert made.spill_bytes == 0
    assert not made.from_cache
    assert 0 < made.seconds < 30
    assert f"for '{target}'" in made.log


@pytest.mark.parametrize("module", [scale(), copy_tile()], ids=lambda module: module.entry)
def test_assemble_takes_the_kernels_of_the_gpu_tests(module):
    assert compile.assemble(module).spill_bytes == 0


def test_assemble_hits_the_cache_and_keys_on_text_and_target():
    first = compile.assemble(tiny())
    again = compile.assemble(tiny())
    assert again.from_cache
    assert (again.cubin, again.registers, again.log) == (first.cubin, first.registers, first.log)
    assert not compile.assemble(tiny(8)).from_cache
    assert not compile.assemble(tiny(target="sm_100a")).from_cache


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "header"])
def test_assemble_replaces_a_damaged_entry(cache_folder, damage):
    first = compile.assemble(tiny())
    path = kernel_entry(cache_folder, tiny())
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 0xFF
    path.write_bytes({"truncate": data[:200], "empty": b"", "header": data[:20]}.get(damage, data))
    again = compile.assemble(tiny())
    assert not again.from_cache
    assert again.cubin == first.cubin
    assert compile.assemble(tiny()).from_cache


def test_assemble_goes_on_without_a_cache_and_warns_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / "cache"
    monkeypatch.setenv("TILECAT_CACHE_DIR", str(folder))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made = [compile.assemble(tiny()) for _ in range(2)]
    assert [m.from_cache for m in made] == [False, False]
    assert made[0].cubin == made[1].cubin
    (warning,) = [str(w.message) for w in seen]
    assert str(folder) in warning and "TILECAT_CACHE_DIR" in warning


def test_assemble_without_a_cache_leaves_no_folder(cache_folder, monkeypatch):
    monkeypatch.setenv("TILECAT_CACHE_BYTES", "0")
    assert [compile.assemble(tiny()).from_cache for _ in range(2)] == [False, False]
    assert not cache_folder.exists()


def assemble_in_process(barrier, queue):
    barrier.wait()
    made = compile.assemble(spilling(512), allow_spills=True)
    queue.put((made.from_cache, made.cubin))


def test_two_processes_assemble_once(cache_folder):
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=assemble_in_process, args=(barrier, queue)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    results = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=60)
    assert sorted(from_cache for from_cache, _ in results) == [False, True]
    assert results[0][1] == results[1][1]
    assert not list(cache_folder.glob("??/*.part"))


def test_ptxas_version_costs_no_process_when_known(monkeypatch):
    compile.assemble(tiny())
    monkeypatch.setattr(deferred, "assembler", lambda: pytest.fail("asked the slow module"))
    assert compile.assemble(tiny()).from_cache


def test_ptxas_is_asked_again_when_its_file_changes(tmp_path, monkeypatch):
    program = tmp_path / "ptxas"
    program.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 1.2, V1.2.3'\n")
    program.chmod(0o755)
    monkeypatch.setattr(assembler, "find", lambda name: str(program))
    assert compile.ptxas(cache.current()).version == "1.2.3"
    program.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 1.3, V1.3.10'\n")
    assert compile.ptxas(cache.current()).version == "1.3.10"


def test_warm_assemble_in_a_second_process_is_quick():
    compile.assemble(tiny())
    probe = (
        "from runtime.ptx_texts import tiny; from tilecat.runtime import compile; import sys;"
        "made = compile.assemble(tiny()); assert made.from_cache;"
        "slow = {'cuda.pathfinder', 'filelock', 'cuda.bindings.driver'} & set(sys.modules);"
        "assert not slow, slow; print(made.seconds)"
    )
    tests = Path(__file__).parents[1]
    seconds = min(
        float(
            subprocess.run(
                [sys.executable, "-c", probe],
                check=True,
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}"},
            ).stdout
        )
        for _ in range(2)
    )
    assert seconds < 0.02


def test_assemble_rejects_spills():
    with pytest.raises(ResourceError) as caught:
        compile.assemble(spilling())
    text = str(caught.value)
    assert "registers must not spill to local memory, got kernel kernel with" in text
    assert "at 24 registers a thread" in text
    assert "kernel.py:5" in text and "allow_spills" in text
    allowed = compile.assemble(spilling(), allow_spills=True)
    assert allowed.spill_bytes > 100
    assert allowed.from_cache
    assert str(allowed.spill_bytes) in text
    few = replace(spilling(), spill_bytes=allowed.spill_bytes)
    assert compile.assemble(few).spill_bytes == allowed.spill_bytes
    with pytest.raises(ResourceError, match="must not spill"):
        compile.assemble(replace(few, spill_bytes=allowed.spill_bytes - 1))


def test_assemble_rejects_lost_performance_at_the_users_line():
    body = "setmaxnreg.dec.sync.aligned.u32 40;"
    for _ in range(2):  # assembled, then from the cache
        with pytest.raises(ResourceError) as caught:
            compile.assemble(tiny(body=body))
        text = str(caught.value)
        assert "Potential Performance Loss: 'setmaxnreg' ignored" in text
        assert f"PTX line 16: {body}" in text
        assert (caught.value.loc.file, caught.value.loc.line) == ("kernel.py", 3)
        assert "min_blocks" in text
    assert compile.assemble(tiny(body=body, limits=MINIMUM)).spill_bytes == 0


def test_assemble_rejects_a_wait_put_in_for_an_early_read():
    assert compile.assemble(wgmma()).spill_bytes == 0
    with pytest.raises(ResourceError) as caught:
        compile.assemble(wgmma("st.global.f32 [%p0+4], %f1;"))
    text = str(caught.value)
    assert "(C7517) wgmma.wait_group is injected" in text
    assert "PTX line 19: st.global.f32 [%p0+4], %f1;" in text
    assert caught.value.loc.line == 4
    assert "between the mma and its wait" in text


def test_assemble_shows_refused_ptx_at_the_users_line():
    with pytest.raises(TileError) as caught:
        compile.assemble(tiny(body="add.s32 %r1, %r1;\nfrobnicate.b32 %r2;"))
    text = str(caught.value)
    assert "Arguments mismatch for instruction 'add'" in text
    assert "PTX line 16: add.s32 %r1, %r1;" in text
    assert "PTX line 17: frobnicate.b32 %r2;" in text
    assert (caught.value.loc.line, caught.value.loc.col) == (3, 7)  # .loc counts from 1


def test_assemble_shows_a_syntax_error():
    with pytest.raises(TileError, match="syntax error") as caught:
        compile.assemble(tiny(body="mov.b32 %r2 %r1;"))
    assert caught.value.loc.line == 3


def test_assemble_names_the_target_that_lacks_an_instruction():
    with pytest.raises(ArchError, match="choose another target") as caught:
        compile.assemble(tiny(body="tcgen05.wait::ld.sync.aligned;"))
    assert caught.value.loc.line == 3


def test_assemble_asks_for_an_upgrade_when_ptx_is_too_new():
    module = tiny()
    text = module.text.replace(".version 8.6", ".version 99.0")
    with pytest.raises(ResourceError, match="pip install -U nvidia-cuda-nvcc"):
        compile.assemble(type(module)(**{**vars(module), "text": text}))


def test_missing_wheel_says_what_to_install_and_what_works(monkeypatch):
    monkeypatch.setattr(assembler, "find", lambda name: None)
    with pytest.raises(ResourceError) as caught:
        compile.assemble(tiny())
    text = str(caught.value)
    assert "nvidia-cuda-nvcc" in text and "pip install" in text and "PTX machine" in text


def test_the_systems_ptxas_is_never_taken(tmp_path, monkeypatch):
    found = assembler.find("ptxas")
    assert "site-packages" in found and not found.startswith("/usr/local")
    toolkit = tmp_path / "toolkit" / "bin"
    toolkit.mkdir(parents=True)
    (toolkit / "ptxas").write_text("#!/bin/sh\n")
    (toolkit / "ptxas").chmod(0o755)
    monkeypatch.setenv("PATH", str(toolkit))
    monkeypatch.setenv("CUDA_HOME", str(toolkit.parent))
    assert assembler.find("ptxas") == found
    # The wheel gone, and a search that answers with the toolkit's.
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(
        assembler, "find_nvidia_binary_utility", lambda name: str(toolkit / "ptxas")
    )
    assert assembler.find("ptxas") is None


def test_a_wheel_that_only_sys_path_knows_is_found(tmp_path, monkeypatch):
    program = tmp_path / "nvidia" / "cu13" / "bin" / "ptxas"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(assembler, "find_nvidia_binary_utility", lambda name: "/usr/bin/ptxas")
    assert assembler.find("ptxas") == str(program)


def test_usage_takes_the_larger_of_stores_and_loads():
    log = "  8 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\nUsed 40 registers,"
    assert ptxas_log.usage(log) == ptxas_log.Usage(40, 12)


def test_losses_are_listed_once():
    line = "ptxas info    : (C7515) Potential Performance Loss: wgmma.mma_async serialized\n"
    assert ptxas_log.losses(line + line) == (
        "(C7515) Potential Performance Loss: wgmma.mma_async serialized",
    )
