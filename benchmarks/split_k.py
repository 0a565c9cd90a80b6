"""Tiles whose K CTAs share, beside whole tiles, `tc.matmul`'s choice and torch, on this GPU.

    python benchmarks/split_k.py OUT.json [ROUNDS] [LAYOUT]

Results checked against float64, twice for equal bits; calls interleaved, L2 flushed before each.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

import tilecat as tc
from tilecat import gemm_choice, operators
from tilecat.bench import METHOD, gemm, record
from tilecat.gemm_parts import places_of
from tilecat.kernels import Shape
from tilecat.kernels.gemm import matmul as kernel
from tilecat.testing import do_bench, ratio

# Few tiles and a long K; thin ones; cubes; 133 and 198 tiles of 128 x 256; turned.
SHAPES = (
    (512, 512, 16384), (128, 128, 16384), (256, 4096, 16384), (128, 8192, 8192), (64, 2048, 8192),
    (1024, 1024, 1024), (2048, 2048, 2048), (128 * 19, 256 * 7, 4096), (128 * 18, 256 * 11, 4096),
    (8, 1024, 8192),
)  # fmt: skip
TILES = (
    {"tile_m": 128, "tile_n": 256, "stages": 4}, {"tile_m": 128, "tile_n": 128, "stages": 5},
    {"tile_m": 64, "tile_n": 128, "stages": 8}, {"tile_m": 64, "tile_n": 64, "stages": 8},
)  # fmt: skip
PARTS = (
    {}, *({"split_k": parts} for parts in (2, 3, 4, 8)), *({"stream_k": n} for n in (2, 4, 8, 16)),
)  # fmt: skip
Functions = dict[str, Callable[[], Any]]


def name_of(params: dict[str, int]) -> str:
    """`128x256 split_k=2`."""
    tile = f"{params['tile_m']}x{params['tile_n']}"
    return " ".join([tile, *(f"{n}={params[n]}" for n in ("split_k", "stream_k") if n in params)])


def num_sms() -> int:
    """Of this GPU."""
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def called(a: Any, b: Any, c: Any, params: dict[str, int]) -> Callable[[], Any]:
    """The kernel with its places for partial sums."""
    shared = places_of((a, b, c), params, num_sms()).arguments(a)
    return functools.partial(kernel, a, b, c, *shared, **params)


def choice(a: Any, b: Any, c: Any) -> dict[str, int]:
    """Parameters that the first `tc.matmul` of these operands takes."""
    found: list[dict[str, int]] = []

    def choose(problem: Any) -> dict[str, int]:
        found.append(gemm_choice.choose(problem))
        return found[-1]

    with mock.patch.object(operators, "choose", choose):
        tc.matmul(a, b, c)
    return found[-1]


def checked(name: str, call: Callable[[], Any], c: Any, expected: Any) -> float:
    """The error of a function's result, which is the same twice.

    Raises:
        TileError: wrong, or other bits at the second call.
    """
    gemm.poison(c)
    call()
    found, first = gemm.error(c, expected), c.clone()
    for _ in range(3):
        gemm.poison(c)
        call()
        if not torch.equal(c, first):
            raise tc.TileError(f"{name}: other bits at another call")
    return found


def measure(m: int, n: int, k: int, rounds: int, layout: str) -> dict[str, Any]:
    """One problem: all tiles and parts that its extents allow."""
    a, b, c = gemm.operands(torch, Shape("", (("M", m), ("N", n), ("K", k))), layout)
    d, expected = torch.empty_like(c), gemm.expected(a, b)
    chosen = choice(a, b, c)
    functions: Functions = {"tc.matmul": lambda: tc.matmul(a, b, c)}
    errors = {"tc.matmul": checked("tc.matmul", functions["tc.matmul"], c, expected)}
    failed: dict[str, str] = {}
    for tile in TILES:
        for parts in PARTS:
            params = {**tile, **parts}
            call, name = called(a, b, c, params), name_of(params)
            try:
                errors[name] = checked(name, call, c, expected)
                functions[name] = call
            except tc.TileError as error:
                failed[name] = error.message
    functions["torch.mm"] = lambda: torch.mm(a, b, out=d)
    times = do_bench(list(functions.values()), repeats=rounds, budget_s=12.0)
    named = dict(zip(functions, times, strict=True))
    mine = [name for name in named if "x" in name]
    whole = [name for name in mine if "_k" not in name]
    best, best_whole = (min(some, key=lambda x: named[x].median_us) for some in (mine, whole))
    return {
        "label": f"{m}x{n}x{k} {layout}", "extents": {"M": m, "N": n, "K": k},
        "chosen": chosen, "best": best, "best_whole": best_whole,
        "times_us": {name: taken.summary() for name, taken in named.items()},
        "tflops": {name: 2 * m * n * k / taken.median_us / 1e6 for name, taken in named.items()},
        "ratio_to_torch": {
            name: ratio(named["torch.mm"], named[name]) for name in ("tc.matmul", best, best_whole)
        },
        "parts_to_whole": ratio(named[best_whole], named[best]),
        "errors": errors, "failed": failed,
    }  # fmt: skip


def main(target: str, rounds: int = 20, layout: str = "NN") -> None:
    """Measures each problem and writes the results file."""
    path = record.path_for("", target, overwrite=False)
    torch.manual_seed(0)
    facts = record.environment(torch)
    rows: list[dict[str, Any]] = []
    for extents in SHAPES:
        row = measure(*extents, rounds, layout)
        rows.append(row)
        times = {name: row["times_us"][name]["median"] for name in (
            "tc.matmul", row["best"], row["best_whole"], "torch.mm")}  # fmt: skip
        print(row["label"], row["chosen"], times, row["failed"], flush=True)
        results = {"environment": facts, "smi": record.smi(), "method": METHOD, "problems": rows}
        record.write(path, results)
        torch.cuda.empty_cache()
    print(f"results: {path}")


if __name__ == "__main__":
    main(sys.argv[1], int((sys.argv[2:3] or ["20"])[0]), *sys.argv[3:])
