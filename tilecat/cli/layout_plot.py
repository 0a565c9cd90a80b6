"""Pictures of layouts: register tiles by lane, shared tiles beside the memory they lie in."""

from __future__ import annotations

import colorsys
from pathlib import Path
from typing import Any

from ..errors import ResourceError
from ..layouts import RegisterLayout, SharedLayout
from ..layouts.banks import NUM_BANKS, WARP, WORD_BYTES
from ..layouts.shared import CHUNK_BYTES, LINE_BYTES
from ..tiles import RegTileType, SharedTileType

CELL = 0.42  # inches
MAX_CELLS = 64  # along an axis
CHUNKS = LINE_BYTES // CHUNK_BYTES
DEFAULT_LINES = 16  # two swizzle patterns
DPI = 150


def _figure(width: float, height: float) -> Any:
    """A figure of its own, without a window.

    Raises:
        ResourceError: no matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ResourceError(
            "layout: pictures need matplotlib, which is not installed",
            hint="pip install 'tilecat[plot]'",
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def _color(number: int, count: int, *, light: float = 0.78) -> tuple[float, float, float]:
    """One of `count` hues; neighbours in lightness too."""
    return colorsys.hls_to_rgb(number / count, light - 0.07 * (number % 2), 0.72)


def _axes(figure: Any, place: Any, title: str, rows: list[str], cols: list[str]) -> Any:
    axes = figure.add_subplot(place)
    axes.set_title(title, fontsize=10, loc="left", pad=8)
    axes.set_xlim(0, len(cols))
    axes.set_ylim(len(rows), 0)
    axes.set_aspect("equal" if len(cols) > CHUNKS else "auto")
    axes.set_xticks([i + 0.5 for i in range(len(cols))], cols, fontsize=6.5)
    axes.set_yticks([i + 0.5 for i in range(len(rows))], rows, fontsize=6.5)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes


def _cell(axes: Any, x: int, y: int, color: Any, text: str, size: float = 6.5) -> None:
    axes.add_patch(_rectangle(x, y, color))
    axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=size, color="#202020")


def _rectangle(x: int, y: int, color: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 1, 1, facecolor=color, edgecolor="white", linewidth=0.8)


def _span(given: tuple[int, int] | None, extent: int, most: int) -> range:
    first, end = given or (0, min(extent, most))
    return range(first, min(end, extent, first + MAX_CELLS))


def draw(
    kind: SharedTileType | RegTileType,
    path: Path,
    rows: tuple[int, int] | None = None,
    cols: tuple[int, int] | None = None,
) -> None:
    """Draws a tile to a PNG or SVG file, as its name ends.

    Args:
        kind: a shared or register tile.
        path: where.
        rows: first and end of the rows drawn; at most 64.
        cols: the same for columns.

    Raises:
        ResourceError: matplotlib is not installed.
    """
    if isinstance(kind, RegTileType):
        figure = _registers(kind, _span(rows, kind.rows, 32), _span(cols, kind.cols, 32))
    else:
        figure = _shared(kind, rows if kind.order == "row" else cols)
    figure.savefig(path, dpi=DPI)


def _registers(kind: RegTileType, rows: range, cols: range) -> Any:
    """One square an element: the lane by colour, lane and register in words."""
    layout: RegisterLayout = kind.layout
    figure = _figure(CELL * len(cols) + 1.3, CELL * len(rows) + 1.5)
    per, several = layout.elements_per_register, layout.warps > 1
    title = f"{kind}: lane over register" + (f" ({'abcd'[:per]} share one)" if per > 1 else "")
    labels = [f"{r} w{_warp(layout, r, cols[0])}" if several else str(r) for r in rows]
    axes = _axes(figure, 111, title, labels, [str(c) for c in cols])
    for y, row in enumerate(rows):
        for x, col in enumerate(cols):
            thread, index = layout.index_of(row, col)
            lane, (register, part) = thread % WARP, divmod(index, per)
            letter = "abcdefgh"[part] if per > 1 else ""
            _cell(axes, x, y, _color(lane, WARP), f"{lane}\nr{register}{letter}")
    axes.set_xlabel("column of the tile; colour: lane", fontsize=8)
    axes.set_ylabel("row of the tile" + (", and its warp" if several else ""), fontsize=8)
    return figure


def _warp(layout: RegisterLayout, row: int, col: int) -> int:
    return int(layout.index_of(row, col)[0]) // WARP


def _shared(kind: SharedTileType, lines: tuple[int, int] | None) -> Any:
    """The tile in 16-byte chunks, coloured by banks; and the memory, 128 bytes a line."""
    layout: SharedLayout = kind.layout
    shown = _span(lines, layout.num_lines, DEFAULT_LINES)
    elems = CHUNK_BYTES // layout.dtype.nbytes
    starts = list(range(0, layout.contiguous, elems))[: MAX_CELLS // 2]
    memory = [_chunk(layout, line, start) for line in shown for start in starts]
    where = sorted({chunk // CHUNKS for chunk in memory})
    height = CELL * max(len(shown), len(where)) + 1.7
    figure = _figure(0.75 * (len(starts) + CHUNKS) + 2.4, height)
    grid = figure.add_gridspec(1, 2, width_ratios=(len(starts), CHUNKS))
    swizzle = f"swizzle {layout.swizzle_bytes}" if layout.swizzle_bytes else "no swizzle"
    line_name, elem_name = ("row", "columns") if kind.order == "row" else ("column", "rows")
    _tile_side(figure, grid[0], layout, shown, starts,
               (f"{kind}, {swizzle}: chunk, and its banks", line_name, elem_name))  # fmt: skip
    _memory_side(figure, grid[1], layout, where, (shown, starts, line_name, elem_name[:-1]))
    return figure


def _chunk(layout: SharedLayout, line: int, start: int) -> int:
    """Number of the 16-byte chunk that holds an element of a line."""
    row, col = (line, start) if layout.order == "row" else (start, line)
    return int(layout.byte_offset(row, col)) // CHUNK_BYTES


def _tile_side(
    figure: Any, place: Any, layout: SharedLayout, shown: range, starts: list[int], words: Any
) -> None:
    title, line_name, elem_name = words
    elems = CHUNK_BYTES // layout.dtype.nbytes
    cols = [f"{start}-{start + elems - 1}" for start in starts]
    axes = _axes(figure, place, title, [str(line) for line in shown], cols)
    for y, line in enumerate(shown):
        for x, start in enumerate(starts):
            chunk = _chunk(layout, line, start)
            bank = chunk * CHUNK_BYTES // WORD_BYTES % NUM_BANKS
            text = f"{chunk}\nb{bank}-{bank + CHUNK_BYTES // WORD_BYTES - 1}"
            _cell(axes, x, y, _color(chunk % CHUNKS, CHUNKS), text)
    for x in range(0, len(starts), max(layout.panel_elems // elems, 1))[1:]:
        axes.axvline(x, color="#404040", linewidth=1.6)
    axes.set_xlabel(f"{elem_name} of the tile, a 16-byte chunk each; dark lines: panels",
                    fontsize=8)  # fmt: skip
    axes.set_ylabel(f"{line_name} of the tile", fontsize=8)


def _memory_side(
    figure: Any, place: Any, layout: SharedLayout, where: list[int], words: Any
) -> None:
    shown, starts, line_name, elem_name = words
    held = {_chunk(layout, line, start): (line, start) for line in shown for start in starts}
    banks = NUM_BANKS // CHUNKS
    cols = [f"b{banks * i}-{banks * i + banks - 1}" for i in range(CHUNKS)]
    rows = [str(line * LINE_BYTES) for line in where]
    axes = _axes(
        figure,
        place,
        f"memory: {line_name} and first {elem_name} that each chunk holds",
        rows,
        cols,
    )
    for y, line in enumerate(where):
        for x in range(CHUNKS):
            found = held.get(line * CHUNKS + x)
            color = (0.94, 0.94, 0.94) if found is None else _color(found[0] % 8, 8)
            text = "" if found is None else f"{line_name[0]}{found[0]}\n{elem_name[0]}{found[1]}"
            _cell(axes, x, y, color, text)
    axes.set_xlabel("banks", fontsize=8)
    axes.set_ylabel("byte of the tile, 128 a line", fontsize=8)
