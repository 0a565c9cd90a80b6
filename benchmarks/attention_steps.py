"""Each step of `docs/attention-in-seven-steps.md`, beside SDPA's backends, on this GPU.

    python benchmarks/attention_steps.py OUT.json [ROUNDS]

D128, 16 heads, B16, N768 and N3072, not causal. Measured as `tilecat bench` does: results checked
against float64, calls interleaved, L2 flushed.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tilecat.bench import METHOD, record
from tilecat.bench.attention import SPEC, check, operands
from tilecat.bench.session import Session, line_of
from tilecat.testing import poison

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from attention_in_seven_steps import STEPS

SHAPES = ("D128 B16 N768", "D128 B16 N3072")
BACKENDS = {"SDPA cuDNN": "CUDNN_ATTENTION", "SDPA FlashAttention-2": "FLASH_ATTENTION"}


def with_backend(backend: Any, *arguments: Any) -> Any:
    """torch's SDPA by one backend."""
    with torch.nn.attention.sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(*arguments)


def measure(session: Session, name: str) -> dict[str, Any]:
    """One row: every step and the peers."""
    shape = SPEC.shape(name)
    q, k, v = operands(torch, shape)
    out, worst, functions = torch.empty_like(q), 0.0, {}
    for step in STEPS:
        poison(out)
        step(q, k, v, out)
        worst = max(worst, check(torch, q, k, v, out))
        functions[step.name] = partial(step, q, k, v, out)
    for peer, member in BACKENDS.items():
        backend = getattr(torch.nn.attention.SDPBackend, member)
        functions[peer] = partial(with_backend, backend, q, k, v)
    row: dict[str, Any] = {"table": "attention_steps", "label": shape.name, "error": worst}
    return row | session.compare(functions, SPEC, shape, ours=STEPS[-1].name)


def main(target: str, rounds: int = 20) -> None:
    """Checks, measures, writes the results file."""
    path = record.path_for("", target, overwrite=False)
    torch.manual_seed(0)
    facts = record.environment(torch)
    before = record.smi()
    session = Session(torch, repeats=rounds)
    session.share_s = 120.0
    rows = [measure(session, name) for name in SHAPES]
    results = {
        "environment": facts,
        "smi": {"before": before, "under load": record.smi_under_load(torch)},
        "method": METHOD,
        "settings": {"repeats": rounds, "warmup": session.warmup},
        "rows": rows,
    }
    record.write(path, results)
    for row in rows:
        print(line_of(row))
    print(f"results: {path}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
