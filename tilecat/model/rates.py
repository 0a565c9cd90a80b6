"""Rates of GPUs that the replay runs on, each with its source and how it is known.

Sources: "smi" is a part of benchmarks/results/h200.json; "stamps" are benchmarks/results/
gemm_stamps.json, in which each task of a GEMM wrote down the clocks of its SM (H200, 2026-11-30).
"Read off" is chosen so that the replay gives what a stamp says: a calibration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..arch import Arch, arch_of
from ..arch.spec import ANNOUNCED, ASSUMED, DOCUMENTED, MEASURED
from ..errors import ArchError, LayoutError

CALIBRATED = "read off"
FIRST_SECONDS = 50e-6  # of a launch, before power holds it back (stamps: clocks by time)


@dataclass(frozen=True)
class Source:
    """Where a rate is from.

    Args:
        name: of the rate.
        known: documented, measured, announced, read off or assumed.
        text: document and section, or what was measured or assumed.
    """

    name: str
    known: str
    text: str


@dataclass(frozen=True)
class Rates:
    """What one GPU does in a cycle of its SMs, or in a second.

    Args:
        sms: multiprocessors.
        clock_hz: of an SM that is not held back.
        first_clock_hz: for the first `FIRST_SECONDS` of a launch, whatever it does.
        burst_clock_hz: from then on, of one whose tensor cores are never idle, for a millisecond.
        busy_clock_hz: of the same, in a launch of any length: power holds it back.
        settle_seconds: in which the one becomes the other.
        mma_flops_cycle: bf16, of an SM; a narrower type does more in proportion.
        shared_bytes_cycle: that an SM's shared memory gives its tensor cores.
        mma_latency_cycles: from the end of a product's share of the tensor cores to its result.
        load_latency_cycles: from a TMA load's issue to its barrier, of no bytes, out of L2.
        miss_cycles: more, where the L2 has to ask the memory.
        port_bytes_cycle: into an SM, at most.
        load_bytes_second: that one SM gets from L2 while all others load, too.
        memory_bytes_second: of device memory, reads and writes.
        queue_seconds: that the memory serves one miss while others stand in its queue.
        store_bytes_cycle: of C, from registers through shared memory, by one SM.
        warpgroup_bytes_cycle: of C, by one warpgroup.
        tensor_read_bytes_cycle: that an SM's warps load from its tensor memory.
        task_cycles: to begin a task: coordinates, barriers, a ring and sums that are not warm.
        cta_cycles: to begin a CTA in the place of one that ended: barriers, descriptors.
        launch_seconds: of a launch that does nothing, as events around it see it.
        l2_bytes: that hold what is read: each half of an H200's L2 has a copy of its own.
        clocks: of equal runs of consecutive CTAs, relative to their mean (`l2.Pace`).
        sources: of each of these, in order.
    """

    sms: int
    clock_hz: float
    first_clock_hz: float
    burst_clock_hz: float
    busy_clock_hz: float
    settle_seconds: float
    mma_flops_cycle: int
    shared_bytes_cycle: int
    mma_latency_cycles: float
    load_latency_cycles: float
    miss_cycles: float
    port_bytes_cycle: float
    load_bytes_second: float
    memory_bytes_second: float
    queue_seconds: float
    store_bytes_cycle: float
    warpgroup_bytes_cycle: float
    tensor_read_bytes_cycle: float
    task_cycles: float
    cta_cycles: float
    launch_seconds: float
    l2_bytes: int
    clocks: tuple[float, ...] = (1.0,)
    sources: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in ("sources", "clocks"):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise LayoutError(f"rates: {name} is a number above 0, got {name}={value!r}")

    def clock(self, busy: float, seconds: float) -> float:
        """Mean Hz of an SM whose tensor cores are busy for this share of a launch of so long.

        Power holds a busy SM back, not at once, and the more the longer; see the sources. Of a
        power that is given the clock falls with the busy share, less than as its cube root since
        other units draw power, too: stamps have 1.60, 1.74 and 1.77 GHz at shares of 0.97, 0.65 and
        0.4, its sixth root.
        """
        early = math.exp(-seconds / self.settle_seconds)
        full = self.busy_clock_hz + (self.burst_clock_hz - self.busy_clock_hz) * early
        later = min(self.clock_hz, full * max(busy, 1e-9) ** (-1 / 6))
        begin = min(1.0, FIRST_SECONDS / max(seconds, 1e-9))
        return later + (self.first_clock_hz - later) * begin


def _rates(**known: tuple[float | tuple[float, ...], str, str]) -> Rates:
    """Rates, of values, how each is known, and from where."""
    values = {name: value for name, (value, _, _) in known.items()}
    sources = tuple(Source(name, how, text) for name, (_, how, text) in known.items())
    return Rates(**values, sources=sources)  # type: ignore[arg-type]


H200 = _rates(
    sms=(132, MEASURED, "h200.json, environment"),
    clock_hz=(1.76e9, MEASURED, "stamps: rings of 1 and 2 stages; smi's clocks.max.sm, 1.98 GHz, "
              "is not reached in any"),
    first_clock_hz=(1.69e9, MEASURED, "stamps: first 40 us of launches of any kind, 1.67 to 1.72"),
    burst_clock_hz=(1.6e9, MEASURED, "stamps: the same, 80 to 320 us"),
    busy_clock_hz=(1.455e9, MEASURED, "smi: clocks.sm under load, 692 of 700 W"),
    settle_seconds=(7e-3, CALIBRATED, "stamps: 8192^3, 12288^3, 16384^3 at 1.57, 1.53, 1.49 GHz"),
    mma_flops_cycle=(4096, MEASURED, "stamps: a step of 128x256x64 takes 1023 cycles"),
    shared_bytes_cycle=(128, DOCUMENTED, "CUDA C++ Programming Guide: 32 banks of 4 bytes"),
    mma_latency_cycles=(60, ASSUMED, "of little weight"),
    load_latency_cycles=(393, CALIBRATED, "stamps: 4096x4096x512, 1 stage, later tasks: a step "
                         "takes 1861 cycles"),
    miss_cycles=(870, CALIBRATED, "stamps: the same, first task: 2730 cycles"),
    port_bytes_cycle=(128, ASSUMED, "48 KiB in 384 of the 777 cycles of a load out of L2"),
    load_bytes_second=(120e9, CALIBRATED, "stamps: tiles of 64x64 and 64x128 get 115 to 121 GB/s "
                       "an SM at 1.48 to 1.73 GHz"),
    memory_bytes_second=(4.2e12, MEASURED, "a copy reads and writes 4.22 to 4.26 TB/s"),
    queue_seconds=(150e-9, CALIBRATED, "stamps: 2 stages, a step of 16384^3 row by row takes 1034 "
                   "ns, of 4096^3 982; the memory is busy for 0.47 and 0.17 of the time"),
    store_bytes_cycle=(32.4, CALIBRATED, "stamps: 2524 cycles between tasks of 128x256"),
    warpgroup_bytes_cycle=(26, CALIBRATED, "stamps: 1755 cycles between tasks of 64x256"),
    tensor_read_bytes_cycle=(512, ASSUMED, "has no tensor memory"),
    task_cycles=(500, CALIBRATED, "stamps: 820 cycles between tasks of 64x64"),
    cta_cycles=(1500, ASSUMED, "of weight where each task has a CTA"),
    launch_seconds=(2.7e-6, CALIBRATED, "stamps: 4.4 us between events beside the CTAs' time"),
    # 4096^3 in tiles of 128x256x64 read 171 MB row by row and 186 MB in groups of 8 (ncu,
    # dram__bytes_read.sum, H200, 2026-11-30); the model: 171 and 187, of 60 MiB: 67.
    l2_bytes=(30 << 20, CALIBRATED, "half of the 60 MiB: bytes that 4096^3 read"),
    clocks=((0.9977, 0.9969, 1.0008, 0.9989, 1.0008, 1.0033, 1.0065, 1.0034, 0.9914), MEASURED,
            "stamps: 8192^3 in groups of 8, cycles by time of each SM"),
)
STAMPED_HZ = 1.72e9  # at which the latencies of an H200 were stamped


def _tensor_rates(arch: Arch, kind: str, flops_cycle: int, l2: tuple[int, str, str]) -> Rates:
    """Of a chip with tensor memory: announced totals, an SM's rates, and an H200's for the rest.

    Args:
        arch: the chip.
        kind: of products, whose announced rate makes the clock.
        flops_cycle: of that kind, of an SM.
        l2: its L2's share that holds what is read.
    """
    sms, total, memory = arch.rate("sms"), arch.rate(kind), arch.rate("memory")
    clock = total.value * 1e12 / sms.value / flops_cycle
    share = H200.memory_bytes_second / 4.8e12
    memory_rate = memory.value * 1e9 * share
    cycles = clock / STAMPED_HZ  # of latencies: the same seconds
    stored = memory_rate / (clock * sms.value) * STAMPED_HZ * H200.sms / H200.memory_bytes_second
    held = f"nobody here has one: it is taken not to be held back ({arch.name})"

    def assumed(name: str, factor: float = 1.0, how: str = "") -> tuple[float, str, str]:
        return getattr(H200, name) * factor, ASSUMED, f"as an H200's{how}"

    return _rates(
        sms=(sms.value, sms.known, sms.source),
        clock_hz=(clock, ANNOUNCED, f"{total.value} TFLOP/s of {kind} at {flops_cycle} a cycle"),
        first_clock_hz=(clock, ASSUMED, held),
        burst_clock_hz=(clock, ASSUMED, held),
        busy_clock_hz=(clock, ASSUMED, held),
        settle_seconds=assumed("settle_seconds"),
        mma_flops_cycle=(8192, ASSUMED, "m128nN of 32 bytes of K in N/2 cycles"),
        shared_bytes_cycle=assumed("shared_bytes_cycle"),
        mma_latency_cycles=assumed("mma_latency_cycles"),
        load_latency_cycles=assumed("load_latency_cycles", cycles, ", in seconds"),
        miss_cycles=assumed("miss_cycles", cycles, ", in seconds"),
        port_bytes_cycle=assumed("port_bytes_cycle"),
        load_bytes_second=(64 * clock, ASSUMED, "64 bytes a cycle: an H200's, of 1.87 GHz"),
        memory_bytes_second=(memory_rate, ANNOUNCED, f"{memory.value} GB/s, times {share:.3f} "
                             "as an H200's copy of its 4,800 GB/s"),
        queue_seconds=assumed("queue_seconds"),
        store_bytes_cycle=assumed("store_bytes_cycle", stored, ", in proportion to memory"),
        warpgroup_bytes_cycle=assumed("warpgroup_bytes_cycle"),
        tensor_read_bytes_cycle=(512, ASSUMED, "a 32-bit column of all 128 lanes a cycle"),
        task_cycles=assumed("task_cycles"),
        cta_cycles=assumed("cta_cycles"),
        launch_seconds=assumed("launch_seconds"),
        l2_bytes=l2,
        clocks=(H200.clocks, ASSUMED, "as an H200's"),
    )  # fmt: skip


_BLACKWELL = arch_of("sm_100a")
_HALF = (_BLACKWELL.limit("l2_bytes") // 2, ASSUMED, "half of a B200's 126 MB: one of two dies")
B200 = _tensor_rates(_BLACKWELL, "f16", 8192, _HALF)
# With the wide K step m128nN of 64 bytes of K, 128 elements of 4 bits, takes N/2 cycles.
VR200 = _tensor_rates(arch_of("sm_107a"), "mxf4nvf4", 65536, _HALF)
GPUS = {"sm_90a": ("H200", H200), "sm_100a": ("B200", B200), "sm_107a": ("VR200", VR200)}


def rates_of(target: str) -> tuple[str, Rates]:
    """Name and rates of the GPU that stands for a target.

    Raises:
        ArchError: none is known.
    """
    if target not in GPUS:
        known = ", ".join(f"{name} ({target})" for target, (name, _) in GPUS.items())
        raise ArchError(f"model: rates are known of {known}, got target={target!r}")
    return GPUS[target]
