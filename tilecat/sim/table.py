"""Rows of the instruction table: opcode as the manual writes it, operand forms, meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from tilecat.sim.parse import Imm, Instruction, Mem, Not, Pair, Reg, Sink, Special, Symbol, Vec

# What a handler tells the scheduler: go on, wait, or "the fiber was cut up".
NEXT, BLOCK, SPLIT, AGAIN = None, 1, 2, 3


def _is_predicate(operand: object) -> bool:
    return isinstance(operand, Reg) and operand.bank == "P"


_FORMS: dict[str, Callable[[object], bool]] = {
    "r": lambda o: isinstance(o, Imm | Special | Symbol) or isinstance(o, Reg) and o.bank in "BHRD",
    "d": lambda o: isinstance(o, Sink) or isinstance(o, Reg) and o.bank in "BHRD",
    "w": lambda o: isinstance(o, Reg) and o.bank == "Q",
    "p": lambda o: _is_predicate(o),
    "q": lambda o: _is_predicate(o) or isinstance(o, Not | Imm),
    "m": lambda o: isinstance(o, Mem),
    "v": lambda o: isinstance(o, Vec),
    "i": lambda o: isinstance(o, Imm),
    "n": lambda o: isinstance(o, Pair),
}


@dataclass(frozen=True)
class Row:
    """One instruction family.

    Args:
        pattern: opcode; `{.a,.b}` is an optional choice, `(.a,.b)` a required one.
        forms: operand forms, one word an operand: letters r (value), d (destination or `_`),
            w (128-bit register), p (predicate), q (predicate source), m (address), v (vector),
            i (constant), n (`p|q`); several letters are alternatives, `?` marks an optional one.
        run: handler(machine, fiber, instruction).
        isa: section of the PTX ISA.
        aligned: all threads of the warp execute it together, so a predicate is one a warp.
        decode: called once with the instruction; its value becomes `instruction.info`.
        needs: feature of the target (`chips.CHIPS`) without which the manual has no such form.
    """

    pattern: str
    forms: str
    run: Callable
    isa: str
    aligned: bool = False
    decode: Callable[[Instruction], object] | None = None
    needs: str = ""

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The pattern as a regular expression over whole opcodes."""
        out = []
        for part in re.split(r"(\{[^}]*\}|\([^)]*\))", self.pattern):
            if part[:1] in ("{", "("):
                choices = "|".join(re.escape(item) for item in part[1:-1].split(","))
                out.append(f"(?:{choices})" + ("?" if part[0] == "{" else ""))
            else:
                out.append(re.escape(part))
        return re.compile("".join(out))

    @cached_property
    def family(self) -> str:
        """First word of the opcode."""
        return re.match(r"\w+", self.pattern)[0]

    def reordered(self, op: str) -> str | None:
        """The opcode with its words in the order of the pattern, or None if they do not fit."""
        words, out = op.split("."), []
        for part in re.split(r"(\{[^}]*\}|\([^)]*\))", self.pattern):
            choices = part[1:-1].split(",") if part[:1] in ("{", "(") else [part]
            options = [choice.strip(".").split(".") if choice else [] for choice in choices]
            found = next((o for o in options if all(word in words for word in o)), None)
            if found is None and part[:1] != "{":
                return None
            for word in found or ():
                words.remove(word)
                out.append(word)
        return None if words else ".".join(out)

    def accepts(self, args: tuple) -> bool:
        """Whether the operands have the forms of this row."""
        forms = self.forms.split()
        required = sum(not form.endswith("?") for form in forms)
        if not required <= len(args) <= len(forms):
            return False
        pairs = zip(args, forms, strict=False)
        return all(any(_FORMS[k](arg) for k in form.rstrip("?")) for arg, form in pairs)


def form_of(item: Instruction) -> tuple[object, ...]:
    """The opcode, and of each operand its kind, or its bank if it is a register."""
    return (item.op, *[arg.bank if type(arg) is Reg else type(arg) for arg in item.args])


# The manual writes modifiers in one order; of these instructions ptxas 13.5 takes them in any
# (assembled), and compilers make use of it. None of them has types whose order has a meaning.
_ANY_ORDER = ("cp.async.bulk", "tcgen05")


class Table:
    """All rows; what was found for an opcode and forms of operands is kept.

    Args:
        rows: the rows of every family.
    """

    def __init__(self, rows: Iterable[Row]):
        self.families: dict[str, list[Row]] = {}
        for row in rows:
            self.families.setdefault(row.family, []).append(row)
        self.found: dict[tuple[object, ...], Row] = {}

    def has(self, op: str) -> bool:
        """Whether any row has the opcode."""
        return any(row.regex.fullmatch(op) for row in self.families.get(op.split(".")[0], ()))

    def canonical(self, op: str) -> str:
        """The opcode as the manual orders it, where another order is as good."""
        if not op.startswith(_ANY_ORDER) or self.has(op):
            return op
        orders = (row.reordered(op) for row in self.families.get(op.split(".")[0], ()))
        return next((order for order in orders if order is not None), op)

    def row(self, item: Instruction, form: tuple[object, ...]) -> Row | None:
        """The first row with the opcode that accepts such operands."""
        found = self.found.get(form)
        if found is None:
            rows = self.families.get(item.op.split(".")[0], ())
            matching = (row for row in rows if row.regex.fullmatch(item.op))
            found = next((row for row in matching if row.accepts(item.args)), None)
            if found is not None:
                self.found[form] = found
        return found
