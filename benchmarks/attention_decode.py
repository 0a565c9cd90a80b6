"""Attention over caches beside a copy of as many bytes, and packed batches beside equal lengths.

    python benchmarks/attention_decode.py OUT.json [SECONDS]

The tables "decode" and "varlen" of `tilecat bench`. The ratio to "copy" is the share of the
bandwidth at which torch copies as many bytes (half of them read, half written) in the same run;
that to "equal lengths" is the share of the rate of the same sequences as a batch. On a machine
without a GPU there is nothing to measure.
"""

from __future__ import annotations

import sys

from tilecat.bench import run


def main(target: str, seconds: float = 30.0) -> None:
    run(("decode", "varlen"), out=target, budget_s=seconds, overwrite=True, with_plot=False)


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
