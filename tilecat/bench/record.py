"""The results file: where it goes, what it says of the machine, how it is written."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import shutil
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import ResourceError
from ..runtime import cache
from ..runtime import compile as runtime_compile

COMMIT = "TILECAT_COMMIT"
FOLDER = Path("benchmarks") / "results"
PACKAGE = Path(__file__).resolve().parents[1]
PACKAGES = (
    "tilecat", "torch", "triton", "nvidia-cublas", "nvidia-cudnn-cu13", "cuda-bindings",
    "nvidia-cuda-nvcc", "numpy",
)  # fmt: skip
# Two queries: a field that an older nvidia-smi does not know makes the whole query fail.
SMI_QUERIES = (
    (
        "name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw",
        "power.limit", "temperature.gpu",
    ),
    ("clocks_event_reasons.active",),
)  # fmt: skip
LOAD_CALLS = 700  # products of 8192^3, about one second


def path_for(name: str, out: str | Path | None, overwrite: bool) -> Path:
    """Where the results go.

    Args:
        name: of the run, when `out` is None: benchmarks/results/NAME.json.
        out: the user's file.
        overwrite: whether an old file may go.

    Raises:
        ResourceError: the file exists, and nobody said that it may go.
    """
    path = FOLDER / f"{name}.json" if out is None else Path(out)
    if path.exists() and not overwrite:
        dated = path.with_name(f"{path.stem}-{datetime.date.today().isoformat()}{path.suffix}")
        raise ResourceError(
            f"bench: results of an earlier run stand in {path}",
            hint=f"--out {dated} keeps them, --overwrite replaces them",
        )
    return path


def name_of(device: str, tables: tuple[str, ...]) -> str:
    """`h200-gemm-depth` for tables of an `NVIDIA H200`."""
    words = [word for word in device.lower().split() if word not in {"nvidia", "gpu"}]
    return "-".join([*words, *tables])


def environment(torch: Any, commit: str | None = None) -> dict[str, Any]:
    """Device, driver, versions, host, and which tilecat this is."""
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": device.name,
        "sms": device.multi_processor_count,
        "l2_bytes": getattr(device, "L2_cache_size", None),
        "memory_bytes": device.total_memory,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "ptxas": _ptxas(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "commit": commit or os.environ.get(COMMIT) or commit_of(PACKAGE.parent),
        "source_sha256": source_hash(),
        "python": platform.python_version(),
        "host": {"cpu": _cpu(), "kernel": platform.release()},
    }


def smi() -> dict[str, str]:
    """What nvidia-smi shows now: clocks (MHz), power (W), temperature; empty without it."""
    found: dict[str, str] = {}
    if shutil.which("nvidia-smi"):
        for fields in SMI_QUERIES:
            command = [
                "nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
            values = [value.strip() for value in done.stdout.split(",")]
            if done.returncode == 0 and len(values) == len(fields):
                found |= dict(zip(fields, values, strict=True))
    return found


def smi_under_load(torch: Any) -> dict[str, str]:
    """What nvidia-smi shows while products of 8192^3 run for about a second."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    for _ in range(LOAD_CALLS):
        torch.mm(a, b, out=out)
    time.sleep(0.2)
    found = smi()
    torch.cuda.synchronize()
    return found


def commit_of(folder: Path) -> str | None:
    """The git revision of a working tree, `+` if it has changes; None without git."""
    if not shutil.which("git") or not (folder / ".git").exists():
        return None
    git = ["git", "-C", str(folder)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True
    )
    if head.returncode:
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def source_hash(folder: Path = PACKAGE) -> str:
    """SHA-256 of the package's Python files, in order of their names."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def write(path: Path, results: dict[str, Any]) -> None:
    """Writes the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _ptxas() -> str | None:
    try:
        return runtime_compile.ptxas(cache.current()).version
    except ResourceError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} threads" if names else platform.processor()
