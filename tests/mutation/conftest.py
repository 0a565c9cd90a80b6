"""The slow half of the mutations runs only where it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips this folder's slow tests unless the marker expression names them."""
    if "slow" in config.option.markexpr:
        return
    skip = pytest.mark.skip(reason="minutes: pytest tests/mutation -m slow")
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("slow"):
            item.add_marker(skip)
