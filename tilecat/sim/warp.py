"""Warp-wide instructions: matrix loads and stores, shuffles, votes. PTX ISA 9.7.9, 9.7.14."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.conflicts import Pattern, matrix_wavefronts
from tilecat.sim.fibers import Fiber, cut, whole_warps
from tilecat.sim.memory import check_overlap, observe, shared_cta
from tilecat.sim.parse import Imm, Instruction, Mem, Pair, Reg
from tilecat.sim.program import refuse
from tilecat.sim.report import OFFSET_MASK, RANK_SHIFT
from tilecat.sim.table import NEXT, Row

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

_EMPTY = np.zeros(0, np.int64)


# ---- ldmatrix, stmatrix
def _decode_matrix(item: Instruction) -> tuple[Mem, tuple, bool]:
    load = item.mods[0] == "ldmatrix"
    data, mem = item.args if load else item.args[::-1]
    count = next(int(mod[1]) for mod in item.mods if mod in ("x1", "x2", "x4"))
    registers = data.items if hasattr(data, "items") else (data,)
    if len(registers) != count or any(not isinstance(r, Reg) or r.bank != "R" for r in registers):
        raise refuse(item, f"{count} 32-bit registers are wanted")
    return mem, tuple(registers), "trans" in item.mods


def _rows(machine: Machine, fiber: Fiber, item: Instruction, mem: Mem, count: int, write: bool):
    """Chunks of the rows, (warps, matrices, 8), and the CTA: lane 8 m + r has row r of matrix m."""
    addresses = machine.addresses(item, mem, fiber.lo, fiber.hi).reshape(-1, 4, 8)[:, :count]
    if (addresses & 15).any():
        who = machine.reporter.threads(fiber.lo, fiber.hi - 1)
        machine.fault("align", item, f"a row address of {who} is not 16-byte aligned")
    cta, offsets = shared_cta(machine, fiber, item, "shared::cta", addresses, 16)
    chunks = offsets >> 4
    key = ("matrix", fiber.lo, write, chunks.tobytes())
    pattern = machine.cache.get(key)
    if pattern is None:
        pattern = machine.cache[key] = _pattern(fiber, chunks)
    return cta, chunks, pattern


def _pattern(fiber: Fiber, chunks: np.ndarray) -> Pattern:
    warps = np.broadcast_to(np.arange(*fiber.warps)[:, None, None], chunks.shape)
    keys = np.unique(warps.ravel() << 32 | chunks.ravel())
    low = keys & (1 << 32) - 1
    order = np.sort(low)
    twice = order[1:][order[1:] == order[:-1]]
    overlap = None
    if len(twice):
        pair = np.sort(keys[low == twice[0]] >> 32)
        overlap = (int(pair[0]), int(pair[1]), int(twice[0]) * 16)
    wavefronts, ideal = matrix_wavefronts(chunks)
    return Pattern(low, keys >> 32, _EMPTY, _EMPTY, overlap, wavefronts, ideal)


def _stmatrix(machine: Machine, fiber: Fiber, item: Instruction):
    """stmatrix: 9.7.14.6.16. Lane 4 r + c holds columns 2 c, 2 c + 1 of row r."""
    outcome = whole_warps(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    mem, registers, transposed = item.info
    machine.idle_polls = 0
    data = np.stack([machine.registers.raw(r, fiber.lo, fiber.hi) for r in registers])
    data = data.reshape(len(registers), -1, 8, 4)
    if transposed:
        halves = data.view(np.uint16).transpose(0, 1, 3, 2)
        data = np.ascontiguousarray(halves).view(np.uint32)
    rows = np.ascontiguousarray(data.transpose(1, 0, 2, 3)).view("c16")[..., 0]
    cta, chunks, pattern = _rows(machine, fiber, item, mem, len(registers), True)
    held = machine.chunks[cta]

    def same() -> bool:
        return held[chunks].tobytes() == rows.tobytes()

    observe(machine, item, cta, pattern, True, same)
    held[chunks] = rows
    if pattern.overlap is not None:
        check_overlap(machine, item, cta, pattern, same())
    return NEXT


def _ldmatrix(machine: Machine, fiber: Fiber, item: Instruction):
    """ldmatrix: 9.7.14.6.15."""
    outcome = whole_warps(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    mem, registers, transposed = item.info
    cta, chunks, pattern = _rows(machine, fiber, item, mem, len(registers), False)
    observe(machine, item, cta, pattern, False)
    data = machine.chunks[cta][chunks][..., None].view(np.uint16)
    if transposed:
        data = data.transpose(0, 1, 3, 2)
    words = np.ascontiguousarray(data).view(np.uint32).transpose(1, 0, 2, 3)
    for register, value in zip(registers, words.reshape(len(registers), -1), strict=True):
        machine.registers.raw(register, fiber.lo, fiber.hi)[:] = value
    return NEXT


# ---- shuffles and votes
def _gathered(machine: Machine, fiber: Fiber, item: Instruction, operand: object):
    """Wait for the threads of the member mask; groups with masks of their own go apart."""
    masks = machine.values(item, operand, "u32", fiber.lo, fiber.hi)
    if (masks != masks[0]).any():
        return cut(machine, fiber, masks.astype(np.int64))
    return whole_warps(machine, fiber, item, int(masks[0]))


def _shfl(machine: Machine, fiber: Fiber, item: Instruction):
    """shfl.sync: 9.7.9.6."""
    outcome = _gathered(machine, fiber, item, item.args[4])
    if outcome is not NEXT:
        return outcome
    lo, hi = fiber.lo, fiber.hi
    dst = item.args[0]
    lane = np.arange(lo, hi) % 32
    b = machine.values(item, item.args[2], "u32", lo, hi).astype(np.int64) & 31
    c = machine.values(item, item.args[3], "u32", lo, hi).astype(np.int64)
    clamp, segment = c & 31, c >> 8 & 31
    last, first = lane & segment | clamp & ~segment, lane & segment
    mode = item.mods[2]
    if mode == "up":
        source = lane - b
        inside = source >= last
    else:
        source = {"down": lane + b, "bfly": lane ^ b, "idx": first | b & ~segment}[mode]
        inside = source <= last
    source = np.where(inside, source, lane)
    index = source + np.arange(lo, hi) // 32 * 32 - lo
    if ((index < 0) | (index >= hi - lo)).any():
        machine.fault("warp", item, "a lane reads from a lane that does not execute the shuffle")
    value = machine.values(item, item.args[1], "b32", lo, hi)[index]
    target = dst.first if isinstance(dst, Pair) else dst
    if isinstance(target, Reg):
        machine.registers.raw(target, lo, hi)[:] = value
    if isinstance(dst, Pair) and isinstance(dst.second, Reg):
        machine.registers.raw(dst.second, lo, hi)[:] = inside
    return NEXT


def _split_warps(fiber: Fiber) -> list[tuple[int, int]]:
    """Parts of the fiber, one a warp."""
    return [(max(w * 32, fiber.lo), min((w + 1) * 32, fiber.hi)) for w in range(*fiber.warps)]


def _bits(values: np.ndarray, lo: int) -> int:
    return sum(1 << (lo % 32 + int(k)) for k in np.nonzero(values)[0])


def _vote(machine: Machine, fiber: Fiber, item: Instruction):
    """vote.sync: 9.7.13.9."""
    outcome = _gathered(machine, fiber, item, item.args[2])
    if outcome is not NEXT:
        return outcome
    source, mode = item.args[1], item.mods[2]
    for lo, hi in _split_warps(fiber):
        values = np.array([machine.truth(source, thread) for thread in range(lo, hi)])
        result = {
            "all": bool(values.all()), "any": bool(values.any()),
            "uni": bool(values.all() or not values.any()), "ballot": _bits(values, lo),
        }[mode]  # fmt: skip
        machine.registers.raw(item.args[0], lo, hi)[:] = result
    return NEXT


def _match(machine: Machine, fiber: Fiber, item: Instruction):
    """match.any.sync: 9.7.13.10."""
    outcome = _gathered(machine, fiber, item, item.args[2])
    if outcome is not NEXT:
        return outcome
    for lo, hi in _split_warps(fiber):
        values = machine.values(item, item.args[1], item.mods[-1], lo, hi)
        same = [_bits(values == value, lo) for value in values]
        machine.registers.raw(item.args[0], lo, hi)[:] = same
    return NEXT


def _redux(machine: Machine, fiber: Fiber, item: Instruction):
    """redux.sync: 9.7.13.12."""
    outcome = _gathered(machine, fiber, item, item.args[2])
    if outcome is not NEXT:
        return outcome
    functions = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
                 "or": np.bitwise_or, "xor": np.bitwise_xor}  # fmt: skip
    kind = item.mods[-1]
    for lo, hi in _split_warps(fiber):
        values = machine.values(item, item.args[1], kind, lo, hi)
        result = functions[item.mods[2]].reduce(values, dtype=values.dtype)
        machine.registers.raw(item.args[0], lo, hi)[:] = np.asarray(result).view(np.uint32)
    return NEXT


def _redux_float(machine: Machine, fiber: Fiber, item: Instruction):
    """redux.sync of f32: numbers, unless `.NaN`; +0 is more than -0. 9.7.13.12."""
    outcome = _gathered(machine, fiber, item, item.args[2])
    if outcome is not NEXT:
        return outcome
    for lo, hi in _split_warps(fiber):
        values = machine.values(item, item.args[1], "f32", lo, hi)
        values = np.abs(values) if "abs" in item.mods else values
        numbers = values[~np.isnan(values)]
        if not len(numbers) or "NaN" in item.mods and len(numbers) < len(values):
            result = _CANONICAL_NAN
        else:
            best = numbers.max() if "max" in item.mods else numbers.min()
            signs = np.signbit(numbers[numbers == best])  # of zeros they may differ
            best = np.copysign(best, -1.0 if (signs.all() if "max" in item.mods else signs.any())
                               else 1.0)  # fmt: skip
            result = np.float32(best).view(np.uint32)
        machine.registers.raw(item.args[0], lo, hi)[:] = result
    return NEXT


def _elect(machine: Machine, fiber: Fiber, item: Instruction):
    """elect.sync: the lowest lane of the mask. 9.7.13.14."""
    outcome = _gathered(machine, fiber, item, item.args[1])
    if outcome is not NEXT:
        return outcome
    pair = item.args[0]
    for lo, hi in _split_warps(fiber):
        if isinstance(pair.first, Reg):
            machine.registers.raw(pair.first, lo, hi)[:] = lo % 32
        leader = machine.registers.raw(pair.second, lo, hi)
        leader[:] = False
        leader[0] = True
    return NEXT


def _activemask(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """activemask: 9.7.13.11."""
    for lo, hi in _split_warps(fiber):
        machine.registers.raw(item.args[0], lo, hi)[:] = ((1 << (hi - lo)) - 1) << (lo % 32)


def _warp_sync(machine: Machine, fiber: Fiber, item: Instruction):
    """bar.warp.sync: 9.7.13.3. Threads of a warp share its clock, so it orders nothing more."""
    return _gathered(machine, fiber, item, item.args[0])


# ---- addresses of a cluster
def _mapa(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """mapa.shared::cluster: 9.7.9.23."""
    lo, hi = fiber.lo, fiber.hi
    address = machine.addresses(item, Mem(item.args[1], 0), lo, hi)
    rank = machine.values(item, item.args[2], "u32", lo, hi).astype(np.int64)
    active = machine.active_mask(fiber, item)
    if (rank[active] >= machine.ctas).any():
        machine.fault("bounds", item, f"rank {int(rank.max())} in a cluster of {machine.ctas}")
    value = (address & OFFSET_MASK | rank << RANK_SHIFT).astype(np.uint32)
    np.copyto(machine.registers.raw(item.args[0], lo, hi), value, where=active)


def _ctarank(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """getctarank.shared::cluster: 9.7.9.24."""
    address = machine.addresses(item, Mem(item.args[1], 0), fiber.lo, fiber.hi)
    active = machine.active_mask(fiber, item)
    dst = machine.registers.raw(item.args[0], fiber.lo, fiber.hi)
    np.copyto(dst, (address >> RANK_SHIFT).astype(np.uint32), where=active)


def _policy(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """createpolicy: a hint for L2, opaque here. 9.7.9.18."""
    machine.registers.raw(item.args[0], fiber.lo, fiber.hi)[:] = 0


def _check_shuffle(item: Instruction) -> None:
    dst = item.args[0]
    target = dst.first if isinstance(dst, Pair) else dst
    if isinstance(target, Reg) and target.bank != "R":
        raise refuse(item, "a 32-bit destination is wanted")


def _check_elect(item: Instruction) -> None:
    if not isinstance(item.args[0].second, Reg) or item.args[0].second.bank != "P":
        raise refuse(item, "a predicate destination is wanted")


def _check_match(item: Instruction) -> None:
    if isinstance(item.args[1], Imm):
        raise refuse(item, "a register source is wanted")


_CANONICAL_NAN = np.uint32(0x7FFFFFFF)
_MATRIX = ".sync.aligned.m8n8(.x1,.x2,.x4){.trans}{.shared,.shared::cta}.b16"
TABLE = (
    Row(f"ldmatrix{_MATRIX}", "v m", _ldmatrix, "9.7.14.6.15", aligned=True, decode=_decode_matrix),
    Row(f"stmatrix{_MATRIX}", "m v", _stmatrix, "9.7.14.6.16", aligned=True, decode=_decode_matrix),
    Row("shfl.sync(.up,.down,.bfly,.idx).b32", "dn r r r r", _shfl, "9.7.9.6", aligned=True,
        decode=_check_shuffle),
    Row("vote.sync(.all,.any,.uni).pred", "p q r", _vote, "9.7.13.9", aligned=True),
    Row("vote.sync.ballot.b32", "d q r", _vote, "9.7.13.9", aligned=True),
    Row("match.any.sync(.b32,.b64)", "d r r", _match, "9.7.13.10", aligned=True,
        decode=_check_match),
    Row("redux.sync(.add,.min,.max)(.u32,.s32)", "d r r", _redux, "9.7.13.12", aligned=True),
    Row("redux.sync(.and,.or,.xor).b32", "d r r", _redux, "9.7.13.12", aligned=True),
    Row("redux.sync(.min,.max){.abs}{.NaN}.f32", "d r r", _redux_float, "9.7.13.12", aligned=True,
        needs="redux-f32"),
    Row("elect.sync", "n r", _elect, "9.7.13.14", aligned=True, decode=_check_elect),
    Row("activemask.b32", "d", _activemask, "9.7.13.11", aligned=True),
    Row("bar.warp.sync", "r", _warp_sync, "9.7.13.3", aligned=True),
    Row("mapa.shared::cluster.u32", "d r r", _mapa, "9.7.9.23"),
    Row("getctarank.shared::cluster.u32", "d r", _ctarank, "9.7.9.24"),
    Row("createpolicy.fractional(.L2::evict_last,.L2::evict_first,.L2::evict_normal,"
        ".L2::evict_unchanged).b64", "d r?", _policy, "9.7.9.18"),
)  # fmt: skip
