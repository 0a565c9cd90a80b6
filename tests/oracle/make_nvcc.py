"""Compiles the CUDA kernels of `nvcc/` for sm_90a, one text a kernel.

Run with nvcc and its headers at hand (a CUDA 13 toolkit; no GPU needed):

    PYTHONPATH=tests python -m oracle.make_nvcc [path of nvcc]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "nvcc"
FOLDER = Path(__file__).parent / "sm_90a_nvcc"
_ENTRY = re.compile(r"^\.visible \.entry (\w+)\(.*?^\}\n(?=\s*(?:\.visible|\Z))", re.M | re.S)
_VARIABLE = re.compile(
    r"^(?:\.visible )?\.(?:extern \.shared|const|global)\b[^;=]*?(\w+)(?:\[\d*\])?"
    r"(?: =[^;]*)?;\n",
    re.M,
)


def split(text: str) -> dict[str, str]:
    """One module an entry: the header, the module's variables that it uses, the entry."""
    head = re.search(r"\.version.*?\.address_size \d+\n", text, re.S)[0]
    variables = list(_VARIABLE.finditer(text))
    text = re.sub(r"^\s*//[^\n]*\n", "", text, flags=re.M)
    modules = {}
    for entry in _ENTRY.finditer(text):
        used = [v[0] for v in variables if re.search(rf"\b{v[1]}\b", entry[0])]
        body = re.sub(r"\n{2,}", "\n", entry[0])
        modules[entry[1]] = "".join([head, "\n", *used, body])
    return modules


def main(nvcc: str) -> None:
    """Compiles every source."""
    FOLDER.mkdir(exist_ok=True)
    for source in sorted(SOURCES.glob("*.cu")):
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "all.ptx"
            options = ["-ptx", "-arch=sm_90a", "-O3", "-std=c++17"]
            subprocess.run([nvcc, *options, source, "-o", target], check=True)
            for name, text in split(target.read_text()).items():
                (FOLDER / f"{name}.ptx").write_text(text)
                print(f"{name:16} {len(text):6} bytes")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["nvcc"]))
