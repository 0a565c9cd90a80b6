"""How often inputs are loaded, and what that asks of a pipeline's holes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ScopeError

if TYPE_CHECKING:
    from .pipeline import Pipeline
    from .role import Role

MOST_ISSUES = 1  # warps of the producer's warpgroup beside those that load, store and load ahead
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
    _check_ahead(pipe)
    for ring in (ring for ring in pipe.inputs.values() if ring.kept):
        if "setup" not in pipe.holes or pipe.issues:
            raise ScopeError(
                f"{pipe.template}: an input of a CTA is loaded in the hole `setup`, and used "
                f"by consumers whose sums are in registers, got ring {ring.name}",
                loc=ring.loc, hint="@pipe.setup",
            )  # fmt: skip
    for ring in (ring for ring in pipe.inputs.values() if ring.rate == "task"):
        wrong = [role for role in pipe.roles if role.alternate or not _takes_tasks(role)]
        if "begin" not in pipe.holes or wrong:
            raise ScopeError(
                f"{pipe.template}: an input of a task is loaded in the hole `begin` and used "
                "by consumers that share tasks; where their sums are in tensor memory, in "
                f"`consume` or beside `transform`, got ring {ring.name}",
                loc=ring.loc, hint="@pipe.begin, @pipe.consume",
            )  # fmt: skip


def _check_ahead(pipe: Pipeline) -> None:
    """Refuses inputs that nobody loads, and a hole that loads nothing.

    Raises:
        ScopeError: there are such.
    """
    ahead = [ring for ring in pipe.inputs.values() if ring.ahead]
    wrong = (
        "a hole without inputs" if "load_ahead" in pipe.holes and not ahead
        else "inputs without the hole" if ahead and "load_ahead" not in pipe.holes
        else "one of another rate" if any(ring.rate != "step" for ring in ahead)
        else "several roles with sums in tensor memory" if ahead and len(pipe.issues) > MOST_ISSUES
        else ""
    )  # fmt: skip
    if wrong:
        raise ScopeError(
            f"{pipe.template}: inputs with ahead=True, of each step, are loaded in the hole "
            f"`load_ahead`, got {wrong}", loc=ahead[0].loc if ahead else pipe.loc,
            hint="pipe.input(kind, ring=\"own\", ahead=True), @pipe.load_ahead",
        )  # fmt: skip


def _takes_tasks(role: Role) -> bool:
    """Whether a role's holes may use inputs of a task."""
    holes = {"consume", "transform"} | ({"compute"} if role.issue is None else set())
    return bool(holes & role.holes.filled.keys())
