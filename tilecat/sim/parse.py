"""PTX text to instructions: the grammar only, no meaning. PTX ISA chapters 4 and 5."""

from __future__ import annotations

import bisect
import re
import struct
from dataclasses import dataclass, field

from tilecat.errors import Loc, MachineError
from tilecat.sim.chips import Chip, chip_of

TYPE_BYTES = {
    **{f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)},
    **{"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "f16x2": 4, "bf16x2": 4, "b128": 16},
}
REGISTER_BANKS = {1: "B", 2: "H", 4: "R", 8: "D"}
SPECIALS = frozenset(
    [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid",
                                    "cluster_ctaid", "cluster_nctaid") for axis in "xyz"]
    + ["%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster", "%laneid", "%warpid",
       "%nwarpid", "%smid", "%nsmid", "%gridid",
       "%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt",
       "%dynamic_smem_size", "%total_smem_size"]
)  # fmt: skip


@dataclass(frozen=True)
class Reg:
    """A register: bank (P predicate, B 8, H 16, R 32, D 64 bits) and row in it."""

    name: str
    bank: str
    row: int


@dataclass(frozen=True)
class Special:
    """A special register, PTX ISA chapter 10."""

    name: str


@dataclass(frozen=True)
class Imm:
    """A constant; `bits` is set for hexadecimal floats (0f..., 0d...)."""

    value: int | float
    bits: int | None = None


@dataclass(frozen=True)
class Symbol:
    """A name that stands for an address, or a label."""

    name: str


@dataclass(frozen=True)
class Sink:
    """The destination `_`."""


@dataclass(frozen=True)
class Not:
    """`!p`."""

    reg: Reg


@dataclass(frozen=True)
class Pair:
    """`p|q`."""

    first: Reg | Sink
    second: Reg | Sink


@dataclass(frozen=True)
class Vec:
    """`{a, b}`."""

    items: tuple


@dataclass(frozen=True)
class Mem:
    """`[base + offset, extra...]`."""

    base: object
    offset: int
    extra: tuple = ()


@dataclass
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


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter: name, byte offset in the block, size in bytes, type."""

    name: str
    offset: int
    num_bytes: int
    type: str


@dataclass(frozen=True)
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


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_ENTRY = re.compile(
    r"(?:\.visible\s+|\.weak\s+)?\.entry\s+([\w$]+)\s*(?:\((.*?)\))?([^{;]*)\{", re.S
)
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?"
    r"([\w$]+)\s*(?:\[(\d+)\])?$"
)
_SHARED = re.compile(
    r"(\.extern\s+)?\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)\s*((?:\[\d*\])*)$"
)
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)
_LABEL = re.compile(r"([\w$]+)\s*:(?!:)")
_OFFSET = re.compile(r"^(.+?)\s*([+-])\s*(-?\s*(?:0[xX][0-9a-fA-F]+|\d+))$")
_INTEGER = re.compile(r"^-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_FLOAT = re.compile(r"^-?\d+\.\d*(?:[eE][+-]?\d+)?$")
_HEX_FLOAT = re.compile(r"0[fF][0-9a-fA-F]{8}")
_HEX_DOUBLE = re.compile(r"0[dD][0-9a-fA-F]{16}")
_NAME = re.compile(r"[\w$]+")
_SPACE = re.compile(r"\s*")
_LOC = re.compile(r"\.loc\s")
_REGISTER = re.compile(r"\.reg\s+\.(\w+)\s+([\w$%]+)\s*;")
_INSTRUCTION = re.compile(r"(?:@(!?)\s*([\w$%]+)\s+)?([\w.:]+)\s*(.*)$", re.S)
_BRACKET = re.compile(r"[\[({]")
_REGISTER_RANGE = re.compile(r"([\w$%]+)<(\d+)>")
_PUNCTUATION = re.compile(r"[\[\](){},]")


def split_operands(text: str) -> list[str]:
    """Split at commas outside brackets and braces."""
    if _BRACKET.search(text) is None:
        parts = [part.strip() for part in text.split(",")]
        return parts if parts[-1] else parts[:-1]
    parts, depth, start = [], 0, 0
    for found in _PUNCTUATION.finditer(text):
        char = found[0]
        if char in "[{(":
            depth += 1
        elif char in "]})":
            depth -= 1
        elif depth == 0:
            parts.append(text[start : found.start()].strip())
            start = found.end()
    last = text[start:].strip()
    return [*parts, last] if last else parts


def integer(text: str) -> int:
    """An integer constant, PTX ISA 4.5.1: decimal, hexadecimal, octal or binary."""
    digits = text.rstrip("U").replace(" ", "")
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("-")
    if re.fullmatch(r"0[0-7]+", digits):
        return sign * int(digits, 8)
    return sign * int(digits, 0)


class _Body:
    """Parses the statements of a kernel body into a Module."""

    def __init__(self, module: Module, files: dict[int, str]):
        self.module, self.files = module, files
        self.scopes: list[dict[str, Reg]] = [{}]
        self.label_scopes: list[str] = [""]
        self.num_scopes = 0
        self.loc: Loc | None = None
        self.pending_table: str | None = None
        self.current = ""

    def fail(self, line: int, text: str, why: str) -> None:
        whole = self.current if self.current and self.current != text else ""
        shown = f"{text}, in: {whole}" if whole else text
        raise MachineError(f"parse: line {line}: {why}: {shown}", loc=self.loc)

    def lookup(self, name: str) -> Reg | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def declare(self, kind: str, names: str, line: int) -> None:
        """`.reg .type a, b<n>;` PTX ISA 5.2, 5.4.2."""
        if kind != "pred" and kind not in TYPE_BYTES or kind == "b128":
            self.fail(line, names, f"register type .{kind} not implemented")
        bank = "P" if kind == "pred" else REGISTER_BANKS[TYPE_BYTES[kind]]
        known, row = self.scopes[-1], self.module.bank_sizes[bank]
        for name in split_operands(names):
            match = _REGISTER_RANGE.fullmatch(name)
            for item in [f"{match[1]}{k}" for k in range(int(match[2]))] if match else [name]:
                known[item] = Reg(item, bank, row)
                row += 1
        self.module.bank_sizes[bank] = row

    def operand(self, text: str, line: int) -> object:
        """One operand, PTX ISA chapter 6."""
        if not text:
            self.fail(line, text, "an operand is missing")
        if text[0] == "[":
            base, *extra = split_operands(text[1:-1]) or ("",)
            offset = 0
            match = _OFFSET.match(base)
            if match and self.lookup(base) is None:
                base = match[1]
                offset = integer(match[3]) * (1 if match[2] == "+" else -1)
            items = tuple(self.operand(part, line) for part in extra)
            return Mem(self.operand(base, line), offset, items)
        if text[0] == "{":
            return Vec(tuple(self.operand(part, line) for part in split_operands(text[1:-1])))
        if text == "_":
            return Sink()
        if text[0] == "!":
            return Not(self.operand(text[1:].strip(), line))
        if "|" in text:
            first, _, second = text.partition("|")
            return Pair(self.operand(first.strip(), line), self.operand(second.strip(), line))
        return self.scalar(text, line)

    def scalar(self, text: str, line: int) -> object:
        register = self.lookup(text)
        if register is not None:
            return register
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
        if _FLOAT.match(text):
            return Imm(float(text))
        if text[0] == "%" or not _NAME.fullmatch(text):
            self.fail(line, text, "unknown register or operand")
        return Symbol(text)

    def label(self, name: str) -> None:
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
                self.fail(line, text, "register declaration not understood")
            self.declare(match[1], match[2], line)
        elif text.startswith((".shared", ".extern .shared")):
            self.module.shared.append(_shared(text, line))
        elif text.startswith(".local"):
            self.module.local.append(_shared(text.replace(".local", ".shared", 1), line))
        elif text.startswith(".branchtargets"):
            prefix = self.label_scopes[-1]
            names = split_operands(text.split(None, 1)[1])
            self.module.branch_tables[self.pending_table or ""] = [prefix + n for n in names]
        elif text.startswith(".pragma"):
            if "nounroll" not in text and "used_bytes_mask" not in text:
                self.fail(line, text, "pragma not implemented")
        else:
            self.fail(line, text, "directive not implemented")

    def instruction(self, text: str, line: int) -> None:
        match = _INSTRUCTION.match(text)
        if not match:
            self.fail(line, text, "not an instruction")
        predicate = None
        if match[2]:
            predicate = self.lookup(match[2])
            if predicate is None or predicate.bank != "P":
                self.fail(line, text, f"{match[2]} is no predicate register")
        parts = split_operands(match[4])
        args = tuple([self.lookup(part) or self.operand(part, line) for part in parts])
        if match[3] in ("bra", "bra.uni", "brx.idx", "brx.idx.uni"):
            args = self.scoped(match[3], args)
        self.module.instructions.append(
            Instruction(len(self.module.instructions), match[3], args, predicate,
                        match[1] == "!", line, text, self.loc)
        )  # fmt: skip

    def scoped(self, op: str, args: tuple) -> tuple:
        """Labels of an inner block are local to it, PTX ISA 4.3."""
        if not args or not isinstance(args[-1], Symbol) or op.startswith("brx"):
            return args
        return (*args[:-1], Symbol("\0".join(self.label_scopes[1:]) + "\0" + args[-1].name))

    def location(self, text: str, at: int) -> None:
        """`.loc file line column`, PTX ISA 11.5.2."""
        numbers = re.findall(r"\d+", text.split("function_name")[0])
        if len(numbers) < 3:
            self.fail(at, text, "a .loc has file, line and column")
        file, line, column = (int(number) for number in numbers[:3])
        path = self.files.get(file)
        self.loc = Loc(path, line, max(column - 1, 0)) if path else None


def _shared(text: str, line: int) -> SharedArray:
    match = _SHARED.match(" ".join(text.split()))
    if not match or match[3] not in TYPE_BYTES:
        raise MachineError(f"parse: line {line}: shared variable not understood: {text}")
    extern = bool(match[1])
    size = 0 if extern else TYPE_BYTES[match[3]]
    for extent in re.findall(r"\[(\d+)\]", match[5]):
        size *= int(extent)
    return SharedArray(match[4], size, int(match[2] or TYPE_BYTES[match[3]]), extern)


def _parameters(text: str, line: int) -> tuple[Parameter, ...]:
    """The entry's parameter list, PTX ISA 5.1.6, 11.1.1; laid out at natural alignment."""
    offset, params = 0, []
    for item in split_operands(text or ""):
        match = _PARAM.match(" ".join(item.split()))
        if not match or match[2] not in TYPE_BYTES:
            raise MachineError(f"parse: line {line}: parameter not understood: {item}")
        size = TYPE_BYTES[match[2]] * int(match[4] or 1)
        align = int(match[1] or TYPE_BYTES[match[2]])
        offset = -(-offset // align) * align
        params.append(Parameter(match[3], offset, size, match[2]))
        offset += size
    return tuple(params)


def _scan(body: _Body, text: str, start: int, lines: list[int]) -> None:
    """Walk the body from its first statement to its closing brace."""
    position, depth = start, 1
    while True:
        position = _SPACE.match(text, position).end()
        if position >= len(text):
            raise MachineError("parse: the kernel's body has no closing brace")
        line = bisect.bisect_right(lines, position)
        char = text[position]
        label = None if char == "." else _LABEL.match(text, position)
        if char in "{}":
            depth += 1 if char == "{" else -1
            position += 1
            if depth == 0:
                body.module.end_line = line
                return
            _block(body, char)
        elif char == "." and (one := _REGISTER.match(text, position)):
            body.declare(one[1], one[2], line)
            position = one.end()
        elif char == "." and _LOC.match(text, position):
            end = text.find("\n", position)
            body.location(text[position:end], line)
            position = end
        elif label:
            body.label(label[1])
            position = label.end()
        else:
            end = text.find(";", position)
            if end < 0:
                raise MachineError(f"parse: line {line}: statement without semicolon")
            body.statement(" ".join(text[position:end].split()), line)
            position = end + 1


def _block(body: _Body, char: str) -> None:
    if char == "{":
        body.num_scopes += 1
        body.scopes.append({})
        body.label_scopes.append(f"{body.num_scopes}.")
    else:
        body.scopes.pop()
        body.label_scopes.pop()


def _resolve_labels(module: Module) -> None:
    """Replace scoped branch targets by the innermost label of that name."""
    for item in module.instructions:
        if item.op not in ("bra", "bra.uni") or not isinstance(item.args[-1], Symbol):
            continue
        *scopes, name = item.args[-1].name.split("\0")
        found = next((s + name for s in reversed([s for s in scopes if s])
                      if s + name in module.labels), name)  # fmt: skip
        if found not in module.labels:
            raise MachineError(f"parse: line {item.line}: no label {name}: {item.text}")
        item.target = module.labels[found]


def _chip(preamble: str) -> Chip:
    """`.version` and `.target`, PTX ISA 11.1.1, 11.1.2."""
    version = re.search(r"\.version\s+(\d+)\.(\d+)", preamble)
    target = re.search(r"\.target\s+([\w, ]+)", preamble)
    if version is None or target is None:
        raise MachineError("parse: a module begins with .version and .target")
    return chip_of(target[1].strip(), (int(version[1]), int(version[2])))


def parse_module(text: str, files: dict[int, str] | None = None) -> Module:
    """Parse a module with one kernel.

    Args:
        text: PTX.
        files: paths for `.file` indices the text does not declare.

    Raises:
        MachineError: syntax or directives the machine does not know.
    """
    clean = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    entries = list(_ENTRY.finditer(clean))
    if len(entries) != 1:
        raise MachineError(f"parse: a module with one kernel is wanted, got {len(entries)}")
    entry = entries[0]
    lines = [0] + [match.end() for match in re.finditer("\n", clean)]
    line = bisect.bisect_right(lines, entry.start())
    directives = {
        name: tuple(int(n) for n in re.findall(r"\d+", values))
        for name, values in re.findall(r"\.(\w+)((?:\s+\d+(?:\s*,\s*\d+)*)?)", entry[3])
    }
    for name in directives:
        if name not in ("maxntid", "reqntid", "minnctapersm", "maxnreg", "reqnctapercluster",
                        "explicitcluster", "maxclusterrank", "blocksareclusters"):  # fmt: skip
            raise MachineError(f"parse: line {line}: kernel directive .{name} not implemented")
    preamble = clean[: entry.start()]
    module = Module(entry[1], _chip(preamble), _parameters(entry[2], line), directives,
                    preamble=preamble)  # fmt: skip
    for match in re.finditer(r"^\s*((?:\.extern\s+)?\.shared\s[^;]*);", module.preamble, re.M):
        module.shared.append(_shared(match[1], bisect.bisect_right(lines, match.start(1))))
    known = dict(files or {})
    known.update({int(number): path for number, path in _FILE.findall(clean)})
    body = _Body(module, known)
    _scan(body, clean, entry.end(), lines)
    _resolve_labels(module)
    return module
