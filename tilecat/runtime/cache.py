"""The disk cache: bytes under a key, checked, capped in size, safe with many processes.

One file an entry: a magic line, the SHA-256 of the payload, the payload. Writes go to a temporary
file that is renamed over the entry, so a reader sees the old bytes or the new ones; a torn or
damaged entry fails its digest, is deleted and counts as absent. The modification time of an entry
is the time of its last use.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from ..errors import ResourceError

FOLDER_VARIABLE = "TILECAT_CACHE_DIR"
BYTES_VARIABLE = "TILECAT_CACHE_BYTES"
DEFAULT_MAX_BYTES = 1 << 30

_MAGIC = b"tilecat cache 1\n"
_HEADER_BYTES = len(_MAGIC) + 32
_STALE_SECONDS = 3600  # a temporary file this old belongs to a process that died
_warned: set[str] = set()


def folder() -> Path:
    """The cache folder: TILECAT_CACHE_DIR, or `tilecat` in the user's cache folder.

    The user's cache folder is XDG_CACHE_HOME or ~/.cache; on Windows LOCALAPPDATA.
    """
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    base = os.environ.get(variable)
    # The XDG rule: a relative path in the variable is ignored.
    if base and os.path.isabs(base):
        return Path(base) / "tilecat"
    return Path(os.path.expanduser("~")) / ".cache" / "tilecat"


def max_bytes() -> int:
    """The size the cache may reach, in bytes: TILECAT_CACHE_BYTES or 1 GiB; 0 means no cache.

    Raises:
        ResourceError: the variable is not a number of bytes.
    """
    text = os.environ.get(BYTES_VARIABLE)
    if not text:
        return DEFAULT_MAX_BYTES
    if not text.strip().isdecimal():
        raise ResourceError(
            f"cache: {BYTES_VARIABLE} must be a number of bytes, got {text!r} (str)",
            hint=f"{BYTES_VARIABLE}={DEFAULT_MAX_BYTES} is the default; 0 turns the cache off",
        )
    return int(text)


def current() -> Cache:
    """The cache as the environment now has it."""
    return Cache(folder(), max_bytes())


@dataclass(frozen=True)
class Cache:
    """A folder of entries.

    Args:
        root: the folder; made at the first write.
        max_bytes: the size its entries may reach; 0 keeps nothing.
    """

    root: Path
    max_bytes: int = DEFAULT_MAX_BYTES

    def path(self, key: str) -> Path:
        """The file of an entry; keys are lower-case hex digests."""
        return self.root / key[:2] / f"{key}.entry"

    def get(self, key: str) -> bytes | None:
        """The payload under a key, or None; a damaged entry is deleted and counts as absent."""
        if not self.max_bytes:
            return None
        path = self.path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        payload = data[_HEADER_BYTES:]
        digest = data[len(_MAGIC) : _HEADER_BYTES]
        if not data.startswith(_MAGIC) or digest != hashlib.sha256(payload).digest():
            _unlink(path)
            return None
        try:
            os.utime(path)
        except OSError:
            pass  # a shared read-only cache: still good to read
        return payload

    def put(self, key: str, payload: bytes) -> bool:
        """Store a payload; False, after one warning a folder, if the folder cannot be written."""
        if not self.max_bytes:
            return False
        path = self.path(key)
        part = path.with_name(f"{key}.{os.getpid()}-{threading.get_ident()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(_MAGIC + hashlib.sha256(payload).digest() + payload)
            os.replace(part, path)
        except OSError as error:
            _unlink(part)
            self._warn(error)
            return False
        self.evict()
        return True

    def evict(self) -> None:
        """Delete the entries used least recently until the rest fit in `max_bytes`."""
        entries = self._scan()
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.max_bytes:
                return
            _unlink(path)
            total -= size

    def size(self) -> tuple[int, int]:
        """Number of entries and their bytes."""
        entries = self._scan()
        return len(entries), sum(size for _, size, _ in entries)

    def clear(self) -> None:
        """Delete every entry."""
        for _, _, path in self._scan():
            _unlink(path)

    def writable(self) -> str | None:
        """Why the folder cannot be written, or None if it can; makes the folder."""
        probe = self.root / f"probe.{os.getpid()}-{threading.get_ident()}.part"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
        except OSError as error:
            return str(error)
        _unlink(probe)
        return None

    def _scan(self) -> list[tuple[int, int, Path]]:
        found = []
        stale = time.time() - _STALE_SECONDS
        for path in self.root.glob("??/*"):
            try:
                status = path.stat()
            except OSError:
                continue  # deleted by another process meanwhile
            if path.suffix == ".entry":
                found.append((status.st_mtime_ns, status.st_size, path))
            elif path.suffix == ".part" and status.st_mtime < stale:
                _unlink(path)
        return found

    def _warn(self, error: OSError) -> None:
        if str(self.root) in _warned:
            return
        _warned.add(str(self.root))
        warnings.warn(
            f"tilecat: the cache folder {self.root} cannot be written ({error.strerror}); kernels "
            f"are compiled anew in every process. Set {FOLDER_VARIABLE} to a folder that can be "
            f"written, or {BYTES_VARIABLE}=0 to go without",
            RuntimeWarning,
            stacklevel=3,
        )


def _unlink(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass
