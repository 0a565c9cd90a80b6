"""Operators on rows: examples of the reference."""

from __future__ import annotations

from .frame import Family
from .pipelines import E

ROWS = Family(
    "rows",
    "Rotary, norms, cross-entropy",
    """
Each reads its rows once. On NumPy arrays and CPU tensors they run on the PTX machine, on CUDA
tensors on the GPU.
""",
    ("apply_rotary", "apply_rotary_qk", "layer_norm_fn",
     "layer_norm_fn_backward", "cross_entropy", "cross_entropy_grad"),
    (
        E("apply_rotary apply_rotary_qk", """
x = np.ones((1, 20, 2, 32), np.float16)  # a quarter turn: (a, b) becomes (-b, a)
cos, sin = np.zeros((20, 16), np.float32), np.ones((20, 16), np.float32)
y = tc.apply_rotary(x, cos, sin)
q, k = tc.apply_rotary_qk(x, x, cos, sin, interleaved=True)
""", ("(y[..., :16] == -1).all() and (y[..., 16:] == 1).all()",
      "(q[..., ::2] == -1).all() and (k == q).all()")),
        E("layer_norm_fn", """
x, w = np.tile(np.array([1, 3], np.float32), (5, 60)), np.full(120, 2, np.float32)
y, h = tc.layer_norm_fn(x, w, residual=x, prenorm=True)
""", ("np.allclose(y[:, ::2], -2) and np.allclose(y[:, 1::2], 2)", "(h == 2 * x).all()")),
        E("layer_norm_fn_backward", """
x, w = np.tile(np.array([1, 3], np.float32), (5, 60)), np.full(120, 2, np.float32)
dx, dw, db, _ = tc.layer_norm_fn_backward(x, x, w, w)
""", ("np.allclose(dx, 0, atol=1e-4)  # a larger deviation, or mean, changes nothing",
      "np.allclose(dw[::2], -5) and np.allclose(dw[1::2], 15) and np.allclose(db[1::2], 15)")),
        E("cross_entropy cross_entropy_grad", """
x, target = np.zeros((4, 64), np.float32), np.array([5, 5, -100, 5])
loss = tc.cross_entropy(x, target)
same, dx = tc.cross_entropy_grad(x, target, reduction="sum")
""", ("np.isclose(loss, np.log(64)) and np.isclose(same, 3 * np.log(64))",
      "np.allclose(dx[0, 5], 1 / 64 - 1) and not dx[2].any()")),
    ),
)  # fmt: skip
