"""The producer: threads that load, and who stores beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..ir import Scope
from ..language.control import one_thread, range_
from .ring import Ring
from .slots import finish_step

if TYPE_CHECKING:
    from .pipeline import Pipeline

WARP_THREADS = 32
AHEAD_WARP = 2  # of the producer's warpgroup: its thread loads the rings of `load_ahead`


def move(pipe: Pipeline, first: int) -> None:
    """The producer's warpgroup: one thread loads, and one of its next warp stores.

    A thread of a third loads what is loaded ahead.
    """
    if not pipe.by_one_thread:
        produce(pipe, pipe.inputs_loaded(), "load_ahead", "load")
        return
    with one_thread(first):
        produce(pipe, pipe.inputs_loaded(ahead=False), "load")
    if "load_ahead" in pipe.holes:
        with one_thread(first + AHEAD_WARP * WARP_THREADS):
            produce(pipe, pipe.inputs_loaded(ahead=True), "load_ahead")
    if pipe.storing.wanted:
        with one_thread(first + WARP_THREADS):
            pipe.storing.trace(Scope.THREAD)
    for number, issue in enumerate(pipe.issues, AHEAD_WARP + ("load_ahead" in pipe.holes)):
        issue.trace(first + number * WARP_THREADS)


def produce(pipe: Pipeline, inputs: dict[str, Ring], *holes: str) -> None:
    """Loads rings of inputs, and scratch tiles with the hole `load`."""
    scratches = pipe.scratches if "load" in holes else []
    for ring in (*inputs.values(), *(s.ring for s in scratches)):
        ring.begin(pipe.producer)
    if "load" in holes:
        _fill(pipe, inputs, "cta", "setup")
    for task in pipe.tasks_of_cta(pipe.producer):
        if "load" in holes:
            for scratch in scratches:
                scratch.loading = True
            _fill(pipe, inputs, "task", "begin", task)
            for scratch in scratches:
                scratch.loading = False
                scratch.finish_step()
        for step in range_(pipe.steps_of(task)):
            for hole in holes:
                _fill(pipe, inputs, "step", hole, task, step)
        for ring in pipe.passed_on if "load" in holes else ():
            ring.pass_on()
    for ring in inputs.values():
        # Arrivals that outlive who waits for them; what a CTA keeps has none.
        if not ring.kept and (ring.shared or pipe.issues):
            ring.drain()


def _fill(pipe: Pipeline, inputs: dict[str, Ring], rate: str, hole: str, *args: Any) -> None:
    """A hole of the producer, which fills the rings of its rate."""
    ahead = hole == "load_ahead"
    rings = {
        name: ring for name, ring in inputs.items() if ring.rate == rate and ring.ahead == ahead
    }
    for ring in rings.values():
        ring.loading = True
    pipe.holes.call(hole, *args)
    for name, ring in rings.items():
        ring.loading = False
        finish_step(ring, pipe.slots[name])
