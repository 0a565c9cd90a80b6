"""Quantised matrices: their formats on the host, and their products."""

from __future__ import annotations

from tilecat import formats

from .frame import Family
from .maps import E

MX = """
x, w = np.ones((70, 64), np.float32), np.full((40, 64), 0.5, np.float32)
(xq, xs), (wq, ws) = tc.formats.quantize_mx(x), tc.formats.quantize_mx(w)
y = tc.matmul_mxfp8(xq, wq.T, xs, ws.T)                      # sm_90a: dequantised to bf16
z = tc.matmul_mxfp8(xq, wq.T, xs, ws.T, target="sm_100a")    # tcgen05.mma, on the PTX machine
(xq, xs), (wq, ws) = (tc.formats.quantize_mx(m, tc.dtypes.e2m1) for m in (x, w))
u = tc.matmul_mxfp4(xq, wq.T, xs, ws.T, target="sm_107a")
back = tc.formats.dequantize_mx(wq, ws)
"""
MXFP6 = """
x, w = np.full((70, 64), 1.25, np.float32), np.full((40, 64), 0.5, np.float32)
(xq, xs), (wq, ws) = (tc.formats.quantize_mx(m, tc.dtypes.e2m3) for m in (x, w))
y = tc.matmul_mxfp6(xq, wq.T, xs, ws.T, target="sm_100a")
eight = tc.formats.as_e4m3(xq)
"""
NVFP4 = """
x, w = np.ones((70, 64), np.float32), np.full((40, 64), 0.5, np.float32)
(xq, xs, xt), (wq, ws, wt) = tc.formats.quantize_nvfp4(x), tc.formats.quantize_nvfp4(w)
y = tc.matmul_nvfp4(xq, wq.T, xs, ws.T, alpha=float(xt * wt), target="sm_100a")
back = tc.formats.dequantize_nvfp4(wq, ws, wt)
"""
PACKED = """
q, scales = tc.formats.quantize_mx(np.ones((200, 64), np.float32))   # e8m0 [200, 2]
packed = tc.formats.pack_scales(scales)                              # [2, 512]
words = tc.formats.scale_words(packed)          # u64 [2, 64]: what a kernel's TMA loads
back = tc.formats.unpack_scales(packed, 200, 2)
"""
FORMATS = Family(
    "formats",
    "Quantised matrices: MXFP8, MXFP6, MXFP4, NVFP4",
    """
`tc.formats` quantises NumPy arrays and torch tensors, with a scale for each few elements of the
last axis, and packs scales in the order in which the tensor cores take them. Products of such
matrices run on every target: on sm_100a, sm_103a and sm_107a by the instructions that apply scales
(these texts are assembled, and run on the PTX machine; no such chip was at hand), on Hopper
dequantised to bf16 by a kernel, and multiplied as `tc.matmul` does.
""",
    ("matmul_mxfp8", "matmul_mxfp6", "matmul_mxfp4", "matmul_nvfp4", "formats",
     *(f"formats.{name}" for name in formats.__all__)),
    (
        E("matmul_mxfp8 matmul_mxfp4 formats.quantize_mx formats.dequantize_mx", MX,
          ("(y == 32).all() and (z == 32).all() and (u == 32).all()", "(back == w).all()")),
        E("matmul_mxfp6 formats.as_e4m3", MXFP6,
          ("(y == 40).all()", "(eight.astype(float) == xq.astype(float)).all()")),
        E("matmul_nvfp4 formats.quantize_nvfp4 formats.dequantize_nvfp4", NVFP4,
          ("np.allclose(y, 32, rtol=2**-7)", "np.allclose(back, w)")),
        E("formats formats.pack_scales formats.unpack_scales formats.scale_words", PACKED,
          ("words.shape == (2, 64)", "(back.view(np.uint8) == scales.view(np.uint8)).all()")),
    ),
    objects={"formats": formats},
)  # fmt: skip
