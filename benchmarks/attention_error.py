"""Errors of attention and of its gradients against float64, beside cuDNN's on the same inputs.

    python benchmarks/attention_error.py OUT.json [PROCESSES [FORWARD BACKWARD]]

Random problems of a fixed seed that `F.scaled_dot_product_attention` takes with PyTorch's cuDNN
backend: bf16 and f16, head dims, lengths, grouped heads, causal or a bias. Those that
cuDNN refuses, or gets wrong by more than MAX_ERROR, are left out, and are in the file. What
our calls allocate is NaN before it is written. Errors are norms of differences from float64, of O,
dQ, dK and dV; a ratio is ours over cuDNN's. Each computes its gradients from its own forward.
"""

import math
import random
import sys
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import tilecat as tc
from tilecat.bench import record

SEED, SHORTEST, LONGEST = 2026, 2, 1500  # of one key cuDNN computes nothing
PARTS = ("O", "dQ", "dK", "dV")
KINDS = (
    ((64, 64), "bfloat16"), ((64, 64), "bfloat16"), ((128, 128), "bfloat16"),
    ((128, 128), "bfloat16"), ((128, 128), "float16"), ((64, 64), "float16"),
    ((192, 128), "bfloat16"), ((256, 256), "bfloat16"),
)  # fmt: skip
MAX_ERROR = 2.0**-4  # of a norm: beyond it, another function was computed
BACKWARD = 10_000  # numbers of problems with gradients begin there
DRAWN = 1.03  # problems for each one wanted
WRITTEN = 40  # problems after which the file is written


@dataclass(frozen=True)
class Problem:
    """Lengths even in their logarithms, SHORTEST to LONGEST; one edge, or a bias of q's dtype."""

    number: int
    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    dims: tuple[int, int]
    dtype: str
    change: str

    @classmethod
    def draw(cls, number: int) -> "Problem":
        rng = random.Random(SEED * 100_000 + number)
        groups, group = rng.choice((1, 2, 4)), rng.choice((1, 1, 2, 4))
        few, most = math.log(SHORTEST), math.log(LONGEST)
        queries, keys = (round(math.exp(rng.uniform(few, most))) for _ in range(2))
        dims, dtype = rng.choice(KINDS)
        return cls(
            number, rng.randint(1, 3), groups * group, groups, queries,
            queries if rng.random() < 0.4 else keys, dims, dtype,
            rng.choice(("", "causal", "bias")),
        )  # fmt: skip

    def tensors(self) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor | None]:
        """q, k, v; the gradient of O; the bias."""
        make = torch.Generator(device="cuda").manual_seed(self.number)
        (dim, dim_v), dtype = self.dims, getattr(torch, self.dtype)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device="cuda", generator=make).to(dtype)

        q = normal(self.batch, self.heads, self.queries, dim)
        k = normal(self.batch, self.groups, self.keys, dim)
        v = normal(self.batch, self.groups, self.keys, dim_v)
        grad = normal(self.batch, self.heads, self.queries, dim_v)
        bias = normal(1, self.heads, self.queries, self.keys) if self.change == "bias" else None
        return [q, k, v], grad, bias


def exact(problem: Problem, inputs: Any, grad: Any, bias: Any) -> list[torch.Tensor]:
    """O, dQ, dK, dV in float64."""
    q, k, v = wide = [x.double().requires_grad_() for x in inputs]
    k, v = (x.repeat_interleave(problem.heads // problem.groups, 1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias.double()
    if problem.change == "causal":
        hidden = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    out = torch.softmax(scores, -1) @ v
    return [out.detach(), *torch.autograd.grad(out, wide, grad.double())]


def of_cudnn(problem: Problem, inputs: Any, grad: Any, bias: Any, trains: bool) -> list[Any]:
    leaves = [x.detach().requires_grad_(trains) for x in inputs]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(
            *leaves, attn_mask=bias, is_causal=problem.change == "causal", enable_gqa=True
        )
        return [out.detach(), *(torch.autograd.grad(out, leaves, grad) if trains else ())]


def of_tilecat(problem: Problem, inputs: Any, grad: Any, bias: Any, trains: bool) -> list[Any]:
    options = {"causal": problem.change == "causal", "bias": bias}
    torch.use_deterministic_algorithms(True)  # what torch allocates is NaN then
    try:
        out, lse = tc.attention(*inputs, return_lse=True, **options)
        if not trains:
            return [out]
        return [out, *tc.attention_backward(grad, *inputs, out, lse, **options)]
    finally:
        torch.use_deterministic_algorithms(False)


def errors(found: list[Any], wanted: list[Any]) -> list[float]:
    return [
        float(f"{float((x.double() - y).norm()):.4g}") for x, y in zip(found, wanted, strict=False)
    ]


def measure(number: int) -> dict[str, Any]:
    """Errors by part of both; or why there are none."""
    problem, trains = Problem.draw(number), number >= BACKWARD
    inputs, grad, bias = problem.tensors()
    wanted = exact(problem, inputs, grad, bias)
    shown: dict[str, Any] = {"number": number, "problem": str(problem)}
    try:
        theirs = errors(of_cudnn(problem, inputs, grad, bias, trains), wanted)
    except RuntimeError as error:
        return shown | {"refused": str(error).splitlines()[0][:120]}
    sizes = [float(x.norm()) for x in wanted]
    largest = max(sizes[1:])  # of one key dQ and dK are 0, but for roundings
    if not all(x <= MAX_ERROR * max(y, largest) for x, y in zip(theirs, sizes, strict=False)):
        return shown | {"refused": f"cuDNN computes something else: errors {theirs} of {sizes}"}
    ours = errors(of_tilecat(problem, inputs, grad, bias, trains), wanted)
    return shown | {"tilecat": ours, "cudnn": theirs, "norms": sizes[: len(ours)]}


def ratios(rows: list[dict[str, Any]], part: int) -> list[float]:
    """Ours over cuDNN's, where cuDNN has any."""
    pairs = [(row["tilecat"][part], row["cudnn"][part]) for row in rows]
    return sorted(ours / theirs for ours, theirs in pairs if theirs > 0)


def summary(rows: list[dict[str, Any]], count: int) -> dict[str, Any]:
    """By part: geometric mean and largest of the ratios, and how many are at most 1, and 1.02."""
    found = {}
    for part, name in enumerate(PARTS[:count]):
        some = ratios(rows, part)
        found[name] = {
            "problems": len(some),
            "geomean": round(math.exp(sum(map(math.log, some)) / len(some)), 4),
            "median": round(some[len(some) // 2], 4),
            "largest": round(some[-1], 4),
            "at most 1": sum(x <= 1 for x in some),
            "at most 1.02": sum(x <= 1.02 for x in some),
            "all": round(math.hypot(*(row["tilecat"][part] for row in rows))
                         / math.hypot(*(row["cudnn"][part] for row in rows)), 4),
        }  # fmt: skip
    return found


def gathered(rows: list[dict[str, Any]], forward: int, backward: int) -> dict[str, Any]:
    """Both kinds of problems, at most as many as wanted, in the order they were drawn."""
    found: dict[str, Any] = {}
    for name, count in (("forward", forward), ("backward", backward)):
        drawn = sorted((row for row in rows if (row["number"] >= BACKWARD) == (name == "backward")),
                       key=lambda row: row["number"])  # fmt: skip
        right = [row for row in drawn if "refused" not in row][:count]
        refused = [row for row in drawn if "refused" in row]
        parts = summary(right, len(PARTS) if name == "backward" else 1) if right else {}
        found[name] = {
            "problems": len(right), "summary": parts, "refused": refused, "rows": right
        }  # fmt: skip
    return found


def main(target: str, processes: int = 4, forward: int = 300, backward: int = 200) -> None:
    """Both kinds of problems in turns; writes the results file now and then, prints summaries."""
    path, environment = Path(target), record.environment(torch)
    numbers = [
        *range(math.ceil(forward * DRAWN)),
        *range(BACKWARD, BACKWARD + math.ceil(backward * DRAWN)),
    ]
    random.Random(SEED).shuffle(numbers)
    rows: list[dict[str, Any]] = []
    with get_context("spawn").Pool(processes) as pool:
        for row in pool.imap_unordered(measure, numbers):
            rows.append(row)
            if len(rows) % WRITTEN and len(rows) < len(numbers):
                continue
            found = gathered(rows, forward, backward)
            record.write(path, {"environment": environment, "method": __doc__, **found})
            print(len(rows), *(f"{kind}: {some['problems']} problems, {len(some['refused'])} "
                  f"refused, {some['summary']}" for kind, some in found.items()),
                  sep="\n  ", flush=True)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
