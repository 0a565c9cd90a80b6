"""Based, its gradients and Hedgehog have no bank conflicts, counted access by access."""

from __future__ import annotations

import pytest
from mutation.test_sequence_kernels import PROBLEMS

from tilecat.check import shared_accesses


@pytest.mark.parametrize("name", PROBLEMS)
def test_accesses_have_no_conflicts(name: str):
    kernel, make, _, params = PROBLEMS[name]()
    accesses = shared_accesses(kernel.compile(*make(), **params).kernel)
    requests = [request for access in accesses for request in access.requests]
    assert len(requests) > 20
    assert [x for x in requests if x.wavefronts != x.ideal] == []
