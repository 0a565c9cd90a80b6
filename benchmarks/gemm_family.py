"""FP8, fused epilogues and groups of `tc.matmul`, beside torch where it has the same, on this GPU.

    python benchmarks/gemm_family.py OUT.json [ROUNDS]

Results checked against float64 on sampled rows, calls interleaved, L2 flushed before each.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

import tilecat as tc
from tilecat.bench import METHOD, record
from tilecat.testing import do_bench, ratio

ROWS = 64  # of the result, checked against float64
Functions = dict[str, Callable[[], Any]]


def fp8(m: int, n: int, k: int) -> tuple[Functions, float]:
    """E4m3 with a scale for each operand, bf16 out, beside `torch._scaled_mm` both ways."""
    a, b = (torch.randn(x, k, device="cuda").to(torch.float8_e4m3fn) for x in (m, n))
    one = torch.ones(1, device="cuda")
    scale_a, scale_b = one * 0.5, one * 0.25
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)

    def torch_mm(fast: bool) -> Any:
        return torch._scaled_mm(
            a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16,
            use_fast_accum=fast,
        )  # fmt: skip

    functions: Functions = {
        "tilecat": lambda: tc.matmul(a, b.t(), out, scale_a=scale_a, scale_b=scale_b),
        "torch._scaled_mm, fast": lambda: torch_mm(True),
        "torch._scaled_mm": lambda: torch_mm(False),
    }
    functions["tilecat"]()
    exact = a[:ROWS].double() @ b.double().t() * 0.125
    return functions, error(out[:ROWS], exact)


def fp8_blocks(m: int, n: int, k: int) -> tuple[Functions, float]:
    """E4m3 with scales of 1 x 128 and 128 x 128, sums of each 128 added in f32.

    Scales of A with M contiguous, as the kernel takes them; and with K, which a call copies first.
    """
    a, b = (torch.randn(x, k, device="cuda").to(torch.float8_e4m3fn) for x in (m, n))
    scale_a = torch.rand(m, k // 128, device="cuda") + 0.5
    scale_b = torch.rand(k // 128, n // 128, device="cuda") + 0.5
    turned = scale_a.t().contiguous().t()
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    functions: Functions = {
        "tilecat": lambda: tc.matmul(a, b.t(), out, scale_a=turned, scale_b=scale_b),
        "scales copied": lambda: tc.matmul(a, b.t(), out, scale_a=scale_a, scale_b=scale_b),
    }
    functions["tilecat"]()
    left = a[:ROWS].double() * scale_a[:ROWS].double().repeat_interleave(128, 1)
    wide = scale_b.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    return functions, error(out[:ROWS], left @ (b.double().t() * wide))


def epilogue(size: int) -> tuple[Functions, float]:
    """A plain product, and the same with a bias and GELU fused."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    bias = torch.randn(size, device="cuda")
    plain, fused = (torch.full_like(a, float("nan")) for _ in range(2))
    steps = (tc.epilogues.bias, bias), tc.epilogues.gelu
    functions: Functions = {
        "bias and GELU": lambda: tc.matmul(a, b, fused, epilogue=steps),
        "plain": lambda: tc.matmul(a, b, plain),
    }
    functions["bias and GELU"]()
    exact = torch.nn.functional.gelu(a[:ROWS].double() @ b.double() + bias.double())
    return functions, error(fused[:ROWS], exact)


def groups(experts: int, rows: int, n: int, k: int) -> tuple[Functions, float]:
    """A product of groups with equal rows, and one matrix of as many rows."""
    a = torch.randn(experts * rows, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(experts, k, n, device="cuda", dtype=torch.bfloat16)
    ends = torch.arange(rows, experts * rows + 1, rows, device="cuda", dtype=torch.int32)
    out, dense = (
        torch.full((experts * rows, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        for _ in range(2)
    )
    functions: Functions = {
        "groups": lambda: tc.grouped_matmul(a, b, out, ends=ends),
        "one matrix": lambda: tc.matmul(a, b[0], dense),
    }
    functions["groups"]()
    return functions, error(out[-ROWS:], a[-ROWS:].double() @ b[-1].double())


def error(got: Any, exact: Any) -> float:
    """||got - exact|| / ||exact||."""
    return float((got.double() - exact).norm() / exact.norm())


def main(target: str, rounds: int = 20) -> None:
    """Measures each problem and writes the results file."""
    path = record.path_for("", target, overwrite=False)
    torch.manual_seed(0)
    facts = record.environment(torch)
    problems = [
        *((f"fp8 {n}^3", fp8, (n, n, n), 2 * n**3) for n in (4096, 8192)),
        ("fp8 blocks 4096x7168x16384", fp8_blocks, (4096, 7168, 16384), 2 * 4096 * 7168 * 16384),
        # Behind what has no peer: power lowers the clock for a while after it.
        ("fp8 16384^3", fp8, (16384, 16384, 16384), 2 * 16384**3),
        ("epilogue 8192^3", epilogue, (8192,), 2 * 8192**3),
        ("64 groups 512x4096x4096", groups, (64, 512, 4096, 4096), 2 * 64 * 512 * 4096**2),
    ]
    rows = []
    for label, make, extents, flops in problems:
        try:
            functions, wrong = make(*extents)
            times = do_bench(list(functions.values()), repeats=rounds, budget_s=8.0)
        except (tc.TileError, RuntimeError) as problem:
            rows.append({"label": label, "failed": str(problem)})
            print(rows[-1], flush=True)
            continue
        named = dict(zip(functions, times, strict=True))
        first = next(iter(named))
        rows.append({
            "label": label, "error": wrong,
            "times_us": {name: taken.summary() for name, taken in named.items()},
            "tflops": {name: flops / taken.median_us / 1e6 for name, taken in named.items()},
            "ratio": {n: ratio(t, named[first]) for n, t in named.items() if n != first},
        })  # fmt: skip
        print(label, rows[-1]["tflops"], rows[-1]["ratio"], wrong, flush=True)
        torch.cuda.empty_cache()
    results = {"environment": facts, "smi": record.smi(), "method": METHOD, "problems": rows}
    record.write(path, results)
    print(f"results: {path}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
