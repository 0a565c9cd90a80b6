"""Hopper, H100 and H200."""

from __future__ import annotations

from .spec import Arch, Limit, MmaForm

_GUIDE = "CUDA C++ Programming Guide, table of technical specifications, compute capability 9.0"
_WGMMA = "PTX ISA 9.7.15.5.2, wgmma.mma_async: .m64nNk16, N 8 to 256 in steps of 8"

HOPPER = Arch(
    name="hopper",
    target="sm_90a",
    ptx_version="8.0",
    features=frozenset({"tma", "wgmma", "setmaxnreg", "mbarrier", "cluster"}),
    limits=(
        ("shared_bytes_per_cta", Limit(232448, "bytes", _GUIDE + ": 227 KiB a block")),
        ("registers_per_sm", Limit(65536, "32-bit registers", _GUIDE)),
        ("registers_per_thread", Limit(255, "32-bit registers", _GUIDE)),
        ("threads_per_cta", Limit(1024, "threads", _GUIDE)),
        ("named_barriers", Limit(16, "barriers a CTA", "PTX ISA 9.7.13.1, bar")),
        ("setmaxnreg_min", Limit(24, "registers", "PTX ISA 9.7.19.5, setmaxnreg")),
        ("setmaxnreg_max", Limit(256, "registers", "PTX ISA 9.7.19.5, setmaxnreg")),
        ("shared_base_align", Limit(1024, "bytes", "PTX ISA, wgmma 128-byte swizzle atom")),
    ),
    mma_forms=(
        MmaForm("bf16", "f32", 16, "f32.bf16.bf16", 256, _WGMMA),
        MmaForm("f16", "f32", 16, "f32.f16.f16", 256, _WGMMA),
    ),
)
