"""Options of the test run."""

from __future__ import annotations

import gc

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden/ from what is generated"
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden"))


def pytest_collection_finish() -> None:
    """Collected tests live to the end: the garbage collector need not look at them again."""
    gc.collect()
    gc.freeze()
