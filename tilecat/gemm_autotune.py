"""TILECAT_AUTOTUNE: the first call of a product that no winner covers measures, then calls.

The tuner runs in a process of its own (`tilecat tune`), which keeps what it finds in the user's
cache: a candidate that hangs or loses the GPU's context does nothing to this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from .dtypes import by_name
from .errors import ResourceError
from .gemm_choice import Problem, nearest
from .gemm_winners import folder, forget
from .runtime import cache, deferred
from .runtime.arrays import TMA_ALIGN_BYTES

VARIABLE = "TILECAT_AUTOTUNE"
BUDGET_S = 20.0  # of one product
LEAST_S = 5.0
GRACE_S = 60.0  # for the imports of the tuner, and what its budget does not bound
_tried: set[Problem] = set()


def budget_s() -> float:
    """Seconds that a product may be tuned for: TILECAT_AUTOTUNE; 0 if it is off.

    Raises:
        ResourceError: the variable is no number of seconds.
    """
    text = os.environ.get(VARIABLE, "").strip().lower()
    if text in ("", "0", "off", "false", "no"):
        return 0.0
    if text in ("1", "on", "true", "yes"):
        return BUDGET_S
    if not text.isdecimal() or int(text) < LEAST_S:
        raise ResourceError(
            f"matmul: {VARIABLE} is 0, 1, or seconds from {LEAST_S:.0f} up, got {text!r}",
            hint=f"{VARIABLE}=1 takes {BUDGET_S:.0f} s a product",
        )
    return float(text)


def tune_first(problem: Problem, a: Any) -> None:
    """Tunes a product of torch tensors on a GPU, once a process, unless a winner covers it.

    Never while a stream is captured. What fails is a warning: the model chooses.

    Args:
        problem: the product.
        a: one of its operands.
    """
    seconds = budget_s()
    if not seconds or not problem.as_measured or not cache.max_bytes():
        return
    alike = replace(problem, plain=True, splits=True)
    if alike in _tried or nearest(alike) is not None or not _reached_by_tma(problem):
        return
    if not _may_wait(a):
        return
    _tried.add(alike)
    name = f"{problem.m}x{problem.n}x{problem.depth}"
    with deferred.assembler().locked(folder(), _lock_of(problem)):
        forget()
        if nearest(alike) is None:
            reason = _run(_command(problem, name, seconds), a.get_device(), seconds + GRACE_S)
            forget()
            if reason is None and nearest(alike) is None:
                reason = "no candidate was measured"
            if reason is not None:
                warnings.warn(
                    f"tilecat: tuning matmul {name} {problem.layout} found nothing: {reason}; "
                    "the model chooses",
                    RuntimeWarning, stacklevel=4,
                )  # fmt: skip


def _reached_by_tma(problem: Problem) -> bool:
    """Whether whole rows of such operands are what TMA takes, as those that the tuner makes."""
    m, n, k = problem.m, problem.n, problem.depth
    rows = (k if problem.layout[0] == "N" else m), (n if problem.layout[1] == "N" else k), n
    item_bytes = by_name(problem.dtype).bits // 8
    return min(m, n, k) > 0 and all(row * item_bytes % TMA_ALIGN_BYTES == 0 for row in rows)


def _may_wait(a: Any) -> bool:
    """Whether it is a tensor on a GPU, and no graph is captured; waits for the GPU then."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(a, torch.Tensor) or not a.is_cuda:
        return False
    if torch.cuda.is_current_stream_capturing():
        return False
    torch.cuda.synchronize(a.device)
    return True


def _lock_of(problem: Problem) -> str:
    return f"{hash((problem.m, problem.n, problem.depth)) % 256:02x}"


def _command(problem: Problem, name: str, seconds: float) -> list[str]:
    return [
        sys.executable, "-m", "tilecat", "tune", "matmul", "--shapes", name,
        "--layout", problem.layout, "--dtype", problem.dtype, "--budget", str(seconds),
    ]  # fmt: skip


def _run(command: list[str], device: int, timeout_s: float) -> str | None:
    """Runs a tuner on one GPU; why it found nothing, or None."""
    environment = {**os.environ, VARIABLE: "0", "CUDA_VISIBLE_DEVICES": _visible(device)}
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace",
            timeout=timeout_s, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not done in {timeout_s:.0f} s, killed"
    except OSError as error:
        return str(error)
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return f"exit code {done.returncode}: {' | '.join(lines[-2:])}" if done.returncode else None


def _visible(device: int) -> str:
    """The device alone, as CUDA_VISIBLE_DEVICES of this process names it."""
    seen = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return seen[device] if device < len(seen) else str(device)
