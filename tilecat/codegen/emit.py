"""The last step of code generation: the whole text, and the table of names that goes with it."""

from __future__ import annotations

import re

from ..addresses import AddressTable, BarrierName, SharedRange, ThreadRole
from ..check import CheckedKernel
from ..ir import Kernel, TensorArg
from ..ops.memory import AllocShared
from ..ops.sync import AllocBarriers
from ..ptx import instructions as ptx
from .module import Param, PtxModule, TensorMapParam
from .writer import SHARED_ARRAY, Writer

ADDRESS = re.compile(r"<function (\S+) at 0x[0-9a-f]+>")


def generate(checked: CheckedKernel) -> PtxModule:
    """PTX of a checked kernel.

    Args:
        checked: what `check` returned; nothing else can be passed on.
    """
    writer = Writer(checked)
    writer.block(checked.kernel.body)
    kernel = checked.kernel
    return PtxModule(
        text=_text(writer),
        entry=_entry(kernel),
        target=checked.arch.target,
        threads=kernel.threads,
        smem_bytes=checked.shared.launch_bytes,
        cluster=kernel.cluster,
        min_blocks=_blocks(kernel),
        params=tuple(writer.params),
        table=_table(checked, writer),
        dependent=bool(kernel.facts.get("dependent")),
        sites=tuple(writer.sites),
        tasks=kernel.facts.get("tasks"),
        every_task=bool(kernel.facts.get("launch_control")),
        spill_bytes=int(kernel.facts.get("spill_bytes", 0)),
    )


def _blocks(kernel: Kernel) -> int:
    """CTAs that share an SM."""
    return int(kernel.facts.get("blocks_per_sm", 1))


def _entry(kernel: Kernel) -> str:
    """Its name as PTX takes it, apart from that of the shared array."""
    name = ptx.identifier(kernel.name)
    return f"{name}_kernel" if name == SHARED_ARRAY else name


def _declare(param: Param) -> str:
    if isinstance(param, TensorMapParam):
        return f"    .param .align 64 .b8 {param.name}[128]"
    return f"    .param .{param.kind} {param.name}"


def _text(w: Writer) -> str:
    kernel, arch = w.kernel, w.checked.arch
    tensors = [a for a in kernel.args if isinstance(a, TensorArg)]
    # Of functions the names alone: their addresses differ from process to process.
    params = [(k, ADDRESS.sub(r"\1", str(v))) for k, v in kernel.params.items()]
    header = [
        f"// {kernel.name}: "
        + ", ".join(f"{a.name} {a.type}" for a in tensors)
        + (f"; {', '.join(f'{k}={v}' for k, v in params)}" if kernel.params else ""),
        f".version {w.version}",
        f".target {arch.target}",
        ".address_size 64",
        "",
        *(f'.file {index} "{path}"' for path, index in w.files.items()),
        f".extern .shared .align 1024 .b8 {SHARED_ARRAY}[];",
        "",
        f".visible .entry {_entry(kernel)}(",
        ",\n".join(_declare(p) for p in w.params),
        ")",
        *([".explicitcluster", f".reqnctapercluster {kernel.cluster}, 1, 1"]
          if kernel.cluster > 1 else []),
        f".maxntid {kernel.threads}, 1, 1",
        f".minnctapersm {_blocks(kernel)}",
        "{",
    ]
    _prefetch_maps(w)
    body = ["    // ---- once a thread", *w.prologue, *w.lines, "    ret;", "}", ""]
    return "\n".join([*header, *w.declarations(), *body])


def _prefetch_maps(w: Writer) -> None:
    """One thread fetches the tensor maps, while the others set up what the first copy needs."""
    maps = w.tensor_maps()
    if not maps:
        return
    first = w.invariant(
        "first thread", "pred", "first", lambda r: w.line(ptx.alu("setp.eq.u32", r, w.tid(), 0))
    )
    w.prologue += [f"    @{first} {ptx.prefetch_tensormap(register)}" for register in maps]


def _table(checked: CheckedKernel, w: Writer) -> AddressTable:
    shared: list[SharedRange] = []
    barriers: list[BarrierName] = []
    for op in checked.kernel.body.walk():
        if isinstance(op, AllocShared):
            shared += _ranges(op, checked.offset(op))
        elif isinstance(op, AllocBarriers):
            start = checked.offset(op)
            barriers += [
                BarrierName(start + 8 * i, f"{op.name}[{i}]", op.arrivals, op.expected_bytes)
                for i in range(op.count)
            ]
    roles = tuple(ThreadRole(r.first, r.last, r.name) for r in checked.kernel.roles)
    files = tuple((index, path) for path, index in w.files.items())
    return AddressTable(tuple(shared), tuple(barriers), roles, files)


def _ranges(op: AllocShared, start: int) -> list[SharedRange]:
    found, tall = [], op.together
    for copy in range(0, op.copies, tall):
        stage = copy // op.per_stage if op.per_stage else None
        inner = copy % op.per_stage if op.per_stage else copy
        many = (op.per_stage or op.copies) > tall
        place = f"[{inner}:{inner + tall}]" if tall > 1 else f"[{inner}]"
        name = f"{op.name}{place}" if many else op.name
        num_bytes = (tall - 1) * op.stride_bytes + op.tile.layout.num_bytes
        found.append(
            SharedRange(
                start + copy * op.stride_bytes, num_bytes, name, op.tile.dtype.name,
                op.tile.rows * tall, op.tile.cols, stage,
            )
        )  # fmt: skip
    return found
