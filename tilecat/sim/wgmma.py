"""wgmma: warpgroup matrix multiply-accumulate. PTX ISA 9.7.15."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.fibers import Fiber, whole_warpgroups
from tilecat.sim.operands import (
    OPERAND_BYTES,
    Descriptor,
    check_tile,
    chunks_of,
    register_a,
    values_of,
)  # fmt: skip
from tilecat.sim.parse import Imm, Instruction, Reg, Vec
from tilecat.sim.program import refuse
from tilecat.sim.table import NEXT, Row

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_K_BYTES = 32  # every wgmma reads 32 bytes of K a row: 9.7.15.2, table of shapes


@dataclass(frozen=True)
class Form:
    """Decoded wgmma.mma_async: shape, types, registers, signs and transpositions."""

    n: int
    d_type: str
    a_type: str
    b_type: str
    d_rows: tuple[int, ...]
    a_rows: tuple[int, ...] | None
    signs: tuple[int, int]
    transposed: tuple[bool, bool]
    saturate: bool
    d_mask: int
    a_mask: int
    shape: str


@dataclass(frozen=True)
class Issue:
    """One wgmma in a group, with what its warps knew when it was issued."""

    item: Instruction
    form: Form
    a: Descriptor | None
    b: Descriptor
    accumulate: bool
    snapshot: np.ndarray


@dataclass
class Warpgroup:
    """wgmma state of four warps."""

    number: int
    agent: int
    open: list[Issue] = field(default_factory=list)
    groups: list[list[Issue]] = field(default_factory=list)
    executed: int = 0
    waited: int = 0
    fenced: bool = False
    in_flight: int = 0
    touched: dict[tuple[int, int], int] = field(default_factory=dict)


def reset(machine: Machine) -> None:
    """Start of a cluster."""
    machine.warpgroups = {}
    machine.wgmma_snapshot = (-1, -1, None)


def _groups_of(fiber: Fiber) -> range:
    return range(fiber.lo // 128, -(-fiber.hi // 128))


def _state(machine: Machine, number: int) -> Warpgroup:
    state = machine.warpgroups.get(number)
    if state is None:
        who = machine.reporter.threads(number * 128, number * 128 + 127)
        agent = machine.clocks.agent(f"wgmma of {who}")
        state = machine.warpgroups[number] = Warpgroup(number, agent)
    return state


# ---- register rules
def touch(machine: Machine, fiber: Fiber, mask: int, start: int, end: int) -> None:
    """Threads of warpgroups use registers: none may be in flight; a fence must follow. 9.7.15.7."""
    for number in _groups_of(fiber):
        state = machine.warpgroups.get(number)
        if state is None:
            continue
        if state.in_flight & mask:
            _report_in_flight(machine, state, start, end)
        if len(state.touched) < 4096:
            state.touched[(start, end)] = mask
        else:
            state.touched = {(start, end): mask | _union(state.touched)}


def _union(touched: dict) -> int:
    mask = 0
    for part in touched.values():
        mask |= part
    return mask


def _report_in_flight(machine: Machine, state: Warpgroup, start: int, end: int) -> None:
    items = machine.program.instructions
    flying = [issue for group in state.groups[state.waited :] for issue in group] + state.open
    for pc in range(start, end):
        if not items[pc].mask & state.in_flight:
            continue
        other = next(
            (i.item.pc for i in flying if (i.form.d_mask | i.form.a_mask) & items[pc].mask), -1
        )
        machine.report("wgmma", pc, "a register of a wgmma in flight is used before the "
                       "wgmma.wait_group that covers it", other)  # fmt: skip
        return


def _check_fence(machine: Machine, state: Warpgroup, item: Instruction, form: Form) -> None:
    if not state.fenced:
        machine.report("wgmma", item, "wgmma.mma_async without a wgmma.fence before it")
    used = form.d_mask | form.a_mask
    items = machine.program.instructions
    for (start, end), mask in state.touched.items():
        if mask & used:
            pc = next((k for k in range(start, end) if items[k].mask & used), start)
            machine.report("wgmma", item, "registers of this wgmma were used by the instruction "
                           "below after the last wgmma.fence", pc)  # fmt: skip
            break
    if not state.in_flight & used:
        return
    for issue in [i for group in state.groups[state.waited :] for i in group] + state.open:
        other = issue.form
        clash = other.d_mask & form.a_mask or other.a_mask & form.d_mask
        if clash or other.d_mask & form.d_mask and other.shape != form.shape:
            machine.report("wgmma", item, "registers of a wgmma in flight are used in another role "
                           "or shape without wgmma.wait_group", issue.item.pc)  # fmt: skip


# ---- instructions
def _fence(machine: Machine, fiber: Fiber, item: Instruction):
    """wgmma.fence: 9.7.15.7.1."""
    outcome = whole_warpgroups(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    for number in _groups_of(fiber):
        state = _state(machine, number)
        state.touched.clear()
        state.fenced = True
    return NEXT


def _snapshot(machine: Machine, number: int) -> np.ndarray:
    """What all four warps know; the same array until somebody learns something."""
    version, known_number, snapshot = machine.wgmma_snapshot
    if version != machine.clocks.version or known_number != number:
        snapshot = machine.clocks.snapshot(number * 4, number * 4 + 4)
        machine.wgmma_snapshot = (machine.clocks.version, number, snapshot)
    return snapshot


def _mma(machine: Machine, fiber: Fiber, item: Instruction):
    """wgmma.mma_async: 9.7.15.5.2."""
    outcome = whole_warpgroups(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    form: Form = item.info
    for number in _groups_of(fiber):
        lo = number * 128
        state = _state(machine, number)
        _check_fence(machine, state, item, form)
        a = None
        if form.a_rows is None:
            a = _descriptor(machine, item, item.args[1], lo, form.transposed[0], 64, form.a_type)
        b = _descriptor(machine, item, item.args[2], lo, form.transposed[1], form.n, form.b_type)
        accumulate = machine.truth(item.args[3], lo)
        state.open.append(Issue(item, form, a, b, accumulate, _snapshot(machine, number)))
        state.in_flight |= form.d_mask | form.a_mask
        machine.stats[f"wgmma {form.shape}"] += 1
    return NEXT


def _descriptor(machine, item, operand, thread: int, transposed: bool, rows: int, kind: str):
    """Decode a matrix descriptor, once a value. 9.7.15.5.1.2."""
    bits = machine.value(item, operand, thread, "u64")
    key = ("descriptor", bits, transposed, rows, kind)
    found = machine.cache.get(key)
    if found is None:
        found = machine.cache[key] = Descriptor.decode(machine, item, bits, transposed, rows, kind)
    check_tile(machine, item, found)
    return found


def _commit(machine: Machine, fiber: Fiber, item: Instruction):
    """wgmma.commit_group: 9.7.15.7.2."""
    outcome = whole_warpgroups(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    for number in _groups_of(fiber):
        state = _state(machine, number)
        state.groups.append(state.open)
        state.open = []
        work = partial(_execute, machine, state, len(state.groups))
        machine.start(work, wait_runs_it=True)
    return NEXT


def _wait(machine: Machine, fiber: Fiber, item: Instruction):
    """wgmma.wait_group: 9.7.15.7.3."""
    outcome = whole_warpgroups(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    for number in _groups_of(fiber):
        state = _state(machine, number)
        upto = max(len(state.groups) - item.args[0].value, state.waited)
        _execute(machine, state, upto)
        if upto > state.waited:
            state.waited = upto
            machine.clocks.learn(number * 4, number * 4 + 4, state.agent, upto, fenced=True)
            live = [issue for group in state.groups[upto:] for issue in group] + state.open
            state.in_flight = 0
            for issue in live:
                state.in_flight |= issue.form.d_mask | issue.form.a_mask
    return NEXT


def check_exit(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """No wgmma may be in flight at the exit."""
    for number in _groups_of(fiber):
        state = machine.warpgroups.get(number)
        if state and (state.open or state.waited < len(state.groups)):
            pending = state.open or state.groups[-1]
            other = pending[-1].item.pc if pending else -1
            if pending:
                machine.report("exit", item, f"{machine.agent_name(number * 4)} exits with wgmma "
                               "in flight", other)  # fmt: skip


# ---- execution
def _execute(machine: Machine, state: Warpgroup, upto: int) -> None:
    """Run committed groups up to `upto`, in order."""
    while state.executed < upto:
        group = state.groups[state.executed]
        state.executed += 1
        start = 0
        while start < len(group):
            stop = start + 1
            while stop < len(group) and _continues(group[start], group[stop]):
                stop += 1
            _run(machine, state, group[start:stop])
            start = stop


def _continues(first: Issue, later: Issue) -> bool:
    """Whether two wgmma are one product with a longer K."""
    a, b = first.form, later.form
    return (
        later.accumulate and a.d_rows == b.d_rows and a.shape == b.shape and a.signs == b.signs
        and a.transposed == b.transposed and (a.a_rows is None) == (b.a_rows is None)
        and first.snapshot is later.snapshot and a.d_type == "f32"
    )  # fmt: skip


def _run(machine: Machine, state: Warpgroup, run: list[Issue]) -> None:
    form, lo = run[0].form, state.number * 128
    cta = lo // machine.block
    b = _operand(machine, state, cta, [issue.b for issue in run], run[0], form.b_type)
    if form.a_rows is None:
        a = _operand(machine, state, cta, [issue.a for issue in run], run[0], form.a_type)
    else:
        rows = np.array([issue.form.a_rows for issue in run])
        words = machine.registers.banks["R"][rows.ravel(), lo : lo + 128]
        a = register_a(words, len(run), form.a_type)
    with np.errstate(over="ignore", invalid="ignore"):
        product = a @ b.T
        if form.signs[0] * form.signs[1] < 0:
            product = -product
        _accumulate(machine, form, lo, product, run[0].accumulate)


def _operand(machine, state, cta: int, descriptors: list[Descriptor], issue: Issue, kind: str):
    """Rows by K values of one operand over a run, and its reads for the clocks."""
    index, chunk_set = chunks_of(machine, tuple(descriptors))
    if machine.races:
        machine.shadows[cta].async_read(
            chunk_set, state.agent, state.executed, issue.snapshot, issue.item.pc
        )
    data = machine.chunks[cta][index]
    return values_of(data, kind, descriptors[0].transposed)


def _accumulate(
    machine: Machine, form: Form, lo: int, product: np.ndarray, accumulate: bool
) -> None:
    """Add to the accumulator fragment: 9.7.15.5.1.1.

    Lane 4 g + q, register 4 j + 2 h + e holds row 16 w + 8 h + g, column 8 j + 2 q + e.
    """
    count = form.n // 8
    parts = product.reshape(4, 2, 8, count, 4, 2).transpose(3, 1, 5, 0, 2, 4)
    bank = machine.registers.banks["R"]
    rows = form.d_rows
    consecutive = rows[-1] - rows[0] == len(rows) - 1 and rows == tuple(
        range(rows[0], rows[-1] + 1)
    )
    words = (
        bank[rows[0] : rows[-1] + 1, lo : lo + 128]
        if consecutive
        else bank[list(rows), lo : lo + 128]
    )
    if form.d_type == "f16":
        halves = np.ascontiguousarray(words).view(np.float16).reshape(count, 2, 128, 2)
        fresh = parts.reshape(count, 2, 2, 128).transpose(0, 1, 3, 2)
        total = halves.astype(np.float32) + fresh if accumulate else fresh
        bank[list(rows), lo : lo + 128] = (
            np.ascontiguousarray(total.astype(np.float16)).view(np.uint32).reshape(len(rows), 128)
        )
        return
    dtype = np.float32 if form.d_type == "f32" else np.int32
    held = words.view(dtype).reshape(count, 2, 2, 4, 8, 4)
    if form.d_type == "s32":
        total = (
            held.astype(np.int64) + parts.astype(np.int64) if accumulate else parts.astype(np.int64)
        )
        if form.saturate:
            total = np.clip(total, -(2**31), 2**31 - 1)
        parts, accumulate = total.astype(np.int32), False
    if accumulate:
        np.add(held, parts, held)
    else:
        held[...] = parts
    if not np.shares_memory(held, bank):
        bank[list(rows), lo : lo + 128] = held.view(np.uint32).reshape(len(rows), 128)


# ---- decoding
def _legal_n(n: int, integer: bool) -> bool:
    if n % 8 or not 8 <= n <= 256:
        return False
    return not integer or n % 16 == 0 or n in (8, 24)


def _types(item: Instruction) -> tuple[str, str, str]:
    d_type, a_type, b_type = item.mods[5:8]
    same = {"bf16": ("f32",), "f16": ("f32", "f16"), "tf32": ("f32",)}
    fp8, integers = ("e4m3", "e5m2"), ("s8", "u8")
    good = (
        a_type in same and a_type == b_type and d_type in same[a_type]
        or a_type in fp8 and b_type in fp8 and d_type in ("f32", "f16")
        or a_type in integers and b_type in integers and d_type == "s32"
    )  # fmt: skip
    if not good:
        raise refuse(item, "types not of the table in 9.7.15.2")
    return d_type, a_type, b_type


def _trailing(item: Instruction, a_type: str) -> tuple[tuple[int, int], tuple[bool, bool]]:
    """neg-a, neg-b, and for 16-bit types trans-a (descriptor only), trans-b."""
    if any(not isinstance(arg, Imm) for arg in item.args[4:]):
        raise refuse(item, "signs and transpositions are constants")
    numbers = [arg.value for arg in item.args[4:]]
    registers = isinstance(item.args[1], Vec)
    wanted = 0
    if a_type not in ("s8", "u8"):
        wanted = 2 + (0 if OPERAND_BYTES[a_type] != 2 else 1 if registers else 2)
    if len(numbers) != wanted:
        raise refuse(item, f"{wanted} constants after scale-d are wanted")
    signs = tuple(numbers[:2]) if numbers else (1, 1)
    flags = numbers[2:]
    if any(sign not in (1, -1) for sign in signs) or any(flag not in (0, 1) for flag in flags):
        raise refuse(item, "signs are 1 or -1, transpositions 0 or 1")
    if len(flags) == 1:
        flags = [0, *flags]
    return signs, tuple(bool(flag) for flag in flags) or (False, False)


def _decode(item: Instruction) -> Form:
    match = _SHAPE.fullmatch(item.mods[4])
    n, k = int(match[1]), int(match[2])
    d_type, a_type, b_type = _types(item)
    if not _legal_n(n, d_type == "s32") or k * OPERAND_BYTES[a_type] != _K_BYTES:
        raise refuse(item, "shape not of the table in 9.7.15.2")
    saturate = item.mods[-1] == "satfinite"
    if saturate and d_type != "s32":
        raise refuse(item, ".satfinite is for integers")
    signs, transposed = _trailing(item, a_type)
    d_registers = item.args[0].items
    wanted = n // 4 if d_type == "f16" else n // 2
    a_registers = item.args[1].items if isinstance(item.args[1], Vec) else None
    words = [*d_registers, *(a_registers or ())]
    if (
        len(d_registers) != wanted
        or a_registers is not None
        and len(a_registers) != 4
        or any(not isinstance(register, Reg) or register.bank != "R" for register in words)
    ):
        raise refuse(item, f"{wanted} accumulator registers, and 4 of A, of 32 bits are wanted")
    rows = tuple(register.row for register in d_registers)
    a_rows = None if a_registers is None else tuple(register.row for register in a_registers)
    # As in the program's masks: bit k is row k of the 32-bit bank.
    d_mask = sum(1 << row for row in rows)
    a_mask = sum(1 << row for row in a_rows or ())
    shape = f"{item.mods[4]}.{d_type}.{a_type}.{b_type}"
    return Form(n, d_type, a_type, b_type, rows, a_rows, signs, transposed, saturate, d_mask,
                a_mask, shape)  # fmt: skip


_NS = "(" + ",".join(f".m64n{n}k{k}" for n in range(8, 264, 8) for k in (8, 16, 32)) + ")"
_A_TYPES = "(.bf16,.f16,.tf32,.e4m3,.e5m2,.s8,.u8)"
TABLE = (
    Row("wgmma.fence.sync.aligned", "", _fence, "9.7.15.7.1", aligned=True, needs="wgmma"),
    Row(f"wgmma.mma_async.sync.aligned{_NS}(.f32,.f16,.s32){_A_TYPES}{_A_TYPES}{{.satfinite}}",
        "v rv r q i? i? i? i?", _mma, "9.7.15.5.2", aligned=True, decode=_decode,
        needs="wgmma"),
    Row("wgmma.commit_group.sync.aligned", "", _commit, "9.7.15.7.2", aligned=True,
        needs="wgmma"),
    Row("wgmma.wait_group.sync.aligned", "i", _wait, "9.7.15.7.3", aligned=True,
        needs="wgmma"),
)  # fmt: skip
