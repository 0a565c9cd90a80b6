"""How often inputs are loaded, and what that asks of a pipeline's holes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ScopeError

if TYPE_CHECKING:
    from .pipeline import Pipeline

RATES = ("step", "task", "cta")  # in the holes load, begin and setup


def check_inputs(pipe: Pipeline) -> None:
    """Refuses inputs without the holes that load and use them.

    Raises:
        ScopeError: there are such.
    """
    if all(ring.rate != "step" for ring in pipe.inputs.values()):
        raise ScopeError(
            f"{pipe.template}: needs at least one pipe.input of each step", loc=pipe.loc
        )
    for ring in (ring for ring in pipe.inputs.values() if ring.kept):
        if "setup" not in pipe.holes or pipe.issues:
            raise ScopeError(
                f"{pipe.template}: an input of a CTA is loaded in the hole `setup`, and used "
                f"by consumers whose sums are in registers, got ring {ring.name}",
                loc=ring.loc, hint="@pipe.setup",
            )  # fmt: skip
    for ring in (ring for ring in pipe.inputs.values() if ring.rate == "task"):
        uses = {"consume", "transform"}
        wrong = [r for r in pipe.roles if not uses & r.holes.filled.keys() or r.alternate]
        if "begin" not in pipe.holes or wrong:
            raise ScopeError(
                f"{pipe.template}: an input of a task is loaded in the hole `begin` and used "
                "in `consume`, or beside `transform`, by consumers that share tasks, got ring "
                f"{ring.name}",
                loc=ring.loc, hint="@pipe.begin, @pipe.consume",
            )  # fmt: skip
