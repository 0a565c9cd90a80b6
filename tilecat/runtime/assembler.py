"""Runs the programs of NVIDIA's wheels: finds them, asks their version; holds the compile lock.

Imported at the first kernel that is not in the cache (`runtime.deferred`).
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cuda.pathfinder import find_nvidia_binary_utility
from filelock import FileLock, Timeout

from ..errors import ResourceError

# Where CUDA 13's wheels put their programs, below a folder of sys.path.
_WHEEL_FOLDER = os.path.join("nvidia", "cu13", "bin")
_LOCK_SECONDS = 120.0  # longer than any kernel takes; then both processes assemble
_VERSION = re.compile(r"\bV(\d+(?:\.\d+)+)")


def find(program: str) -> str | None:
    """Path of a program that a CUDA 13 wheel installed for this Python, or None.

    cuda-pathfinder looks in the wheels first, but then goes on to CONDA_PREFIX, CUDA_HOME and the
    system's toolkit, whose version is anybody's guess: its answer counts only if it is a wheel's
    file. A wheel in a folder that only sys.path knows (pip install --target) is found as well.
    """
    name = f"{program}.exe" if sys.platform == "win32" else program
    folders = [Path(entry or ".") / _WHEEL_FOLDER / name for entry in sys.path]
    installed = [str(path.resolve()) for path in folders if path.is_file()]
    answer = find_nvidia_binary_utility(program) if installed else None
    if answer is not None and str(Path(answer).resolve()) in installed:
        return answer
    return next((path for path in installed if os.access(path, os.X_OK)), None)


def require(program: str, *, package: str, without: str) -> str:
    """Path of a program of a wheel.

    Args:
        program: `ptxas` or `nvdisasm`.
        package: the wheel that brings it.
        without: what works in its absence, for the error.

    Raises:
        ResourceError: the wheel is not installed.
    """
    path = find(program)
    if path is None:
        raise ResourceError(
            f"{program}: the program comes with the {package} wheel, which is not installed for "
            f"{sys.executable}; {without}",
            hint=f"pip install '{package}>=13.5'",
        )
    return path


@functools.lru_cache(maxsize=8)
def version(path: str, mtime_ns: int, size: int) -> str:
    """A program's version, e.g. `13.5.37`; the file's time and size only key the memo.

    Raises:
        ResourceError: the program does not run.
    """
    text = _run([path, "--version"]).stdout
    match = _VERSION.search(text)
    if match is None:
        raise ResourceError(f"{path}: must print its version, got {text[:200]!r} (str)")
    return match[1]


def assemble(ptxas: str, text: str, options: tuple[str, ...]) -> tuple[bytes | None, str]:
    """Run ptxas on a PTX text.

    Returns:
        The cubin, or None if ptxas refused the text, and what ptxas printed.
    """
    with tempfile.TemporaryDirectory(prefix="tilecat-") as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text, encoding="utf-8")
        done = _run([ptxas, *options, "kernel.ptx", "-o", "kernel.cubin"], folder=folder)
        log = done.stdout + done.stderr
        if done.returncode < 0:
            log += f"ptxas fatal   : ended by signal {-done.returncode}\n"
        if done.returncode != 0 or not cubin.is_file():
            return None, log
        return cubin.read_bytes(), log


def disassemble(nvdisasm: str, cubin: bytes, options: tuple[str, ...]) -> tuple[int, str, str]:
    """Run nvdisasm on a cubin; its exit status, output and errors."""
    with tempfile.TemporaryDirectory(prefix="tilecat-") as folder:
        Path(folder, "kernel.cubin").write_bytes(cubin)
        done = _run([nvdisasm, *options, "kernel.cubin"], folder=folder)
        return done.returncode, done.stdout, done.stderr


@contextmanager
def locked(root: Path, key: str) -> Iterator[None]:
    """Hold the lock of a key's compilation against other processes, if it can be had.

    Keys share 256 lock files, so that locks need no cleaning up. A lock that cannot be taken costs
    a second compilation, never a wrong result: entries are written atomically.
    """
    lock = FileLock(root / "locks" / f"{key[:2]}.lock", timeout=_LOCK_SECONDS)
    held = False
    try:
        (root / "locks").mkdir(parents=True, exist_ok=True)
        lock.acquire()
        held = True
    except (OSError, NotImplementedError, Timeout):
        pass
    try:
        yield
    finally:
        if held:
            lock.release()


def _run(command: list[str], folder: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise ResourceError(
            f"{Path(command[0]).name}: the program must run, got {error.strerror} ({command[0]})"
        ) from error
