"""Inverse of a unit lower triangular 64 x 64 matrix by the four warps of a warpgroup, in blocks.

With N = -(strictly lower part), X_w the inverse of warp w's diagonal block of 16 rows and T the
inverse of the whole:

    T[1,0] = (X_1 N[1,0]) X_0               T[3,2] = (X_3 N[3,2]) X_2
    T[2:,:2] = (T[2:,2:] N[2:,:2]) T[:2,:2]

A diagonal block is solved by substitution in f32, a lane a column, whose rows are read from shared
memory by all lanes at once: a row costs its chain one multiply-add. Products are of warps
(`mma.sync`), of bf16 parts of f32: a = a_0 + a_1 + .., a b = the sum of all a_i b_j with
i + j < parts. What is A of one is the accumulator of another; what is B of one was transposed
(`movmatrix`) by the warp that made it, and left in shared memory where another warp needs it.

    warp 0   solve X_0, leave it       |                               |
    warp 1   solve X_1, leave it, H    | T[1,0] = H X_0, leave it      |
    warp 2   solve X_2, leave it, G, leave N[2,:2]                     | T[2,:2] = G T[:2,:2]
    warp 3   solve X_3, H, G           | T[3,2] = H X_2, G += T[3,2] N[2,:2] | T[3,:2] = G T[:2,:2]

with H = X_w N[w,w-1] and G = X_w N[w,:2]; a bar is a barrier of the warpgroup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..ir import SharedRequest
from ..layouts.banks import bank_conflicts, ideal_wavefronts
from ..ptx import instructions as ptx

BLOCK = 16  # rows of a warp
HELD = 8  # elements of a block that a lane holds, as an accumulator or as A
ROW_WORDS = 24  # of a row in shared memory: no bank conflict, of columns alone and of pairs
ROW_BYTES = 4 * ROW_WORDS
PART_BYTES = BLOCK // 2 * ROW_BYTES  # of a block's bf16 part: a row has two rows of the block
AREAS = 6  # of blocks in shared memory: one a warp, and those of N[2,:2]
OF_N = 4  # the first of the latter
OF_T10 = 3  # where T[1,0] lies: warp 3 needs its area no longer

Registers = Sequence[str]
Parts = list[list[str]]  # by part, registers of packed pairs


def scratch_bytes(parts: int) -> int:
    """Shared memory of a warpgroup: a block in f32 takes as much as two parts."""
    return AREAS * area_bytes(parts)


def area_bytes(parts: int) -> int:
    """Of a block."""
    return PART_BYTES * max(parts, 2)


def requests() -> tuple[SharedRequest, ...]:
    """The kinds of access to shared memory."""
    lane = np.arange(32)
    group, quad = lane // 4, lane % 4
    column = lane % BLOCK * 4 + lane // BLOCK * 2 * ROW_BYTES
    kinds = (
        ("st.shared", 8, group * ROW_BYTES + 8 * quad),
        ("ld.shared", 16, np.zeros(32, int)),
        ("st.shared", 4, column),
        ("ld.shared", 8, group * ROW_BYTES + 8 * quad),
        ("st.shared", 4, quad * ROW_BYTES + 4 * group),
        ("ld.shared", 4, quad * ROW_BYTES + 4 * group),
    )
    return tuple(
        SharedRequest(
            name, width, bank_conflicts(at, width), ideal_wavefronts(len(set(at.tolist())), width)
        )
        for name, width, at in kinds
    )  # fmt: skip


class BlockSolver:
    """Emits it.

    Args:
        w: the writer.
        a, x: registers of the tile and of the result, 8 a block of 16 columns.
        base: register with the address of the scratch.
        parts: of bf16 that an f32 is cut into.
    """

    def __init__(self, w: Any, a: Registers, x: Registers, base: str, parts: int):
        self.w, self.a, self.x, self.base, self.parts = w, a, x, base, parts
        self.area = area_bytes(parts)

    def emit(self) -> None:
        """The whole."""
        w = self.w
        self._addresses()
        own = self._solve()
        head = self._zeros(HELD)  # H, then the block left of the diagonal one in warps 1 and 3
        sums = [self._zeros(HELD) for _ in range(2)]  # G
        own_parts = self._split(own)
        with self._warps("odd"):
            left = self._chosen([(1, self.block(0)), (3, self.block(2))])
            self._multiply(head, own_parts, self._turned(left))
        with self._warps("high"):
            for number in range(2):
                right = self._turned(self.block(number))
                with self._warps(2):
                    self._leave(OF_N + number, right)
                self._multiply(sums[number], own_parts, right)
        w.sync_warpgroup()
        with self._warps("odd"):
            before = self._split(head)
            self._clear(head)
            at = w.new("b32", "before")
            w.line(ptx.alu("sub.u32", at, self.own_words, self.area))
            self._multiply(head, before, self._found(0, at))
            with self._warps(1):
                self._leave(OF_T10, self._turned(head, negative=False))
            with self._warps(3):
                made = self._split(head)
                for number in range(2):
                    self._multiply(sums[number], made, self._found(OF_N + number))
        w.sync_warpgroup()
        low = [self._zeros(HELD) for _ in range(2)]
        with self._warps("high"):
            first, second = (self._split(x) for x in sums)
            self._multiply(low[0], first, self._found(0))
            self._multiply(low[0], second, self._found(OF_T10))
            self._multiply(low[1], second, self._found(1))
        w.sync_warpgroup()
        self._results(own, head, low)

    def _results(self, own: Registers, head: Registers, low: list[list[str]]) -> None:
        """Each warp's row of blocks: below the diagonal, on it, and zero above."""
        zero = [ptx.f32_literal(0.0)] * HELD
        first, second, last = (self._is(warp) for warp in (0, 1, 3))
        high = self._bit(1)
        self._give(0, low[0], (head, second), (own, first))
        self._give(1, low[1], (own, second), (zero, first))
        self._give(2, zero, (own, high), (head, last))
        self._give(3, zero, (own, last))

    def _give(self, number: int, held: Registers, *others: tuple[Registers, str]) -> None:
        """A block of the result: the last of the others whose condition holds, or `held`."""
        for block, test in others:
            made = [self.w.new("f32", "block") for _ in range(HELD)]
            for target, value, other in zip(made, block, held, strict=True):
                self.w.line(ptx.alu("selp.f32", target, value, other, test))
            held = made
        for target, value in zip(self.x[HELD * number :], held, strict=False):
            self.w.line(ptx.alu("mov.f32", target, value))

    # ---- places

    def block(self, number: int) -> Registers:
        """Registers of the tile's block of columns."""
        return self.a[HELD * number : HELD * number + HELD]

    def _addresses(self) -> None:
        """Of the warp's own area: of pairs of an accumulator, of a lane's column, of words."""
        w, lane, warp = self.w, self.w.lane(), self.w.warp()
        self.own, self.column = w.new("b32", "area"), w.new("b32", "column")
        w.line(ptx.alu("mad.lo.u32", self.own, warp, self.area, self.base))
        w.line(ptx.alu("and.b32", self.column, lane, BLOCK - 1))
        self.group, self.quad = w.new("b32", "group"), w.new("b32", "quad")
        w.line(ptx.alu("shr.u32", self.group, lane, 2))
        w.line(ptx.alu("and.b32", self.quad, lane, 3))
        self.pairs = self._offset(self.own, self.group, ROW_BYTES, self.quad, 8)
        side = w.new("b32", "side")
        w.line(ptx.alu("shr.u32", side, lane, 4))
        self.down = self._offset(self.own, self.column, 4, side, 2 * ROW_BYTES)
        self.second = w.new("pred", "second")
        w.line(ptx.alu("setp.ne.u32", self.second, side, 0))
        self.word = self._offset(self.base, self.quad, ROW_BYTES, self.group, 4)
        self.own_words = self._offset(self.word, warp, self.area)

    def _offset(self, base: str, *terms: Any) -> str:
        """`base + register * factor + ...`."""
        for register, factor in zip(terms[::2], terms[1::2], strict=True):
            made = self.w.new("b32", "at")
            self.w.line(ptx.alu("mad.lo.u32", made, register, factor, base))
            base = made
        return base

    def _is(self, warp: int) -> str:
        test: str = self.w.local(
            ("is warp", warp), "pred", "mine",
            lambda r: self.w.line(ptx.alu("setp.eq.u32", r, self.w.warp(), warp)),
        )  # fmt: skip
        return test

    def _bit(self, bit: int) -> str:
        def build(test: str) -> None:
            part = self.w.new("b32", "bit")
            self.w.line(ptx.alu("and.b32", part, self.w.warp(), 1 << bit))
            self.w.line(ptx.alu("setp.ne.u32", test, part, 0))

        test: str = self.w.local(("warp bit", bit), "pred", "mine", build)
        return test

    @contextmanager
    def _warps(self, which: Any) -> Iterator[None]:
        """Code of some warps: one by number, "odd" ones, "high" ones (2 and 3)."""
        w, end = self.w, self.w.label("warps")
        bits = {"odd": 0, "high": 1}
        test = self._bit(bits[which]) if which in bits else self._is(which)
        w.line(f"@!{test} {ptx.bra(end)}")
        with w.nested():
            yield
        w.mark(end)

    # ---- the diagonal block

    def _chosen(self, blocks: list[tuple[int, Registers]]) -> list[str]:
        """Registers of the block of this warp, among those of some warps."""
        held = list(blocks[-1][1])
        for warp, block in blocks[:-1]:
            for index, register in enumerate(block):
                chosen = self.w.new("f32", "chosen")
                test = self._is(warp)
                self.w.line(ptx.alu("selp.f32", chosen, register, held[index], test))
                held[index] = chosen
        return held

    def _solve(self) -> list[str]:
        """X of the warp's diagonal block, as an accumulator; its parts lie in shared memory."""
        w = self.w
        block = self._chosen([(warp, self.block(warp)) for warp in range(4)])
        self._move("st", block)
        w.line(ptx.bar_warp_sync())
        x = self._substitute()
        w.line(ptx.bar_warp_sync())
        for row, value in self._shared_out(x, 1):
            w.line(ptx.st_shared("f32", f"{self.down}+{row * ROW_BYTES}", value[0]))
        w.line(ptx.bar_warp_sync())
        own = [w.new("f32", "own") for _ in range(HELD)]
        self._move("ld", own)
        w.line(ptx.bar_warp_sync())
        pairs = self._shared_out(x, 2)
        for part, words in enumerate(self._split([x for _, pair in pairs for x in pair])):
            for (pair, _), word in zip(pairs, words, strict=True):
                at = f"{self.down}+{part * PART_BYTES + pair * ROW_BYTES}"
                w.line(ptx.st_shared("b32", at, word))
        return own

    def _shared_out(self, x: Registers, size: int) -> list[tuple[int, list[str]]]:
        """What a lane stores of a column that two lanes hold: rows (or pairs) 0 1 4 5 .., or 2 on.

        Two rows of shared memory apart, the halves of a warp meet no bank of each other.
        """
        found = []
        for first in range(0, BLOCK // size, 4):
            for row in (first, first + 1):
                values = []
                for e in range(size):
                    values.append(self.w.new("f32", "mine"))
                    far, near = (x[size * r + e] for r in (row + 2, row))
                    self.w.line(ptx.alu("selp.f32", values[-1], far, near, self.second))
                found.append((row, values))
        return found

    def _move(self, what: str, block: Registers) -> None:
        """An accumulator's block from or to the warp's area, in f32."""
        for step in range(2):
            for half in range(2):
                pair = ptx.vector(block[4 * step + 2 * half : 4 * step + 2 * half + 2])
                at = f"{self.pairs}+{8 * half * ROW_BYTES + 32 * step}"
                line = ptx.st_shared("v2.f32", at, pair)
                self.w.line(line if what == "st" else ptx.ld_shared("v2.f32", pair, at))

    def _substitute(self) -> list[str]:
        """The lane's column of X, from row to row."""
        w = self.w
        solved: list[str] = []
        negative: list[str] = []
        one, zero = ptx.f32_literal(1.0), ptx.f32_literal(0.0)
        for row in range(BLOCK):
            x, test = w.new("f32", "x"), w.new("pred", "diagonal")
            w.line(ptx.alu("setp.eq.u32", test, self.column, row))
            w.line(ptx.alu("selp.f32", x, one, zero, test))
            for first in range(0, row, 4):
                a = [w.new("f32", "a") for _ in range(4)]
                at = f"{self.own}+{row * ROW_BYTES + 4 * first}"
                w.line(ptx.ld_shared("v4.f32", ptx.vector(a), at))
                for factor, above in zip(a, negative[first:row], strict=False):
                    w.line(ptx.alu("fma.rn.f32", x, factor, above, x))
            solved.append(x)
            negative.append(w.new("f32", "negative"))
            w.line(ptx.alu("neg.f32", negative[-1], x))
        return solved

    # ---- products of blocks

    def _zeros(self, count: int) -> list[str]:
        made = [self.w.new("f32", "sum") for _ in range(count)]
        self._clear(made)
        return made

    def _clear(self, registers: Registers) -> None:
        for register in registers:
            self.w.line(ptx.alu("mov.f32", register, ptx.f32_literal(0.0)))

    def _split(self, values: Registers) -> Parts:
        """Pairs of f32 as bf16 parts: what each leaves is the next one's."""
        w, left, made = self.w, list(values), []
        for part in range(self.parts):
            made.append([w.new("b32", "part") for _ in left[::2]])
            for index, word in enumerate(made[-1]):
                low, high = left[2 * index : 2 * index + 2]
                w.line(ptx.alu("cvt.rn.bf16x2.f32", word, high, low))
                if part == self.parts - 1:
                    continue
                for place, opcode, operand in ((0, "shl.b32", 16), (1, "and.b32", 0xFFFF0000)):
                    bits, rest = w.new("b32", "bits"), w.new("f32", "rest")
                    value = w.new("f32", "value")
                    w.line(ptx.alu(opcode, bits, word, operand))
                    w.line(ptx.alu("mov.b32", value, bits))
                    w.line(ptx.alu("sub.rn.f32", rest, left[2 * index + place], value))
                    left[2 * index + place] = rest
        return made

    def _turned(self, block: Registers, *, negative: bool = True) -> Parts:
        """An accumulator's block (or less it) as B: pairs of rows, [8 columns, 8 rows]."""
        w, values = self.w, list(block)
        if negative:
            values = [w.new("f32", "negative") for _ in block]
            for value, register in zip(values, block, strict=True):
                w.line(ptx.alu("neg.f32", value, register))
        parts = self._split(values)
        for words in parts:
            for index, word in enumerate(words):
                words[index] = w.new("b32", "turned")
                w.line(ptx.movmatrix(words[index], word))
        return parts

    def _leave(self, area: int, parts: Parts) -> None:
        """B in shared memory, for other warps."""
        for part, words in enumerate(parts):
            for index, word in enumerate(words):
                at = f"{self.word}+{area * self.area + _place(part, index)}"
                self.w.line(ptx.st_shared("b32", at, word))

    def _found(self, area: int, words: str = "") -> Parts:
        """B that a warp has left, in an area from the first one on, or from `words` on."""
        parts: Parts = []
        for part in range(self.parts):
            parts.append([self.w.new("b32", "word") for _ in range(HELD // 2)])
            for index, word in enumerate(parts[-1]):
                at = area * self.area + _place(part, index)
                self.w.line(ptx.ld_shared("b32", word, f"{words or self.word}+{at}"))
        return parts

    def _multiply(self, sums: Registers, a: Parts, b: Parts) -> None:
        """`sums += a b`, small products first."""
        pairs = [(i, j) for i in range(self.parts) for j in range(self.parts - i)]
        for i, j in sorted(pairs, key=sum, reverse=True):
            for half in range(2):
                at = sums[4 * half : 4 * half + 4]
                right = b[j][2 * half : 2 * half + 2]
                types = "f32.bf16.bf16.f32"
                self.w.line(ptx.mma_sync("m16n8k16", types, at, a[i], right, at))


def _place(part: int, index: int) -> int:
    """Bytes of a word: of 8 columns (index // 2) and 8 rows (index % 2) of a part."""
    return part * PART_BYTES + index % 2 * 4 * ROW_BYTES + index // 2 * 32
