"""Rates of a GPU that the replay runs on, each with its source.

Sources: "depth", "gemm" and "smi" are parts of benchmarks/results/h200.json (an H200, 2026-11-30).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import LayoutError


@dataclass(frozen=True)
class Rates:
    """What one GPU does in a cycle of its SMs, or in a second.

    Args:
        sms: multiprocessors.
        clock_hz: of an SM that is not held back.
        busy_clock_hz: of an SM whose tensor cores are never idle: power holds it back.
        mma_flops_cycle: bf16, of an SM.
        shared_bytes_cycle: that an SM's shared memory gives its tensor cores.
        mma_latency_cycles: from the end of a wgmma's share of the tensor cores to its result.
        load_latency_cycles: from a TMA load's issue to its barrier, of no bytes, out of L2.
        load_bytes_cycle: that one SM gets from L2.
        memory_bytes_second: of device memory, reads and writes.
        store_bytes_cycle: of C, from registers through shared memory, by one SM.
        task_cycles: to begin a task: coordinates, a ring and sums that are not warm.
        cta_cycles: to begin a CTA in the place of one that ended: barriers, descriptors.
        launch_seconds: of a launch that does nothing, as events around it see it.
        l2_bytes: that hold what is read: each half of an H200's L2 has a copy of its own.
    """

    sms: int
    clock_hz: float
    busy_clock_hz: float
    mma_flops_cycle: int
    shared_bytes_cycle: int
    mma_latency_cycles: float
    load_latency_cycles: float
    load_bytes_cycle: float
    memory_bytes_second: float
    store_bytes_cycle: float
    task_cycles: float
    cta_cycles: float
    launch_seconds: float
    l2_bytes: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise LayoutError(f"rates: {name} is a number above 0, got {name}={value!r}")

    def clock(self, busy: float) -> float:
        """Hz of an SM whose tensor cores are busy for this share of the time.

        Power grows with the busy share, the clock, and the voltage squared, which follows the
        clock: of a power that is given the clock falls with the busy share's cube root.
        """
        return min(self.clock_hz, self.busy_clock_hz * max(busy, 1e-9) ** (-1 / 3))


# "Read off": chosen so that the replay gives that row's time; four rows in all. "Assumed": on no
# file here, and of little weight.
H200 = Rates(
    sms=132,  # h200.json, environment
    clock_hz=1.98e9,  # smi: clocks.max.sm
    busy_clock_hz=1.455e9,  # smi: clocks.sm under load, 692 of 700 W
    mma_flops_cycle=4096,  # m64nNk16 in N/2 cycles, as in tilecat/model/gemm.py
    shared_bytes_cycle=128,  # CUDA C++ Programming Guide, shared memory: 32 banks of 4 bytes
    mma_latency_cycles=60,  # assumed
    load_latency_cycles=1050,  # read off depth, stages 1 and 2: with 48 KiB, 1800 cycles a load
    load_bytes_cycle=64,  # assumed; a step's 48 KiB in 1024 cycles (stages 4) take 48 at least
    memory_bytes_second=4.2e12,  # a copy reads and writes 4.22 to 4.26 TB/s (H200, 2026-11-29)
    store_bytes_cycle=12,  # read off gemm, 4096x4096x64 NN
    task_cycles=200,  # assumed
    cta_cycles=1500,  # assumed
    launch_seconds=4e-6,  # read off gemm, 1024^3 NN
    # Half of the 60 MiB. 4096^3 in tiles of 128x256x64 read 171 MB row by row and 186 MB in groups
    # of 8 (ncu, dram__bytes_read.sum, H200, 2026-11-30); the model: 171 and 187, of 60 MiB: 67.
    l2_bytes=30 << 20,
)
