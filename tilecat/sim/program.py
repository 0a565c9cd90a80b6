"""A decoded program: every instruction has a meaning, every branch a point of reconvergence."""

from __future__ import annotations

from dataclasses import dataclass

from tilecat.errors import MachineError
from tilecat.sim import alu
from tilecat.sim.chips import Chip
from tilecat.sim.module import parse_module
from tilecat.sim.parse import (
    TYPE_BYTES,
    Imm,
    Instruction,
    Mem,
    Module,
    Not,
    Pair,
    Reg,
    Sink,
    Special,
    Symbol,
    Vec,
)  # fmt: skip
from tilecat.sim.report import Place
from tilecat.sim.table import Table, form_of

_BANKS = {1: "B", 2: "H", 4: "R", 8: "D"}
_CONSTANTS = (Imm, Symbol, Sink)


@dataclass
class Program:
    """What `parse` returns and `run` takes.

    Args:
        module: the parsed text.
        instructions: decoded instructions; the last one is an exit that every path reaches.
        leaders: instructions where straight-line runs must start.
        joins: reconvergence point of every branch that can diverge.
    """

    module: Module
    instructions: list[Instruction]
    leaders: frozenset[int]
    joins: dict[int, int]

    def place(self, pc: int) -> Place:
        """PTX line, text and user line of an instruction; empty for a number that none has."""
        if not 0 <= pc < len(self.instructions):
            return Place(0, "")
        item = self.instructions[pc]
        return Place(item.line, item.text, item.loc)


def refuse(item: Instruction, why: str) -> MachineError:
    """The error for an instruction the machine does not take."""
    return MachineError(f"{item.op.split('.')[0]}: {why}, got PTX line {item.line}: {item.text}",
                        loc=item.loc)  # fmt: skip


def registers(operand: object) -> list[Reg]:
    """Registers an operand names."""
    if isinstance(operand, Reg):
        return [operand]
    if isinstance(operand, Not):
        return [operand.reg]
    if isinstance(operand, Pair):
        return registers(operand.first) + registers(operand.second)
    if isinstance(operand, Vec):
        return [reg for item in operand.items for reg in registers(item)]
    if isinstance(operand, Mem):
        extra = [reg for item in operand.extra for reg in registers(item)]
        return registers(operand.base) + extra
    return []


def bank_of(kind: str) -> str:
    """Register bank of a type."""
    return "P" if kind == "pred" else _BANKS[TYPE_BYTES[kind]]


def _check_operand(item: Instruction, operand: object, kind: str, loose: bool) -> None:
    if type(operand) is Reg and operand.bank == bank_of(kind) or isinstance(operand, _CONSTANTS):
        return
    if isinstance(operand, Special):
        size = 8 if operand.name == "%globaltimer" else 4
        if TYPE_BYTES.get(kind) != size and not (loose and TYPE_BYTES.get(kind, 8) < size):
            raise refuse(item, f"{operand.name} has {8 * size} bits, not those of .{kind}")
        return
    reg = operand.reg if isinstance(operand, Not) else operand
    if not isinstance(reg, Reg) or isinstance(operand, Not) and kind != "pred":
        raise refuse(item, "operand form not implemented")
    order = "QPBHRD"  # none is as wide as one of 128 bits: those go to rows of their own
    wide_enough = loose and order.index(reg.bank) >= order.index(bank_of(kind)) > 1
    if reg.bank != bank_of(kind) and not wide_enough:
        raise refuse(item, f"register {reg.name} does not have the size of .{kind}")


# Opcodes with the forms of operands that were found right: they need no second look.
_CHECKED: set[tuple[object, ...]] = set()


def _decode_alu(
    item: Instruction, form: tuple[object, ...], row: alu.AluRow, chip: Chip
) -> None:
    if row.longer is not None and len(item.args) == len(row.longer.srcs) + 1:
        row = row.longer
    if row.needs and row.needs not in chip.features:
        raise refuse(item, f"not supported on target {chip.name}")
    item.kind, item.row = "alu", row
    if form not in _CHECKED:
        _check_alu(item, row)
        if not any(isinstance(arg, Not | Pair | Special | Vec) for arg in item.args):
            _CHECKED.add(form)


def _check_alu(item: Instruction, row: alu.AluRow) -> None:
    vectors = [isinstance(arg, Vec) for arg in item.args]
    if any(vectors):
        _check_vector_move(item, row, vectors)
        return
    if len(item.args) != len(row.srcs) + 1:
        raise refuse(item, f"{len(row.srcs) + 1} operands are wanted")
    dst = item.args[0]
    if isinstance(dst, Pair):
        if row.dst != "pred" or not item.op.startswith("setp"):
            raise refuse(item, "only setp has two destinations")
        item.info = alu.inverted(item.op)
        for part in (dst.first, dst.second):
            _check_operand(item, part, "pred", False)
    else:
        if not isinstance(dst, Reg | Sink):
            raise refuse(item, "the destination must be a register")
        _check_operand(item, dst, row.dst, row.loose)
    for operand, kind in zip(item.args[1:], row.srcs, strict=True):
        _check_operand(item, operand, kind, row.loose or item.op.startswith("cvt"))


def _check_vector_move(item: Instruction, row: alu.AluRow, vectors: list[bool]) -> None:
    """Mov packs and unpacks registers: 9.7.9.2."""
    if item.op not in ("mov.b16", "mov.b32", "mov.b64") or sum(vectors) != 1:
        raise refuse(item, "a vector operand is taken by mov.b16, mov.b32 and mov.b64 only")
    vector, other = item.args if vectors[0] else item.args[::-1]
    size, rest = divmod(TYPE_BYTES[row.dst], len(vector.items))
    if rest or size not in (1, 2, 4):
        raise refuse(item, "the vector's parts must fill the whole")
    for part in vector.items:
        _check_operand(item, part, f"b{8 * size}", False)
    _check_operand(item, other, row.dst, False)


def _decode_parameter_load(item: Instruction, module: Module) -> bool:
    """ld.param: 9.7.9.8."""
    if not item.op.startswith("ld.param."):
        return False
    kind = item.op.removeprefix("ld.param.")
    params = {param.name: param for param in module.params}
    good = kind in TYPE_BYTES and len(item.args) == 2 and isinstance(item.args[1], Mem)
    if not good or not isinstance(item.args[0], Reg) or not isinstance(item.args[1].base, Symbol):
        raise refuse(item, "this form of ld.param is not implemented")
    _check_operand(item, item.args[0], kind, True)
    param = params.get(item.args[1].base.name)
    if param is None or item.args[1].offset + TYPE_BYTES[kind] > param.num_bytes:
        raise refuse(item, "no such parameter bytes")
    item.kind, item.info = "param", (param.offset + item.args[1].offset, kind)
    return True


def _decode_flow(item: Instruction, module: Module, exit_pc: int) -> bool:
    """bra, brx.idx, ret, exit: 9.7.12. Exits are branches to one last exit."""
    if item.op in ("bra", "bra.uni"):
        if len(item.args) != 1 or item.target < 0:
            raise refuse(item, "one label is wanted")
        item.kind = "branch"
    elif item.op in ("ret", "exit", "ret.uni"):
        if item.args:
            raise refuse(item, "no operands are wanted")
        item.kind, item.target = "branch", exit_pc
    elif item.op in ("brx.idx", "brx.idx.uni"):
        names = module.branch_tables.get(getattr(item.args[-1], "name", ""))
        if not names or len(item.args) != 2 or item.predicate is not None:
            raise refuse(item, "an index and a .branchtargets label are wanted")
        if any(name not in module.labels for name in names):
            raise refuse(item, "unknown label in .branchtargets")
        item.kind, item.info = "table", tuple(module.labels[name] for name in names)
    else:
        return False
    return True


def _decode_row(item: Instruction, form: tuple[object, ...], table: Table, chip: Chip) -> None:
    order = table.canonical(item.op)
    if order != item.op:
        item.op = order
        form = form_of(item)
    row = table.row(item, form)
    if row is None and not table.has(item.op):
        raise refuse(item, "instruction or modifier not implemented")
    if row is None:
        raise refuse(item, "operand form not implemented")
    if row.needs and row.needs not in chip.features:
        raise refuse(item, f"not supported on target {chip.name}")
    item.kind, item.row = "system", row
    item.mods = tuple(item.op.split("."))
    if row.decode is not None:
        item.info = row.decode(item)


def _successors(item: Instruction) -> list[int]:
    following = [item.pc + 1] if item.predicate is not None else []
    if item.kind == "branch":
        return [item.target, *following]
    return list(item.info) if item.kind == "table" else [item.pc + 1]


def _reconvergence(items: list[Instruction], leaders: list[int]) -> dict[int, int]:
    """Nearest common post-dominator of every divergent branch, on basic blocks."""
    number = {pc: index for index, pc in enumerate(leaders)}
    ends = [*(pc - 1 for pc in leaders[1:]), len(items) - 1]
    last = len(leaders) - 1
    following = [
        [] if index == last else sorted({number[pc] for pc in _successors(items[end])})
        for index, end in enumerate(ends)
    ]
    everything = (1 << len(leaders)) - 1
    sets = [everything] * last + [1 << last]
    changed = True
    while changed:
        changed = False
        for index in range(last - 1, -1, -1):
            value = everything
            for successor in following[index]:
                value &= sets[successor]
            value |= 1 << index
            if value != sets[index]:
                sets[index], changed = value, True
    joins = {}
    for index, end in enumerate(ends[:-1]):
        if items[end].kind == "table" or items[end].kind == "branch" and items[end].predicate:
            strict = sets[index] & ~(1 << index)
            found = (k for k in range(len(leaders)) if strict >> k & 1 and sets[k] == strict)
            joins[end] = leaders[next(found, last)]
    return joins


def _masks(items: list[Instruction], sizes: dict[str, int]) -> None:
    """The registers that each instruction names: the 32-bit bank's rows, then the others'.

    Only wgmma asks, for those in flight.
    """
    order = "RPBHD"
    first = {bank: sum(sizes[b] for b in order[: order.index(bank)]) for bank in order}
    first["Q"] = first["D"]
    for item in items:
        for arg in (*item.args, item.predicate):
            for reg in (arg,) if type(arg) is Reg else registers(arg):
                item.mask |= 1 << (first[reg.bank] + reg.row)


def decode(module: Module, table: Table) -> Program:
    """Give every instruction its meaning.

    Raises:
        MachineError: an instruction, modifier or operand form that no row has.
    """
    items = module.instructions
    final = Instruction(len(items), "exit", (), None, False, module.end_line, "exit", None)
    final.kind = "exit"
    leaders = {0, final.pc, *module.labels.values()}
    for item in items:
        form = form_of(item)
        row = None if item.op.startswith("ld.") else alu.resolve(item.op)
        if row is not None:
            _decode_alu(item, form, row, module.chip)
        elif not _decode_parameter_load(item, module):
            if _decode_flow(item, module, final.pc):
                leaders |= {item.pc + 1, *_successors(item)}
            else:
                _decode_row(item, form, table, module.chip)
    if any(item.op.startswith("wgmma") for item in items):
        _masks(items, module.bank_sizes)
    items.append(final)
    starts = sorted(leaders)
    joins = _reconvergence(items, starts)
    return Program(module, items, frozenset(starts), joins)


def parse_program(text: str, table: Table, files: dict[int, str] | None = None) -> Program:
    """Text to program."""
    return decode(parse_module(text, files), table)
