"""What each step of porting a GEMM from Blackwell to Rubin gains, by the model; tables of a page.

    python benchmarks/rubin_steps.py                       # prints the tables
    python benchmarks/cost_model.py --write                # puts them into docs/porting-to-rubin.md
    python benchmarks/rubin_steps.py --trace FOLDER        # a timeline of each step, for Perfetto

Each step is a kernel that is compiled for sm_107a; rings, bytes and instructions are those of its
trace. Published are figures of Rubin's first users, who ported ThunderKittens ("ThunderKittens Now
on NVIDIA Vera Rubin NVL72", Together AI, 2026-09). No rate of the model was chosen by them.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilecat import bf16, e4m3
from tilecat.arch import arch_of
from tilecat.kernels.gemm import matmul
from tilecat.kernels.gemm_scaled import matmul_fp4
from tilecat.model.rates import VR200
from tilecat.model.replay import Prediction, write_trace
from tilecat.model.tensor import Shape, predict_tensor, roof
from tilecat.model.traced import traced

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "porting-to-rubin.md"
ARCH = arch_of("sm_107a")
TARGET = "sm_107a"
SIZES = (8192, 16384, 32768, 65536)
LARGEST = 131072  # of 4-bit types
KINDS = {"NVFP4": "mxf4nvf4", "FP8": "f8f6f4"}
BASE = {"cluster": 2, "pairs": True}
STACKED = {"tile_m": 256, "stacked": 2, "exclusive": True}
# Each step's parameters beside those of the step before; then the depth of the ring, the deepest
# that fits, of NVFP4 and FP8.
STEPS: tuple[tuple[str, dict[str, Any], tuple[int, int]], ...] = (
    ("as on a B200", {}, (5, 6)),
    ("`wide_k=True`", {"wide_k": True}, (5, 6)),
    ("`stacked=2, exclusive=True`", STACKED, (3, 4)),
    ("`oversized=True`, deeper", {"oversized": True}, (5, 6)),
    ('`collectors="b"`', {"collectors": "b"}, (5, 6)),
    ("`early_a=True`", {"early_a": True}, (5, 6)),
)
ALONE: tuple[tuple[str, dict[str, Any], tuple[int, int]], ...] = (
    ("`wide_k=True`", {"wide_k": True}, (5, 6)),
    ("`stacked=2, exclusive=True`", STACKED, (3, 4)),
    ("`oversized=True`, deeper", {"oversized": True}, (7, 9)),
    ("`early_a=True`", {"early_a": True}, (5, 6)),
)
LAST = STEPS[-1][0]


@cache
def kernel(kind: str, params: tuple[tuple[str, Any], ...]) -> Shape:
    """The shape of a kernel, from its trace; it is assembled, too."""
    if kind == "mxf4nvf4":
        made = matmul_fp4.compile(target=TARGET, **dict(params))
    else:
        a, b, c = (np.zeros(s, t.numpy) for s, t in (((512, 128), e4m3), ((256, 128), e4m3),
                                                     ((512, 256), bf16)))  # fmt: skip
        made = matmul.compile(a, b.T, c, target=TARGET, **dict(params))
    shape = traced(made).shape
    assert shape is not None, "sums are in tensor memory"
    return shape


def steps(kind: str) -> dict[str, Shape]:
    """Kernels from the one that runs on a B200 to all of Rubin's controls."""
    found, params = {}, dict(BASE)
    for name, more, stages in STEPS:
        params = {**params, **more, "stages": stages[kind != "mxf4nvf4"]}
        found[name] = kernel(kind, tuple(params.items()))
    return found


def alone(kind: str) -> dict[str, Shape]:
    """Each control by itself, on the kernel that runs on a B200."""
    return {
        name: kernel(kind, (*BASE.items(), *more.items(), ("stages", stages[kind != "mxf4nvf4"])))
        for name, more, stages in ALONE
    }


@cache
def predicted(shape: Shape, size: int) -> Prediction:
    """Of a cube."""
    return predict_tensor(size, size, size, shape, VR200)


def share(shape: Shape, size: int) -> float:
    """Of the announced rate."""
    return predicted(shape, size).tflops / roof(shape.kind, ARCH)


def sizes(kind: str) -> tuple[int, ...]:
    """Sizes of a kind's tables."""
    return (*SIZES, LARGEST) if kind == "mxf4nvf4" else SIZES


def table(kind: str) -> str:
    """Steps one after another: share of the announced rate, by size."""
    columns = sizes(kind)
    lines = ["| step | stages | KiB | columns | " + " | ".join(f"{n:,}" for n in columns) + " |",
             "|---|---:|---:|---:|" + "---:|" * len(columns)]  # fmt: skip
    for name, shape in steps(kind).items():
        cells = " | ".join(f"{share(shape, n):.1%}" for n in columns)
        room = f"{shape.stages} | {shape.shared_bytes / 1024:.0f} | {shape.columns}"
        lines.append(f"| {name} | {room} | {cells} |")
    return "\n".join(lines) + "\n"


def gains(kind: str, size: int) -> dict[str, float]:
    """What each step adds to the one before, relative."""
    shares = [share(shape, size) for shape in steps(kind).values()]
    after = zip(steps(kind), shares, strict=True)
    return {name: now / before - 1 for (name, now), before in
            zip(list(after)[1:], shares, strict=False)}  # fmt: skip


def single() -> str:
    """Each control alone: gain over the kernel of a B200, at 32,768."""
    lines = ["| control alone | " + " | ".join(KINDS) + " |", "|---|" + "---:|" * len(KINDS)]
    bases = {name: share(steps(kind)["as on a B200"], 32768) for name, kind in KINDS.items()}
    for control, _, _ in ALONE:
        cells = (f"{share(alone(kind)[control], 32768) / bases[name] - 1:+.1%}"
                 for name, kind in KINDS.items())  # fmt: skip
        lines.append(f"| {control} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def released(size: int) -> str:
    """What early release of A gains in NVFP4, and what of it a ring of A's own does."""
    shape = steps(KINDS["NVFP4"])[LAST]
    own = replace(shape, early_a=False)
    before = share(replace(own, a_stages=0), size)
    both, ring = (share(one, size) / before - 1 for one in (shape, own))
    return f"{both:+.1%} (its ring alone {ring:+.1%})"


def beside() -> str:
    """The model beside what was published."""
    first, last = (
        {name: share(steps(kind)[step], 32768) for name, kind in KINDS.items()}
        for step in ("as on a B200", LAST)
    )
    gained = gains(KINDS["NVFP4"], 32768)
    rows = [
        ("B200's kernel unchanged, NVFP4", "42.1%", f"{first['NVFP4']:.1%}"),
        ("B200's kernel unchanged, FP8", "44.4%", f"{first['FP8']:.1%}"),
        ("wide K step alone", "little", f"{gained[STEPS[1][0]]:+.1%}"),
        ("collector of B", "+1 to 3%", f"{gained[STEPS[4][0]]:+.1%}"),
        ("tuned, NVFP4", "22.4 PFLOP/s, 64%", f"{last['NVFP4']:.1%}"),
        ("tuned, FP8", "12.0 PFLOP/s, 69%", f"{last['FP8']:.1%}"),
        ("early release of A, small sizes", "nothing", released(SIZES[0])),
        ("the same, 65,536", "+13.5%", released(65536)),
        ("the same, 131,072", "+22.1%", released(LARGEST)),
    ]
    lines = ["| | published | model |", "|---|---:|---:|"]
    lines += [f"| {name} | {theirs} | {ours} |" for name, theirs, ours in rows]
    return "\n".join(lines) + "\n"


PARTS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("nvfp4", lambda: table("mxf4nvf4")),
    ("fp8", lambda: table("f8f6f4")),
    ("alone", single),
    ("beside", beside),
)


def main(arguments: list[str]) -> None:
    """See the top of the file."""
    if arguments[:1] == ["--trace"] and len(arguments) == 2:
        folder = Path(arguments[1])
        folder.mkdir(parents=True, exist_ok=True)
        for number, shape in enumerate(steps("mxf4nvf4").values()):
            write_trace(predict_tensor(8192, 8192, 8192, shape, VR200), folder / f"{number}.json")
    elif not arguments:
        print(*(text() for _, text in PARTS), sep="\n", end="")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
