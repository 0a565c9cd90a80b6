import pytest


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """Every test has a disk cache of its own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TILECAT_CACHE_DIR", str(folder))
    monkeypatch.delenv("TILECAT_CACHE_BYTES", raising=False)
    return folder
