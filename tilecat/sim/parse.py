"""PTX text to instructions: the grammar only, no meaning. PTX ISA chapters 4 and 5."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from functools import lru_cache

from tilecat.errors import Loc, MachineError
from tilecat.sim.chips import Chip

TYPE_BYTES = {
    **{f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)},
    **{"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "f16x2": 4, "bf16x2": 4, "b128": 16},
}
BANKS = {
    "pred": "P",
    **{kind: {1: "B", 2: "H", 4: "R", 8: "D", 16: "Q"}[n] for kind, n in TYPE_BYTES.items()},
}
SPECIALS = frozenset(
    [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid",
                                    "cluster_ctaid", "cluster_nctaid") for axis in "xyz"]
    + ["%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster", "%laneid", "%warpid",
       "%nwarpid", "%smid", "%nsmid", "%gridid",
       "%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt",
       "%dynamic_smem_size", "%total_smem_size",
       "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reg:
    """A register: bank (P predicate, B 8, H 16, R 32, D 64, Q 128 bits) and row in it.

    A register of 128 bits is two rows of bank D.
    """

    name: str
    bank: str
    row: int

    @property
    def halves(self) -> tuple[Reg, Reg]:
        """The 64-bit registers that one of 128 bits is made of, low half first."""
        return Reg(f"{self.name}.low", "D", self.row), Reg(f"{self.name}.high", "D", self.row + 1)


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, PTX ISA chapter 10."""

    name: str


@dataclass(frozen=True, slots=True)
class Imm:
    """A constant; `bits` is set for hexadecimal floats (0f..., 0d...)."""

    value: int | float
    bits: int | None = None


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name that stands for an address, or a label."""

    name: str


@dataclass(frozen=True, slots=True)
class Sink:
    """The destination `_`."""


@dataclass(frozen=True, slots=True)
class Not:
    """`!p`."""

    reg: Reg


@dataclass(frozen=True, slots=True)
class Pair:
    """`p|q`."""

    first: Reg | Sink
    second: Reg | Sink


@dataclass(frozen=True, slots=True)
class Vec:
    """`{a, b}`."""

    items: tuple


@dataclass(frozen=True, slots=True)
class Mem:
    """`[base + offset, extra...]`."""

    base: object
    offset: int
    extra: tuple = ()


@dataclass(slots=True)
class Instruction:
    """One instruction; the fields after `loc` are filled by `program.decode`."""

    pc: int
    op: str
    args: tuple
    predicate: Reg | None
    negated: bool
    line: int
    text: str
    loc: Loc | None
    mods: tuple[str, ...] = ()
    kind: str = ""
    row: object = None
    info: object = None
    target: int = -1
    mask: int = 0


@dataclass(frozen=True, slots=True)
class Parameter:
    """A kernel parameter: name, byte offset in the block, size in bytes, type."""

    name: str
    offset: int
    num_bytes: int
    type: str


@dataclass(frozen=True, slots=True)
class SharedArray:
    """A `.shared` or `.local` variable: bytes (0 for an extern one), alignment."""

    name: str
    num_bytes: int
    align: int
    extern: bool


@dataclass
class Module:
    """A parsed kernel."""

    name: str
    chip: Chip
    params: tuple[Parameter, ...]
    directives: dict[str, tuple[int, ...]]
    shared: list[SharedArray] = field(default_factory=list)
    local: list[SharedArray] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    branch_tables: dict[str, list[str]] = field(default_factory=dict)
    bank_sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys("PBHRD", 0))
    end_line: int = 0
    preamble: str = ""


_SHARED = re.compile(
    r"(\.extern\s+)?\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)\s*((?:\[\d*\])*)$"
)
_LABEL = re.compile(r"([\w$]+)\s*:(?!:)")
_OFFSET = re.compile(r"^(.+?)\s*([+-])\s*(-?\s*(?:0[xX][0-9a-fA-F]+|\d+))$")
_INTEGER = re.compile(r"^-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_FLOAT = re.compile(r"^-?\d+\.\d*(?:[eE][+-]?\d+)?$")
_HEX_FLOAT = re.compile(r"0[fF][0-9a-fA-F]{8}")
_HEX_DOUBLE = re.compile(r"0[dD][0-9a-fA-F]{16}")
_NAME = re.compile(r"[\w$]+")
_SPACE = re.compile(r"\s*")
_LOC = re.compile(r"\.loc\s")
_INSTRUCTION = re.compile(r"(?:@(!?)\s*([\w$%]+)\s+)?([\w.:]+)\s*(.*)$", re.S)
# What nearly all statements are: a register's declaration, or an instruction.
_PLAIN = re.compile(
    r"(?:\.reg\s+\.(\w+)\s+([\w$%]+)\s*;"
    r"|((?:@(!?)([\w$%]+)\s+)?([a-z]\w*(?:(?:\.|::)\w+)*)(?:\s+(?![\s:])([^;]*))?);)\s*"
)
_BRACKET = re.compile(r"[\[\](){}]")
_ADDRESS = re.compile(r"\[([\w$%]+)(?:\+(\d+))?\]")
_REGISTER_RANGE = re.compile(r"([\w$%]+)<(\d+)>")


def split_operands(text: str) -> list[str]:
    """Split at commas outside brackets and braces."""
    pieces = text.split(",")
    if _BRACKET.search(text):
        pieces = _joined(pieces)
    parts = [piece.strip() for piece in pieces]
    return parts if parts[-1] else parts[:-1]


def _joined(pieces: list[str]) -> list[str]:
    """Pieces between commas, those that a bracket holds together as one."""
    parts, whole = [], ""
    for piece in pieces:
        whole = f"{whole},{piece}" if whole else piece
        opened = whole.count("[") + whole.count("{") + whole.count("(")
        if opened == whole.count("]") + whole.count("}") + whole.count(")"):
            parts.append(whole)
            whole = ""
    return [*parts, whole]


def integer(text: str) -> int:
    """An integer constant, PTX ISA 4.5.1: decimal, hexadecimal, octal or binary."""
    digits = text.rstrip("U").replace(" ", "")
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("-")
    if re.fullmatch(r"0[0-7]+", digits):
        return sign * int(digits, 8)
    return sign * int(digits, 0)


_register = lru_cache(1 << 16)(Reg)


@lru_cache(1 << 12)
def _constant(text: str) -> Special | Imm | Sink | None:
    """An operand that means the same in every text."""
    if text == "_":
        return Sink()
    if text in SPECIALS:
        return Special(text)
    if text == "WARP_SZ":
        return Imm(32)
    if _HEX_FLOAT.fullmatch(text):
        bits = int(text[2:], 16)
        return Imm(struct.unpack("<f", struct.pack("<I", bits))[0], bits)
    if _HEX_DOUBLE.fullmatch(text):
        bits = int(text[2:], 16)
        return Imm(struct.unpack("<d", struct.pack("<Q", bits))[0], bits)
    if _INTEGER.match(text):
        return Imm(integer(text))
    return Imm(float(text)) if _FLOAT.match(text) else None


class Body:
    """Parses the statements of a kernel body into a Module."""

    def __init__(self, module: Module, files: dict[int, str]):
        self.module, self.files = module, files
        self.scopes: list[dict[str, Reg]] = [{}]  # each with all names that are known in it
        self.known = self.scopes[0]
        self.label_scopes: list[str] = [""]
        self.num_scopes = 0
        self.loc: Loc | None = None
        self.pending_table: str | None = None
        self.current = ""

    def _fail(self, line: int, text: str, why: str) -> None:
        whole = self.current if self.current and self.current != text else ""
        shown = f"{text}, in: {whole}" if whole else text
        raise MachineError(f"parse: line {line}: {why}: {shown}", loc=self.loc)

    def declare(self, kind: str, name: str, line: int) -> None:
        """A register: `.reg .type a`. PTX ISA 5.2."""
        bank = BANKS.get(kind)
        if not bank:
            self._fail(line, name, f"register type .{kind} not implemented")
        sizes, rows = self.module.bank_sizes, "D" if bank == "Q" else bank
        self.known[name] = _register(name, bank, sizes[rows])
        sizes[rows] += 1 + (bank == "Q")

    def declare_all(self, kind: str, names: str, line: int) -> None:
        """Several: `.reg .type a, b<n>`. PTX ISA 5.4.2."""
        for name in split_operands(names):
            match = _REGISTER_RANGE.fullmatch(name)
            for item in [f"{match[1]}{k}" for k in range(int(match[2]))] if match else [name]:
                self.declare(kind, item, line)

    def block(self, char: str) -> None:
        """The start or end of a block: names in it are its own."""
        if char == "{":
            self.num_scopes += 1
            self.scopes.append(dict(self.known))
            self.label_scopes.append(f"{self.num_scopes}.")
        else:
            self.scopes.pop()
            self.label_scopes.pop()
        self.known = self.scopes[-1] if self.scopes else {}

    def operand(self, text: str, line: int) -> object:
        """One operand, PTX ISA chapter 6."""
        if not text:
            self._fail(line, text, "an operand is missing")
        if address := _ADDRESS.fullmatch(text):
            base = self.known.get(address[1]) or self._scalar(address[1], line)
            return Mem(base, int(address[2] or 0))
        if text[0] == "[":
            base, *extra = split_operands(text[1:-1]) or ("",)
            offset = 0
            match = _OFFSET.match(base)
            if match and base not in self.known:
                base = match[1]
                offset = integer(match[3]) * (1 if match[2] == "+" else -1)
            items = tuple(self.operand(part, line) for part in extra)
            return Mem(self.operand(base, line), offset, items)
        if text[0] == "{":
            return Vec(tuple(self.operand(part, line) for part in split_operands(text[1:-1])))
        if text[0] == "!":
            return Not(self.operand(text[1:].strip(), line))
        if "|" in text:
            first, _, second = text.partition("|")
            return Pair(self.operand(first.strip(), line), self.operand(second.strip(), line))
        return self._scalar(text, line)

    def _scalar(self, text: str, line: int) -> object:
        found = self.known.get(text) or _constant(text)
        if found is not None:
            return found
        if text[0] == "%" or not _NAME.fullmatch(text):
            self._fail(line, text, "unknown register or operand")
        return Symbol(text)

    def label(self, name: str) -> None:
        """`name:` in front of the next instruction."""
        self.module.labels[self.label_scopes[-1] + name] = len(self.module.instructions)
        self.pending_table = name

    def statement(self, text: str, line: int) -> None:
        """A directive or an instruction, without its semicolon."""
        self.current = text
        if not text.startswith("."):
            self.instruction(text, line)
        elif text.startswith(".reg"):
            match = re.match(r"\.reg\s+(?:\.v\d\s+)?\.(\w+)\s+(.*)$", text, re.S)
            if not match or ".v" in text.split()[1]:
                self._fail(line, text, "register declaration not understood")
            self.declare_all(match[1], match[2], line)
        elif text.startswith((".shared", ".extern .shared")):
            self.module.shared.append(shared_array(text, line))
        elif text.startswith(".local"):
            self.module.local.append(shared_array(text.replace(".local", ".shared", 1), line))
        elif text.startswith(".branchtargets"):
            prefix = self.label_scopes[-1]
            names = split_operands(text.split(None, 1)[1])
            self.module.branch_tables[self.pending_table or ""] = [prefix + n for n in names]
        elif text.startswith(".pragma"):
            if "nounroll" not in text and "used_bytes_mask" not in text:
                self._fail(line, text, "pragma not implemented")
        else:
            self._fail(line, text, "directive not implemented")

    def instruction(self, text: str, line: int) -> None:
        """`@p opcode operands`, PTX ISA 4.3.2."""
        match = _INSTRUCTION.match(text)
        if not match:
            self._fail(line, text, "not an instruction")
        self.add(text, line, *match.groups())

    def add(
        self, text: str, line: int, sign: str | None, guard: str | None, op: str,
        operands: str | None,
    ) -> None:
        """An instruction in its parts: `@`, `!`, predicate, opcode, operands."""
        known, predicate = self.known, None
        if guard:
            predicate = known.get(guard)
            if predicate is None or predicate.bank != "P":
                self._fail(line, text, f"{guard} is no predicate register")
        parts = split_operands(operands) if operands else ()
        args = tuple([known.get(part) or self.operand(part, line) for part in parts])
        if op in ("bra", "bra.uni", "brx.idx", "brx.idx.uni"):
            args = self.scoped(op, args)
        items = self.module.instructions
        items.append(
            Instruction(len(items), op, args, predicate, sign == "!", line, text, self.loc)
        )

    def scoped(self, op: str, args: tuple) -> tuple:
        """Labels of an inner block are local to it, PTX ISA 4.3."""
        if not args or not isinstance(args[-1], Symbol) or op.startswith("brx"):
            return args
        return (*args[:-1], Symbol("\0".join(self.label_scopes[1:]) + "\0" + args[-1].name))

    def location(self, text: str, at: int) -> None:
        """`.loc file line column`, PTX ISA 11.5.2."""
        numbers = re.findall(r"\d+", text.split("function_name")[0])
        if len(numbers) < 3:
            self._fail(at, text, "a .loc has file, line and column")
        file, line, column = (int(number) for number in numbers[:3])
        path = self.files.get(file)
        self.loc = Loc(path, line, max(column - 1, 0)) if path else None


def shared_array(text: str, line: int) -> SharedArray:
    """A `.shared` variable's declaration, PTX ISA 5.1.7, 5.4."""
    match = _SHARED.match(" ".join(text.split()))
    if not match or match[3] not in TYPE_BYTES:
        raise MachineError(f"parse: line {line}: shared variable not understood: {text}")
    extern = bool(match[1])
    size = 0 if extern else TYPE_BYTES[match[3]]
    for extent in re.findall(r"\[(\d+)\]", match[5]):
        size *= int(extent)
    return SharedArray(match[4], size, int(match[2] or TYPE_BYTES[match[3]]), extern)


def scan(body: Body, text: str, start: int) -> None:
    """Walk the body from its first statement to its closing brace."""
    position: int | None = _SPACE.match(text, start).end()
    line, seen = 1, 0
    while position is not None:
        line += text.count("\n", seen, position)
        seen, plain = position, _PLAIN.match(text, position)
        if plain is None:
            position = _unusual(body, text, position, line)
            continue
        if plain.lastindex == 2:
            body.declare(plain[1], plain[2], line)
        else:
            whole, *parts = plain.groups()[2:]
            body.current = whole = " ".join(whole.split())
            body.add(whole, line, *parts)
        position = plain.end()


def _unusual(body: Body, text: str, start: int, line: int) -> int | None:
    """What is no plain statement; the next one's place, None behind the body's closing brace."""
    char = text[start : start + 1]
    if not char:
        raise MachineError("parse: the kernel's body has no closing brace")
    label = None if char == "." else _LABEL.match(text, start)
    if char in "{}":
        body.block(char)
        end = start + 1
        if not body.scopes:
            body.module.end_line = line
            return None
    elif char == "." and _LOC.match(text, start):
        end = text.find("\n", start)
        body.location(text[start:end], line)
    elif label:
        body.label(label[1])
        end = label.end()
    else:
        end = text.find(";", start) + 1
        if not end:
            raise MachineError(f"parse: line {line}: statement without semicolon")
        body.statement(" ".join(text[start : end - 1].split()), line)
    return _SPACE.match(text, end).end()
