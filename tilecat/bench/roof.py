"""The roof over a problem: the least time that a GPU's tensor cores and its memory leave it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Roof:
    """What a GPU can do at most.

    Args:
        flops: operations a second of dense bf16 or f16 products.
        memory_bytes: bytes a second from device memory.
        source: of both.
    """

    flops: float
    memory_bytes: float
    source: str

    def tflops(self, flops: float, num_bytes: float) -> float:
        """TFLOP/s of a problem that is bound by nothing but the nearer of the two limits.

        Args:
            flops: of the problem.
            num_bytes: fewest bytes it moves: each input read once, each output written once.
        """
        return flops / max(flops / self.flops, num_bytes / self.memory_bytes) / 1e12


# Data sheets give the rates with sparsity, twice the dense ones: 1,979 TFLOPS of BFLOAT16. They
# are those of a clock of 1.83 GHz: 132 SMs x 4096 FLOP a cycle.
ROOFS = {
    "NVIDIA H200": Roof(989.5e12, 4.8e12, "NVIDIA H200 Tensor Core GPU, data sheet, H200 SXM"),
    "NVIDIA H100 80GB HBM3": Roof(
        989.5e12, 3.35e12, "NVIDIA H100 Tensor Core GPU, data sheet, H100 SXM"
    ),
}


def roof_of(device: str) -> Roof | None:
    """The roof of a GPU by its driver's name for it; None where no data sheet is known."""
    return ROOFS.get(device)


def put_over(rows: list[dict[str, Any]], roof: Roof | None) -> None:
    """Gives rows of speeds their problem's roof, `roof_tflops`."""
    for row in rows:
        if roof is not None and "tflops" in row:
            row["roof_tflops"] = float(f"{roof.tflops(row['flops'], row['bytes']):.4g}")
