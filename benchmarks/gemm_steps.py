"""Each step of `docs/gemm-in-nine-steps.md` at 4096^3, beside cuBLAS, on this GPU.

    python benchmarks/gemm_steps.py OUT.json [ROUNDS]

Measured as `tilecat bench` does: results checked against float64, calls interleaved, L2 flushed.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tilecat.bench import METHOD, record
from tilecat.bench.gemm import SPEC, error, expected, operands
from tilecat.bench.session import Session, line_of
from tilecat.testing import poison

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from gemm_in_nine_steps import STEPS


def main(target: str, rounds: int = 20) -> None:
    """Checks, measures, writes the results file."""
    path = record.path_for("", target, overwrite=False)
    torch.manual_seed(0)
    facts = record.environment(torch)
    before = record.smi()
    session, shape = Session(torch, repeats=rounds), SPEC.shape("4096^3")
    session.share_s = 120.0
    a, b, c = operands(torch, shape)
    product, worst, functions = expected(a, b), 0.0, {}
    for step in STEPS:
        poison(c)
        step(a, b, c)
        worst = max(worst, error(c, product))
        functions[step.name] = partial(step, a, b, c)
    functions["torch.mm"] = partial(torch.mm, a, b, out=torch.empty_like(c))
    row: dict[str, Any] = {"table": "steps", "label": shape.name, "layout": "NN", "error": worst}
    row |= session.compare(functions, SPEC, shape, ours=STEPS[-1].name)
    results = {
        "environment": facts,
        "smi": {"before": before, "under load": record.smi_under_load(torch)},
        "method": METHOD,
        "settings": {"repeats": rounds, "warmup": session.warmup},
        "rows": [row],
    }
    record.write(path, results)
    print(line_of(row))
    print(f"results: {path}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
