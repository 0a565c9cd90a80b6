"""Models of transformers with `attn_implementation="tilecat"`."""

from __future__ import annotations

import importlib
import sys

import pytest

torch = pytest.importorskip("torch")

from torch_exact import close, exact, heads  # noqa: E402

from tilecat.errors import LayoutError  # noqa: E402

TOKENS = 24


def test_without_transformers_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "tilecat.torch.transformers", raising=False)
    with pytest.raises(ImportError, match="pip install transformers"):
        importlib.import_module("tilecat.torch.transformers")


@pytest.fixture
def hugging_face():
    """transformers, with tilecat's attention registered."""
    transformers = pytest.importorskip("transformers")
    importlib.import_module("tilecat.torch.transformers").register()
    return transformers


def model(hugging_face, kind: str, implementation: str, **options):
    common = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 99,
        "intermediate_size": 64, "attn_implementation": implementation, **options,
    }  # fmt: skip
    if kind == "Bert":
        common |= {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    config = getattr(hugging_face, f"{kind}Config")(**common)
    torch.manual_seed(1)
    return getattr(hugging_face, f"{kind}Model")(config).to(torch.bfloat16)


def outputs_and_gradients(model, tokens, **inputs):
    out = model(tokens, **inputs)[0]
    # Not the squares of outputs, whose sum a last norm makes a constant.
    (out.float() * heads(*out.shape, dtype=torch.float32)).mean().backward()
    return out, [x.grad for x in model.parameters() if x.grad is not None]


def tokens(batch: int = 1):
    return torch.randint(0, 99, (batch, TOKENS), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Bert", {}),
        ("Llama", {"num_key_value_heads": 1}),
        ("Gemma2", {"num_key_value_heads": 1, "head_dim": 32, "sliding_window": 8}),
        ("Mistral", {"num_key_value_heads": 2, "sliding_window": 8}),
    ],
    ids=["encoder", "decoder", "soft cap", "window"],
)
def test_a_model_gives_and_learns_what_it_does_with_eager_attention(hugging_face, kind, options):
    found = [
        outputs_and_gradients(model(hugging_face, kind, name, **options), tokens())
        for name in ("tilecat", "eager")
    ]
    (ours, mine), (theirs, other) = found
    close(ours, theirs, 2.0**-6)
    assert len(mine) == len(other)
    for got, expected in zip(mine, other, strict=True):
        error, norm = (got.double() - expected.double()).norm(), expected.double().norm()
        # The gradient of a key's bias is 0 but for rounding: softmax knows no common shift.
        assert error <= 2.0**-4 * norm or norm < 1e-3, f"{error:.3g} of {norm:.3g}"


@pytest.mark.parametrize("kind", ["Bert", "Llama"])
def test_padding_is_not_seen(hugging_face, kind):
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[1, TOKENS // 2 :] = 0
    with torch.no_grad():
        ours, theirs = (
            model(hugging_face, kind, name)(tokens(2), attention_mask=mask)[0]
            for name in ("tilecat", "eager")
        )
    for entry, length in enumerate((TOKENS, TOKENS // 2)):
        close(ours[entry, :length], theirs[entry, :length], 2.0**-6)


@pytest.mark.filterwarnings("ignore:`past_key_values`")
def test_generation_reads_a_cache(hugging_face):
    hugging_face.set_seed(0)
    config = hugging_face.LlamaConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=99, intermediate_size=64,
    )  # fmt: skip
    found = []
    for name in ("tilecat", "eager"):
        config._attn_implementation = name
        torch.manual_seed(1)
        decoder = hugging_face.LlamaForCausalLM(config).to(torch.bfloat16).eval()
        with torch.no_grad():
            first = decoder(tokens(), use_cache=True)
            last = decoder(tokens()[:, :1], past_key_values=first.past_key_values)
        found.append(last.logits)
    close(*found, 2.0**-6)


def test_sinks_soft_cap_and_position_bias_reach_the_kernel(hugging_face):
    interface = sys.modules["tilecat.torch.transformers"].attention_interface
    q, sinks, bias = heads(1, 2, 16, 32), heads(2), heads(1, 2, 16, 16)
    out, weights = interface(
        None, q, q, q, None, is_causal=False, s_aux=sinks, position_bias=bias, sliding_window=None
    )
    assert weights is None
    close(out.transpose(1, 2), exact(q, q, q, added=bias, sinks=sinks))


def test_options_that_change_the_result_are_refused(hugging_face):
    interface = sys.modules["tilecat.torch.transformers"].attention_interface
    q = heads(1, 1, 16, 32)
    with pytest.raises(LayoutError, match="output_attentions=bool"):
        interface(None, q, q, q, None, is_causal=False, output_attentions=True)
    with pytest.raises(LayoutError, match="dropout is 0"):
        interface(None, q, q, q, None, dropout=0.5, is_causal=False)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_a_sliding_window_is_the_kernels_own_unless_there_is_padding(
    hugging_face, monkeypatch, padded
):
    ours = sys.modules["tilecat.torch.transformers"]
    given, run = [], ours.attention

    def attention(*args, **options):
        given.append(options)
        return run(*args, **options)

    monkeypatch.setattr(ours, "attention", attention)
    mask = torch.ones(1, TOKENS, dtype=torch.long)
    mask[:, : 3 * padded] = 0
    options = {"num_key_value_heads": 2, "sliding_window": 8, "num_hidden_layers": 1}
    out, other = (
        model(hugging_face, "Mistral", name, **options)(tokens(), attention_mask=mask)[0]
        for name in ("tilecat", "eager")
    )
    close(out[:, 3 * padded :], other[:, 3 * padded :], 2.0**-6)
    (options,) = given
    assert options.get("window") == (None if padded else (7, None))
    assert ("mask_mod" in options) == padded
