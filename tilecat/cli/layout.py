"""`tilecat layout`: which lane, register, byte and bank hold each element of a tile."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..dtypes import by_name
from ..layouts import RegisterLayout, SharedLayout, VectorLayout
from ..layouts.banks import NUM_BANKS, WARP, WORD_BYTES
from ..layouts.degrees import access_degrees
from ..layouts.shared import CHUNK_BYTES
from ..tiles import RegTileType, RegVecType, SharedTileType, SharedVecType, rt, rv, st, sv
from .app import console, main, make_table
from .layout_plot import draw

KINDS: dict[str, Any] = {"st": st, "sv": sv, "rt": rt, "rv": rv}
EXAMPLE = "'st[bf16, 64, 64]'"
WINDOW = 16
CHUNK_WINDOW = 8  # chunks of a line: 128 bytes
ELEMENTS = "abcdefgh"  # of one register, lowest bits first
HELP = """Where the elements of a tile lie: lanes and registers, or bytes, chunks and banks.

\b
TILE is a type as kernels write it:
  st[bf16, 64, 64]       a shared tile (st[bf16, 64, 64, col]: rows contiguous)
  sv[f32, 64]            a shared vector
  rt[f32, 64, 32]        a register tile (rt[bf16, 16, 16, col]: B of a warp's mma)
  rv[f32, 64]            a register vector (rv[f32, 64, col], rv[f32, 64, plain])

\b
A register tile prints `lane:register` for each element, with a, b, ... for the elements that share
a register, lowest bits first. A shared tile prints, for every 16 bytes, their first byte, chunk and
bank; under it the conflict degree of the usual accesses: wavefronts over the fewest possible, 1
without conflicts.

\b
Examples:
  tilecat layout 'st[bf16, 64, 64]'
  tilecat layout 'st[bf16, 64, 64]' --swizzle 0
  tilecat layout 'rt[f32, 64, 32]' --rows 16:32 --cols 0:8
  tilecat layout 'rt[bf16, 16, 16, col]' --png fragment.png
"""


class Window:
    """Rows and columns that are shown.

    Args:
        rows: first and end.
        cols: first and end.
    """

    def __init__(self, rows: tuple[int, int], cols: tuple[int, int]):
        self.rows = range(*rows)
        self.cols = range(*cols)


def tile_of(
    text: str, order: str | None = None, swizzle: int | None = None, warps: int | None = None
) -> Any:
    """The type that a text names, changed by the options.

    Raises:
        click.BadParameter: it names none.
        TileError: no such tile exists.
    """
    kind, items = _parts(text)
    if order is not None:
        items = [*items[: 2 if kind in ("sv", "rv") else 3], order]
    found = KINDS[kind][tuple(items)]
    if swizzle is not None:
        if not isinstance(found, SharedTileType):
            raise click.BadParameter("is for shared tiles", param_hint="--swizzle")
        found = SharedTileType(found.dtype, found.rows, found.cols, found.order, swizzle)
    if warps is not None:
        if not isinstance(found, RegTileType | RegVecType):
            raise click.BadParameter("is for register tiles and vectors", param_hint="--warps")
        found = found.held_by(warps)
    _ = found.layout
    return found


def _parts(text: str) -> tuple[str, list[Any]]:
    """`st`, and the items in its brackets."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        node = None
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
        raise click.BadParameter(f"no tile type: {text!r}; try {EXAMPLE}", param_hint="TILE")
    if node.value.id not in KINDS:
        raise click.BadParameter(
            f"no kind {node.value.id!r}; there are {', '.join(KINDS)}", param_hint="TILE"
        )
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return node.value.id, [_item(item, number) for number, item in enumerate(items)]


def _item(node: ast.expr, number: int) -> Any:
    if isinstance(node, ast.Name):
        return node.id if number else by_name(node.id)
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise click.BadParameter(f"no item {ast.unparse(node)!r}", param_hint="TILE") from error


def span(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    """`4:12` as (4, 12).

    Raises:
        click.BadParameter: not that.
    """
    if value is None:
        return None
    first, colon, end = value.partition(":")
    if not colon or not first.isdigit() or not end.isdigit() or int(first) >= int(end):
        raise click.BadParameter(f"FIRST:END is wanted, got {value!r}")
    return int(first), int(end)


def _window(kind: Any, rows: Any, cols: Any) -> Window:
    """What is shown: 16 rows and columns, of a shared tile's lines 128 bytes, or what is asked."""
    rows_total, cols_total = (*kind.shape, 1)[:2] if hasattr(kind, "shape") else (kind.length, 1)
    most = [WINDOW, WINDOW]
    if isinstance(kind, SharedTileType):
        most[kind.order == "row"] = CHUNK_WINDOW * CHUNK_BYTES // kind.dtype.nbytes
    elif isinstance(kind, RegVecType | SharedVecType):
        most[0] = rows_total
    spans = []
    given_spans = (("--rows", rows, rows_total), ("--cols", cols, cols_total))
    for (name, given, extent), limit in zip(given_spans, most, strict=True):
        first, end = given or (0, min(limit, extent))
        if first >= extent:
            raise click.BadParameter(f"the tile has {extent}, got {first}", param_hint=name)
        spans.append((first, min(end, extent)))
    return Window(*spans)


def register_cell(layout: RegisterLayout, row: int, col: int) -> str:
    """`5:3b` for lane 5 (of its warp), register 3, second element in it."""
    thread, index = layout.index_of(row, col)
    register, part = divmod(index, layout.elements_per_register)
    letter = ELEMENTS[part] if layout.elements_per_register > 1 else ""
    return f"{thread % WARP}:{register}{letter}"


def chunk_cell(layout: SharedLayout, line: int, start: int) -> str:
    """`432 c27 b12`: byte, chunk and first of the 4 banks of the 16 bytes at an element."""
    row, col = (line, start) if layout.order == "row" else (start, line)
    byte = int(layout.byte_offset(row, col))
    return f"{byte} c{byte // CHUNK_BYTES} b{byte // WORD_BYTES % NUM_BANKS}"


def _grid(out: Console, title: str, names: list[str], rows: list[tuple[str, ...]]) -> None:
    """A table as wide as it needs to be: nothing is cut."""
    table = make_table(title=title)
    table.padding = (0, 0, 0, 1)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for cells in rows:
        table.add_row(*cells)
    columns = zip(names, *rows, strict=True)
    wide = max(out.width, sum(2 + max(map(len, column)) for column in columns))
    Console(file=out.file, highlight=False, width=wide).print(table)


def _facts(out: Console, name: str, rows: list[tuple[str, str]]) -> None:
    out.print(Text(name, "bold"), soft_wrap=True)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 2))
    for key, value in rows:
        table.add_row(key, Text(value))
    out.print(table)
    out.print()


def show_shared(out: Console, kind: SharedTileType, window: Window) -> None:
    """Print a shared tile: its panels, bytes and banks, and conflict degrees."""
    layout = kind.layout
    along = "columns" if layout.order == "row" else "rows"
    swizzle = f"{layout.swizzle_bytes} bytes" if layout.swizzle_bytes else "none"
    each = f"{layout.num_lines} lines of {layout.pitch_bytes} bytes, {layout.panel_bytes:,} bytes"
    _facts(out, str(kind), [
        ("bytes", f"{layout.num_bytes:,}, from a multiple of {layout.alignment}"),
        ("swizzle", f"{swizzle}; {along} are contiguous"),
        ("panels", f"{layout.num_panels} of {layout.panel_elems} {along}: {each}"),
        ("chunk", f"byte // {CHUNK_BYTES}; bank: byte // {WORD_BYTES} mod {NUM_BANKS}"),
    ])  # fmt: skip
    line_name, lines, shown = "row", window.rows, window.cols
    if kind.order == "col":
        line_name, lines, shown = "col", window.cols, window.rows
    elems = CHUNK_BYTES // kind.dtype.nbytes
    starts = range(shown.start // elems * elems, shown.stop, elems)
    names = [line_name, *(f"{start}-{start + elems - 1}" for start in starts)]
    cells = [(str(i), *(chunk_cell(layout, i, start) for start in starts)) for i in lines]
    _grid(out, f"byte, chunk and first bank of every {elems} {along}", names, cells)
    right = ("bytes a lane", "wavefronts", "ideal", "conflict degree")
    table = make_table("access of a warp", title="conflict degrees", right=right)
    for item in access_degrees(layout):
        numbers = (item.width_bytes, item.wavefronts, item.ideal, f"{item.ways:g}-way")
        table.add_row(item.name, *map(str, numbers))
    out.print(table)


def show_registers(out: Console, kind: RegTileType, window: Window) -> None:
    """Print a register tile: who holds it, and lane and register of each element."""
    layout = kind.layout
    run = layout.fragment.run
    role = "accumulator, A operand" if layout.order == "row" else "B operand of a warp's mma"
    axis = "columns" if layout.order == "row" else "rows"
    per = layout.elements_per_register
    shared = f", {per} elements in one" if per > 1 else ""
    _facts(out, str(kind), [
        ("threads", f"{layout.threads} ({layout.warps} of {WARP} lanes)"),
        ("a thread", f"{layout.elements_per_thread} elements in {layout.registers_per_thread} "
                     f"32-bit registers{shared}"),
        ("fragment", f"{run} adjacent {axis} a lane; {kind.order} order: {role}"),
    ])  # fmt: skip
    names = ["row", *(["warp"] if layout.warps > 1 else []), *map(str, window.cols)]
    cells = []
    for row in window.rows:
        held = sorted({int(layout.index_of(row, col)[0]) // WARP for col in window.cols})
        label = [",".join(map(str, held))] if layout.warps > 1 else []
        cells.append((str(row), *label, *(register_cell(layout, row, c) for c in window.cols)))
    _grid(out, "lane:register of each element", names, cells)


def vector_rows(layout: VectorLayout) -> list[tuple[str, str, str]]:
    """(element, threads, register) of each value."""
    held: dict[int, dict[int, list[int]]] = {}
    for thread in range(layout.threads):
        for index in range(layout.elements_per_thread):
            position = int(layout.position(thread, index))
            if position < layout.length:
                held.setdefault(position, {}).setdefault(index, []).append(thread)
    return [
        (str(position), _ranges(threads), str(index))
        for position in sorted(held)
        for index, threads in held[position].items()
    ]


def _ranges(numbers: list[int]) -> str:
    """`0-3, 32` from [0, 1, 2, 3, 32]; `0, 4, ... 124` where they step."""
    steps = {b - a for a, b in zip(numbers, numbers[1:], strict=False)}
    if len(numbers) > 2 and len(steps) == 1 and steps != {1}:
        return f"{numbers[0]}, {numbers[1]}, ... {numbers[-1]}"
    parts, start = [], numbers[0]
    for a, b in zip(numbers, [*numbers[1:], -1], strict=True):
        if b != a + 1:
            parts.append(str(a) if a == start else f"{start}-{a}")
            start = b
    return ", ".join(parts)


def show_vector(out: Console, kind: RegVecType, rows: range) -> None:
    """Print a register vector: the threads that hold each value, and in which register."""
    layout = kind.layout
    _facts(out, str(kind), [
        ("threads", f"{layout.threads}, {layout.registers_per_thread} registers each"),
        ("layout", {"aligned": "aligned: with the rows of a tile, equal in the lanes of a quad",
                    "orthogonal": "orthogonal: with its columns, equal down the lanes and warps",
                    "plain": "plain: no copies"}[layout.kind]),
    ])  # fmt: skip
    table = make_table("element", "threads", "register", title="who holds each value")
    for position, threads, index in vector_rows(layout):
        if int(position) in rows:
            table.add_row(position, threads, index)
    out.print(table)


def show_shared_vector(out: Console, kind: SharedVecType, rows: range) -> None:
    """Print a shared vector: bytes and banks."""
    size = kind.dtype.nbytes
    _facts(out, str(kind), [("bytes", f"{kind.length * size:,}, in order")])
    table = make_table("element", title="bytes", right=("byte", "bank"))
    for position in rows:
        byte = position * size
        table.add_row(str(position), str(byte), str(byte // WORD_BYTES % NUM_BANKS))
    out.print(table)


def _picture(
    kind: Any, png: Path | None, svg: Path | None, rows: Any, cols: Any, out: Console
) -> None:
    for path in (png, svg):
        if path is None:
            continue
        if not isinstance(kind, SharedTileType | RegTileType):
            raise click.UsageError(f"pictures are of tiles, got the vector {kind}")
        draw(kind, path, rows, cols)
        out.print(Text(f"written: {path}"))


@main.command("layout", help=HELP, short_help="Lanes, registers, bytes and banks of a tile.")
@click.argument("tile")
@click.option("--order", type=click.Choice(("row", "col", "plain")), help="As in the brackets.")
@click.option("--swizzle", type=click.Choice(("128", "64", "32", "0")),
              help="Bytes; the widest that fits by default.")  # fmt: skip
@click.option("--warps", type=click.Choice(("1", "4")),
              help="A warp's registers, or a warpgroup's.")  # fmt: skip
@click.option("--rows", callback=span, metavar="FIRST:END", help=f"Shown; the first {WINDOW}.")
@click.option("--cols", callback=span, metavar="FIRST:END", help=f"Shown; the first {WINDOW}.")
@click.option("--png", type=click.Path(dir_okay=False, path_type=Path), help="Draw to a file.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Draw to a file.")
def layout_command(
    tile: str, order: str | None, swizzle: str | None, warps: str | None, rows: Any, cols: Any,
    png: Path | None, svg: Path | None,
) -> None:  # fmt: skip
    """Print a tile's layout, and draw it."""
    kind = tile_of(
        tile, order, None if swizzle is None else int(swizzle), int(warps) if warps else None
    )
    out = console()
    if isinstance(kind, SharedTileType):
        show_shared(out, kind, _window(kind, rows, cols))
    elif isinstance(kind, RegTileType):
        show_registers(out, kind, _window(kind, rows, cols))
    else:
        shown = _window(kind, rows, None).rows
        show = show_vector if isinstance(kind, RegVecType) else show_shared_vector
        show(out, kind, shown)  # type: ignore[operator]
    _picture(kind, png, svg, rows, cols, out)
