"""The PTX machine: runs PTX text on the CPU and finds what hardware leaves undefined.

It knows the manual and nothing of the generator. Semantics stand in tables, each row with its
section of the PTX ISA; what no row has raises `tilecat.errors.MachineError`.
"""

from tilecat.sim.global_memory import Pointer, TensorMap
from tilecat.sim.launch import parse, run
from tilecat.sim.program import Program
from tilecat.sim.report import Conflict, Place, Report, Result

__all__ = [
    "Conflict", "Place", "Pointer", "Program", "Report", "Result", "TensorMap", "parse", "run",
]  # fmt: skip
