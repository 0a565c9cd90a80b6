"""Rates of GPUs that the replay runs on, each with its source and how it is known.

Sources: "depth", "gemm" and "smi" are parts of benchmarks/results/h200.json (an H200, 2026-11-30).
"Read off" is chosen so that the replay gives that row's time: a calibration.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arch import Arch, arch_of
from ..arch.spec import ANNOUNCED, ASSUMED, DOCUMENTED, MEASURED
from ..errors import ArchError, LayoutError

CALIBRATED = "read off"


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
        busy_clock_hz: of an SM whose tensor cores are never idle: power holds it back.
        mma_flops_cycle: bf16, of an SM; a narrower type does more in proportion.
        shared_bytes_cycle: that an SM's shared memory gives its tensor cores.
        mma_latency_cycles: from the end of a product's share of the tensor cores to its result.
        load_latency_cycles: from a TMA load's issue to its barrier, of no bytes.
        load_bytes_cycle: that one SM gets from L2.
        memory_bytes_second: of device memory, reads and writes.
        store_bytes_cycle: of C, from registers through shared memory, by one SM.
        tensor_read_bytes_cycle: that an SM's warps load from its tensor memory.
        task_cycles: to begin a task: coordinates, a ring and sums that are not warm.
        cta_cycles: to begin a CTA in the place of one that ended: barriers, descriptors.
        launch_seconds: of a launch that does nothing, as events around it see it.
        l2_bytes: that hold what is read: each half of an H200's L2 has a copy of its own.
        sources: of each of these, in order.
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
    tensor_read_bytes_cycle: float
    task_cycles: float
    cta_cycles: float
    launch_seconds: float
    l2_bytes: int
    sources: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "sources":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise LayoutError(f"rates: {name} is a number above 0, got {name}={value!r}")

    def clock(self, busy: float) -> float:
        """Hz of an SM whose tensor cores are busy for this share of the time.

        Power grows with the busy share, the clock, and the voltage squared, which follows the
        clock: of a power that is given the clock falls with the busy share's cube root.
        """
        return min(self.clock_hz, self.busy_clock_hz * max(busy, 1e-9) ** (-1 / 3))


def _rates(**known: tuple[float, str, str]) -> Rates:
    """Rates, of values, how each is known, and from where."""
    values = {name: value for name, (value, _, _) in known.items()}
    sources = tuple(Source(name, how, text) for name, (_, how, text) in known.items())
    return Rates(**values, sources=sources)  # type: ignore[arg-type]


H200 = _rates(
    sms=(132, MEASURED, "h200.json, environment"),
    clock_hz=(1.98e9, MEASURED, "smi: clocks.max.sm"),
    busy_clock_hz=(1.455e9, MEASURED, "smi: clocks.sm under load, 692 of 700 W"),
    mma_flops_cycle=(4096, MEASURED, "m64nNk16 in N/2 cycles, as in tilecat/model/gemm.py"),
    shared_bytes_cycle=(128, DOCUMENTED, "CUDA C++ Programming Guide: 32 banks of 4 bytes"),
    mma_latency_cycles=(60, ASSUMED, "of little weight"),
    load_latency_cycles=(1050, CALIBRATED, "depth, stages 1 and 2: 48 KiB in 1800 cycles"),
    load_bytes_cycle=(64, ASSUMED, "a step's 48 KiB in 1024 cycles (stages 4) take 48 at least"),
    memory_bytes_second=(4.2e12, MEASURED, "a copy reads and writes 4.22 to 4.26 TB/s"),
    store_bytes_cycle=(12, CALIBRATED, "gemm, 4096x4096x64 NN"),
    tensor_read_bytes_cycle=(512, ASSUMED, "has no tensor memory"),
    task_cycles=(200, ASSUMED, "of little weight"),
    cta_cycles=(1500, ASSUMED, "of weight where each task has a CTA"),
    launch_seconds=(4e-6, CALIBRATED, "gemm, 1024^3 NN"),
    # 4096^3 in tiles of 128x256x64 read 171 MB row by row and 186 MB in groups of 8 (ncu,
    # dram__bytes_read.sum, H200, 2026-11-30); the model: 171 and 187, of 60 MiB: 67.
    l2_bytes=(30 << 20, CALIBRATED, "half of the 60 MiB: bytes that 4096^3 read"),
)
_OF_H200 = "as an H200's"


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
    slower = f"no one here has one: it is taken not to be held back ({arch.name})"
    share, each = H200.memory_bytes_second / 4.8e12, H200.clock_hz * H200.sms
    seconds = H200.load_latency_cycles / H200.clock_hz
    stored = H200.store_bytes_cycle * each / H200.memory_bytes_second
    memory_rate = memory.value * 1e9 * share
    return _rates(
        sms=(sms.value, sms.known, sms.source),
        clock_hz=(clock, ANNOUNCED, f"{total.value} TFLOP/s of {kind} at {flops_cycle} a cycle"),
        busy_clock_hz=(clock, ASSUMED, slower),
        mma_flops_cycle=(8192, ASSUMED, "m128nN of 32 bytes of K in N/2 cycles"),
        shared_bytes_cycle=(128, ASSUMED, _OF_H200),
        mma_latency_cycles=(H200.mma_latency_cycles, ASSUMED, _OF_H200),
        load_latency_cycles=(seconds * clock, ASSUMED, f"{_OF_H200}, in seconds"),
        load_bytes_cycle=(H200.load_bytes_cycle, ASSUMED, _OF_H200),
        memory_bytes_second=(memory_rate, ANNOUNCED, f"{memory.value} GB/s, times {share:.3f} "
                             "as an H200's copy of its 4,800 GB/s"),
        store_bytes_cycle=(stored * memory_rate / clock / sms.value, ASSUMED,
                           f"{_OF_H200}, in proportion to memory"),
        tensor_read_bytes_cycle=(512, ASSUMED, "a 32-bit column of all 128 lanes a cycle"),
        task_cycles=(H200.task_cycles, ASSUMED, _OF_H200),
        cta_cycles=(H200.cta_cycles, ASSUMED, _OF_H200),
        launch_seconds=(H200.launch_seconds, ASSUMED, _OF_H200),
        l2_bytes=l2,
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
