"""Small runs of both kernels for compute-sanitizer, which exits with 1 on any finding:

compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 1 \\
    python tests/gpu/sanitize.py  # cuda-bindings asks the driver for functions it may not have
compute-sanitizer --tool racecheck --error-exitcode 1 python tests/gpu/sanitize.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
from cases import CASES, Case, bases, to_torch, views  # noqa: E402


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


def main() -> int:
    """Exit code: 1 if a result is wrong or a launch failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    wanted = parser.parse_args().only
    failed = 0
    for case in CASES:
        if wanted not in str(case):
            continue
        problem = run(case)
        print(f"{case}: {problem or 'right'}", flush=True)
        failed += problem is not None
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
