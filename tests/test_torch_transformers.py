"""Models of transformers with `attn_implementation="tilecat"`."""

from __future__ import annotations

import importlib
import sys

import pytest

torch = pytest.importorskip("torch")

from tilecat.errors import LayoutError  # noqa: E402


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


def bert(hugging_face, implementation: str):
    config = hugging_face.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        vocab_size=99, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
        attn_implementation=implementation,
    )  # fmt: skip
    torch.manual_seed(1)
    return hugging_face.BertModel(config).to(torch.bfloat16)


def test_an_encoder_gives_what_sdpa_gives(hugging_face):
    tokens = torch.randint(0, 99, (1, 24), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ours, theirs = (bert(hugging_face, name)(tokens)[0] for name in ("tilecat", "sdpa"))
    assert (ours - theirs).abs().max() <= 2**-5 * theirs.abs().max()


def test_options_that_change_the_result_are_refused(hugging_face):
    interface = sys.modules["tilecat.torch.transformers"].attention_interface
    q = torch.zeros(1, 1, 16, 32, dtype=torch.bfloat16)
    with pytest.raises(LayoutError, match="output_attentions=bool"):
        interface(None, q, q, q, None, is_causal=False, output_attentions=True)
    with pytest.raises(LayoutError, match="dropout_p=0.5"):
        interface(None, q, q, q, None, dropout=0.5, is_causal=False)
