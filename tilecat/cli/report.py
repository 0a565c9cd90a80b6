"""What one compiled kernel is: roles, rings, shared memory, registers, mma, bank conflicts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..addresses import AddressTable
from ..check import GlobalMove, TileAccess, global_moves, shared_accesses
from ..codegen.module import PtxModule
from ..driver import Compiled
from ..errors import Loc, ResourceError
from ..runtime import cache
from ..sim import Result
from .app import make_table

_MMA = re.compile(r"^\s*(?:@!?%?\w+\s+)?((?:wgmma\.mma_async|tcgen05\.mma|mma\.sync)[\w.:]*)", re.M)


def mma_counts(ptx: str) -> Counter[str]:
    """How often each matrix instruction stands in a PTX text."""
    return Counter(_MMA.findall(ptx))


def _grouped(names: list[str]) -> Iterator[tuple[str, int]]:
    """`full[0]`, `full[1]` as (`full`, 2), in order."""
    return iter(Counter(name.partition("[")[0] for name in names).items())


def tile_lines(table: AddressTable) -> list[str]:
    """Shared tiles by name: how many, in how many stages, of what."""
    rows = {str(row.name).partition("[")[0]: row for row in table.shared}
    lines = []
    for name, count in _grouped([row.name for row in table.shared]):
        row = rows[name]
        stages = len({r.stage for r in table.shared if r.name.partition("[")[0] == name})
        many = f"{stages} stages of {count // stages}" if row.stage is not None else f"{count}"
        each = f"{row.dtype} {row.rows}x{row.cols}, {row.num_bytes:,} bytes"
        lines.append(f"{name}: {many} x {each}")
    return lines


def barrier_lines(table: AddressTable) -> list[str]:
    """Mbarriers by name: how many, arrivals and bytes a phase."""
    rows = {row.name.partition("[")[0]: row for row in table.barriers}
    lines = []
    for name, count in _grouped([row.name for row in table.barriers]):
        row = rows[name]
        size = f", {row.expected_bytes:,} bytes" if row.expected_bytes else ""
        lines.append(f"{name}: {count} x {row.count} arrivals{size}")
    return lines


def save_ptx(module: PtxModule, name: str) -> Path:
    """Write a kernel's text beside the cache, where it can be read; its path."""
    folder = cache.folder() / "ptx"
    path = folder / f"{name}.{module.target}.ptx"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(module.text, encoding="utf-8")
    return path


def register_line(compiled: Compiled) -> str:
    """Registers and spills, or why nobody knows them here."""
    try:
        used = compiled.resources
    except ResourceError as error:
        return f"unknown: {error.message}"
    return f"{used.registers} a thread at launch, {used.spill_bytes} bytes spilled"


def facts(compiled: Compiled) -> list[tuple[str, str]]:
    """What can be said of a kernel without running it, line by line."""
    module = compiled.module
    roles = [f"{r.name}: threads {r.first} to {r.last}" for r in module.table.roles]
    mma = [f"{count} x {name}" for name, count in mma_counts(module.text).items()]
    return [
        ("target", f"{module.target}, {module.threads} threads, cluster of {module.cluster}"),
        ("roles", "\n".join(roles) or "all threads alike"),
        ("tiles", "\n".join(tile_lines(module.table)) or "none"),
        ("barriers", "\n".join(barrier_lines(module.table)) or "none"),
        ("shared", f"{module.smem_bytes:,} bytes a CTA"),
        ("registers", register_line(compiled)),
        ("mma", "\n".join(mma) or "none"),
    ]


def access_rows(accesses: Sequence[TileAccess]) -> list[tuple[str, ...]]:
    """Accesses of threads to shared tiles, equal ones together.

    Each: op, its line, the shared tile, its line, the other side, instructions, width, degree.
    """
    rows: Counter[tuple[str, ...]] = Counter()
    for access in accesses:
        names = Counter(request.instruction for request in access.requests)
        many = ", ".join(f"{count} {name}" for name, count in names.items())
        tile = access.name or "of a peer"
        degree = f"{access.ways:g}-way"
        rows[
            access.op, _place(access.loc), tile, _place(access.made), access.other, many,
            str(access.width_bytes), degree,
        ] += 1  # fmt: skip
    return [(f"{count} x {op}" if count > 1 else op, *rest) for (op, *rest), count in rows.items()]


def _place(loc: Loc | None) -> str:
    return "" if loc is None else _short(f"{loc.file}:{loc.line}")


def access_table(accesses: Sequence[TileAccess]) -> Table:
    """The same as a table."""
    title = "accesses of threads to shared memory, from the layouts alone"
    names = ("op", "line", "tile", "made", "other side", "a warp")
    table = make_table(*names, title=title, right=("bytes", "conflicts"))
    for row in access_rows(accesses):
        table.add_row(*map(Text, row))
    return table


def move_table(moves: Sequence[GlobalMove]) -> Table:
    """Moves between registers and tensors, equal ones together."""
    title = "accesses of threads to global memory, where a tile is wholly inside"
    names = ("op", "line", "tensor", "registers")
    table = make_table(*names, title=title, right=("a thread", "bytes", "at edges"))
    for move, count in Counter(moves).items():
        op = f"{count} x {move.op}" if count > 1 else move.op
        numbers = (str(move.count), str(move.width_bytes), str(move.edge_bytes))
        table.add_row(*map(Text, (op, _place(move.loc), move.tensor, move.registers, *numbers)))
    return table


def conflict_lines(results: Sequence[Result]) -> list[str]:
    """Bank conflicts of each shared-memory access of some runs, by the user's line."""
    worst: dict[tuple[str, str], float] = {}
    for result in results:
        for row in result.conflicts:
            key = (row.text.split()[0], str(row.source or f"PTX line {row.line}"))
            worst[key] = max(worst.get(key, 0), row.wavefronts / row.ideal)
    return [
        f"{name} at {_short(where)}: {ways:g}-way" for (name, where), ways in sorted(worst.items())
    ]


def _short(where: str) -> str:
    """A source position without its folders."""
    return where.replace("\\", "/").rsplit("/", 1)[-1]


def show(
    out: Console,
    name: str,
    compiled: Compiled,
    results: Sequence[Result] = (),
    path: Path | None = None,
) -> None:
    """Print a kernel's facts.

    Args:
        out: where.
        name: the kernel's.
        compiled: one specialisation.
        results: runs on the PTX machine, for the bank conflicts.
        path: where its PTX was saved.
    """
    out.print(Text(name, "bold"), soft_wrap=True)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 2))
    for key, value in facts(compiled):
        table.add_row(key, Text(value))
    if results:
        lines = conflict_lines(results)
        table.add_row("banks", Text("\n".join(lines) or "no access to shared memory by threads"))
    if path is not None:
        table.add_row("ptx", Text(str(path)))
    out.print(table)
    accesses = shared_accesses(compiled.kernel)
    if accesses:
        out.print(access_table(accesses))
    moves = global_moves(compiled.kernel)
    if moves:
        out.print(move_table(moves))
