"""Small runs of kernels, memory cases, ops, products and the GEMM family, for compute-sanitizer.

1 on any finding:

compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 1 \\
    python tests/gpu/sanitize.py  # cuda-bindings asks the driver for functions it may not have
compute-sanitizer --tool racecheck --error-exitcode 1 python tests/gpu/sanitize.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import gemm_random  # noqa: E402
import ml_dtypes  # noqa: E402
import mma_cases  # noqa: E402
import reference  # noqa: E402
import table  # noqa: E402
import table_rows  # noqa: E402
import torch  # noqa: E402
from cases import CASES, Case, bases, to_torch, views  # noqa: E402
from decode_cases import Decode  # noqa: E402
from gradients import gradients  # noqa: E402
from memory.test_memory import FAMILIES  # noqa: E402
from on_gpu import OnGpu, run_on_gpu  # noqa: E402
from test_gemm_random import run as twice  # noqa: E402
from test_mma import launched  # noqa: E402

from tilecat import attention_backward, attention_decode  # noqa: E402
from tilecat.kernels.gemm import matmul  # noqa: E402


def run(case: Case) -> str | None:
    """Runs a case on the GPU; what is wrong with its result, if anything."""
    tensors = views(case, [to_torch(array, "cuda") for array in bases(case)])
    case.spec.kernel(*tensors, grid=case.grid or 4, **case.options)
    torch.cuda.synchronize()
    arrays = views(case, bases(case))
    for index, exact in zip(case.spec.outputs, case.spec.reference(*arrays), strict=True):
        got = tensors[index].double().cpu().numpy()
        error = np.linalg.norm(got - exact) / (np.linalg.norm(exact) or 1.0)
        if not error <= 2.0**-7:
            return f"output {index} is wrong: relative error {error:.3g}"
    return None


def run_op(case: table.Case) -> None:
    """An op of the table."""
    arrays = table.arrays_of(case)
    table.check(case, table.run(case, arrays, launched), arrays)


def run_mma(case: mma_cases.MmaCase) -> None:
    """A product."""
    given = mma_cases.arrays(case)
    mma_cases.check(case, mma_cases.run(case, given, launched), given, gpu=True)


def run_random(given: gemm_random.Problem) -> None:
    """A call of the GEMM family, twice."""
    one, two = twice(given)
    given.check(one)
    assert (one == two).all(), "other bits the second time"


def run_grid(params: dict[str, Any]) -> None:
    """A product by the kernel itself."""
    a, b, c, *shared = gemm_random.product_in_parts(params)
    out = OnGpu(c)
    flags = [OnGpu(array) for array in shared]
    matmul(OnGpu(a).tensor, OnGpu(b).tensor, out.tensor, *(x.tensor for x in flags),
           **{**gemm_random.TILES, **params})  # fmt: skip
    reference.assert_close(out.back(), reference.matmul(a, b), c.dtype)
    assert not shared or not flags[-1].back().any(), "flags are left down"


def run_gradients(options: dict[str, Any]) -> None:
    """Gradients of attention."""
    options, rng = dict(options), np.random.default_rng(0)
    dim = options.pop("dim")
    shapes = ((1, 2, 70, dim), (1, 1, 130, dim), (1, 1, 130, dim), (1, 2, 70, dim))
    q, k, v, dout = (torch.tensor(rng.standard_normal(x)).bfloat16() for x in shapes)
    added = torch.tensor(rng.standard_normal(options.pop("bias", 0)), dtype=torch.float32)
    seen = np.arange(130) <= np.arange(70)[:, None] if "causal" in options else None
    wide = added.double().numpy() if len(added) else 0.0
    exact = gradients(q, k, v, dout, seen=seen, score=lambda s: (s + wide, 1.0))
    lse, out = torch.tensor(exact.lse).float(), torch.tensor(exact.out).bfloat16()
    if len(added):
        options |= {"bias": added.cuda(), "bias_grad": True}
    made = attention_backward(*(x.cuda() for x in (dout, q, k, v, out, lse)), **options)
    for got, wanted in zip(made, (exact.dq, exact.dk, exact.dv), strict=False):
        reference.assert_close(got, wanted, ml_dtypes.bfloat16)


def run_decode(case: Decode) -> None:
    """Attention over caches."""

    def decoded(*arrays: np.ndarray, **options: Any) -> None:
        given = [to_torch(x, "cuda") for x in arrays]
        more = {name: torch.as_tensor(x, device="cuda") if isinstance(x, np.ndarray) else x
                for name, x in options.items()}  # fmt: skip
        attention_decode(*given[:3], **more, out=given[3], lse=given[4])
        for array, made in zip(arrays[3:], given[3:], strict=True):
            array[...] = reference.as_numpy(made)

    case.check(decoded, gpu=True)


def asserted(run: Callable[[Any], None]) -> Callable[[Any], str | None]:
    """What is wrong with a result, from a function that asserts."""

    def outcome(case: Any) -> str | None:
        try:
            run(case)
        except AssertionError as error:
            return str(error)
        return None

    return outcome


GRADIENTS = (
    *({"dim": dim} for dim in (64, 96, 128, 192, 256)),
    {"dim": 64, "causal": True}, {"dim": 128, "causal": True, "deterministic": True},
    {"dim": 64, "bias": (1, 130)}, {"dim": 256, "bias": (2, 70, 130)},
)  # fmt: skip
DECODES = (
    Decode(1, 32, 1, 900, 128, (900, 77)), Decode(5, 4, 2, 288, 64, (288, 33), page=16),
    Decode(1, 8, 2, 700, 64, (700, 170), cache="e4m3"),
    Decode(2, 48, 1, 288, 128, (288, 65), page=32, cache="e4m3", options={"causal": True}),
)  # fmt: skip
# Kernels, gradients of attention, decoding, one memory case of each kind, a sample of the ops and
# of the products, and the GEMM: one call of each kind, and its schedules.
SAMPLES = (
    (CASES, run),
    (GRADIENTS, asserted(run_gradients)),
    (DECODES, asserted(run_decode)),
    (tuple(FAMILIES.values()), asserted(run_on_gpu)),
    (table_rows.CASES[::61], asserted(run_op)),
    (mma_cases.CASES[::31], asserted(run_mma)),
    (gemm_random.one_of_each(200, gpu=True), asserted(run_random)),
    (gemm_random.GRIDS, asserted(run_grid)),
)


def main() -> int:
    """Exit code: 1 if a result is wrong or a launch failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    wanted = parser.parse_args().only
    failed = 0
    chosen = [(case, outcome) for cases, outcome in SAMPLES for case in cases]
    for case, outcome in chosen:
        if wanted not in str(case):
            continue
        problem = outcome(case)
        print(f"{case}: {problem or 'right'}", flush=True)
        failed += problem is not None
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
