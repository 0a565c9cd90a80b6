"""Training curves side by side: what `train_with_attention` and `train_sequence_models` share.

A model is trained three times from the same weights on the same batches: with tilecat, with a peer,
and with that peer rounding elsewhere, which shows how far rounding alone takes two right
implementations apart.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

LIMIT = 1.0  # difference of losses, in a hundredth of the first


@dataclass(frozen=True)
class Run:
    """One training.

    Args:
        losses: of each step.
        step_ms: median time of a step.
        seconds: of all steps, what they compiled included.
    """

    losses: list[float]
    step_ms: float
    seconds: float


def trained(
    model: Any, loss_of: Callable[[Any], Any], batches: Iterator[Any], *, steps: int, rate: float,
    device: str, around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Run:  # fmt: skip
    """Trains a model by AdamW; each batch is moved to the device, `around` is about each loss."""
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses, times = [], []
    for _ in range(steps):
        start = time.perf_counter()
        batch = next(batches).to(device)
        with around():
            loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())  # waits for the device
        times.append(time.perf_counter() - start)
    return Run(losses, 1e3 * sorted(times)[len(times) // 2], sum(times))


def difference(one: Run, other: Run) -> float:
    """The largest difference of two curves, in a hundredth of the first loss; NaN if one is."""
    differences = [abs(a - b) for a, b in zip(one.losses, other.losses, strict=True)]
    return math.nan if math.isnan(sum(differences)) else 100 * max(differences) / one.losses[0]


def table(runs: dict[str, Run], every: int = 5) -> str:
    """Losses by step."""
    rows = ["step  " + "  ".join(f"{name:>10}" for name in runs)]
    count = len(next(iter(runs.values())).losses)
    for step in sorted({*range(0, count, every), count - 1}):
        rows.append(f"{step:4}  " + "  ".join(f"{r.losses[step]:10.4f}" for r in runs.values()))
    return "\n".join(rows)


def compare(
    models: list[str], kinds: tuple[str, str, str], train: Callable[[str, str], Run],
    out: Path | None,
) -> int:  # fmt: skip
    """Trains models with each kind of operators and prints their curves.

    Args:
        models: names.
        kinds: ours, the peer, and the peer that rounds elsewhere.
        train: of a model with a kind.
        out: where to write the losses, after each model.

    Returns:
        1 if a loss of ours differs from the peer's by more than LIMIT, and by more than twice what
        the peer's two do; else 0.
    """
    ours, peer, other = kinds
    results, parted = {}, False
    for name in models:
        runs = {}
        for kind in kinds:
            runs[kind] = run = train(name, kind)
            print(f"{name}: {kind:10} loss {run.losses[0]:.4f} -> {run.losses[-1]:.4f}, "
                  f"{run.step_ms:.1f} ms a step, {run.seconds:.1f} s", flush=True)  # fmt: skip
        apart = {kind: difference(runs[kind], runs[peer]) for kind in (ours, other)}
        print(table(runs))
        for kind, value in apart.items():
            print(f"{name}: {kind} and {peer} differ by at most {value:.3f} % of the first loss",
                  flush=True)  # fmt: skip
        parted = parted or not apart[ours] <= max(LIMIT, 2 * apart[other])
        results[name] = {kind: vars(run) for kind, run in runs.items()} | {"apart_percent": apart}
        if out:
            out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(parted)
