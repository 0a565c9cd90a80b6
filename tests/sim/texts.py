"""Hand-written kernels for the tests of the PTX machine."""

from __future__ import annotations

import numpy as np

from tilecat import sim

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"
REGISTERS = """.reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<160>; .reg .b64 %d<32>;
.reg .f32 %f<160>; .reg .f64 %e<8>;"""


def kernel(body: str, params: str = "", threads: int = 32, extra: str = "") -> str:
    """A module with one kernel `k`: common registers, 1024-aligned dynamic shared memory `smem`."""
    return (
        f"{HEAD}.extern .shared .align 1024 .b8 smem[];\n.visible .entry k({params})\n"
        f".maxntid {threads}, 1, 1\n.minnctapersm 1\n{extra}\n{{\n{REGISTERS}\n{body}\nret;\n}}\n"
    )


def run(text: str, args=(), *, grid=1, smem: int = 65536, **options) -> sim.Result:
    """Run a kernel with 64 KiB of dynamic shared memory."""
    return sim.run(text, grid=grid, args=list(args), smem_bytes=smem, **options)


def kinds(result: sim.Result) -> set[str]:
    """Kinds of the reports."""
    return {report.kind for report in result.reports}


def clean(result: sim.Result) -> None:
    """No report."""
    assert not result.reports, str(result)


def pointers(*arrays: np.ndarray) -> list[sim.Pointer]:
    """Pointer arguments."""
    return [sim.Pointer(array) for array in arrays]


def without(text: str, line: str, occurrence: int = 0) -> str:
    """The text with one line that contains `line` made empty; a wait goes with its loop branch."""
    lines = text.splitlines()
    places = [index for index, one in enumerate(lines) if line in one]
    lines[places[occurrence]] = ""
    return "\n".join(lines)


def wait(barrier: str, parity: str, label: str) -> str:
    """A try_wait in its loop."""
    return (
        f"{label}: mbarrier.try_wait.parity.shared::cta.b64 %p15, [{barrier}], {parity};"
        f" @!%p15 bra {label};"
    )
