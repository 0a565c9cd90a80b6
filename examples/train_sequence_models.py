"""Three stacks of sequence models, trained with tilecat's operators and with plain PyTorch.

Mamba-2: the layers of mamba2-130m, 4 of its 24. Gated linear attention: layers with a decay a token
and head, rotary positions and a SwiGLU. Hyena: the stack of hyenadna-tiny-1k-seqlen-d256. Weights
are random; each predicts the next byte of this package's own source, 50 steps of 8 x 1024, from the
same weights on the same batches: with tilecat's operators, with PyTorch's on bf16 tensors too (a
recurrence is one masked product of all pairs of tokens, a convolution torch.fft), and with those on
float32, which shows how far rounding alone takes two right implementations apart.

    python examples/train_sequence_models.py [--model mamba2] [--steps 50] [--json OUT]

It ends with 1 if losses differ by more than a hundredth of the first loss, and by more than twice
what PyTorch's two do. It wants a GPU; `--device cpu` trains models of a size that the PTX machine
runs, for two steps.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from training import Run, compare, trained

import tilecat.torch as tt

SOURCE = Path(tt.__file__).parents[1]
VOCABULARY = 256  # bytes


@dataclass(frozen=True)
class Config:
    """Sizes of a stack. Of the attention, head_dim is that of keys and values."""

    d_model: int
    layers: int
    length: int = 1024
    batch: int = 8
    head_dim: int = 64
    d_state: int = 128
    d_inner: int = 0


# Mamba-2: config.json of state-spaces/mamba2-130m (d_model 768, expand 2, headdim 64, d_state 128,
# ngroups 1, d_conv 4, RMSNorm, residual in f32). Attention: flash-linear-attention's
# SimpleGatedLinearAttention, a decay of logsigmoid / 16, with RetNet's rotary positions. Hyena:
# LongSafari/hyenadna-tiny-1k-seqlen-d256 (d_inner 1024, emb_dim 5, filter_order 64, w 10).
FULL = {
    "mamba2": Config(d_model=768, layers=4),
    "gla": Config(d_model=512, layers=4, d_inner=1408),
    "hyena": Config(d_model=256, layers=2, d_inner=1024),
}
TINY = {
    "mamba2": Config(d_model=64, layers=1, length=80, batch=1, d_state=64),
    "gla": Config(d_model=64, layers=1, length=80, batch=1, head_dim=32, d_inner=64),
    "hyena": Config(d_model=16, layers=1, length=64, batch=1, d_inner=32),
}

# Step 1. The operators, twice. Tensors between them are of `dtype`, residuals and weights f32.


class Tilecat:
    """tilecat's operators, on bf16."""

    dtype = torch.bfloat16
    linear = staticmethod(tt.linear)
    cross_entropy = staticmethod(tt.cross_entropy)
    rotary = staticmethod(tt.apply_rotary_qk)

    @staticmethod
    def norm(x: Any, weight: Any, bias: Any, residual: Any, eps: float) -> tuple[Any, Any]:
        return tt.layer_norm_fn(  # type: ignore[no-any-return]
            x, weight, bias, residual, eps, prenorm=True, residual_in_fp32=True,
            is_rms_norm=bias is None,
        )  # fmt: skip

    @staticmethod
    def mamba(x: Any, dt: Any, a: Any, b: Any, c: Any, skip: Any, z: Any, bias: Any) -> Any:
        return tt.mamba_chunk_scan_combined(
            x, dt, a, b, c, 256, D=skip, z=z, dt_bias=bias, dt_softplus=True
        )

    @staticmethod
    def attend(q: Any, k: Any, v: Any, g: Any) -> Any:
        return tt.chunk_simple_gla(q, k, v, g)[0]

    @staticmethod
    def convolve(u: Any, k: Any, before: Any, after: Any) -> Any:
        return tt.FFTConv(2 * u.shape[-1], u.dtype)(u, k, before, after)


class PyTorch:
    """The same in PyTorch, computed in f32."""

    dtype = torch.bfloat16
    linear = staticmethod(F.linear)

    @staticmethod
    def cross_entropy(logits: Any, target: Any) -> Any:
        return F.cross_entropy(logits.float(), target)

    @staticmethod
    def rotary(q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
        def turned(x: Any) -> Any:
            a, b = x.float().chunk(2, -1)
            c, s = cos[:, None], sin[:, None]
            return torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype)

        return turned(q), turned(k)

    @staticmethod
    def norm(x: Any, weight: Any, bias: Any, residual: Any, eps: float) -> tuple[Any, Any]:
        total = x.float() if residual is None else x.float() + residual
        shape = total.shape[-1:]
        if bias is None:
            return F.rms_norm(total, shape, weight, eps).to(x.dtype), total
        return F.layer_norm(total, shape, weight, bias, eps).to(x.dtype), total

    @staticmethod
    def mamba(x: Any, dt: Any, a: Any, b: Any, c: Any, skip: Any, z: Any, bias: Any) -> Any:
        steps = F.softplus(dt.float() + bias)
        wide = x.float()
        y = decayed(c, b, wide * steps[..., None], steps * a) + skip[:, None] * wide
        return (y * F.silu(z.float())).to(x.dtype)

    @staticmethod
    def attend(q: Any, k: Any, v: Any, g: Any) -> Any:
        return (decayed(q, k, v.float(), g) * q.shape[-1] ** -0.5).to(v.dtype)

    @staticmethod
    def convolve(u: Any, k: Any, before: Any, after: Any) -> Any:
        length = u.shape[-1]
        spectra = (torch.fft.rfft(y, 2 * length) for y in (u.float() * before.float(), k.float()))
        y = torch.fft.irfft(math.prod(spectra), 2 * length)[..., :length]
        return (y * after.float()).to(u.dtype)


class PyTorchSingle(PyTorch):
    """The same with no tensor in bf16."""

    dtype = torch.float32


def decayed(q: Any, k: Any, v: Any, g: Any) -> Any:
    """`o_t = sum_(s <= t) exp(g_(s+1) + ... + g_t) (q_t k_s) v_s`, in f32, of all pairs at once.

    Args:
        q, k: B x T x groups x K; one group, or as many as heads.
        v: B x T x heads x V.
        g: B x T x heads.
    """
    sums = g.float().cumsum(1).transpose(1, 2)
    future = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).triu(1)
    decays = (sums[..., :, None] - sums[..., None, :]).masked_fill(future, -math.inf).exp()
    q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
    return ((q @ k.mT * decays) @ v).transpose(1, 2)


OPERATORS = {"tilecat": Tilecat, "torch": PyTorch, "torch f32": PyTorchSingle}

# Step 2. Layers, on B x T x d_model.


class Layer(nn.Module):
    """What layers share: operators, projections without a bias whose weights are cast for them."""

    def __init__(self, ops: Any, config: Config):
        super().__init__()
        self.ops, self.config = ops, config

    def project(self, x: Any, projection: nn.Linear) -> Any:
        return self.ops.linear(x, projection.weight.to(x.dtype))


def projection(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class ShortConv(nn.Module):
    """A causal filter of a few taps for each channel, of B x T x C."""

    def __init__(self, channels: int, taps: int):
        super().__init__()
        self.weight = nn.Parameter((torch.rand(taps, channels) * 2 - 1) * taps**-0.5)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Any) -> Any:
        taps, length = len(self.weight), x.shape[1]
        padded = F.pad(x, (0, 0, taps - 1, 0)).float()
        parts = (padded[:, i : i + length] * self.weight[i] for i in range(taps))
        return (sum(parts) + self.bias).to(x.dtype)


class Mamba2(Layer):
    """The block of Mamba-2: its scan gates the output, which is normalised then."""

    def __init__(self, ops: Any, config: Config):
        super().__init__(ops, config)
        inner = 2 * config.d_model
        heads = inner // config.head_dim
        self.sizes = inner, inner + 2 * config.d_state, heads
        self.into = projection(config.d_model, sum(self.sizes))
        self.conv = ShortConv(self.sizes[1], 4)
        self.a_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        dt = torch.exp(torch.rand(heads) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))  # softplus gives dt
        self.skip = nn.Parameter(torch.ones(heads))
        self.weight = nn.Parameter(torch.ones(inner))
        self.out = projection(inner, config.d_model)

    def forward(self, x: Any) -> Any:
        size = self.config.d_state
        z, mixed, dt = self.project(x, self.into).split(self.sizes, -1)
        mixed = F.silu(self.conv(mixed))
        values, b, c = mixed.split((self.sizes[0], size, size), -1)
        values, z = (y.unflatten(-1, (self.sizes[2], -1)) for y in (values, z))
        b, c = b[:, :, None], c[:, :, None]
        y = self.ops.mamba(values, dt, -self.a_log.exp(), b, c, self.skip, z, self.dt_bias)
        y, _ = self.ops.norm(y.flatten(2), self.weight, None, None, 1e-5)
        return self.project(y, self.out)


class GatedLinearAttention(Layer):
    """Linear attention with a decay of each head and token; the heads are normalised and gated."""

    def __init__(self, ops: Any, config: Config):
        super().__init__(ops, config)
        self.heads = config.d_model // config.head_dim
        self.into = projection(config.d_model, 4 * config.d_model)
        self.decay = nn.Linear(config.d_model, self.heads)
        self.weight = nn.Parameter(torch.ones(config.head_dim))
        self.out = projection(config.d_model, config.d_model)
        half = config.head_dim // 2
        angles = torch.arange(config.length)[:, None] * 1e4 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: Any) -> Any:
        q, k, v, gate = (
            y.unflatten(-1, (self.heads, -1)) for y in self.project(x, self.into).chunk(4, -1)
        )
        q, k = self.ops.rotary(q, k, self.cos, self.sin)
        g = F.logsigmoid(self.decay(x.float())) / 16
        o = self.ops.attend(q, k, v, g)
        o, _ = self.ops.norm(o, self.weight, None, None, 1e-5)
        return self.project((o * F.silu(gate)).flatten(2), self.out)


class SwiGLU(Layer):
    """`(silu(x G) (x U)) D`."""

    def __init__(self, ops: Any, config: Config):
        super().__init__(ops, config)
        self.into = projection(config.d_model, 2 * config.d_inner)
        self.out = projection(config.d_inner, config.d_model)

    def forward(self, x: Any) -> Any:
        gate, up = self.project(x, self.into).chunk(2, -1)
        return self.project(F.silu(gate) * up, self.out)


class Filter(nn.Module):
    """Hyena's implicit filter: an MLP of the position, under an exponential window; C x T."""

    def __init__(self, channels: int, length: int, width: int = 64, bands: int = 2):
        super().__init__()
        t = torch.linspace(0, 1, length)[:, None]
        phases = 2 * math.pi * torch.arange(length)[:, None] / length
        phases = phases * torch.linspace(1e-4, bands - 1, bands)
        self.register_buffer("positions", torch.cat((t, phases.cos(), -phases.sin()), 1))
        rates = torch.linspace(-math.log(1e-2) / 1.5, -math.log(1e-2) / 0.3, channels)
        self.register_buffer("window", torch.exp(-t * rates).T.contiguous())
        self.layers = nn.ModuleList(nn.Linear(n, width) for n in (1 + 2 * bands, width, width))
        self.frequencies = nn.Parameter(10 * torch.ones(width))
        self.out = projection(width, channels)
        self.direct = nn.Parameter(torch.randn(channels))  # of the input itself: at distance 0

    def forward(self) -> Any:
        x = self.positions
        for layer in self.layers:
            x = torch.sin(self.frequencies * layer(x))
        k = self.out(x).T * self.window
        return torch.cat((k[:, :1] + self.direct[:, None], k[:, 1:]), 1)


class Hyena(Layer):
    """Hyena's operator of order 2: two gates about a convolution as long as the sequence."""

    def __init__(self, ops: Any, config: Config):
        super().__init__(ops, config)
        self.into = projection(config.d_model, 3 * config.d_model)
        self.conv = ShortConv(3 * config.d_model, 3)
        self.filter = Filter(config.d_model, config.length)
        self.out = projection(config.d_model, config.d_model)

    def forward(self, x: Any) -> Any:
        parts = self.conv(self.project(x, self.into)).mT.chunk(3, 1)
        after, before, u = (part.contiguous() for part in parts)
        y = self.ops.convolve(u, self.filter(), before, after)
        return self.project(y.mT.contiguous(), self.out)


class Gelu(Layer):
    """`gelu(x U) D`."""

    def __init__(self, ops: Any, config: Config):
        super().__init__(ops, config)
        self.into = projection(config.d_model, config.d_inner)
        self.out = projection(config.d_inner, config.d_model)

    def forward(self, x: Any) -> Any:
        return self.project(F.gelu(self.project(x, self.into), approximate="tanh"), self.out)


class Stack(Layer):
    """Embedding, layers about a residual of f32, norm, and the embedding again for the logits."""

    def __init__(self, ops: Any, config: Config, kinds: tuple[Any, ...], rms: bool):
        super().__init__(ops, config)
        self.embedding = nn.Parameter(0.02 * torch.randn(VOCABULARY, config.d_model))
        self.layers = nn.ModuleList(
            kind(ops, config) for _ in range(config.layers) for kind in kinds
        )
        rows = len(self.layers) + 1
        self.weights = nn.ParameterList(torch.ones(config.d_model) for _ in range(rows))
        self.biases = nn.ParameterList(
            torch.zeros(config.d_model) for _ in range(0 if rms else rows)
        )

    def forward(self, tokens: Any) -> Any:
        """The mean loss of each next token."""
        x, residual = F.embedding(tokens[:, :-1], self.embedding).to(self.ops.dtype), None
        for i, weight in enumerate(self.weights):
            bias = self.biases[i] if self.biases else None
            x, residual = self.ops.norm(x, weight, bias, residual, 1e-5)
            if i < len(self.layers):
                x = self.layers[i](x)
        logits = self.ops.linear(x, self.embedding.to(x.dtype))
        return self.ops.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


MODELS = {
    "mamba2": ((Mamba2,), True),
    "gla": ((GatedLinearAttention, SwiGLU), True),
    "hyena": ((Hyena, Gelu), False),
}


def model_of(name: str, operators: str, tiny: bool, seed: int = 0) -> Stack:
    """A stack with its first weights, the same for all operators."""
    torch.manual_seed(seed)
    kinds, rms = MODELS[name]
    return Stack(OPERATORS[operators], (TINY if tiny else FULL)[name], kinds, rms)


# Step 3. One training.


def batches(config: Config, seed: int = 0) -> Iterator[Any]:
    """Tokens B x (T + 1), bytes of the package's source from random places."""
    paths = sorted(SOURCE.rglob("*.py"))
    text = torch.frombuffer(bytearray(b"\n".join(p.read_bytes() for p in paths)), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - config.length, (config.batch,), generator=generator)
        rows = [text[start : start + config.length + 1] for start in starts.tolist()]
        yield torch.stack(rows).long()


def train(name: str, operators: str, steps: int, device: str, seed: int) -> Run:
    """Trains a model from its first weights."""
    model = model_of(name, operators, device == "cpu", seed)
    given = batches(model.config, seed)
    return trained(model, model, given, steps=steps, rate=1e-3, device=device)


# Step 4. Runs side by side.


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, help="one of them; all if left out")
    parser.add_argument("--steps", type=int, help="50; on the CPU 2")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, help="where to write the losses")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        print("error: no CUDA GPU: --device cpu trains models of the PTX machine's size",
              file=sys.stderr)  # fmt: skip
        return 2
    steps = given.steps or (2 if given.device == "cpu" else 50)
    return compare(
        [given.model] if given.model else list(MODELS), tuple(OPERATORS),
        lambda name, kind: train(name, kind, steps, given.device, given.seed), given.json,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
