"""PTX text -> cubin: ptxas from its wheel, behind the disk cache.

Needs no GPU, no driver and no toolkit.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass

from ..codegen.module import PtxModule
from ..errors import Loc, ResourceError
from . import cache as disk
from . import deferred, ptxas_log
from .disassemble import disassemble, spill_lines

PTXAS_PACKAGE = "nvidia-cuda-nvcc"
WITHOUT_PTXAS = "without it kernels still run on NumPy arrays and CPU tensors, by the PTX machine"
# -v: registers and spills. Line information comes from the text's own .loc lines.
_OPTIONS = ("-v",)


@dataclass(frozen=True)
class Assembled:
    """A kernel as machine code.

    Args:
        cubin: the ELF that the driver loads.
        registers: registers a thread at entry.
        spill_bytes: local memory a thread that spilled registers take; 0 unless allowed.
        log: what ptxas printed.
        from_cache: whether the disk cache had it.
        seconds: wall time of the call.
    """

    cubin: bytes
    registers: int
    spill_bytes: int
    log: str
    from_cache: bool
    seconds: float


@dataclass(frozen=True)
class Tool:
    """A program: its path and version."""

    path: str
    version: str


def assemble(module: PtxModule, *, allow_spills: bool = False) -> Assembled:
    """The cubin of a module, from the cache or by ptxas.

    Args:
        module: the kernel; `module.target` names the chip.
        allow_spills: accept a kernel whose registers do not all fit.

    Raises:
        ResourceError: ptxas is not installed; registers spill beyond `module.spill_bytes`;
            ptxas serialised wgmma or ignored setmaxnreg ("Potential Performance Loss"); too much
            shared memory.
        ArchError: an instruction the target lacks.
        TileError: any other refusal of ptxas, at the user's line.
    """
    start = time.perf_counter()
    cache = disk.current()
    tool = ptxas(cache)
    options = (*_OPTIONS, f"-arch={module.target}")
    key = _key(module.text, options, tool.version)
    stored = _load(cache, key)
    from_cache = stored is not None
    if stored is None:
        stored, from_cache = _assemble_once(module, tool, options, cache, key)
    cubin, log = stored
    ptxas_log.check(module, log, lambda text: _taken(text, tool, options))
    used = ptxas_log.usage(log)
    if used.spill_bytes > module.spill_bytes and not allow_spills:
        raise ptxas_log.spill_error(module, log, _worst_spill(cubin))
    seconds = time.perf_counter() - start
    return Assembled(cubin, used.registers, used.spill_bytes, log, from_cache, seconds)


def _taken(text: str, tool: Tool, options: tuple[str, ...]) -> int:
    """Registers a thread that ptxas takes for a text."""
    _, log = deferred.assembler().assemble(tool.path, text, options)
    return ptxas_log.usage(log).registers


def ptxas(cache: disk.Cache) -> Tool:
    """The ptxas of the wheel installed for this Python.

    Its path and version are kept in the cache, valid while the file's time and size are the same:
    asking a program for its version costs a process.

    Raises:
        ResourceError: the wheel is not installed.
    """
    key = hashlib.sha256(f"ptxas of {sys.prefix}".encode()).hexdigest()
    record = cache.get(key)
    if record is not None:
        tool = json.loads(record)
        if _stamp(tool["path"]) == tool["stamp"]:
            return Tool(tool["path"], tool["version"])
    assembler = deferred.assembler()
    path = assembler.require("ptxas", package=PTXAS_PACKAGE, without=WITHOUT_PTXAS)
    stamp = _stamp(path) or [0, 0]
    version = assembler.version(path, *stamp)
    cache.put(key, json.dumps({"path": path, "stamp": stamp, "version": version}).encode())
    return Tool(path, version)


def _stamp(path: str) -> list[int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_size]


def _key(text: str, options: tuple[str, ...], version: str) -> str:
    parts = ("cubin", version, *options, text)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _assemble_once(
    module: PtxModule, tool: Tool, options: tuple[str, ...], cache: disk.Cache, key: str
) -> tuple[tuple[bytes, str], bool]:
    """Assemble unless another process does so first.

    Returns:
        The cubin and log, and whether the cache had them.
    """
    assembler = deferred.assembler()
    with assembler.locked(cache.root, key) if cache.max_bytes else nullcontext():
        stored = _load(cache, key)
        if stored is not None:
            return stored, True
        cubin, log = assembler.assemble(tool.path, module.text, options)
        if cubin is None:
            raise ptxas_log.refusal_error(module, log, tool.version)
        _store(cache, key, cubin, log)
        return (cubin, log), False


def _worst_spill(cubin: bytes) -> Loc | None:
    """The user's line that spills most; None where nvdisasm, which tells, is not installed."""
    try:
        lines = spill_lines(disassemble(cubin))
    except ResourceError:
        return None
    return lines[0].loc if lines else None


def _load(cache: disk.Cache, key: str) -> tuple[bytes, str] | None:
    payload = cache.get(key)
    if payload is None:
        return None
    log_bytes = int.from_bytes(payload[:4], "little")
    return payload[4 + log_bytes :], payload[4 : 4 + log_bytes].decode("utf-8")


def _store(cache: disk.Cache, key: str, cubin: bytes, log: str) -> None:
    text = log.encode("utf-8")
    cache.put(key, len(text).to_bytes(4, "little") + text + cubin)
