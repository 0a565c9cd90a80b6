"""The generated PTX of the shipped kernels, line by line: a change must be seen and meant.

`pytest tests/codegen/test_golden.py --update-golden` writes the files anew.
"""

from __future__ import annotations

import difflib
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from tilecat.driver import Compiled
from tilecat.dtypes import bf16
from tilecat.kernels.attention import attention
from tilecat.kernels.attention_forward import attention_forward
from tilecat.kernels.attention_scores import Edges
from tilecat.kernels.gemm import matmul
from tilecat.kernels.gemm_scaled import matmul_fp4, matmul_mxfp8

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
# Two tiles of sums over one B, in all of the tensor memory and a larger shared one.
RUBIN = {
    "tile_m": 256, "stacked": 2, "stages": 4, "cluster": 2, "pairs": True, "wide_k": True,
    "collectors": "b", "early_a": True, "exclusive": True, "oversized": True,
}  # fmt: skip
KERNELS = {
    "gemm": lambda: matmul.compile(),
    "gemm_sm_100a": lambda: matmul.compile(target="sm_100a"),
    "gemm_sm_103a": lambda: matmul.compile(target="sm_103a"),
    "gemm_sm_107a": lambda: matmul.compile(target="sm_107a"),
    "gemm_pairs_sm_107a": lambda: matmul.compile(target="sm_107a", cluster=2, pairs=True),
    "mxfp8_sm_100a": lambda: matmul_mxfp8.compile(target="sm_100a"),
    "nvfp4_sm_107a": lambda: matmul_fp4.compile(target="sm_107a", **RUBIN),
    "gemm_launch_control_sm_100a": lambda: matmul.compile(
        target="sm_100a", cluster=2, pairs=True, persistent="launch-control"
    ),
    "attention": lambda: attention.compile(D=64, consumers=3, pingpong=True),
    "attention_causal": lambda: attention_forward.compile(
        *CAUSAL, pingpong=True, order="longest", edges=Edges(right=True)
    ),
}
HEAD = np.zeros((1, 1, 64, 128), bf16.numpy)
CAUSAL = (HEAD, HEAD, HEAD, np.zeros_like(HEAD), np.zeros((1, 1, 64), np.float32), 0.125, 1, 0, 0)


def normalised(compiled: Compiled) -> str:
    """The text, with paths from the package's root and without columns and lines of sources.

    Lines move when a comment is added to a kernel; that they are right, test_writer holds.
    """
    text = re.sub(r'^(\.file \d+ ").*/(tilecat/[^"]*")$', r"\1\2", compiled.ptx, flags=re.M)
    return re.sub(r"^    \.loc (\d+) \d+ \d+$", r"    .loc \1", text, flags=re.M)


@pytest.mark.parametrize("name", KERNELS)
def test_ptx_is_the_golden_file(name: str, update_golden: bool):
    text, path = normalised(KERNELS[name]()), GOLDEN / f"{name}.ptx"
    if update_golden:
        path.write_text(text, encoding="utf-8")
    golden = path.read_text(encoding="utf-8")
    pair = golden.splitlines(), text.splitlines()
    changes = list(difflib.unified_diff(*pair, "golden", "now", n=1))
    shown = "\n".join(changes[:40])
    assert not changes, f"{len(changes)} lines of difference (--update-golden accepts):\n{shown}"


def test_example_makes_the_text_of_the_package():
    example = runpy.run_path(str(GOLDEN.parents[1] / "examples" / "gemm.py"))["matmul"]
    plain = [re.sub(r"^(//|    \.loc|\.file).*\n", "", k.compile().ptx, flags=re.M)
             for k in (example, matmul)]  # fmt: skip
    assert plain[0] == plain[1]


def test_golden_files_all_belong_to_a_kernel():
    assert {path.stem for path in GOLDEN.glob("*.ptx")} == set(KERNELS)
