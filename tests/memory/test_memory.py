"""Memory, views and synchronisation by hand on the PTX machine, against NumPy."""

from __future__ import annotations

import pytest
from memory_cases import MemoryCase, run_on_machine

from .barriers import CASES as BARRIERS
from .clusters import CASES as CLUSTERS
from .ctas import CASES as CTAS
from .parts import CASES as PARTS
from .register_order import CASES as REGISTER_ORDER
from .registers import CASES as REGISTERS
from .reversed_views import CASES as REVERSED
from .runs import CASES as RUNS
from .transfers import CASES as TRANSFERS
from .views import CASES as VIEWS

CASES = (
    *BARRIERS, *CLUSTERS, *CTAS, *PARTS, *REGISTER_ORDER, *REGISTERS, *REVERSED, *RUNS,
    *TRANSFERS, *VIEWS,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_memory_case(case: MemoryCase):
    run_on_machine(case)


TURNS = tuple(case for case in REGISTERS if case.name.startswith("turns"))
ORDERED = (*BARRIERS, *CLUSTERS, *CTAS[::8], *TURNS)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("case", ORDERED, ids=str)
def test_order_of_asynchronous_work_does_not_matter(case: MemoryCase, seed: int):
    run_on_machine(case, seed)


# One of each kind: the first two words of its name.
FAMILIES = {tuple(case.name.split()[:2]): case for case in CASES}


@pytest.mark.parametrize("case", FAMILIES.values(), ids=str)
def test_memory_case_assembles(case: MemoryCase):
    case.kernel.compile(*case.arrays().values(), **case.params)


def test_what_is_used_once_is_told_to_the_caches():
    case = next(case for case in RUNS if case.name.endswith("evict_first"))
    text = case.kernel.compile(*case.arrays().values(), **case.params).ptx
    assert "ld.global.cs.v4.b32" in text and "st.global.cs.v4.b32" in text
