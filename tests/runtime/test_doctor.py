"""The checks of the doctor: found, missing, and never an exception."""

import pytest

from tilecat.errors import ResourceError
from tilecat.runtime import assembler, deferred, doctor


def by_name() -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.checks()}


def test_checks_find_what_is_installed(cache_folder):
    found = by_name()
    for name in ("python", "numpy", "ml_dtypes"):
        assert found[name].found and found[name].required
    ptxas = found["ptxas (nvidia-cuda-nvcc)"]
    assert ptxas.found and "13." in ptxas.detail and "ptxas" in ptxas.detail
    assert found["nvdisasm (nvidia-cuda-nvdisasm)"].found
    cache = found["cache folder"]
    assert cache.found and str(cache_folder) in cache.detail and "1 entries" in cache.detail
    assert all(check.gives for check in found.values() if check.name != "python")


def test_checks_say_what_to_do_about_what_is_missing(monkeypatch, tmp_path):
    def missing():
        raise ResourceError("cuda: a GPU launch needs the NVIDIA driver, got none")

    monkeypatch.setattr(assembler, "find", lambda name: None)
    monkeypatch.setattr(deferred, "driver", missing)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILECAT_CACHE_DIR", str(tmp_path / "file" / "below"))
    found = by_name()
    for name, words in {
        "ptxas (nvidia-cuda-nvcc)": "pip install 'nvidia-cuda-nvcc",
        "nvdisasm (nvidia-cuda-nvdisasm)": "pip install nvidia-cuda-nvdisasm",
        "NVIDIA driver": "needs the NVIDIA driver",
        "GPU": "none seen",
        "cache folder": "TILECAT_CACHE_DIR",
    }.items():
        assert not found[name].found
        assert words in found[name].detail


@pytest.mark.parametrize(("value", "words"), [("0", "turned off"), ("much", "number of bytes")])
def test_checks_name_the_cache_setting(monkeypatch, value, words):
    monkeypatch.setenv("TILECAT_CACHE_BYTES", value)
    cache = by_name()["cache folder"]
    assert not cache.found and words in cache.detail
