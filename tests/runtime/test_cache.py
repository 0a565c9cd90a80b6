"""The disk cache: folder, digests, cap."""

import hashlib
import os
from pathlib import Path

import pytest

from tilecat.errors import ResourceError
from tilecat.runtime import cache

KEYS = [hashlib.sha256(bytes([i])).hexdigest() for i in range(5)]


def test_folder_follows_the_variables(monkeypatch, tmp_path):
    monkeypatch.setenv("TILECAT_CACHE_DIR", str(tmp_path / "mine"))
    assert cache.folder() == tmp_path / "mine"
    monkeypatch.delenv("TILECAT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "tilecat"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.folder() == tmp_path / "home" / ".cache" / "tilecat"


def test_get_returns_what_put_stored(tmp_path):
    store = cache.Cache(tmp_path)
    assert store.get(KEYS[0]) is None
    assert store.put(KEYS[0], b"payload")
    assert store.get(KEYS[0]) == b"payload"
    assert store.put(KEYS[0], b"")
    assert store.get(KEYS[0]) == b""
    assert store.size()[0] == 1
    store.clear()
    assert store.size() == (0, 0)


def test_a_damaged_entry_is_absent_and_deleted(tmp_path):
    store = cache.Cache(tmp_path)
    store.put(KEYS[0], b"payload")
    path = store.path(KEYS[0])
    path.write_bytes(path.read_bytes()[:-1])
    assert store.get(KEYS[0]) is None
    assert not path.exists()


def test_put_evicts_what_was_used_least_recently(tmp_path):
    payload = bytes(1000)
    store = cache.Cache(tmp_path, max_bytes=3 * 1100)
    for age, key in zip((30, 20, 10), KEYS[:3], strict=True):
        store.put(key, payload)
        used = store.path(key).stat().st_mtime - age
        os.utime(store.path(key), (used, used))
    assert store.get(KEYS[0]) == payload  # used now: KEYS[1] is the oldest
    store.put(KEYS[3], payload)
    assert [store.get(key) is not None for key in KEYS[:4]] == [True, False, True, True]


def test_zero_bytes_turn_the_cache_off(tmp_path, monkeypatch):
    monkeypatch.setenv("TILECAT_CACHE_BYTES", "0")
    store = cache.current()
    assert not store.put(KEYS[0], b"payload")
    assert store.get(KEYS[0]) is None
    assert not store.root.exists()


def test_a_cap_that_is_no_number_is_an_error(monkeypatch):
    monkeypatch.setenv("TILECAT_CACHE_BYTES", "1G")
    with pytest.raises(ResourceError, match="TILECAT_CACHE_BYTES must be a number of bytes"):
        cache.max_bytes()


def test_remains_of_dead_writers_are_deleted(tmp_path):
    store = cache.Cache(tmp_path)
    store.put(KEYS[0], b"payload")
    part = store.path(KEYS[0]).with_suffix(".1-1.part")
    fresh = store.path(KEYS[0]).with_suffix(".2-2.part")
    for path in (part, fresh):
        path.write_bytes(b"torn")
    os.utime(part, (0, 0))
    store.evict()
    assert not part.exists() and fresh.exists()


def test_writable_says_why_not(tmp_path):
    assert cache.Cache(tmp_path / "new").writable() is None
    assert not list((tmp_path / "new").iterdir())
    (tmp_path / "file").write_text("")
    assert cache.Cache(Path(tmp_path / "file" / "below")).writable()
