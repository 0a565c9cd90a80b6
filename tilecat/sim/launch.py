"""Run a kernel on arrays: arguments, grid, clusters, and the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from tilecat.addresses import AddressTable
from tilecat.errors import MachineError
from tilecat.sim import (
    async_stores,
    atomics,
    barriers,
    bulk,
    bulk_rows,
    bulk_stores,
    carry,
    cp_async,
    generic,
    launch_control,
    local_memory,
    mbarrier,
    memory,
    mma_sync,
    tensor_access,
    tensor_alloc,
    tensor_copy,
    tensor_core,
    tensor_mma,
    tensormap,
    variables,
    warp,
    wgmma,
)  # fmt: skip
from tilecat.sim.clusters import Clusters
from tilecat.sim.core import RESERVED_BYTES, Machine
from tilecat.sim.global_memory import EncodedMap, GlobalMemory, Pointer, TensorMap
from tilecat.sim.parse import Parameter
from tilecat.sim.program import Program, parse_program
from tilecat.sim.report import Conflict, Result
from tilecat.sim.table import Table

TABLE = Table((
    *mbarrier.TABLE, *barriers.TABLE, *bulk.TABLE, *bulk_stores.TABLE, *bulk_rows.TABLE,
    *wgmma.TABLE,
    *memory.TABLE, *warp.TABLE, *atomics.TABLE, *cp_async.TABLE, *tensormap.TABLE,
    *mma_sync.TABLE, *local_memory.TABLE, *carry.TABLE, *variables.TABLE, *generic.TABLE,
    *async_stores.TABLE, *tensor_alloc.TABLE, *tensor_access.TABLE, *tensor_core.TABLE,
    *tensor_mma.TABLE, *tensor_copy.TABLE, *launch_control.TABLE,
))  # fmt: skip
_DEFAULT_LIMIT = 50_000_000
_MAP_BYTES = 128
# They run one cluster after the other: this many empty ones take minutes.
_MAX_CTAS = 1 << 20


def parse(text: str, files: dict[int, str] | None = None) -> Program:
    """Decode PTX text.

    Args:
        text: a module with one kernel.
        files: paths of `.file` indices, if the text does not declare them.

    Raises:
        MachineError: syntax, instructions, modifiers or operand forms that are not implemented.
    """
    program = parse_program(text, TABLE, files)
    tensor_alloc.check_groups(program)
    return program


def _three(value: int | Sequence[int], what: str) -> tuple[int, int, int]:
    numbers = (value,) if isinstance(value, int | np.integer) else tuple(value)
    if not 1 <= len(numbers) <= 3 or any(int(number) < 1 for number in numbers):
        raise MachineError(f"run: {what} is one to three positive integers, got {value}")
    return (*(int(number) for number in numbers), 1, 1)[:3]


def _arguments(params: Sequence[Parameter], args: Sequence[object], statics: dict[str, np.ndarray]):
    """The parameter block, tensor maps by offset, and global memory."""
    if len(args) != len(params):
        names = ", ".join(param.name for param in params)
        raise MachineError(f"run: {len(params)} arguments ({names}) are wanted, got {len(args)}")
    memory_ = GlobalMemory()
    pairs = list(zip(params, args, strict=True))
    arrays = [(p.name, a.array) for p, a in pairs if isinstance(a, Pointer | TensorMap)]
    memory_.place([*arrays, *statics.items()])
    size = max((param.offset + param.num_bytes for param in params), default=0)
    block, maps = np.zeros(size + 8, np.uint8), {}
    for param, arg in pairs:
        place = slice(param.offset, param.offset + param.num_bytes)
        if isinstance(arg, TensorMap):
            if param.num_bytes != _MAP_BYTES:
                raise MachineError(
                    f"run: {param.name} has {param.num_bytes} bytes, a tensor map 128"
                )
            maps[param.offset] = EncodedMap(param.name, arg, memory_)
        else:
            block[place] = _scalar(param, arg, memory_)
    return block, maps, memory_


def _scalar(param: Parameter, arg: object, memory_: GlobalMemory) -> np.ndarray:
    if param.num_bytes not in (1, 2, 4, 8):
        raise MachineError(
            f"run: {param.name} of {param.num_bytes} bytes wants a TensorMap, got {arg!r}"
        )
    if isinstance(arg, Pointer):
        if param.num_bytes != 8:
            raise MachineError(f"run: {param.name} has {param.num_bytes} bytes, a pointer 8")
        return np.array([memory_.address_of(arg.array)], np.uint64).view(np.uint8)
    if param.type in ("f32", "f64", "f16"):
        return np.array([arg], f"f{param.num_bytes}").view(np.uint8)
    if isinstance(arg, float | np.floating):
        if param.type[0] != "b":
            raise MachineError(f"run: {param.name} is .{param.type}, got the float {arg}")
        return np.array([arg], f"f{param.num_bytes}").view(np.uint8)
    if not isinstance(arg, int | np.integer):
        raise MachineError(f"run: {param.name} wants a number, Pointer or TensorMap, got {arg!r}")
    bits = 8 * param.num_bytes
    return np.array([int(arg) & ((1 << bits) - 1)], f"u{param.num_bytes}").view(np.uint8)


def _block_of(program: Program) -> tuple[int, int, int]:
    directives = program.module.directives
    shape = directives.get("reqntid") or directives.get("maxntid")
    if not shape:
        raise MachineError("run: the kernel names no block size: write .reqntid or .maxntid")
    block = _three(shape, "block")
    if int(np.prod(block)) % 32 or int(np.prod(block)) > 1024:
        raise MachineError(f"run: a block is a multiple of 32 threads up to 1024, got {block}")
    return block


def _result(machine: Machine, reports: Sequence) -> Result:
    items, executed = machine.program.instructions, Counter[str]()
    for segment in machine.bound.values():
        for item in items[segment.start : segment.end]:
            executed[item.op] += segment.runs
    for item, count in zip(items, machine.counts, strict=True):
        executed[item.op] += count
    stats: Counter[str] = Counter(machine.stats)
    for op, count in (+executed).items():
        stats[op.split(".")[0]] += count
    conflicts = tuple(
        Conflict(items[pc].line, items[pc].text, items[pc].loc, *worst)
        for pc, worst in sorted(machine.conflicts.items())
    )
    instructions = stats.pop("instructions", 0)
    return Result(tuple(reports), stats, conflicts, instructions)


def _another(new_machine: Callable[[], Machine], statics: dict, first: Machine) -> Machine:
    """A second machine of the same launch, which counts and reports into the first."""
    machine = new_machine()
    machine.reporter, machine.random, machine.stats = first.reporter, first.random, first.stats
    machine.counts, machine.conflicts = first.counts, first.conflicts
    variables.bind(machine, statics, first.global_memory)
    return machine


def run(
    program: Program | str, *, grid: int | Sequence[int], args: Sequence[object], smem_bytes: int,
    table: AddressTable | None = None, seed: int = 0, races: bool = True, limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Result:  # fmt: skip
    """Run a kernel; arrays are read and written in place.

    Args:
        program: PTX text, or what `parse` made of it.
        grid: CTAs along x, or x, y, z.
        args: in the order of the parameters: TensorMap, Pointer, int or float.
        smem_bytes: dynamic shared memory.
        table: names for tiles, mbarriers and roles in reports.
        seed: 0 modulo 4 does asynchronous work at issue, 1 as late as possible, 2 and 3 at random;
            from 2 on the order of CTAs is random too.
        races: keep happens-before, and find races and uninitialised reads.
        limit: most instructions of one cluster, then it counts as endless.
        progress: called with (CTAs done, all CTAs) after every cluster.

    Raises:
        MachineError: PTX or arguments the machine cannot take.
    """
    if isinstance(program, str):
        program = parse(program, dict(table.files) if table else None)
    shape = _three(grid, "grid")
    if shape[0] * shape[1] * shape[2] > _MAX_CTAS:
        raise MachineError(f"run: a grid has at most {_MAX_CTAS} CTAs here, got {shape}")
    block = _block_of(program)
    cluster = _three(program.module.directives.get("reqnctapercluster") or 1, "cluster")
    if any(extent % size for extent, size in zip(shape, cluster, strict=True)):
        raise MachineError(f"run: grid {shape} is not a multiple of the cluster {cluster}")
    statics = variables.variables_of(program.module)
    param_bytes, maps, memory_ = _arguments(program.module.params, args, statics)
    new_machine = partial(
        Machine, program, grid=shape, cluster=cluster, block=block, param_bytes=param_bytes,
        maps=maps, globals_=memory_, smem_bytes=smem_bytes, table=table, seed=seed, races=races,
        limit=_DEFAULT_LIMIT if limit is None else limit,
    )  # fmt: skip
    machine = new_machine()
    most = program.module.chip.shared_bytes
    if machine.shared_bytes - RESERVED_BYTES > most:
        raise MachineError(f"run: at most {most} bytes of shared memory a CTA, got "
                           f"{machine.shared_bytes - RESERVED_BYTES}")  # fmt: skip
    variables.bind(machine, statics, memory_)
    order = np.arange(int(np.prod(shape)) // machine.ctas)
    if seed >= 2:
        np.random.default_rng(seed).shuffle(order)
    # Products of 64 rows: on two busy cores a second thread makes a run 2 to 6 times slower.
    with threadpool_limits(1, user_api="blas"):
        another = partial(_another, new_machine, statics)
        Clusters(machine, order.tolist(), another, progress).run()
    return _result(machine, machine.reporter.found.values())
