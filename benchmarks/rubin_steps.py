"""What each step of porting a GEMM from Blackwell to Rubin gains, by the model; tables of a page.

    python benchmarks/rubin_steps.py                       # prints the tables
    python benchmarks/cost_model.py --write                # puts them into docs/porting-to-rubin.md
    python benchmarks/rubin_steps.py --trace FOLDER        # a timeline of each step, for Perfetto

Published are figures of the first users (shared/facts of the port of ThunderKittens, 2026-09). No
rate of the model was chosen by them.
"""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tilecat.arch import arch_of
from tilecat.errors import ResourceError
from tilecat.model.rates import VR200
from tilecat.model.replay import Prediction, write_trace
from tilecat.model.tensor import Shape, predict_tensor, roof

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "porting-to-rubin.md"
ARCH = arch_of("sm_107a")
SIZES = (8192, 16384, 32768, 65536)
LARGEST = 131072  # of 4-bit types
KINDS = {"NVFP4": "mxf4nvf4", "FP8": "f8f6f4"}


def deepest(*, oversized: bool, **params: Any) -> Shape:
    """The deepest ring that shared memory has room for."""
    fitting = None
    for stages in range(1, 17):
        shape = Shape(stages=stages, **params)
        try:
            shape.check(ARCH, oversized=oversized, exclusive=True)
        except ResourceError:
            break
        fitting = shape
    assert fitting is not None
    return fitting


def steps(kind: str) -> dict[str, Shape]:
    """Configurations from a kernel as it runs on a B200 to all of Rubin's controls."""
    base = {"kind": kind, "pair": True}
    two = {**base, "tiles": 2, "buffers": 1, "wide": True}
    # Two buffers of sums beside the scales need Rubin's columns: a B200's kernel has one.
    unchanged = deepest(oversized=False, **base, buffers=1 if kind == "mxf4nvf4" else 2)
    over = deepest(oversized=True, **two)
    kept = deepest(oversized=True, **two, collector_b=True)
    depth = kept.stages
    own = Shape(**two, collector_b=True, stages=depth, a_stages=depth)
    return {
        "as on a B200": unchanged,
        "+ wide K step": deepest(oversized=False, **base, wide=True, buffers=unchanged.buffers),
        "+ 2 x 1 tiles share B": deepest(oversized=False, **two),
        "+ oversized shared memory": over,
        "+ collector of B": kept,
        "+ a ring of A's own": own,
        "+ early release of A": Shape(**two, collector_b=True, stages=depth, a_stages=depth,
                                      early_a=True),
    }  # fmt: skip


def alone(kind: str) -> dict[str, Shape]:
    """Each control by itself, on the kernel as it runs on a B200."""
    base = {"kind": kind, "pair": True, "buffers": 1 if kind == "mxf4nvf4" else 2}
    two = {"kind": kind, "pair": True, "tiles": 2, "buffers": 1}
    found = {
        "wide K step": deepest(oversized=False, **base, wide=True),
        "2 x 1 tiles share B": deepest(oversized=False, **two),
        "oversized shared memory": deepest(oversized=True, **base),
    }
    depth = deepest(oversized=False, **base).stages
    found["early release of A"] = Shape(**base, stages=depth, a_stages=depth, early_a=True)
    return found


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
    for control in alone("mxf4nvf4"):
        cells = (f"{share(alone(kind)[control], 32768) / bases[name] - 1:+.1%}"
                 for name, kind in KINDS.items())  # fmt: skip
        lines.append(f"| {control} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def beside() -> str:
    """The model beside what was published."""
    first = {name: steps(kind)["as on a B200"] for name, kind in KINDS.items()}
    last = {name: steps(kind)["+ early release of A"] for name, kind in KINDS.items()}
    nvfp4 = KINDS["NVFP4"]
    early = {n: gains(nvfp4, n)["+ early release of A"] for n in (SIZES[0], 65536, LARGEST)}
    own = {n: gains(nvfp4, n)["+ a ring of A's own"] for n in (65536, LARGEST)}
    wide = gains(nvfp4, 32768)["+ wide K step"]
    kept = gains(nvfp4, 32768)["+ collector of B"]
    rows = [
        ("B200's kernel, NVFP4", "42.1%", f"{share(first['NVFP4'], 32768):.1%}"),
        ("B200's kernel, FP8", "44.4%", f"{share(first['FP8'], 32768):.1%}"),
        ("wide K step alone", "little", f"{wide:+.1%}"),
        ("collector of B", "+1 to 3%", f"{kept:+.1%}"),
        ("tuned, NVFP4", "22.4 PFLOP/s, 64%", f"{share(last['NVFP4'], 32768):.1%}"),
        ("tuned, FP8", "12.0 PFLOP/s, 69%", f"{share(last['FP8'], 32768):.1%}"),
        ("early release of A, small", "nothing", f"{early[SIZES[0]]:+.1%}"),
        ("at 65,536", "+13.5%", f"{early[65536]:+.1%} (its ring {own[65536]:+.1%})"),
        ("at 131,072", "+22.1%", f"{early[LARGEST]:+.1%} (its ring {own[LARGEST]:+.1%})"),
    ]  # fmt: skip
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
