"""A worker whose candidates need no GPU: times are made up, and some candidates misbehave.

The candidate's `tile_n` says what happens: TROUBLE by value, else it takes as many microseconds.
"""

import os
import time

from tilecat.testing import Times
from tilecat.tune import worker

WRONG, HANGS, DIES, REFUSED, HANGS_LATER = 7, 8, 9, 10, 11


def compile_family(job):
    for name, params in job["candidates"].items():
        if params["tile_n"] == REFUSED:
            yield {"id": name, "pruned": "Resource: too large"}
        elif params["tile_n"] == -DIES:
            os._exit(3)
        else:
            yield {"id": name, "registers": 168, "shared_bytes": 1024}


def prepare(job):
    yield from ()


def measure(job):
    functions = {}
    for name, params in job["candidates"].items():
        yield {"trying": name}
        what = params["tile_n"]
        if what == HANGS or what == HANGS_LATER and job["calls"] > 2:
            time.sleep(60)
        if what == DIES:
            print("Segmentation fault")  # what a library prints is no answer
            os._exit(11)
        if what == WRONG:
            yield {"failed": name, "reason": "wrong result"}
            continue
        functions[name] = lambda what=what: what
        yield {"checked": name, "error": 0.001}

    def bench(fns, **_):
        if HANGS_LATER in (fn() for fn in fns):
            time.sleep(60)
        return tuple(Times((float(fn()),) * 3) for fn in fns)

    yield from worker.timed(functions, {"torch.mm": lambda: 1000}, 1.0, job["keep"], bench)


if __name__ == "__main__":
    worker.serve({"compile": compile_family, "prepare": prepare, "measure": measure})
