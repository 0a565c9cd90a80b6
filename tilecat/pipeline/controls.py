"""What a pipeline asks of a chip beyond its template: parameters of tc.lcf, each refused elsewhere.

Sources: PTX ISA 9.4 (9.7.16.4.2 wide K, 9.7.16.10 collectors, 9.7.16.12.1 the early commit,
9.7.16.7.1 exclusive columns), cuda.h 13.5 (oversized shared memory).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ..arch import ARCHS, Arch
from ..errors import ArchError, Loc, ResourceError, ScopeError

COLLECTORS = ("", "a", "b", "ab")


@dataclass(frozen=True)
class Controls:
    """Parameters of a pipeline that not every chip has.

    Args:
        pairs: the two CTAs of a cluster multiply together.
        wide_k: products read 64 bytes of K at a time, not 32.
        collectors: operands that neighbouring products of a step share are read once: "a", "b".
        early_a: a ring that has A alone gets its stages back as soon as A has been read.
        exclusive: no other CTA of the SM has tensor memory, and this one up to 576 columns.
        oversized: shared memory up to 327 KiB a CTA.
    """

    pairs: bool = False
    wide_k: bool = False
    collectors: str = ""
    early_a: bool = False
    exclusive: bool = False
    oversized: bool = False

    def require(self, template: str, arch: Arch, blocks_per_sm: int, loc: Loc | None) -> None:
        """Refuses what is no value of a parameter, or what the chip lacks.

        Raises:
            ArchError: the target does not have it.
            ResourceError: no value of the parameter, or several CTAs an SM with exclusive columns.
        """
        for spec in fields(self):
            name, value = spec.name, getattr(self, spec.name)
            legal = COLLECTORS if name == "collectors" else (False, True)
            if type(value) is not type(spec.default) or value not in legal:
                raise ResourceError(
                    f"{template}: {name} is {' or '.join(map(repr, legal))}, got {name}={value!r} "
                    f"({type(value).__name__})",
                    loc=loc,
                )
            feature, what, instead = _WANTS[name]
            if name == "collectors" and value == "a":
                feature = "tcgen05"
            if value and feature not in arch.features:
                have = ", ".join(a.target for a in ARCHS if feature in a.features)
                raise ArchError(
                    f"{template}: {name}={value!r}, {what}, needs {have}, got {arch.target}",
                    loc=loc,
                    hint=instead,
                )
        if self.exclusive and blocks_per_sm > 1:
            raise ResourceError(
                f"{template}: exclusive columns are those of one CTA an SM, the others would wait "
                f"for its end, got exclusive=True and {blocks_per_sm=}",
                loc=loc,
                hint="blocks_per_sm=1",
            )

    def require_products(self, template: str, loc: Loc | None) -> None:
        """Refuses what is of issued products in a pipeline that issues none.

        Raises:
            ScopeError: it has no accumulator in tensor memory.
        """
        about = ("pairs", "wide_k", "collectors", "early_a", "exclusive")
        asked = [name for name in about if getattr(self, name)]
        if asked:
            raise ScopeError(
                f"{template}: {asked[0]} is of products with sums in tensor memory, got a pipeline "
                "without an accumulator",
                loc=loc,
                hint="acc = pipe.accumulator(tc.f32, 64, 256)",
            )


# Feature of the arch, what it is in words, and the nearest choice without it.
_WANTS = {
    "pairs": (
        "tcgen05", "products of two CTAs", "cluster=2 with multicast loads, which shares tiles"
    ),
    "wide_k": ("wide_k", "a K step of 64 bytes", "wide_k=False: K steps of 32 bytes"),
    "collectors": (
        "collector_b", "a collector of B", 'collectors="a" where products share A, else ""'
    ),
    "early_a": (
        "early_a", "a commit when A has been read", "early_a=False: A comes back with B"
    ),
    "exclusive": (
        "exclusive_columns", "576 columns of tensor memory", "exclusive=False: 512 columns"
    ),
    "oversized": (
        "oversized", "327 KiB of shared memory a CTA", "oversized=False: 227 KiB, fewer stages"
    ),
}  # fmt: skip


def check_int(name: str, value: Any, low: int, high: int, loc: Loc | None) -> None:
    """Refuses what is no compile-time int in a range.

    Raises:
        ResourceError: it is not; `name` is `template: parameter`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        parameter = name.rpartition(" ")[2]
        raise ResourceError(
            f"{name} is a compile-time int from {low} to {high}, got {parameter}={value!r}",
            loc=loc,
        )
