"""What a kernel's prints, assertions and limited waits wrote, as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..addresses import DebugSite
from ..codegen.module import PtxModule
from ..dtypes import DType
from ..ops.debug import HEADER
from ..tiles import RegTileType, RegVecType

BUFFER_WORDS = 1 << 20
MAX_ERRORS = 3  # of a launch that are shown
_SHOWN = {"threshold": 1024, "edgeitems": 4, "linewidth": 120, "precision": 5}


@dataclass(frozen=True)
class Record:
    """One record: its site, who wrote it, and its words."""

    site: DebugSite
    number: int
    cta: int
    thread: int
    words: np.ndarray


def prepare(buffer: np.ndarray) -> None:
    """Makes a buffer ready for a launch."""
    buffer[:HEADER] = (0, len(buffer), 0, 0)


def records(module: PtxModule, buffer: np.ndarray) -> Iterator[Record]:
    """The records of a launch that fit, in the order of their claims."""
    at, end = HEADER, min(int(buffer[0]) + HEADER, len(buffer))
    while at + HEADER <= end:
        number, cta, thread, words = (int(word) for word in buffer[at : at + HEADER])
        first = at + HEADER
        if not 1 <= number <= len(module.sites) or first + words > len(buffer):
            return
        yield Record(module.sites[number - 1], number, cta, thread, buffer[first : first + words])
        at = first + words


def text_of(module: PtxModule, buffer: np.ndarray) -> tuple[str, list[str]]:
    """What a launch printed, and its errors: assertions that failed, waits that ran out."""
    lines: list[str] = []
    errors: list[str] = []
    pending: dict[tuple[int, int, int, int], list[Record]] = {}
    counts: dict[tuple[int, int, int], int] = {}
    for record in records(module, buffer):
        if record.site.kind != "print":
            errors.append(_error(record))
            continue
        warps = getattr(record.site.type, "warps", 1)
        warp = (record.number, record.cta, record.thread // 32)
        turn = counts[warp] = counts.get(warp, 0) + 1
        key = (record.number, record.cta, record.thread // (32 * warps), turn)
        group = pending.setdefault(key, [])
        group.append(record)
        if not isinstance(record.site.type, RegTileType | RegVecType) or len(group) == warps:
            lines.append(_printed(pending.pop(key)))
    lost = int(buffer[0]) + HEADER - len(buffer)
    if lost > 0:
        lines.append(f"... and {4 * lost} bytes of output that did not fit the buffer")
    return "\n".join(lines), list(dict.fromkeys(errors))[:MAX_ERRORS]


def _error(record: Record) -> str:
    site = record.site
    what = (
        f"waited in vain for mbarrier {site.text}"
        if site.kind == "wait"
        else f"device_assert: {site.text or 'is false'}"
    )
    return f"{what}, got CTA {record.cta}, warp {record.thread // 32}\n  --> {site.loc}"


def _printed(group: list[Record]) -> str:
    first = group[0]
    site, kind = first.site, first.site.type
    who = f"thread {first.thread}"
    if isinstance(kind, RegTileType | RegVecType):
        name = "warpgroup" if kind.warps == 4 else "warp"
        who = f"{name} {first.thread // (32 * kind.warps)}"
    head = f"{site.text}: " if site.text else ""
    with np.printoptions(**_SHOWN):  # type: ignore[arg-type]
        shown = str(_value(group))
    gap = "\n" if "\n" in shown else " "
    line = site.loc.line if site.loc else "?"
    return f"[CTA {first.cta}, {who}, line {line}] {head}{kind}{gap}{shown}"


def _value(group: list[Record]) -> np.ndarray | float | int | bool:
    kind = group[0].site.type
    if not isinstance(kind, RegTileType | RegVecType):
        word, dtype = group[0].words[:1], kind.dtype
        return bool(word[0]) if dtype.name == "pred" else _elements(word, dtype)[0]
    out = np.zeros(kind.shape if isinstance(kind, RegTileType) else kind.length, kind.dtype.numpy)
    for record in group:
        registers = record.words.reshape(-1, 32)
        thread = 32 * (record.thread // 32 % kind.warps) + np.arange(32)
        for index, register in enumerate(registers):
            parts = _elements(register, kind.dtype).reshape(32, -1)
            for part in range(parts.shape[1]):
                element = index * parts.shape[1] + part
                if isinstance(kind, RegTileType):
                    out[kind.layout.row_col(thread, element)] = parts[:, part]
                else:
                    place = kind.layout.position(thread, element)
                    inside = place < kind.length
                    out[place[inside]] = parts[inside, part]
    return out


def _elements(words: np.ndarray, dtype: DType) -> np.ndarray:
    return np.ascontiguousarray(words).view(dtype.numpy)
