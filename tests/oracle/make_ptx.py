"""Compiles the kernels of this folder for their targets; writes their texts and launch facts.

Run in an environment with Triton 3.9 (the development extra `oracle`); it needs no GPU:

    PYTHONPATH=tests python -m oracle.make_ptx [name or folder/name ...]

Without names every case is compiled and each target's `launch.json` is written anew.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon import GluonASTSource, GluonJITFunction

from oracle import (
    kernels_gemm,
    kernels_gluon,
    kernels_gluon_tma,
    kernels_plain,
    kernels_scaled,
)
from oracle.cases import CASES, Array, Case
from oracle.tensor_cases import TENSOR_CASES

HERE = Path(__file__).parent
ACCUMULATORS = {"float32": tl.float32, "int32": tl.int32, "float64": tl.float64}
# Types of ours that Triton passes as others.
TYPES = {"e2m1x2": "u8", "ue8m0": "u8", "ue4m3": "fp8e4nv"}
# Device codes of the tensor map's element types, PTX ISA 9.7.9.28 (tensormap.replace).
SWIZZLE_BYTES = {0: 0, 1: 32, 2: 64, 3: 128}


def _kernel(case: Case):
    modules = (kernels_gemm, kernels_plain, kernels_scaled, kernels_gluon, kernels_gluon_tma)
    return next(getattr(m, case.kernel) for m in modules if hasattr(m, case.kernel))


def _type(arg) -> str:
    if not isinstance(arg, Array):
        return arg.dtype
    dtype = TYPES.get(arg.dtype, arg.dtype)
    return f"tensordesc<{dtype}{list(arg.block)}>" if arg.block else f"*{dtype}"


def _divisible(case: Case, arg) -> bool:
    if isinstance(arg, Array):
        return not arg.block
    return case.aligned and arg.dtype == "i32" and arg.value % 16 == 0


def compile_case(case: Case):
    """The compiled kernel of a case."""
    kernel = _kernel(case)
    names = list(kernel.arg_names)
    signature = {arg.name: _type(arg) for arg in case.args}
    signature |= {name: "constexpr" for name in case.constants}
    constants = {
        (names.index(name),): ACCUMULATORS.get(value, value) if isinstance(value, str) else value
        for name, value in case.constants.items()
    }
    attributes = {
        (names.index(arg.name),): [["tt.divisibility", 16]]
        for arg in case.args if _divisible(case, arg)
    }
    signature = {name: signature[name] for name in names}
    make = GluonASTSource if isinstance(kernel, GluonJITFunction) else ASTSource
    source = make(kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": case.warps, "num_stages": case.stages, "num_ctas": case.ctas}
    options |= case.options
    return triton.compile(source, target=GPUTarget("cuda", case.target, 32), options=options)


def normalise(text: str, *, debug: bool) -> str:
    """The text without local paths; without its DWARF sections unless `debug`."""
    text = re.sub(r'(\.file\s+\d+\s+)"[^"]*/([^"/]+)"', r'\1"\2"', text)
    if debug:
        path = r"(\.b32 \.debug_line[^\n]*\n)((?:\.b8[^\n]*\n)+)"
        text = re.sub(path, _blot_first, text)
        text = re.sub(r"[ \t]*// DW_AT_comp_dir", "", text)
    else:
        text = re.sub(r"\t\.section\s+\.debug_(?!str)\w+\s*\{.*?\n?\t?\}\n", "", text, flags=re.S)
    text = re.sub(r"[ \t]+// [\w.]+:\d+:\d+[^\n]*", "", text)
    return re.sub(r"[ \t]+\n", "\n", text)


def _blot_first(match: re.Match) -> str:
    """Blots the compilation directory: the string after the line table's offset."""
    lines = match[2].splitlines(keepends=True)
    end = next(i for i, line in enumerate(lines) if re.match(r"\.b8\s+0\b", line))
    blotted = [
        re.sub(r"(\.b8\s+)\d+", rf"\g<1>{b'./'[i % 2]}", line) for i, line in enumerate(lines[:end])
    ]
    return match[1] + "".join(blotted + lines[end:])


def _arguments(case: Case, metadata) -> list[dict]:
    """The entry's parameters, in order: array, number, tensor map, and two scratch pointers."""
    maps = list(metadata.tensordesc_meta or ())
    params: list[dict] = []
    for arg in case.args:
        if not isinstance(arg, Array):
            params.append({"kind": "number", "type": arg.dtype, "value": arg.value})
        elif not arg.block:
            params.append({"kind": "pointer", "array": arg.name})
        else:
            params += _by_value(arg, maps.pop(0))
    programs = math.prod(case.grid) * case.ctas
    params.append({"kind": "scratch", "bytes": (metadata.global_scratch_size or 0) * programs})
    params.append({"kind": "scratch", "bytes": 0})
    return params


def _by_value(arg: Array, facts) -> list[dict]:
    """A tensor map and the shape and strides that follow it."""
    strides = [math.prod(arg.shape[i + 1:]) for i in range(len(arg.shape))]
    first = {
        "kind": "tensormap", "array": arg.name, "element_code": facts["elem_type"],
        "box": list(facts["block_size"])[::-1], "swizzle_bytes": SWIZZLE_BYTES[facts["swizzle"]],
    }
    shape = [{"kind": "number", "type": "i32", "value": n} for n in arg.shape]
    steps = [{"kind": "number", "type": "i64", "value": n} for n in strides]
    return [first, *shape, *steps]


def facts(case: Case, compiled) -> dict:
    """What a launch of a compiled case needs beside its text."""
    metadata = compiled.metadata
    threads = int(re.search(r"\.reqntid\s+(\d+)", compiled.asm["ptx"])[1])
    x, y, z = case.grid
    return {
        "entry": metadata.name, "grid": [x * case.ctas, y, z], "threads": threads,
        "smem_bytes": metadata.shared, "cluster": case.ctas,
        "params": _arguments(case, metadata),
    }


def _write(folder: Path, cases: list[Case], *, anew: bool) -> None:
    """Texts of some cases of a target, and their rows among its launch facts."""
    folder.mkdir(exist_ok=True)
    path = folder / "launch.json"
    known = json.loads(path.read_text()) if path.exists() and not anew else {}
    for case in cases:
        compiled = compile_case(case)
        text = normalise(compiled.asm["ptx"], debug=case.debug)
        (folder / f"{case.name}.ptx").write_text(text)
        known[case.name] = facts(case, compiled)
        print(f"{folder.name} {case.name:24} {len(text):7} bytes")
    rows = [f'"{name}": {json.dumps(known[name])}' for name in sorted(known)]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def main(names: list[str]) -> None:
    """Compiles the named cases, or all."""
    everything = CASES + TENSOR_CASES
    chosen = [c for c in everything if not names or {c.name, f"{c.folder}/{c.name}"} & {*names}]
    for folder in sorted({case.folder for case in chosen}):
        cases = [case for case in chosen if case.folder == folder]
        _write(HERE / folder, cases, anew=not names)


if __name__ == "__main__":
    main(sys.argv[1:])
