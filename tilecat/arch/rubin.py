"""Rubin: VR200 (sm_107a)."""

from __future__ import annotations

from .blackwell import FEATURES, SM_LIMITS, tera
from .spec import ANNOUNCED, Arch, Limit
from .tensor import WIDE_FORMS
from .warp import WARP_FORMS

_TRAITS = "CCCL 3.5, cuda/__device/arch_traits.h: compute capability 10.7"
_OVERSIZED = "CuTe DSL 4.8.1, shared memory of sm_107: 334848 bytes a block in the oversized mode"
_EXCLUSIVE = "PTX ISA 9.4, 9.7.16.7.1, tcgen05.alloc.exclusive: multiples of 32 up to 576"
_SMS = "press of NVIDIA's announcement, 2026-03: a Rubin GPU has 224 SMs"
_VR200 = "NVIDIA Vera Rubin NVL72, preliminary specifications: a 72nd"

# Beyond Blackwell: a K step of 64 bytes, a collector of B, a commit when A has been read,
# 576 columns of tensor memory and 327 KiB of shared memory where a launch asks for them.
RUBIN = Arch(
    name="rubin",
    target="sm_107a",
    ptx_version="9.4",
    features=FEATURES
    | {"wide_k", "collector_b", "early_a", "exclusive_columns", "oversized", "load_reduced"},
    limits=(
        *SM_LIMITS,
        ("shared_bytes_oversized", Limit(334848, "bytes a CTA", _OVERSIZED)),
        ("tensor_columns_exclusive", Limit(576, "columns of 32 bits a CTA", _EXCLUSIVE)),
        ("threads_per_sm", Limit(1024, "threads", _TRAITS)),
        ("warps_per_sm", Limit(32, "warps", _TRAITS)),
        ("ctas_per_sm", Limit(16, "CTAs", _TRAITS)),
    ),
    mma_forms=WARP_FORMS,
    tensor_forms=WIDE_FORMS,
    rates=(
        ("tf32", tera(2000, _VR200)),
        ("f16", tera(4000, _VR200)),
        ("f8f6f4", tera(17500, _VR200)),
        ("mxf4nvf4", tera(35000, _VR200)),
        ("memory", Limit(22000, "GB/s", _VR200, ANNOUNCED)),
        ("sms", Limit(224, "SMs", _SMS, ANNOUNCED)),
    ),
)
