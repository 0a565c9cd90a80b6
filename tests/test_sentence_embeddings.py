"""The real-input example: its reference against published numbers, and every way it can end."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import reference

PATH = Path(__file__).resolve().parents[1] / "examples" / "sentence_embeddings.py"
SPEC = importlib.util.spec_from_file_location("sentence_embeddings", PATH)
example = sys.modules["sentence_embeddings"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)

F16, BF16 = example.DTYPES["f16"], example.DTYPES["bf16"]
ALL_SENTENCES = tuple(dict.fromkeys(name for pair in example.PUBLISHED for name in pair))
MISSING = [n for n in example.INSTALL if importlib.util.find_spec(n.split(".")[0]) is None]
needs_weights = pytest.mark.skipif(
    bool(MISSING), reason="; ".join(example.INSTALL[name] for name in MISSING)
)


class RoundedProducts:
    """What a kernel does to numbers, in NumPy: 16-bit operands and results, float32 sums."""

    def __init__(self, dtype):
        self.dtype, self.calls, self.shapes = dtype, 0, []

    def round(self, x):
        return x.astype(self.dtype).astype(np.float32)

    def prepare(self, matrix):
        return self.round(matrix)

    def matmul(self, x, prepared):
        self.calls += 1
        self.shapes.append((x.shape[0], prepared.shape[1], x.shape[1]))
        return self.round(self.round(x) @ prepared)

    def attention(self, q, k, v):
        self.calls += 1
        self.shapes.append(q.shape)
        q, k, v = self.round(q), self.round(k), self.round(v)
        scores = q @ k.swapaxes(2, 3) / np.float32(math.sqrt(q.shape[3]))
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(axis=3, keepdims=True))
        return self.round(self.round(weights) @ v / weights.sum(axis=3, keepdims=True))


class BrokenProducts(RoundedProducts):
    """A product that spoils one element of its result."""

    def __init__(self, value):
        super().__init__(F16)
        self.value = value

    def matmul(self, x, prepared):
        out = super().matmul(x, prepared)
        out[0, 0] = self.value
        return out


class Words:
    """A tokenizer that numbers a sentence's words by their length."""

    def encode(self, sentence):
        ids = [1, *(10 + len(word) for word in sentence.split()), 2]
        return type("Encoding", (), {"ids": ids})


def random_weights():
    """Weights of the model's shapes, small enough a vocabulary."""
    generator = np.random.default_rng(0)

    def normal(*shape):
        return generator.standard_normal(shape).astype(np.float32) / math.sqrt(shape[-1])

    weights = {f"embeddings.{name}_embeddings.weight": normal(100, 384) for name in
               ("word", "position", "token_type")}  # fmt: skip
    norms = ["embeddings.LayerNorm"]
    for layer in range(example.LAYERS):
        name = f"encoder.layer.{layer}."
        norms += [f"{name}attention.output.LayerNorm", f"{name}output.LayerNorm"]
        shapes = {f"attention.self.{part}": (384, 384) for part in ("query", "key", "value")}
        shapes |= {"attention.output.dense": (384, 384)}
        shapes |= {"intermediate.dense": (1536, 384), "output.dense": (384, 1536)}
        for part, shape in shapes.items():
            weights[f"{name}{part}.weight"] = normal(*shape)
            weights[f"{name}{part}.bias"] = normal(shape[0])
    for name in norms:
        weights |= {f"{name}.weight": 1 + normal(384), f"{name}.bias": normal(384)}
    return weights


@pytest.fixture
def random_model(monkeypatch):
    """The example with random weights in place of the package's."""
    weights = random_weights()
    monkeypatch.setattr(example, "load_model", lambda: (weights, Words()))
    return weights


@needs_weights
def test_reference_agrees_with_every_published_similarity():
    weights, tokenizer = example.load_model()
    batch = example.tokenize(ALL_SENTENCES, tokenizer)
    embeddings = example.encode(batch, weights, example.NumpyProducts()).astype(float)
    found = embeddings @ embeddings.T
    for (one, other), published in example.PUBLISHED.items():
        value = found[ALL_SENTENCES.index(one), ALL_SENTENCES.index(other)]
        assert abs(value - published) < 0.5e-4 + 1e-6, (one, other, value, published)


@needs_weights
@pytest.mark.parametrize(("dtype", "loss"), [(F16, 1e-6), (BF16, 5e-5)], ids=["f16", "bf16"])
def test_rounded_products_keep_the_cosine(dtype, loss):
    comparison = example.compare(ALL_SENTENCES, RoundedProducts(dtype))
    assert comparison.passed
    assert np.all(comparison.cosines > 1 - loss)
    assert np.abs(comparison.similarities - comparison.expected).max() < 200 * loss + 5e-4


@needs_weights
def test_truncates_long_sentences_and_keeps_special_tokens():
    _, tokenizer = example.load_model()
    batch = example.tokenize(["word " * 1000, "a"], tokenizer)
    (_, short), (_, long) = batch.groups
    assert (short.shape, long.shape) == ((1, 3), (1, example.MAX_TOKENS))
    assert batch.tokens[short[0]].tolist() == [101, 1037, 102]


@needs_weights
def test_main_prints_the_table_and_passes(capsys):
    assert example.main(["--device", "cpu"], RoundedProducts(F16)) == 0
    out = capsys.readouterr().out
    assert "0.8939" in out and "6 sentences, 46 tokens" in out


def test_products_are_batched_and_attention_is_by_length(random_model):
    products = RoundedProducts(F16)
    comparison = example.compare(["a b c", "one two", "two one", "x"], products)
    assert comparison.num_tokens == 5 + 4 + 4 + 3
    layer = [(16, 1152, 384), (1, 12, 3, 32), (2, 12, 4, 32), (1, 12, 5, 32),
             (16, 384, 384), (16, 1536, 384), (16, 384, 1536)]  # fmt: skip
    assert products.shapes == layer * 6 + [(4, 4, 384)]


def test_sentences_do_not_see_each_other(random_model):
    sentences = ["a bb ccc", "dddd a", "ccc bb a", "a", "bb"]
    together = example.compare(sentences, RoundedProducts(F16)).expected
    for i, j in [(0, 2), (1, 3), (3, 4)]:
        pair = example.compare([sentences[i], sentences[j]], RoundedProducts(F16)).expected
        np.testing.assert_allclose(pair[0, 1], together[i, j], atol=1e-5)


def test_model_agrees_with_float64_written_apart(random_model):
    batch = example.tokenize(["a bb ccc dddd"], Words())
    actual = example.encode(batch, random_model, example.NumpyProducts())
    w = {name: array.astype(np.float64) for name, array in random_model.items()}

    def norm(x, name):
        return (x - x.mean(1)[:, None]) / x.std(1)[:, None] * w[f"{name}.weight"] + w[
            f"{name}.bias"
        ]

    def dense(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    ids = batch.tokens
    x = (
        w["embeddings.word_embeddings.weight"][ids]
        + w["embeddings.token_type_embeddings.weight"][0]
    )
    x = norm(x + w["embeddings.position_embeddings.weight"][: len(ids)], "embeddings.LayerNorm")
    for name in (f"encoder.layer.{layer}" for layer in range(6)):
        q, k, v = (
            dense(x, f"{name}.attention.self.{part}").reshape(1, -1, 12, 32).swapaxes(1, 2)
            for part in ("query", "key", "value")
        )
        heads = reference.attention(q, k, v)[0].value.swapaxes(1, 2).reshape(-1, 384)
        x = x + dense(heads, f"{name}.attention.output.dense")
        x = norm(x, f"{name}.attention.output.LayerNorm")
        hidden = dense(x, f"{name}.intermediate.dense")
        hidden = [[y / 2 * math.erfc(-y / math.sqrt(2)) for y in row] for row in hidden]
        x = norm(x + dense(np.array(hidden), f"{name}.output.dense"), f"{name}.output.LayerNorm")
    mean = x.mean(axis=0)
    np.testing.assert_allclose(actual[0], mean / math.sqrt(mean @ mean), atol=1e-5)


@pytest.mark.parametrize("value", [1e4, math.nan, math.inf])
def test_main_fails_under_the_cosine(random_model, capsys, value):
    assert example.main(["--device", "cpu", "--sentence", "a bb"], BrokenProducts(value)) == 1
    assert "error: a cosine is under 0.999" in capsys.readouterr().err


def test_own_sentences_replace_the_list(random_model, capsys):
    arguments = ["--device", "cpu", "--sentence", "same words", "--sentence", "same words"]
    assert example.main(arguments, RoundedProducts(F16)) == 0
    out = capsys.readouterr().out
    assert "2 sentences, 8 tokens" in out and "1.0000" in out


def test_square_brackets_in_a_sentence_are_text(random_model, capsys):
    arguments = ["--device", "cpu", "--sentence", "[red] x [/]", "--sentence", "b"]
    assert example.main(arguments, RoundedProducts(F16)) == 0
    assert "[red] x [/]" in capsys.readouterr().out


@pytest.mark.parametrize("name", list(example.INSTALL))
def test_main_says_what_to_install(monkeypatch, capsys, name):
    for other in MISSING:
        monkeypatch.setitem(sys.modules, other, type(sys)(other))
    monkeypatch.setitem(sys.modules, name, None)
    assert example.main(["--device", "cpu"], RoundedProducts(F16)) == 1
    error = capsys.readouterr().err
    assert f"the package {name} is missing" in error
    assert example.INSTALL[name] in error


@needs_weights
def test_main_says_that_the_weights_file_is_broken(monkeypatch, capsys, tmp_path):
    package = type(sys)(example.PACKAGE)
    package.__file__ = str(tmp_path / "__init__.py")
    monkeypatch.setitem(sys.modules, example.PACKAGE, package)
    assert example.main(["--device", "cpu"], RoundedProducts(F16)) == 1
    assert "cannot read the weights" in capsys.readouterr().err


def test_cuda_without_a_gpu_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(example, "torch", None)
    assert example.main(["--device", "cuda"]) == 1
    assert "PyTorch is not installed; use --device cpu" in capsys.readouterr().err
    assert example.choose_device(None) == "cpu"


def test_no_sentence_is_an_error():
    with pytest.raises(example.DemoError, match="there is no sentence"):
        example.compare([], RoundedProducts(F16))


@pytest.mark.parametrize(("name", "loss"), [("f16", 1e-6), ("bf16", 5e-5)])
def test_tilecat_products_in_the_machine(random_model, monkeypatch, name, loss):
    monkeypatch.setattr(example, "LAYERS", 1)
    products = example.TilecatProducts(example.DTYPES[name])
    comparison = example.compare(["a bb ccc dddd eeeee", "a bb", "bb a"], products)
    assert comparison.calls == 4 + 2 + 1  # products of a layer, lengths, similarities
    assert np.all(comparison.cosines > 1 - loss)
    np.testing.assert_allclose(comparison.similarities, comparison.expected, atol=0.01)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "loss"), [("f16", 1e-6), ("bf16", 5e-5)])
def test_tilecat_products_on_a_gpu(random_model, name, loss):
    products = example.TilecatProducts(example.DTYPES[name], example.choose_device("cuda"))
    comparison = example.compare(["a bb ccc " * 30, "a bb", "bb a"], products)
    assert np.all(comparison.cosines > 1 - loss)
    np.testing.assert_allclose(comparison.similarities, comparison.expected, atol=0.01)


@needs_weights
@pytest.mark.slow
def test_real_weights_in_the_machine(capsys):
    assert example.main(["--device", "cpu", "--sentence", "It's so sunny outside!"]) == 0
    assert "1 sentence, 9 tokens, 31 tilecat operators in f16" in capsys.readouterr().out
