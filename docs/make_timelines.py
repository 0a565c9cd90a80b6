"""Timelines of kernels as SVG: who does what when, on one SM of an H200, modelled.

    python docs/make_timelines.py          # writes docs/kernels/*.svg
    python docs/make_timelines.py --check  # fails where one is out of date

The PTX machine runs the kernel's own text, and each warp has a clock: the warp that is behind runs
next. A warp issues an instruction a cycle, in turn with the others of its scheduler; loads and
stores through the TMA take their bytes at an SM's share of the memory's rate, and loads a latency;
a `wgmma` takes its turn on the tensor cores; waits last until what they wait for. Rates are those
of `tilecat.model.rates`. Latencies of arithmetic, of shared memory and of barriers are left out, so
that a role looks faster than it is. A bar is a role between two waits; gaps are waits.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

import tilecat as tc
from tilecat.model.events import Span
from tilecat.model.rates import H200
from tilecat.sim import barriers, bulk, bulk_stores, launch, mbarrier
from tilecat.sim.core import Machine
from tilecat.sim.fibers import Fiber
from tilecat.sim.parse import Reg
from tilecat.sim.program import registers
from tilecat.sim.report import OFFSET_MASK, RANK_SHIFT

FOLDER = Path(__file__).resolve().parent / "kernels"
CLOCK = H200.first_clock_hz
BYTES_CYCLE = H200.memory_bytes_second / H200.sms / CLOCK
LOAD_LATENCY = H200.load_latency_cycles + H200.miss_cycles
GROUP = 128  # threads of a warpgroup
WAITED = 24  # cycles: shorter waits do not part two bars
MEMORY, TENSOR, PRODUCER = "memory", "tensor cores", "producer"


def named(args: tuple) -> frozenset:
    """Banks and rows of the registers among operands."""
    found = (((arg,) if type(arg) is Reg else registers(arg)) for arg in args)
    return frozenset((reg.bank, reg.row) for regs in found for reg in regs)


class Unit:
    """What does one thing at a time, in the gaps that are left."""

    def __init__(self, name: str):
        self.name, self.busy = name, [(-1.0, 0.0, "")]  # start, end, what; ascending

    def serve(self, what: str, now: float, cycles: float) -> float:
        """Takes the first free cycles from `now` on; the time at which it is done."""
        at = bisect_right(self.busy, (now, math.inf, ""))
        time = max(now, self.busy[at - 1][1])
        while cycles > 0:
            end = self.busy[at][0] if at < len(self.busy) else math.inf
            part = min(cycles, end - time)
            if part > 0:
                start, before, kind = self.busy[at - 1]
                if kind == what and before == time:
                    self.busy[at - 1] = start, time + part, what
                else:
                    self.busy.insert(at, (time, time + part, what))
                    at += 1
                cycles -= part
                time += part
            if cycles > 0:
                time, at = self.busy[at][1], at + 1
        return time

    @property
    def spans(self) -> list[Span]:
        """What it did."""
        return [Span(self.name, what, start, end) for start, end, what in self.busy[1:]]


class Timed(Machine):
    """The machine with a clock a warp; the spans of the first CTA that ran stay in `found`."""

    found: list[Span] = []

    def _reset(self, index: int) -> None:
        super()._reset(index)
        warps = self.num_threads // 32
        self.at, self.began = np.zeros(warps), np.zeros(warps)
        self.now, self.mark = 0.0, self.executed
        self.spans: dict[str, list[Span]] = {}
        ctas = range(self.num_threads // self.block)  # each on an SM of its own
        self.memory, self.tensor = ([Unit(name) for _ in ctas] for name in (MEMORY, TENSOR))
        self.issue = [[Unit("issue") for _ in range(4)] for _ in ctas]  # a scheduler each
        self.met: dict[tuple[int, int], float] = {}  # at named barriers, until now
        self.groups: dict[int, list[float]] = {}  # of a warpgroup's wgmma, when they are done
        self.stores: dict[int, float] = {}
        self.flying: dict[int, list[tuple[frozenset, float]]] = {}  # registers, when they are there

    def run_cluster(self, index: int) -> None:
        """Runs it, and keeps what the first one did."""
        super().run_cluster(index)
        for warp in range(self.block // 32):
            self._bar(warp, float(self.at[warp]))
        if not Timed.found:
            roles = [span for spans in self.spans.values() for span in spans]
            Timed.found = [*self.memory[0].spans, *self.tensor[0].spans, *roles]

    # ---- the warp that is behind runs
    def _schedule(self) -> None:
        while self.fibers or self.polling:
            if not self.fibers:
                self.fibers, self.polling = self.polling, []
            first = min(range(len(self.fibers)), key=lambda i: self.time(self.fibers[i]))
            self._run_fiber(self.fibers.pop(first))

    def time(self, fiber: Fiber) -> float:
        """Of the warp that is ahead."""
        return self.time_of(*fiber.warps)

    def time_of(self, first: int, last: int) -> float:
        """The same of warps [first, last)."""
        return float(self.at[first:last].max())

    def _run_fiber(self, fiber: Fiber) -> None:
        groups = range(fiber.lo // GROUP, -(-fiber.hi // GROUP))
        if len(groups) > 1 and fiber.join is None:
            for group in groups:
                ends = max(fiber.lo, group * GROUP), min(fiber.hi, group * GROUP + GROUP)
                self.fibers.append(Fiber(*ends, fiber.pc))
            return
        self.mark = self.executed
        super()._run_fiber(fiber)

    def _segment(self, fiber: Fiber) -> Any:
        segment = super()._segment(fiber)
        items = self.program.instructions[segment.start : segment.end]
        read = frozenset().union(*(named(item.args) for item in items))
        segment.calls.insert(0, partial(self.use, *fiber.warps, read))
        return segment

    def _system(self, fiber: Fiber, item: Any) -> bool:
        first, last = fiber.warps
        count, self.mark = self.executed - self.mark, self.executed
        issued = self.time(fiber) + count
        if last - first > 1:  # the few instructions of single warps find a place
            scheduler = self.issue[self.cta(first)][first % 4]
            issued = scheduler.serve("", issued - count, count)
        self.at[first:last] = issued
        self.use(first, last, named(item.args))
        self.now = self.time(fiber)
        if super()._system(fiber, item):
            self._account(fiber, item)
            self.fibers.append(fiber)
        return False

    # ---- waits
    def wait_until(self, first: int, last: int, time: float) -> None:
        """Warps wait; the bars of their rows end where they began to."""
        now = float(self.at[first:last].max())
        if time > now + WAITED:
            for warp in range(first, min(last, self.block // 32)):
                self._bar(warp, now)
            self.began[first:last] = time
        self.at[first:last] = max(time, now)

    def _bar(self, warp: int, now: float) -> None:
        begun, name = float(self.began[warp]), self.row(warp)
        if name and now > begun:
            self.spans.setdefault(name, []).append(Span(name, "", begun, now))

    def cta(self, warp: int) -> int:
        """A warp's CTA in its cluster."""
        return warp * 32 // self.block

    def role(self, warp: int) -> str:
        """Name of a warp's role."""
        found = self.reporter.table.role_of(warp * 32 % self.block)
        return found.name if found else "warp"

    def row(self, warp: int) -> str:
        """Name of a warp's row: of a warpgroup its first warp has one; '' for none."""
        found = self.reporter.table.role_of(warp * 32)
        if found is None:
            return f"warp {warp}"
        number, count = warp - found.first // 32, (found.last - found.first + 1) // 32
        if found.name == PRODUCER:
            return f"{found.name} {number}"
        if number % 4:
            return ""
        return f"{found.name} {number // 4}" if count > 4 else found.name

    def use(self, first: int, last: int, regs: frozenset) -> None:
        """Warps wait for loads into these registers."""
        ready = 0.0
        for warp in range(first, last):
            flying = self.flying.get(warp, ())
            ready = max(ready, *(time for into, time in flying if into & regs), 0.0)
            self.flying[warp] = [pair for pair in flying if not pair[0] & regs]
        if ready > self.time_of(first, last):
            self.wait_until(first, last, ready)

    # ---- what instructions start, and wait for
    def _account(self, fiber: Fiber, item: Any) -> None:
        (first, last), op = fiber.warps, item.op
        if op.startswith("wgmma"):
            self._wgmma(item, first, last)
        elif op.startswith("cp.async.bulk.wait_group"):
            self.wait_until(first, last, self.stores.get(first, 0.0))
        elif op.startswith("mbarrier.try_wait"):
            address = int(self.addresses(item, item.args[1], fiber.lo, fiber.hi)[0])
            barrier = self.mbarriers[(address >> RANK_SHIFT, address & OFFSET_MASK)]
            self.wait_until(first, last, barrier.finished)
        elif op.startswith(("ld.", "st.")) and "global" in op:
            width = next((int(mod[1]) for mod in item.mods if mod in ("v2", "v4", "v8")), 1)
            each = width * int(item.mods[-1][1:]) // 8
            moved = each * int(self.active_mask(fiber, item).sum())
            kind = "load" if op.startswith("ld") else "store"
            memory = self.memory[self.cta(first)]
            done = memory.serve(kind, self.now, moved / BYTES_CYCLE)
            if kind == "load":
                for warp in range(first, last):
                    flying = self.flying.setdefault(warp, [])
                    flying.append((named(item.args[:1]), done + LOAD_LATENCY))

    def _wgmma(self, item: Any, first: int, last: int) -> None:
        done = self.groups.setdefault(first // 4, [])
        if "mma_async" in item.mods:
            form = item.info
            operands = (64 * (form.a_rows is None) + form.n) * 32 / H200.shared_bytes_cycle
            cycles = max(2 * 64 * 16 * form.n / H200.mma_flops_cycle, operands)
            end = self.tensor[self.cta(first)].serve(self.role(first), self.now, cycles)
            self.last = end + H200.mma_latency_cycles
        elif "commit_group" in item.mods:
            done.append(self.last)
        elif "wait_group" in item.mods and len(done) > item.args[0].value:
            self.wait_until(first, last, done[len(done) - item.args[0].value - 1])


class TimedBarrier(mbarrier.MBarrier):
    """An mbarrier that knows when its last phase ended."""

    finished = last = 0.0

    def advance(self, machine: Any) -> None:
        """Ends the phase, when the last of its arrivals was."""
        phase = self.phase
        self.last = max(self.last, machine.now)
        super().advance(machine)
        if self.phase != phase:
            self.finished, self.last = self.last, 0.0


def timed_load(self: bulk.Load, machine: Any) -> None:
    """A bulk load takes its bytes at the memory's rate, and a latency."""
    kept, memory = machine.now, machine.memory[self.thread // machine.block]
    machine.now = kept + H200.load_latency_cycles  # from a CTA to another: the latency alone
    if "global" in self.item.mods:
        machine.now = memory.serve("load", kept, self.num_bytes / BYTES_CYCLE) + LOAD_LATENCY
    LOAD(self, machine)
    machine.now = kept


def timed_store(machine: Any, item: Any, thread: int, chunks: Any, *rest: Any) -> Any:
    """A bulk store takes its bytes at the memory's rate."""
    memory = machine.memory[thread // machine.block]
    done = memory.serve("store", machine.now, 16 * np.size(chunks) / BYTES_CYCLE)
    machine.stores[thread // 32] = done
    return STORE(machine, item, thread, chunks, *rest)


def timed_come(machine: Any, fiber: Fiber, item: Any, number: int, *rest: Any) -> Any:
    """Who comes to a named barrier last lets the others go on, then."""
    key = (fiber.lo // machine.block, number)
    machine.met[key] = max(machine.met.get(key, 0.0), machine.time(fiber))
    barrier = machine.named.get(key)
    waiting = [other.warps for other in barrier.waiting] if barrier else []
    outcome = COME(machine, fiber, item, number, *rest)
    if not machine.named[key].arrived:  # it has opened
        time = machine.met.pop(key)
        for warps in (*waiting, *([fiber.warps] if "arrive" not in item.mods else ())):
            machine.wait_until(*warps, time)
    return outcome


LOAD, STORE, COME = bulk.Load.run, bulk_stores.issue_store, barriers._come
PATCHES = ((launch, "Machine", Timed), (mbarrier, "MBarrier", TimedBarrier),
           (bulk.Load, "run", timed_load), (bulk_stores, "issue_store", timed_store),
           (barriers, "_come", timed_come))  # fmt: skip


def timeline(call: Callable[[], Any]) -> list[Span]:
    """Spans of the first CTA of a call."""
    Timed.found = []
    with ExitStack() as stack:
        for owner, name, value in PATCHES:
            stack.enter_context(mock.patch.object(owner, name, value))
        call()
    return Timed.found


# ---- the kernels
def bf16(*shape: int) -> Any:
    """Normal numbers, the same each time."""
    rng = np.random.default_rng(shape)
    return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)


def f32(*shape: int) -> Any:
    """Numbers from 0 to 1."""
    return np.random.default_rng(shape).random(shape, np.float32)


TOKENS = 16 * 64


def calls() -> dict[str, Callable[[], Any]]:
    """Of each picture: a call whose first CTA is drawn. Long sequences: of 16 chunks."""
    x = bf16(1, TOKENS, 1, 64)
    steps, one = f32(1, TOKENS, 2), bf16(1, TOKENS, 1, 64)
    wide, narrow = bf16(1, TOKENS, 1, 128), bf16(1, 1, TOKENS, 16)
    rows = bf16(1, 1, TOKENS, 64)
    return {
        "linear-attention": lambda: tc.linear_attention(x, x, x),
        "mamba-2": lambda: tc.ssd(bf16(1, TOKENS, 2, 64), steps, -f32(2), one, one),
        "delta-rule": lambda: tc.gated_delta_rule(
            wide, wide, wide, -f32(1, TOKENS, 1), f32(1, TOKENS, 1), use_qk_l2norm_in_kernel=True
        ),
        "based": lambda: tc.based(narrow, narrow, rows, use_norm=False),
        "hedgehog": lambda: tc.hedgehog(
            bf16(1, 1, TOKENS, 128), bf16(1, 1, TOKENS, 128), bf16(1, 1, TOKENS, 128),
            bf16(1, 128, 64), bf16(1, 128, 64), f32(1), f32(1) + 1),
        "long-convolution": lambda: tc.fft_conv(bf16(16, 2, 4096), f32(2, 4096)),
        "rotary": lambda: tc.apply_rotary(bf16(1, 256, 4, 128), f32(256, 64), f32(256, 64)),
        "norms": lambda: tc.layer_norm_fn(bf16(64, 1024), f32(1024), residual=bf16(64, 1024)),
        "cross-entropy": lambda: tc.cross_entropy_grad(bf16(8, 32000), np.arange(8)),
    }  # fmt: skip


# ---- the pictures
WIDTH, LEFT, ROW, FONT = 960, 130, 24, 'font-family="sans-serif" font-size="12"'
COLORS = {"load": "#4878a8", "store": "#d08040", "score": "#7a5ca8", "state": "#3d8f5f",
          "norms": "#b0559a", "consumer": "#3d8f5f", "": "#777777"}  # fmt: skip
PART = 0.5, 0.8  # of the time, drawn of kernels with a loop


def svg(name: str, spans: list[Span]) -> str:
    """The picture of a part of a timeline."""
    whole = max(span.end for span in spans)
    looped = any(span.unit.startswith(PRODUCER) for span in spans)
    first, last = (part * whole for part in PART) if looped else (0.0, whole)
    units = {span.unit: None for span in spans if span.unit in (MEMORY, TENSOR)}
    units |= dict.fromkeys(sorted(span.unit for span in spans if span.end > first))
    scale = (WIDTH - LEFT - 10) / (last - first)
    height = ROW * (len(units) + 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        f"<title>{name}: one CTA of an H200, modelled</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for row, unit in enumerate(units):
        lines += _bars(row, unit, [s for s in spans if s.unit == unit], first, last, scale)
    lines += _axis(first, last, scale, height - ROW - 14)
    kinds = dict.fromkeys(s.name for s in spans if s.name in COLORS and s.name)
    for at, kind in enumerate(kinds):
        x, y = LEFT + 110 * at, height - 18
        lines.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{COLORS[kind]}"/>')
        lines.append(f'<text x="{x + 17}" y="{y + 11}">{kind}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _bars(
    row: int, unit: str, spans: list[Span], first: float, last: float, scale: float
) -> list[str]:
    """A row: its name, and its spans between two times."""
    lines = [f'<text x="4" y="{row * ROW + 17}">{unit}</text>']
    for span in spans:
        start, end = max(span.start, first), min(span.end, last)
        if end > start:
            x, width = LEFT + (start - first) * scale, max((end - start) * scale, 0.5)
            kind = span.name or unit.split()[0]
            color = COLORS.get(kind, COLORS[""])
            lines.append(f'<rect x="{x:.1f}" y="{row * ROW + 4}" width="{width:.1f}" '
                         f'height="{ROW - 7}" fill="{color}"/>')  # fmt: skip
    return lines


def _axis(first: float, last: float, scale: float, y: float) -> list[str]:
    """Microseconds."""
    length = (last - first) / CLOCK * 1e6
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if length / s <= 12)
    lines = []
    for tick in range(int(length / step) + 1):
        x = LEFT + tick * step * CLOCK / 1e6 * scale
        lines.append(f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{y}" stroke="#ddd"/>')
        label = f"{tick * step:.3g}" + (" us" if tick == 0 else "")
        lines.append(f'<text x="{x + 2:.1f}" y="{y + 10}">{label}</text>')
    return lines


def main(*words: str) -> None:
    """Writes the pictures, or compares them."""
    for name, call in calls().items():
        if words and name not in words and words != ("--check",):
            continue
        path, made = FOLDER / f"{name}.svg", svg(name, timeline(call))
        if words != ("--check",):
            path.write_text(made, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != made:
            sys.exit(f"{path.name} is out of date; run: python docs/make_timelines.py")


if __name__ == "__main__":
    main(*sys.argv[1:])
