"""Attention through the torch operator, forward and backward, beside cuDNN and FlashAttention-2.

    python benchmarks/attention_comparison.py OUT.json [ROUNDS] [LABEL ...]

The 20 problems of docs/attention-comparison.md, bf16, 16 heads, normal random inputs. A problem is
checked before it is timed: output and gradients of the first and the last head against float64,
beside the errors of cuDNN on the same inputs. Then all functions of a row are called in turns, with
the L2 cache flushed before each call. LABELs choose problems: "D128 causal N768", or parts of it.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import tilecat.torch as tt
from tilecat.bench import METHOD, record
from tilecat.errors import TileError
from tilecat.testing import do_bench, ratio

HEADS = 16
LENGTHS = ((768, 16), (1536, 16), (3072, 16), (6144, 4), (12288, 4))
BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION"}
MAX_ERROR = 2.0**-6  # of a norm


@dataclass(frozen=True)
class Problem:
    """Lq = Lk = length, 16 heads of q, k and v."""

    dim: int
    causal: bool
    length: int
    batch: int

    @property
    def label(self) -> str:
        return f"D{self.dim}{' causal' * self.causal} N{self.length} B{self.batch}"

    @property
    def flops(self) -> float:
        """Of the forward: 4 B H N^2 D, halved where causal; the backward's are 2.5 times these."""
        whole = 4 * self.batch * HEADS * self.length**2 * self.dim
        return whole / 2 if self.causal else whole

    def tensors(self) -> list[torch.Tensor]:
        shape = (self.batch, HEADS, self.length, self.dim)
        return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]


PROBLEMS = tuple(
    Problem(dim, causal, length, batch)
    for dim in (64, 128)
    for causal in (False, True)
    for length, batch in LENGTHS
)


def with_backend(backend: Any, causal: bool, q: Any, k: Any, v: Any) -> Any:
    with torch.nn.attention.sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def functions(problem: Problem) -> dict[str, Callable[..., Any]]:
    """Attention of q, k, v by name."""
    found = {"tilecat": partial(tt.sdpa, is_causal=problem.causal)}
    for name, member in BACKENDS.items():
        backend = getattr(torch.nn.attention.SDPBackend, member)
        found[name] = partial(with_backend, backend, problem.causal)
    return found


def exact(problem: Problem, q: Any, k: Any, v: Any, grad: Any) -> list[torch.Tensor]:
    """Output and gradients of one head in float64."""
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    scores = q @ k.T * problem.dim**-0.5
    if problem.causal:
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    out = torch.softmax(scores, -1) @ v
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad.double())]


def errors(problem: Problem, found: list[torch.Tensor], inputs: list[Any]) -> list[float]:
    """Worst relative errors of O, dQ, dK and dV over the first and the last head."""
    worst = [0.0] * 4
    for entry, head in {(0, 0), (problem.batch - 1, HEADS - 1)}:
        expected = exact(problem, *(x[entry, head].detach() for x in inputs))
        for at, (got, wanted) in enumerate(zip(found, expected, strict=True)):
            difference = (got[entry, head].double() - wanted).norm() / wanted.norm()
            worst[at] = max(worst[at], float(difference))
    return worst


def measure(problem: Problem, rounds: int) -> list[dict[str, Any]]:
    """Two rows: forward and backward."""
    q, k, v, grad = problem.tensors()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    calls, outs, worst = functions(problem), {}, {}
    for name, call in calls.items():
        outs[name] = call(*leaves)
        made = torch.autograd.grad(outs[name], leaves, grad, retain_graph=True)
        worst[name] = errors(problem, [outs[name], *made], [q, k, v, grad])
    if not max(worst["tilecat"]) <= MAX_ERROR:
        raise TileError(f"{problem.label}: wrong result, relative errors {worst['tilecat']}")
    plain = [x.detach() for x in leaves]
    forward = {name: partial(call, *plain) for name, call in calls.items()}
    backward = {
        name: partial(torch.autograd.grad, out, leaves, grad, retain_graph=True)
        for name, out in outs.items()
    }
    return [
        row(f"{problem.label} {kind}", problem.flops * factor, chosen, rounds)
        | {"errors": {name: values[part] for name, values in worst.items()}}
        for kind, factor, chosen, part in (
            ("forward", 1.0, forward, slice(0, 1)),
            ("backward", 2.5, backward, slice(1, 4)),
        )
    ]


def row(label: str, flops: float, calls: dict[str, Callable[[], Any]], rounds: int) -> dict:
    """Times interleaved, TFLOP/s, and the peers' times over ours."""
    times = dict(zip(calls, do_bench(list(calls.values()), repeats=rounds), strict=True))
    return {
        "table": "attention_operator",
        "label": label,
        "flops": flops,
        "times_us": {name: taken.summary() for name, taken in times.items()},
        "tflops": {n: float(f"{flops / t.median_us / 1e6:.4g}") for n, t in times.items()},
        "ratio": {n: ratio(t, times["tilecat"]) for n, t in times.items() if n != "tilecat"},
    }


def main(target: str, rounds: int, chosen: list[str]) -> None:
    """Checks, measures, writes the results file after each problem."""
    path = Path(target)
    torch.manual_seed(0)
    results: dict[str, Any] = {
        "environment": record.environment(torch),
        "smi": {"before": record.smi()},
        "method": METHOD,
        "settings": {"repeats": rounds},
        "rows": [],
    }
    for problem in PROBLEMS:
        if chosen and not any(label in problem.label for label in chosen):
            continue
        try:
            rows = measure(problem, rounds)
        except (TileError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            rows = [{"table": "attention_operator", "label": problem.label, "failed": reason}]
        results["rows"] += rows
        for found in rows:
            ratios = {name: r["median"] for name, r in found.get("ratio", {}).items()}
            print(found["label"], found.get("failed") or found["tflops"], ratios, flush=True)
        record.write(path, results)
        torch.cuda.empty_cache()
    results["smi"]["under load"] = record.smi_under_load(torch)
    record.write(path, results)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 20, sys.argv[3:])
