"""Which role ran out of registers, and by how many: each role assembled alone, without a limit.

ptxas says that products are serialised for lack of registers (C7510 to C7512), of the whole
function; the roles of a kernel have budgets of their own (`setmaxnreg`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_SECTION = re.compile(r"^\s*// ---- (\w+): threads")
_BUDGET = re.compile(r"^\s*setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32 (\d+);")
_THREADS = re.compile(r"^\.maxntid \d+, 1, 1$", re.M)
_BLOCKS = re.compile(r"^\.minnctapersm \d+$", re.M)
_PRODUCT = re.compile(r"^\s*(?:@!?%\w+ )?wgmma\.mma_async")


@dataclass(frozen=True)
class Section:
    """The part of a text that one role executes.

    Args:
        role: its name.
        line: the first line with a product (from 1).
        budget: registers a thread.
        text: a kernel with this role alone, in a CTA that may have any number of registers.
    """

    role: str
    line: int
    budget: int
    text: str


def sections(text: str) -> Iterator[Section]:
    """The roles of a text that have a budget and products."""
    lines = text.splitlines()
    starts = [n for n, line in enumerate(lines) if _SECTION.match(line)]
    for first, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        body = lines[first:end]
        budgets = [found[1] for found in map(_BUDGET.match, body) if found]
        products = [n for n, line in enumerate(body) if _PRODUCT.match(line)]
        if not budgets or not products:
            continue
        kept = [line for line in body if not _BUDGET.match(line)]
        tail = [] if end == len(lines) else ["    ret;", "}"]
        alone = "\n".join([*lines[: starts[0]], *kept, *tail, ""])
        alone = _BLOCKS.sub(".minnctapersm 1", _THREADS.sub(".maxntid 128, 1, 1", alone))
        found = _SECTION.match(lines[first])
        assert found is not None, "a start"
        yield Section(found[1], first + products[0] + 1, int(budgets[0]), alone)


def shortest(text: str, taken: Callable[[str], int]) -> tuple[Section, int] | None:
    """The role with the largest shortfall, and the registers it takes; None without budgets.

    Args:
        text: of the whole kernel.
        taken: registers a thread that ptxas takes for a text.
    """
    found = [(section, taken(section.text)) for section in sections(text)]
    return max(found, key=lambda pair: pair[1] - pair[0].budget, default=None)
