"""Attention over caches beside a copy of as many bytes, and packed batches beside equal lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..attention_call import attention
from ..attention_decode_call import attention_decode
from ..errors import TileError
from ..kernels import Shape
from ..kernels.spec import rounding
from .attention import SPEC, exact
from .session import Session, Task

ITEM_BYTES = 2  # bf16
PACKED = (16, 16, 2048, 128)  # sequences, heads, tokens of each, columns


@dataclass(frozen=True)
class Decoding:
    """A step of decoding: one query of 32 heads for each sequence.

    Args:
        batch, groups, keys: sequences, heads of keys, cached tokens of each sequence.
        page: rows of a page; 0: caches of whole sequences.
        uneven: whether sequences have a quarter of the tokens to all of them.
    """

    batch: int
    groups: int
    keys: int
    page: int = 0
    uneven: bool = False

    @property
    def shape(self) -> Shape:
        """Its extents, and how the row is called."""
        name = f"B{self.batch} Hkv{self.groups} N{self.keys}" + f" page {self.page}" * bool(
            self.page
        )
        items = {"B": self.batch, "H": 32, "Hkv": self.groups, "Lq": 1, "Lk": self.keys, "D": 128}
        return Shape(name + " uneven" * self.uneven, tuple(items.items()), "decode")


DECODINGS = (
    *(Decoding(batch, 8, keys) for keys in (8192, 32768, 131072) for batch in (16, 64)),
    *(Decoding(batch, 1, keys) for keys in (8192, 32768, 131072) for batch in (16, 64)),
    *(Decoding(64, 8, 8192, page) for page in (16, 64, 256)), Decoding(16, 1, 131072, 64),
    Decoding(64, 8, 16384, uneven=True), Decoding(64, 8, 16384, 64, uneven=True),
)  # fmt: skip


def decode_tasks() -> list[Task]:
    """Steps of decoding beside a copy that moves as many bytes: the ratio is of its rate."""
    return [
        Task("decode", one.shape.name, partial(_decode, one),
             0.2 + one.batch * one.groups * one.keys / 2e7)
        for one in DECODINGS
    ]  # fmt: skip


def varlen_tasks() -> list[Task]:
    """Packed sequences beside the same ones as a batch: equal lengths, equal work."""
    return [
        Task("varlen", "16 of 2048" + " causal" * causal, partial(_varlen, causal))
        for causal in (False, True)
    ]


def _decode(one: Decoding, session: Session) -> dict[str, Any]:
    torch, shape = session.torch, one.shape
    extents, options = shape.extents, {"device": "cuda", "dtype": session.torch.bfloat16}
    q = torch.randn(one.batch, 1, extents["H"], extents["D"], **options)
    rows = (one.batch, one.keys) if not one.page else (one.batch * one.keys // one.page, one.page)
    k, v = (torch.randn(*rows, one.groups, extents["D"], **options) for _ in range(2))
    lengths = torch.full((one.batch,), one.keys, device="cuda", dtype=torch.int32)
    if one.uneven:
        lengths = torch.linspace(one.keys // 4, one.keys, one.batch, device="cuda").int()
        lengths = lengths[torch.randperm(one.batch, device="cuda")].contiguous()
    table = None
    if one.page:
        table = torch.randperm(rows[0], device="cuda").int().view(one.batch, -1)
    run = partial(attention_decode, q, k, v, cache_seqlens=lengths, block_table=table)
    tokens = int(lengths.sum())
    num_bytes = tokens * one.groups * extents["D"] * 2 * ITEM_BYTES
    source, to = k.view(-1)[: num_bytes // 4], torch.empty(num_bytes // 4, **options)
    functions: dict[str, Callable[[], Any]] = {"tilecat": run, "copy": lambda: to.copy_(source)}
    error = _check_decode(torch, q, k, v, lengths, table, run())
    spec = replace(
        SPEC, flops=lambda x: 4 * x["H"] * x["D"] * tokens, num_bytes=lambda *_: num_bytes
    )
    found = {"shape": shape.name, "extents": extents, "error": error, "tokens": tokens}
    return found | session.compare(functions, spec, shape)


def _check_decode(
    torch: Any, q: Any, k: Any, v: Any, lengths: Any, table: Any, out: Any
) -> float:  # fmt: skip
    """Worst relative error of the first and the last sequence's first and last head.

    Raises:
        TileError: over the rounding of bf16, or NaN.
    """
    worst, group = 0.0, q.shape[2] // k.shape[2]
    for entry, head in ((0, 0), (q.shape[0] - 1, q.shape[2] - 1)):
        length = int(lengths[entry])
        keys, values = (
            (x[entry] if table is None else x[table[entry].long()].flatten(0, 1))[:length]
            for x in (k[:, :, head // group], v[:, :, head // group])
        )
        wanted = exact(torch, q[entry, :, head], keys, values)
        got = out[entry, :, head].double()
        worst = max(worst, float((got - wanted).norm() / wanted.norm()))
    if not worst <= rounding("bf16") or bool(torch.isnan(out).any()):
        raise TileError(f"bench: wrong result, got ||O - exact|| / ||exact|| = {worst:.3g}")
    return worst


def _varlen(causal: bool, session: Session) -> dict[str, Any]:
    torch = session.torch
    batch, heads, length, dim = PACKED
    packed = [torch.randn(batch * length, heads, dim, device="cuda", dtype=torch.bfloat16)
              for _ in range(3)]  # fmt: skip
    whole = [x.view(batch, length, heads, dim).transpose(1, 2) for x in packed]
    starts = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * length
    functions: dict[str, Callable[[], Any]] = {
        "tilecat": partial(attention, *packed, causal=causal, cu_seqlens_q=starts,
                           cu_seqlens_k=starts),
        "equal lengths": partial(attention, *whole, causal=causal),
    }  # fmt: skip
    out, wanted = functions["tilecat"](), functions["equal lengths"]()
    wanted = wanted.transpose(1, 2).reshape(out.shape)
    error = float((out.double() - wanted.double()).norm() / wanted.double().norm())
    if not error <= rounding("bf16"):
        raise TileError(f"bench: packed and equal lengths differ by {error:.3g}")
    items = {"B": batch, "H": heads, "Hkv": heads, "Lq": length, "Lk": length, "D": dim}
    shape = Shape(f"D{dim} B{batch} N{length}", tuple(items.items()), "varlen")
    spec = replace(SPEC, flops=lambda extents: SPEC.flops(extents) // (1 + causal))
    found = {"shape": shape.name, "extents": shape.extents, "causal": causal, "error": error}
    return found | session.compare(functions, spec, shape)
