"""Winners of the tuner: those in the user's cache, before those that the package ships."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import ResourceError
from .runtime import cache, deferred

SHIPPED = Path(__file__).parent / "kernels" / "tuned"


@dataclass(frozen=True)
class Winner:
    """The fastest configuration of a product that was measured.

    Args:
        dtype: of A and B.
        layout: of A and B, as of a `gemm_choice.Problem`.
        m, n, depth: extents, K in units of 2 bytes.
        params: of the kernel.
    """

    dtype: str
    layout: str
    m: int
    n: int
    depth: int
    params: dict[str, int]


Version = tuple[str | None, int]
_changes = 0  # that this process made to the user's winners


def version() -> Version:
    """What winners depend on: the user's folder, and what was put there."""
    return os.environ.get(cache.FOLDER_VARIABLE), _changes


def measured(sms: int) -> tuple[Winner, ...]:
    """Winners of 16-bit products for a GPU with as many SMs; the user's own first."""
    return _measured(sms, version())


def keep(found: dict[str, Any]) -> Path:
    """Puts winners into the user's cache, in place of older ones of the same products.

    Args:
        found: as `tilecat.tune.winners.winners` makes them.

    Returns:
        the file.

    Raises:
        ResourceError: it cannot be written.
    """
    name = found["environment"]["device"].lower().removeprefix("nvidia ")
    device = re.sub(r"[^a-z0-9]+", "-", name)
    path = folder() / f"{found['kernel']}-{found['target']}-{device}.json"
    facts = {"dtype": found["dtype"], "environment": found["environment"]}
    new = [{**row, **facts} for row in found["problems"]]
    with deferred.assembler().locked(folder(), "winners"):
        every = (*_rows(path), *new)
        rows = {(row["environment"]["sms"], *_name(row)): row for row in every}
        beside = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps({"problems": list(rows.values())}, indent=1), "utf-8")
            beside.replace(path)
        except OSError as error:
            raise ResourceError(
                f"tune: winners are kept in {path.parent}, which cannot be written "
                f"({error.strerror})",
                hint=f"set {cache.FOLDER_VARIABLE} to a folder that can",
            ) from error
    forget()
    return path


def folder() -> Path:
    """Where the user's winners are."""
    return cache.folder() / "tuned"


def forget() -> None:
    """Has the user's winners read anew: another process may have found some."""
    global _changes
    _changes += 1


@lru_cache(maxsize=16)
def _measured(sms: int, version: Version) -> tuple[Winner, ...]:
    return (*_winners(_kept(), sms), *_winners(_shipped(), sms))


def _kept() -> Iterator[dict[str, Any]]:
    for path in sorted(folder().glob("matmul-*.json")):
        yield from _rows(path)


def _rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a file of the user's; none of one that is damaged."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["problems"]
        for row in rows:
            _name(row), row["params"], row["environment"]["sms"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return list(rows)


def _shipped() -> Iterator[dict[str, Any]]:
    for path in sorted(SHIPPED.glob("matmul-*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        for row in data["problems"]:
            yield {**row, "dtype": data["dtype"], "environment": data["environment"]}


def _name(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["dtype"], row["layout"], *(row["extents"][axis] for axis in "MNK")


def _winners(rows: Iterator[dict[str, Any]], sms: int) -> Iterator[Winner]:
    for row in rows:
        if row["environment"]["sms"] == sms:
            dtype, layout, m, n, depth = _name(row)
            yield Winner(dtype, layout, m, n, depth, row["params"])
