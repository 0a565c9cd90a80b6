"""FP8 products with scales of blocks: configurations of the kernel beside one another, on this GPU.

    python benchmarks/block_scales.py OUT.json [ROUNDS]

Results checked against float64 on sampled rows, calls interleaved, L2 flushed before each. Scales
of A lie with M contiguous, as the kernel takes them. `plain` is the product with a scale a tensor.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

import tilecat as tc
from tilecat.bench import METHOD, record
from tilecat.kernels.gemm import matmul
from tilecat.testing import do_bench, relative_error

SHAPES = ((4096, 7168, 16384), (4096, 4096, 7168), (4096, 24576, 1536))
ROWS = 64  # of the result, from its first and its last, checked against float64
BLOCK = 128
CONFIGS: tuple[dict[str, Any], ...] = (
    {"tile_m": 128, "tile_n": 128, "stages": 5, "group": 8},
    {"tile_m": 128, "tile_n": 128, "stages": 6, "group": 8},
    {"tile_m": 128, "tile_n": 128, "stages": 5, "group": 16},
    {"tile_m": 128, "tile_n": 128, "stages": 5, "group": 8, "cluster": 2},
    {"tile_m": 128, "tile_n": 256, "stages": 3, "group": 8},
    {"tile_m": 128, "tile_n": 256, "stages": 4, "group": 8},
    {"tile_m": 128, "tile_n": 256, "stages": 4, "group": 16},
    {"tile_m": 128, "tile_n": 256, "stages": 3, "group": 8, "cluster": 2},
    {"tile_m": 128, "tile_n": 256, "stages": 4, "group": 8, "cluster": 2},
    {"tile_m": 128, "tile_n": 256, "stages": 4, "group": 16, "cluster": 2},
    {"tile_m": 192, "tile_n": 128, "stages": 4, "group": 8},
)


def operands(m: int, n: int, k: int) -> tuple[Any, ...]:
    """A, B with K last in memory, and their scales: [K/128, M], and [K/128, N/128] with K last."""
    a, b = (torch.randn(x, k, device="cuda").to(torch.float8_e4m3fn) for x in (m, n))
    scale_a = torch.rand(k // BLOCK, m, device="cuda") + 0.5
    scale_b = (torch.rand(n // BLOCK, k // BLOCK, device="cuda") + 0.5).t()
    return a, b.t(), scale_a, scale_b


def error(out: Any, a: Any, b: Any, scale_a: Any, scale_b: Any) -> float:
    """||out - exact|| / ||exact|| of the first and last rows; NaN where any element is."""
    if bool(out.isnan().any()):
        return float("nan")
    wide = scale_b.double().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1) * b.double()
    found = []
    for rows in (slice(0, ROWS), slice(-ROWS, None)):
        left = a[rows].double() * scale_a[:, rows].t().double().repeat_interleave(BLOCK, 1)
        found.append(relative_error(out[rows], left @ wide))
    return max(found)


def compare(m: int, n: int, k: int, rounds: int) -> dict[str, Any]:
    """Times of every configuration, of `tc.matmul`'s choice, and of a plain FP8 product."""
    a, b, scale_a, scale_b = operands(m, n, k)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    functions: dict[str, Callable[[], Any]] = {}
    errors, failed = {}, {}

    def call(params: dict[str, Any]) -> Callable[[], Any]:
        return lambda: matmul(a, b, out, scale_a, scale_b, block_scales=True, **params)

    candidates = {
        " ".join(f"{name}={value}" for name, value in params.items()): call(params)
        for params in CONFIGS
    }
    candidates["tc.matmul"] = lambda: tc.matmul(a, b, out, scale_a=scale_a.t(), scale_b=scale_b)
    for name, function in candidates.items():
        out.fill_(float("nan"))
        try:
            function()
            torch.cuda.synchronize()
        except (tc.TileError, RuntimeError) as problem:
            failed[name] = str(problem)
            print(name, "failed:", problem, flush=True)
            continue
        errors[name] = error(out, a, b, scale_a, scale_b)
        functions[name] = function
    functions["plain"] = lambda: tc.matmul(a, b, out, scale_a=0.5, scale_b=0.25)
    times = do_bench(list(functions.values()), repeats=rounds, budget_s=20.0)
    flops = 2 * m * n * k
    tflops = {x: flops / t.median_us / 1e6 for x, t in zip(functions, times, strict=True)}
    for name in sorted(tflops, key=tflops.__getitem__):
        print(f"{m}x{n}x{k} {tflops[name]:7.1f} TFLOP/s, error {errors.get(name)}: {name}")
    return {
        "shape": (m, n, k), "tflops": tflops, "errors": errors, "failed": failed,
        "times_us": {x: t.summary() for x, t in zip(functions, times, strict=True)},
    }  # fmt: skip


def main(target: str, rounds: int = 20) -> None:
    """Measures each shape and writes the results file."""
    path = record.path_for("", target, overwrite=False)
    torch.manual_seed(0)
    facts = record.environment(torch)
    rows = [compare(*shape, rounds) for shape in SHAPES]
    results = {"environment": facts, "smi": record.smi(), "method": METHOD, "shapes": rows}
    record.write(path, results)
    print(f"results: {path}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
