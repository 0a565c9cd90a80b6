"""Compiles the CuTe kernels for their targets; writes their texts and launch facts.

Run in an environment with `nvidia-cutlass-dsl` 4.8.1; it needs no GPU and no PyTorch:

    PYTHONPATH=tests python -m oracle.make_cute [name ...]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from oracle.cute_cases import CUTE_CASES, OPS, Case

HERE = Path(__file__).parent
SMEM_BYTES = 98304  # more than any of the kernels takes


def _compiled(case: Case) -> str:
    """The text of one case; the target is chosen when the compiler is imported."""
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_compact_tensor

    from oracle import kernels_cute

    types = {
        "bf16": cutlass.BFloat16, "fp32": cutlass.Float32, "fp8e4nv": cutlass.Float8E4M3FN,
        "fp8e5": cutlass.Float8E5M2, "ue8m0": cutlass.Uint8, "u8": cutlass.Uint8,
        "i8": cutlass.Int8, "i32": cutlass.Int32,
    }  # fmt: skip
    kernel = getattr(kernels_cute, case.kernel)
    options = [
        OPS[value](kernels_cute) if isinstance(value, str) else value
        for value in case.constants.values()
    ]

    @cute.jit
    def host(*arrays):
        launch = kernel(*arrays, *options)
        launch.launch(grid=case.grid, block=(kernels_cute.THREADS, 1, 1))

    arrays = [
        make_fake_compact_tensor(types[arg.dtype], arg.shape, assumed_align=16,
                                 stride_order=tuple(range(len(arg.shape)))[::-1])
        for arg in case.args
    ]  # fmt: skip
    options_text = f"--gpu-arch sm_{case.target}a --keep-ptx"
    text = cute.compile(host, *arrays, options=options_text).artifacts.PTX
    return text if isinstance(text, str) else text.decode()


def normalise(text: str, kernel: str) -> str:
    """The text with a short name of the kernel, without the compiler's comments."""
    text = text.replace(re.search(r"\.entry (\w+)", text)[1], kernel)
    text = re.sub(r"^[ \t]*//.*\n", "", text, flags=re.M)
    return re.sub(r"[ \t]+\n", "\n", re.sub(r"\n{2,}", "\n", text))


def facts(case: Case) -> dict:
    """What a launch needs beside the text; the kernels take nothing but arrays."""
    params = [{"kind": "pointer", "array": arg.name} for arg in case.args]
    return {"entry": case.kernel, "grid": list(case.grid), "threads": 128,
            "smem_bytes": SMEM_BYTES, "cluster": 1, "params": params}  # fmt: skip


def _in_a_process(case: Case) -> str:
    """The text, made in a folder where the compiler may leave files."""
    environment = os.environ | {
        "CUTE_DSL_ARCH": f"sm_{case.target}a", "ORACLE_CASE": case.name,
        "PYTHONPATH": str(HERE.parent),
    }  # fmt: skip
    command = [sys.executable, "-W", "ignore", "-m", "oracle.make_cute"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, env=environment, cwd=folder, check=True,
                              capture_output=True, text=True)  # fmt: skip
    return done.stdout


def main(names: list[str]) -> None:
    """Compiles the named cases, or all, each in a process of its own."""
    for case in CUTE_CASES:
        if names and case.name not in names:
            continue
        folder = HERE / case.folder
        folder.mkdir(exist_ok=True)
        text = _in_a_process(case)
        (folder / f"{case.name}.ptx").write_text(text)
        path = folder / "launch.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        known[case.name] = facts(case)
        rows = [f'"{name}": {json.dumps(known[name])}' for name in sorted(known)]
        path.write_text("{\n" + ",\n".join(rows) + "\n}\n")
        print(f"{folder.name} {case.name:24} {len(text):7} bytes")


if __name__ == "__main__":
    if "ORACLE_CASE" in os.environ:
        chosen = next(c for c in CUTE_CASES if c.name == os.environ["ORACLE_CASE"])
        sys.stdout.write(normalise(_compiled(chosen), chosen.kernel))
    else:
        main(sys.argv[1:])
