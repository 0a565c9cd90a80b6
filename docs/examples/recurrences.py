"""Linear recurrences: examples of the reference."""

from __future__ import annotations

from .frame import Family
from .pipelines import E

RECURRENCES = Family(
    "recurrences",
    "Linear recurrences",
    """
Causal, in chunks of 64 tokens, states f32; arrays are batch x length x heads x dim. On NumPy arrays
and CPU tensors they run on the PTX machine, on CUDA tensors on the GPU.
""",
    ("linear_attention", "simple_gla", "lightning_attn", "simple_gla_backward", "ssd",
     "simple_gla_step", "lightning_attn_step", "ssd_step"),
    (
        E("linear_attention lightning_attn", """
x = np.ones((1, 70, 2, 32), np.float16)
o, state = tc.linear_attention(x, x, x, 1 / 32, output_final_state=True)
first, _ = tc.lightning_attn(x, x, x, layer_idx=0, num_layers=8, scale=1 / 32)
""", ("np.allclose(o[0, :, 0, 0], np.arange(1, 71), rtol=2e-3) and (state == 70).all()",
      "np.allclose(first[:, :, 0], o[:, :, 0])  # the first head does not decay")),
        E("simple_gla simple_gla_backward", """
x, g = np.ones((1, 70, 1, 32), np.float16), np.full((1, 70, 1), -np.inf, np.float32)
o, _ = tc.simple_gla(x, x, x, g, scale=1 / 32)
dq, dk, dv, dg, _ = tc.simple_gla_backward(x, x, x, x, g, scale=1 / 32)
""", ("np.allclose(o, 1) and np.allclose(dv, 1)", "np.allclose(dq, 1) and not dg.any()")),
        E("ssd", """
x, b = np.ones((1, 70, 2, 64), np.float16), np.ones((1, 70, 1, 32), np.float16)
dt, A = np.full((1, 70, 2), 1 / 32, np.float32), np.zeros(2, np.float32)
y, h = tc.ssd(x, dt, A, b, b, D=np.ones(2, np.float32), return_final_states=True)
""", ("np.allclose(y[0, :, 1, 5], np.arange(2, 72), rtol=2e-3)", "np.allclose(h, 70 / 32)")),
        E("simple_gla_step lightning_attn_step", """
x, state = np.ones((1, 2, 32), np.float16), np.zeros((1, 2, 32, 32), np.float32)
o = tc.simple_gla_step(x, x, x, state, scale=1 / 32)
first = tc.lightning_attn_step(x, x, x, state, layer_idx=0, num_layers=8, scale=1 / 32)
""", ("np.allclose(o, 1) and np.allclose(first[:, 0], 2)", "(state[:, 0] == 2).all()")),
        E("ssd_step", """
x, b, h = np.ones((1, 2, 64), np.float16), np.ones((1, 1, 32), np.float16), np.zeros((1, 2, 64, 32))
dt, A, state = np.full((1, 2), 1 / 32, np.float32), np.zeros(2, np.float32), h.astype(np.float32)
y = tc.ssd_step(x, dt, A, b, b, state)
""", "np.allclose(y, 1) and np.allclose(state, 1 / 32)"),
    ),
)  # fmt: skip
