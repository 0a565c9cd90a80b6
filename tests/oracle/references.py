"""What each case must compute: float64 with an error bound, or exact integers and bits.

Each function takes the inputs by name and the case, and gives the expected arrays by name: a
`Reference` (value and bound of the error before the one rounding to the output's dtype), or an
array that must be met exactly.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
from reference import EXP2_ERROR, TRUNCATION, Reference, accumulation, as_float64, half_ulp

from .cases import Case

Arrays = dict[str, np.ndarray]
Expected = dict[str, Reference | np.ndarray]


def scalars(case: Case) -> dict[str, int | float]:
    """The case's numbers by name."""
    return {arg.name: arg.value for arg in case.args if hasattr(arg, "value")}


def _operand(x: np.ndarray) -> np.ndarray:
    """Float64 of what a tensor core multiplies: it drops the 13 low bits of an fp32 (tf32).

    The manual leaves the low bits of a tf32 operand undefined; hardware drops them.
    """
    if x.dtype == np.float32:
        x = (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return as_float64(x)


def _product(a: np.ndarray, b: np.ndarray) -> Reference | np.ndarray:
    """a @ b, [.., M, K] and [.., K, N], summed in fp32, or exactly for integers and fp64."""
    if a.dtype.kind in "iu":
        return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
    if a.dtype == np.float64:
        size = np.abs(a) @ np.abs(b)
        return Reference(a @ b, a.shape[-1] * 2.0**-52 * size)
    a64, b64 = _operand(a), _operand(b)
    size = np.abs(a64) @ np.abs(b64)
    return Reference(a64 @ b64, accumulation(a.shape[-1]) * size)


def _plus(start: np.ndarray, product: Reference, steps: int) -> Reference:
    """The product's parts added to what was there, one fp32 addition a step."""
    error = product.error + steps * TRUNCATION * (np.abs(start) + np.abs(product.value))
    return Reference(as_float64(start) + product.value, error)


def gemm_kk(x: Arrays, case: Case) -> Expected:
    return {"c": _product(x["a"], x["b"].T)}


def gemm_kn(x: Arrays, case: Case) -> Expected:
    return {"c": _product(x["a"], x["b"])}


def gemm_mk(x: Arrays, case: Case) -> Expected:
    return {"c": _product(x["a"].T, x["b"].T)}


def gemm_mn(x: Arrays, case: Case) -> Expected:
    return {"c": _product(x["a"].T, x["b"])}


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _wide(x: np.ndarray, fmt: str) -> np.ndarray:
    """[rows, K] of an 8-bit type, or of two e2m1 a byte, the first in the low half."""
    if fmt != "e2m1":
        return as_float64(x)
    return E2M1[np.stack([x & 15, x >> 4], 2).reshape(len(x), -1)]


def _scales(x: np.ndarray, rows: int) -> np.ndarray:
    """[rows, K / block] from there or from chunks of 128 rows x 4 blocks.

    Byte of a chunk: row % 32 * 16 + row % 128 // 32 * 4 + block % 4 (CUTLASS, Sm1xxBlockScaled).
    """
    if x.ndim > 2:
        r, k = np.indices((rows, x.shape[1] * 4))
        x = x.reshape(*x.shape[:2], 512)[r // 128, k // 4, r % 32 * 16 + r % 128 // 32 * 4 + k % 4]
    return 2.0 ** (x.astype(np.float64) - 127) if x.dtype == np.uint8 else as_float64(x)


def gemm_scaled(x: Arrays, case: Case) -> Expected:
    """The products, scaled before they are summed; B stored [N, K]."""
    wide = []
    for name, scale, fmt in (("a", "scale_a", "FA"), ("b", "scale_b", "FB")):
        values = _wide(x[name], case.constants[fmt])
        factors = _scales(x[scale], len(values))
        wide.append(values * np.repeat(factors, values.shape[1] // factors.shape[1], 1))
    a, b = wide
    size = np.abs(a) @ np.abs(b).T
    return {"c": Reference(a @ b.T, accumulation(a.shape[1]) * size)}


def gemm_kk_sum(x: Arrays, case: Case) -> Expected:
    return {"c": _plus(x["c"], _product(x["a"], x["b"].T), 2)}


def gemm_half(x: Arrays, case: Case) -> Expected:
    """Sums of f16 are rounded to f16 after each step of 16 of K: half a unit of the largest."""
    product = _product(x["a"], x["b"].T)
    steps = x["a"].shape[1] // 16
    size = np.abs(as_float64(x["a"])) @ np.abs(as_float64(x["b"])).T
    return {"c": Reference(product.value, product.error + steps * half_ulp(np.float16) * size)}


def gemm_started_half(x: Arrays, case: Case) -> Expected:
    product = gemm_half(x, case)["c"]
    start = as_float64(x["start"])
    error = product.error + half_ulp(np.float16) * 4 * np.abs(start)
    return {"c": Reference(start + product.value, error)}


def gemm_started(x: Arrays, case: Case) -> Expected:
    return {"c": _plus(x["start"], _product(x["a"], x["b"].T), 1)}


def gemm_reduced(x: Arrays, case: Case) -> Expected:
    """The largest value of each row, and the smallest magnitude."""
    c = _product(x["a"], x["b"].T)
    error = c.error.max(1)
    low = Reference(np.abs(c.value).min(1), error)
    return {"c": c, "high": Reference(c.value.max(1), error), "low": low}


def gemm_signed(x: Arrays, case: Case) -> Expected:
    """Operands negated; lanes that are off keep the sums of the first step of K."""
    deep = case.constants["tiler"][2]
    parts = [_product(x["a"][:, k : k + deep], x["b"][:, k : k + deep].T)
             for k in range(0, x["a"].shape[1], deep)]  # fmt: skip
    whole = _product(x["a"], x["b"].T)
    words = np.array(case.constants["lanes"] or (0,) * 4, np.uint32)
    off = np.unpackbits(words.view(np.uint8), bitorder="little").astype(bool)
    if isinstance(whole, np.ndarray):
        return {"c": whole}
    sign = -1 if sum(case.constants["negate"] or ()) == 1 else 1
    keep = off[: len(whole.value), None]
    value = sign * np.where(keep, parts[0].value, whole.value)
    return {"c": Reference(value, whole.error)}


def gemm_turned(x: Arrays, case: Case) -> Expected:
    """Scales in one chunk; those of A some blocks late."""
    wide = []
    for name, turn in (("a", case.constants["turn"]), ("b", 0)):
        factors = _scales(x[f"scale_{name}"].reshape(1, 1, 512), 128)
        wide.append(as_float64(x[name]) * np.repeat(np.roll(factors, -turn, 1), 32, 1))
    a, b = wide
    return {"c": Reference(a @ b.T, accumulation(a.shape[1]) * (np.abs(a) @ np.abs(b).T))}


def rows_by_number(x: Arrays, case: Case) -> Expected:
    return {"y": x["x"] * np.arange(len(x["x"]), dtype=np.float32)[:, None]}


def gathered(x: Arrays, case: Case) -> Expected:
    y = x["y"].copy()
    y[x["index"][::-1]] = x["x"][x["index"]]
    return {"y": y}


def gemm_batched(x: Arrays, case: Case) -> Expected:
    return {"c": _plus(x["c"], _product(x["a"], x["b"]), 1)}


def gemm_int4(x: Arrays, case: Case) -> Expected:
    packed = x["a"].astype(np.int64)
    a = np.stack([(packed & 15) - 8, (packed >> 4) - 8], -1).reshape(packed.shape[0], -1)
    product = _product(a.astype(ml_dtypes.bfloat16), x["b"].T)
    scale = as_float64(x["scale"])[:, None]
    error = product.error * np.abs(scale) + TRUNCATION * np.abs(product.value * scale)
    return {"c": Reference(product.value * scale, error)}


def _attention(x: Arrays, *, causal: bool) -> Expected:
    """Softmax(Q K^T / sqrt(D)) V; the bound is derived in `reference`, here at its worst case."""
    q, k, v = (as_float64(x[name]) for name in "qkv")
    n, d = q.shape[1:]
    scale = d**-0.5
    scores = scale * (q @ k.swapaxes(1, 2))
    products = scale * (np.abs(q) @ np.abs(k).swapaxes(1, 2))
    if causal:
        scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(2, keepdims=True))
    weights /= weights.sum(2, keepdims=True)
    finite = np.where(np.isfinite(scores), np.abs(scores), 0.0)
    exponent = accumulation(d) * products + 3 * TRUNCATION * finite
    relative = 4 * exponent.max(2, keepdims=True) + 2 * EXP2_ERROR + 2 * accumulation(n)
    error = (half_ulp(x["v"].dtype) + relative) * (weights @ np.abs(v))
    return {"o": Reference(weights @ v, error)}


def attention(x: Arrays, case: Case) -> Expected:
    return _attention(x, causal=False)


def attention_causal(x: Arrays, case: Case) -> Expected:
    return _attention(x, causal=True)


def vector_add(x: Arrays, case: Case) -> Expected:
    return {"z": x["x"] + x["y"]}


def _near(value: np.ndarray, ulps: float, floor: float = 0.0) -> Reference:
    """An approximation to some units in the last place of fp32, or to an absolute floor."""
    return Reference(value, ulps * TRUNCATION * np.abs(value) + floor)


def activations(x: Arrays, case: Case) -> Expected:
    """Bounds: the PTX manual's for ex2, lg2, rsqrt, and the cost of scaling by log2(e)."""
    v = as_float64(x["x"])
    a = np.abs(v)
    erf = np.array([math.erf(t) for t in v])
    rows = [
        _near(1 / (1 + np.exp(-v)), 16),
        Reference(np.exp(v), np.exp(v) * (4 + 2 * a) * TRUNCATION),
        _near(np.log(a + 1e-3), 4, 2.0**-21),
        _near(np.sqrt(a), 0.5),
        _near(1 / np.sqrt(a + 0.25), 4),
        _near(erf, 4),
        _near(np.floor(v) + 0.5 * np.ceil(v), 0),
        _near(v / (v * v + 2), 2),
    ]
    value = np.stack([row.value for row in rows])
    return {"y": Reference(value, np.stack([row.error for row in rows]))}


def softmax(x: Arrays, case: Case) -> Expected:
    v = as_float64(x["x"])
    low = v - v.max(1, keepdims=True)
    e = np.exp(low)
    value = e / e.sum(1, keepdims=True)
    return {"y": Reference(value, value * (accumulation(v.shape[1]) + 4 * TRUNCATION * (1 - low)))}


def layernorm(x: Arrays, case: Case) -> Expected:
    v, w, b = (as_float64(x[name]) for name in ("x", "weight", "bias"))
    mean = v.mean(1)
    scale = 1 / np.sqrt(v.var(1) + scalars(case)["eps"])
    loss = accumulation(v.shape[1]) + 8 * TRUNCATION
    size = np.abs(v).max(1, keepdims=True) * scale[:, None] * np.abs(w) + np.abs(b)
    y = (v - mean[:, None]) * scale[:, None] * w + b
    return {
        "y": Reference(y, 4 * loss * size),
        "mean": Reference(mean, loss * np.abs(v).mean(1)),
        "scale": Reference(scale, loss * scale),
    }


def reductions(x: Arrays, case: Case) -> Expected:
    v, n = x["x"], x["i"]
    v64 = as_float64(v)
    error = accumulation(v.shape[1]) * np.abs(v64).sum(1)
    return {
        "row_sum": Reference(v64.sum(1), error), "col_max": v.max(0),
        "where": v.argmax(1).astype(np.int32), "parity": np.bitwise_xor.reduce(n, 0),
        "low": n.min(1),
    }


def histogram(x: Arrays, case: Case) -> Expected:
    v = x["x"]
    counts = np.bincount(v, minlength=len(x["bins"])).astype(np.int32)
    return {
        "bins": x["bins"] + counts, "total": x["total"] + np.float32(v.sum()),
        "top": np.maximum(x["top"], v.max()),
    }


def scatter_add(x: Arrays, case: Case) -> Expected:
    """All values are small integers, so that sums are exact in any order."""
    y = as_float64(x["y"])
    np.add.at(y, x["index"], as_float64(x["x"]))
    count = as_float64(x["count"])
    np.add.at(count, x["index"], 1.0)
    return {"y": y.astype(np.float16), "count": count.astype(np.float32)}


def scans(x: Arrays, case: Case) -> Expected:
    v, decay, n = as_float64(x["x"]), as_float64(x["decay"]), x["i"]
    state, size = np.zeros_like(v), np.zeros_like(v)
    run, run_size = np.zeros(v.shape[0]), np.zeros(v.shape[0])
    for column in range(v.shape[1]):
        run = run * decay[:, column] + v[:, column]
        run_size = run_size * np.abs(decay[:, column]) + np.abs(v[:, column])
        state[:, column], size[:, column] = run, run_size
    backwards = n[::-1].cumsum(0, dtype=np.int32)[::-1]
    sums = np.stack([n.cumsum(1, dtype=np.int32), backwards])
    return {"state": Reference(state, accumulation(v.shape[1]) * size), "sums": sums}


def transpose_sort(x: Arrays, case: Case) -> Expected:
    return {"y": np.ascontiguousarray(x["x"].T), "z": np.sort(x["x"], 1)}


def _philox(seed: int, offsets: np.ndarray) -> list[np.ndarray]:
    """Philox 4x32 with ten rounds (Salmon et al., SC 2011): four words for each counter."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    zero = np.zeros_like(offsets, np.uint64)
    c = [offsets.astype(np.uint64), zero, zero, zero]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p, q = c[2] * np.uint64(0xCD9E8D57), c[0] * np.uint64(0xD2511F53)
        c = [
            (p >> shift) ^ c[1] ^ np.uint64(key[0]), p & mask,
            (q >> shift) ^ c[3] ^ np.uint64(key[1]), q & mask,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return [word.astype(np.uint32) for word in c]


def random_bits(x: Arrays, case: Case) -> Expected:
    a, b, c, d = _philox(scalars(case)["seed"], np.arange(scalars(case)["n"]))
    words = np.stack([a, b ^ c ^ d]).view(np.int32)
    signed = a.view(np.int32).astype(np.int64)
    uniform = np.where(signed < 0, ~signed, signed) * np.float64(np.float32(4.6566127342e-10))
    return {"y": words, "u": Reference(uniform, TRUNCATION * uniform)}


def last_program(x: Arrays, case: Case) -> Expected:
    """Integers again: the sum is exact; `ticket` counts programs."""
    programs, block = case.constants["PROGRAMS"], case.constants["B"]
    padded = np.zeros(programs * block, np.float32)
    padded[: len(x["x"])] = x["x"]
    partial = padded.reshape(programs, block).sum(1)
    return {"partial": partial, "ticket": np.array([programs], np.int32), "y": partial.sum()[None]}


def convert(x: Arrays, case: Case) -> Expected:
    v = x["x"]
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = {
            "h": v.astype(np.float16), "b": v.astype(ml_dtypes.bfloat16),
            "e": np.clip(v, -448, 448).astype(ml_dtypes.float8_e4m3fn),
            "f": np.clip(v, -57344, 57344).astype(ml_dtypes.float8_e5m2),
        }
    return rounded


def widen(x: Arrays, case: Case) -> Expected:
    return {"y": np.stack([x[name].astype(np.float32) for name in "hbefi"])}


def integers(x: Arrays, case: Case) -> Expected:
    """Division truncates, the remainder has the dividend's sign, shifts wrap as C's do."""
    a, b = x["x"].astype(np.int64), x["y"].astype(np.int64)

    def divide(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        return np.sign(p) * np.sign(q) * (np.abs(p) // np.abs(q))

    left = (a << (b & 31)).astype(np.int32)
    shifted = left ^ (x["x"] >> (x["y"] & 31))
    unsigned = (a & 0xFFFFFFFF).astype(np.uint64) * (b & 0xFFFFFFFF).astype(np.uint64)
    high = (unsigned >> np.uint64(32)).astype(np.uint32)
    modulus = b + 7
    rows = [
        divide(a, b), a - divide(a, b) * b, shifted, a * b,
        np.minimum(np.maximum(a, -100), b), a - divide(a, modulus) * modulus, high,
    ]
    return {"z": np.stack([row.astype(np.int64) for row in rows])}


def trigonometry(x: Arrays, case: Case) -> Expected:
    """At most 2 units (CUDA programming guide, table of sinf and cosf) of numbers near 1."""
    v = as_float64(x["x"])
    large = as_float64(x["x"] * np.float32(1000))
    return {"y": Reference(np.stack([np.sin(v), np.cos(large)]), np.float64(4 * TRUNCATION))}


def doubles(x: Arrays, case: Case) -> Expected:
    v = x["x"]
    y = np.exp(v) * np.sqrt(v * v + 1) / v.sum() + np.log(np.abs(v) + 1)
    loss = np.abs(v).sum() / np.abs(v.sum())  # of the sum, in which terms cancel
    return {"y": Reference(y, 2.0**-49 * (4 + loss) * (1 + np.abs(y)))}


def pick(x: Arrays, case: Case) -> Expected:
    v = x["x"]
    return {"y": np.take_along_axis(v, x["i"], 1), "z": -np.sort(-v, 1)[:, : case.constants["K"]]}


def spin_lock(x: Arrays, case: Case) -> Expected:
    programs, block = case.grid[0], case.constants["B"]
    padded = np.zeros(programs * block, np.float32)
    padded[: len(x["x"])] = x["x"]
    return {"y": x["y"] + padded.reshape(programs, block).sum(0), "flag": x["flag"]}


def atomics(x: Arrays, case: Case) -> Expected:
    v, y = x["x"], x["y"]
    rows = [y[0] + v, np.maximum(y[1], v), np.minimum(y[2], v), v]
    return {"y": np.stack(rows), "old": y[0]}
