"""Cases of register-order tiles: through shared and global memory, summed, and as they lie."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
from memory_cases import MemoryCase, numbers, zeros

import tilecat as tc
from tilecat import f16, f32, gl, rt, rv, sv, u32
from tilecat.dtypes import by_name


def fragment(rows: int, cols: int) -> np.ndarray:
    """Element of a row-major 32-bit tile that value 4 (i * 128 + t) + j of its register order is.

    PTX ISA 9.7.15.5.1.1, the accumulator of wgmma: warp w holds rows 16 w to 16 w + 15 of each 64;
    lane l rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next one, of every 8.
    """
    four, thread, one = np.indices((rows * cols // 512, 128, 4))
    register = 4 * four + one
    warp, lane = thread // 32, thread % 32
    block, inside = register // (cols // 2), register % (cols // 2)
    row = 64 * block + 16 * warp + lane // 4 + 8 * (inside // 2 % 2)
    col = 8 * (inside // 4) + 2 * (lane % 4) + inside % 2
    return (row * cols + col).ravel()


def through(dtype: str, rows: int, cols: int, space: str, order: str, scope: str) -> MemoryCase:
    """A tile goes to memory and comes back as it was."""
    kind, of = by_name(dtype), rt[by_name(dtype), rows, cols, order]
    words = by_name(dtype) if by_name(dtype).bits == 32 else u32
    length = rows * cols * kind.bits // 32
    warps = 4 if scope == "warp" else 1

    def goes(X: gl[kind, "M", "N"], G: tc.inout[words, "B", length], Y: gl[kind, "M", "N"]):
        with tc.warpgroup(), tc.warps() if scope == "warp" else nullcontext():
            at = tc.warp_id() if scope == "warp" else 0
            rooms = tc.shared(sv[words, length], warps) if space == "shared" else None
            plain = rv[words, length, "plain", 4]
            room = G[at, 0] if rooms is None else rooms[at]
            tc.store(room, tc.register_order(tc.load(X[at, 0], of)))
            tc.sync()
            back = tc.from_register_order(tc.load(room, plain), of)
            tc.store(room, tc.full(plain, 0))
            tc.store(Y[at, 0], tc.cast(back + back, kind))

    def arrays() -> dict[str, Any]:
        shape = (warps * rows, cols)
        return {"X": numbers(shape, dtype), "G": zeros((warps, length), words.name),
                "Y": zeros(shape, dtype)}  # fmt: skip

    name = f"register order {space} {dtype} {rows}x{cols} {order} {scope}"
    return MemoryCase(name, tc.kernel(goes), arrays,
                      lambda a: {"Y": (2 * a["X"].astype("f8")).astype(a["X"].dtype)})  # fmt: skip


@tc.kernel
def lies(X: gl[f32, 128, 64], Y: gl[f32, 128 * 64]):
    with tc.warpgroup():
        tc.store(Y[0], tc.register_order(tc.load(X[0, 0], rt[f32, 128, 64])))


@tc.kernel
def sums(X: gl[f32, "M", 64], G: tc.inout[f32, "B", 4096]):
    """All CTAs add their tiles into two blocks: one by bulk copies, one by atomics."""
    with tc.warpgroup():
        room = tc.shared(sv[f32, 4096])
        flat = tc.register_order(tc.load(X[tc.cta_id(), 0], rt[f32, 64, 64]))
        tc.store(room, flat)
        tc.sync()
        tc.store_bulk(G.at(0, 0), room, add_=True)
        tc.atomic_add(G[1, 0], flat)
        tc.store_wait(read=False)


def summed() -> MemoryCase:
    def expected(a: dict[str, Any]) -> dict[str, Any]:
        whole = a["X"].reshape(3, 4096).sum(0)[fragment(64, 64)]
        return {"G": np.stack([whole, whole])}

    return MemoryCase(
        "register order sums", sums,
        lambda: {"X": numbers((192, 64), "f32"), "G": zeros((2, 4096), "f32")}, expected, grid=3,
    )  # fmt: skip


@tc.kernel
def packs(X: gl[f16, 4096], Y: gl[f16, 64, 64]):
    with tc.warpgroup():
        packed = tc.load(X[0], rv[f16, 4096, "plain", 8])
        tc.store(Y[0, 0], tc.from_register_order(packed, rt[f16, 64, 64]))


def packing() -> MemoryCase:
    """Elements of 16 bits, 8 of a thread in a run: two of its runs of four 32-bit ones."""

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        order = fragment(64, 64).reshape(4, 2, 128, 4).swapaxes(1, 2).ravel()
        return {"Y": a["X"][np.argsort(order)].reshape(64, 64)}

    return MemoryCase(
        "register order packed", packs,
        lambda: {"X": numbers((4096,), "f16"), "Y": zeros((64, 64), "f16")}, expected,
    )  # fmt: skip


def lying() -> MemoryCase:
    return MemoryCase(
        "register order lies", lies,
        lambda: {"X": numbers((128, 64), "f32"), "Y": zeros((8192,), "f32")},
        lambda a: {"Y": a["X"].ravel()[fragment(128, 64)]},
    )  # fmt: skip


CASES = (
    *(through(d, 64, 64, space, o, "warpgroup") for d in ("f32", "s32", "bf16")
      for space in ("shared", "global") for o in ("row", "col")),
    *(through(d, 16, 32, space, "row", "warp") for d in ("f32", "f16")
      for space in ("shared", "global")),
    through("e4m3", 64, 64, "shared", "row", "warpgroup"),
    through("f32", 128, 32, "shared", "row", "warpgroup"),
    lying(), summed(), packing(),
)  # fmt: skip
