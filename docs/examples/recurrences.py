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
     "ssd_backward", "simple_gla_step", "lightning_attn_step", "ssd_step", "gated_delta_rule",
     "delta_rule", "gated_delta_rule_backward", "gated_delta_rule_step", "based", "based_backward",
     "based_step", "hedgehog"),
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
dq, dk, dv, dg, _, _ = tc.simple_gla_backward(x, x, x, x, g, scale=1 / 32)
""", ("np.allclose(o, 1) and np.allclose(dv, 1)", "np.allclose(dq, 1) and not dg.any()")),
        E("ssd", """
x, b = np.ones((1, 70, 2, 64), np.float16), np.ones((1, 70, 1, 32), np.float16)
dt, A = np.full((1, 70, 2), 1 / 32, np.float32), np.zeros(2, np.float32)
y, h = tc.ssd(x, dt, A, b, b, D=np.ones(2, np.float32), return_final_states=True)
""", ("np.allclose(y[0, :, 1, 5], np.arange(2, 72), rtol=2e-3)", "np.allclose(h, 70 / 32)")),
        E("ssd_backward", """
x, b = np.ones((1, 70, 2, 64), np.float16), np.ones((1, 70, 1, 32), np.float16)
dt, A = np.full((1, 70, 2), 1 / 32, np.float32), np.zeros(2, np.float32)
dx, ddt, dA, dB, *_ = tc.ssd_backward(x, x, dt, A, b, b)
""", ("np.allclose(dx[0, ::-1, 0, 0], np.arange(1, 71), rtol=2e-3)  # later tokens read it",
      "np.allclose(ddt[0, 0], 70 * 32 * 64, rtol=2e-3) and (dA > 0).all()",
      "np.allclose(dB[0, 0], 70 * 2 * 64 / 32, rtol=2e-3)  # of both heads")),
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
        E("gated_delta_rule delta_rule gated_delta_rule_step", """
k, v = np.ones((1, 70, 1, 64), np.float16) / 8, np.ones((1, 70, 2, 64), np.float16)
beta, g = np.ones((1, 70, 2), np.float32), np.zeros((1, 70, 2), np.float32)
o, _ = tc.delta_rule(k, k, v, beta, scale=1.0)
o2, state = tc.gated_delta_rule(k, k, v, g, beta, scale=1.0, output_final_state=True)
last = tc.gated_delta_rule_step(k[:, 0], k[:, 0], v[:, 0], None, beta[:, 0], state, scale=1.0)
""", ("np.allclose(o, 1, atol=1e-2)  # what the key holds is replaced, not added to",
      "np.allclose(o2, o, atol=1e-2) and np.allclose(last, 1, atol=1e-2)")),
        E("gated_delta_rule_backward", """
k, v = np.ones((1, 9, 1, 64), np.float16) / 8, np.ones((1, 9, 2, 64), np.float16)
beta, g = np.ones((1, 9, 2), np.float32), np.full((1, 9, 2), -np.inf, np.float32)
dq, dk, dv, dg, dbeta, _ = tc.gated_delta_rule_backward(v, k, k, v, g, beta, scale=1.0)
""", ("np.allclose(dv, 1)  # what a token forgets, it replaces",
      "np.allclose(dq, 16) and not dg.any()")),
        E("based based_step", """
q, v = np.ones((1, 1, 70, 16), np.float16) / 2, np.ones((1, 1, 70, 64), np.float16)
o, _ = tc.based(q, q, v)
_, state = tc.based(q, q, v / 64, use_norm=False, output_final_state=True)
before = state.copy()
last = tc.based_step(q[:, :, 0], q[:, :, 0], v[:, :, 0] / 64, state)
""", ("np.allclose(o, 1, atol=1e-2)  # a weighted mean",
      "np.allclose(state, before * 71 / 70, rtol=1e-2)")),
        E("based_backward", """
q, v = np.ones((1, 1, 70, 16), np.float16) / 2, np.ones((1, 1, 70, 64), np.float16)
dq, dk, dv, _ = tc.based_backward(v, q, q, v)
""", ("np.allclose(dv[0, 0, -1], 1 / 70, atol=1e-3)  # the last value has a 70th of the last mean",
      "abs(dq).max() < 0.5  # all values are equal: weights do not matter")),
        E("hedgehog", """
x, ones = np.ones((1, 2, 70, 64), np.float16), np.ones(2, np.float32)
maps = np.zeros((2, 64, 64), np.float16)
o, kv, ks = tc.hedgehog(x, x, x, maps, maps, ones, ones)
""", ("np.allclose(o, 1, atol=1e-2)  # a weighted mean",
      "np.allclose(ks, 1)  # 64 tokens before the last block, 1/64 each")),
    ),
)  # fmt: skip
