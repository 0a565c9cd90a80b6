"""Hopper, H100 and H200."""

from __future__ import annotations

from .spec import MEASURED, WGMMA, Arch, Limit, MmaForm
from .warp import FP8, INT8, WARP_FORMS

_GUIDE = "CUDA C++ Programming Guide, table of technical specifications, compute capability 9.0"
_L2 = "cudaDeviceProp::l2CacheSize of an H200, 2026-11 (an H100 has 50 MiB)"
_SHARED = "CUDA C++ Programming Guide, shared memory of compute capability 9.0: 1 KiB a block"
# N of wgmma: steps of 8 to 256; for integers 24 is the last that is no multiple of 16.
_N = tuple(range(8, 257, 8))
_INTEGER_N = (8, 16, 24, *range(32, 257, 16))


def _wgmma(a: str, b: str, accumulator: str, k: int, ns: tuple[int, ...] = _N) -> MmaForm:
    wide, floats = k == 16, accumulator != "s32"
    version = "8.0" if floats or a == b else "8.4"  # ptxas 13.5: mixed integers from 8.4 on
    source = f"PTX ISA 9.7.15.2, wgmma.mma_async: table of shapes, .m64nNk{k}"
    return MmaForm(WGMMA, a, b, accumulator, 64, ns, k, source, wide, floats, version)


_FORMS = (
    _wgmma("bf16", "bf16", "f32", 16),
    _wgmma("f16", "f16", "f32", 16),
    _wgmma("f16", "f16", "f16", 16),
    _wgmma("tf32", "tf32", "f32", 8),
    *(_wgmma(a, b, sums, 32) for a, b in FP8 for sums in ("f32", "f16")),
    *(_wgmma(a, b, "s32", 32, _INTEGER_N) for a, b in INT8),
    *WARP_FORMS,
)

HOPPER = Arch(
    name="hopper",
    target="sm_90a",
    ptx_version="8.0",
    features=frozenset({"tma", "wgmma", "setmaxnreg", "mbarrier", "cluster"}),
    limits=(
        ("shared_bytes_per_cta", Limit(232448, "bytes", _GUIDE + ": 227 KiB a block")),
        ("shared_bytes_per_sm", Limit(233472, "bytes", _GUIDE + ": 228 KiB a multiprocessor")),
        ("shared_bytes_reserved", Limit(1024, "bytes a CTA", _SHARED)),
        ("l2_bytes", Limit(62914560, "bytes", _L2, MEASURED)),
        ("registers_per_sm", Limit(65536, "32-bit registers", _GUIDE)),
        ("registers_per_thread", Limit(255, "32-bit registers", _GUIDE)),
        ("threads_per_cta", Limit(1024, "threads", _GUIDE)),
        ("threads_per_sm", Limit(2048, "threads", _GUIDE)),
        ("warps_per_sm", Limit(64, "warps", _GUIDE)),
        ("ctas_per_sm", Limit(32, "CTAs", _GUIDE)),
        ("named_barriers", Limit(16, "barriers a CTA", "PTX ISA 9.7.13.1, bar")),
        ("setmaxnreg_min", Limit(24, "registers", "PTX ISA 9.7.19.5, setmaxnreg")),
        ("setmaxnreg_max", Limit(256, "registers", "PTX ISA 9.7.19.5, setmaxnreg")),
        ("shared_base_align", Limit(1024, "bytes", "PTX ISA, wgmma 128-byte swizzle atom")),
    ),
    mma_forms=_FORMS,
)
