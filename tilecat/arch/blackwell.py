"""Blackwell: B200 and GB200 (sm_100a), B300 and GB300 (sm_103a)."""

from __future__ import annotations

from .spec import ANNOUNCED, MEASURED, Arch, Limit
from .tensor import FORMS, INTEGER_FORMS, MEMORY_LIMITS
from .warp import WARP_FORMS

_GUIDE = "CUDA C++ Programming Guide, table of technical specifications, compute capability 10.x"
_TRAITS = "CCCL 3.5, cuda/__device/arch_traits.h: compute capability 10.0 and 10.3"
_B200 = "NVIDIA GB200 NVL72, specifications: a 72nd; dense is half of what is given with sparsity"
_B300 = "NVIDIA GB300 NVL72, specifications: a 72nd; dense is half of what is given with sparsity"

FEATURES = frozenset(
    {"tma", "tcgen05", "setmaxnreg", "mbarrier", "cluster", "cluster_launch_control"}
)
SM_LIMITS = (
    ("shared_bytes_per_cta", Limit(232448, "bytes", _GUIDE + ": 227 KiB a block")),
    ("shared_bytes_per_sm", Limit(233472, "bytes", _GUIDE + ": 228 KiB a multiprocessor")),
    ("shared_bytes_reserved", Limit(1024, "bytes a CTA", _GUIDE)),
    ("registers_per_sm", Limit(65536, "32-bit registers", _GUIDE)),
    ("registers_per_thread", Limit(255, "32-bit registers", _GUIDE)),
    ("threads_per_cta", Limit(1024, "threads", _GUIDE)),
    ("named_barriers", Limit(16, "barriers a CTA", "PTX ISA 9.7.13.1, bar")),
    ("setmaxnreg_min", Limit(24, "registers", "PTX ISA 9.7.19.5, setmaxnreg")),
    ("setmaxnreg_max", Limit(256, "registers", "PTX ISA 9.7.19.5, setmaxnreg")),
    ("shared_base_align", Limit(1024, "bytes", "PTX ISA 9.7.16.5.1, 128-byte swizzle atom")),
    *MEMORY_LIMITS,
)
_L2 = ("l2_bytes", Limit(126 << 20, "bytes", "NVIDIA Blackwell: 126 MB of L2", ANNOUNCED))
_SMS = Limit(148, "SMs", "Chips and Cheese, Nvidia's B200, 2025: two dies of 74 SMs", MEASURED)
_THREADS = (
    ("threads_per_sm", Limit(2048, "threads", _TRAITS)),
    ("warps_per_sm", Limit(64, "warps", _TRAITS)),
    ("ctas_per_sm", Limit(32, "CTAs", _TRAITS)),
)


def tera(value: int, source: str) -> Limit:
    """An announced rate of dense products."""
    return Limit(value, "TFLOP/s", source, ANNOUNCED)


BLACKWELL = Arch(
    name="blackwell",
    target="sm_100a",
    ptx_version="8.6",
    features=FEATURES,
    limits=(*SM_LIMITS, *_THREADS, _L2),
    mma_forms=WARP_FORMS,
    tensor_forms=(*FORMS, *INTEGER_FORMS),
    rates=(
        ("tf32", tera(1250, _B200)),
        ("f16", tera(2500, _B200)),
        ("f8f6f4", tera(5000, _B200)),
        ("i8", tera(5000, _B200)),
        ("mxf4nvf4", tera(10000, _B200)),
        ("memory", Limit(8000, "GB/s", _B200, ANNOUNCED)),
        ("sms", _SMS),
    ),
)

# kind::i8 is refused for sm_103a (ptxas 13.5).
BLACKWELL_ULTRA = Arch(
    name="blackwell ultra",
    target="sm_103a",
    ptx_version="8.8",
    features=FEATURES | {"load_reduced"},  # tcgen05.ld.red: PTX ISA 9.7.16.8.3, target notes
    limits=(*SM_LIMITS, *_THREADS, _L2),
    mma_forms=WARP_FORMS,
    tensor_forms=FORMS,
    rates=(
        ("tf32", tera(1250, _B300)),
        ("f16", tera(2500, _B300)),
        ("f8f6f4", tera(5000, _B300)),
        ("mxf4nvf4", tera(15000, _B300)),
        ("memory", Limit(8000, "GB/s", _B300, ANNOUNCED)),
    ),
)
