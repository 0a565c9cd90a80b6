"""From a tuner's results files to the winners that the package ships.

python -m tilecat.tune.winners benchmarks/results/tune-matmul.json tilecat/kernels/tuned

Of several files a later one's problems take the place of an earlier one's; their rows say which run
they are from.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from ..errors import LayoutError

NEAR = 1.01  # of the best median: among these the one that wins most problems is taken


def winners(results: dict[str, Any]) -> dict[str, Any]:
    """What to ship: device and versions, and each problem's parameters beside its medians.

    Candidates within 1 % of a problem's best count as equal, and of those the one that is equal
    in most problems wins: few kernels to compile.
    """
    good = [
        {name: times["median"] for name, times in problem.get("times_us", {}).items()}
        for problem in results["problems"]
    ]
    near = [_near(medians) for medians in good]
    votes = [name for names in near for name in names]
    rows = []
    for problem, medians, names in zip(results["problems"], good, near, strict=True):
        if names:
            winner = max(sorted(names), key=votes.count)
            peers = {name: us for name, us in medians.items() if "=" not in name}
            rows.append({
                "layout": problem["layout"], "extents": problem["extents"],
                "params": _told(parameters(winner)), "us": medians[winner], "peers_us": peers,
            })  # fmt: skip
    facts = results["environment"]
    kept = ("date", "device", "sms", "cuda", "ptxas", "packages", "commit", "source_sha256")
    return {
        "kernel": results["kernel"], "target": results["target"], "dtype": results["dtype"],
        "environment": {key: facts[key] for key in kept}, "problems": rows,
    }  # fmt: skip


# What a kernel does unless it is told.
NOTHING = {"split_k": 1, "stream_k": 1, "pingpong": 0, "order": "grouped"}


def _told(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if NOTHING.get(name) != value}


def parameters(name: str) -> dict[str, Any]:
    """`tile_m=64 order=snake` as a dict."""
    found = re.findall(r"(\w+)=(\w+)", name)
    return {key: int(value) if value.isdecimal() else value for key, value in found}


def _near(medians: dict[str, float]) -> list[str]:
    ours = {name: us for name, us in medians.items() if "=" in name}
    return [name for name, us in ours.items() if us <= NEAR * min(ours.values())]


def merged(first: dict[str, Any], *later: dict[str, Any]) -> dict[str, Any]:
    """Winners of several runs of one kernel and dtype, of GPUs of one kind.

    Raises:
        LayoutError: of different ones.
    """
    rows = {(row["layout"], *row["extents"].values()): row for row in first["problems"]}
    for found in later:
        for what in ("kernel", "target", "dtype"):
            if found[what] != first[what]:
                raise LayoutError(
                    f"winners: results of one {what}, got {first[what]} and {found[what]}"
                )
        run = {name: found["environment"][name] for name in ("date", "device", "commit")}
        if run["device"] != first["environment"]["device"]:
            raise LayoutError(
                f"winners: results of one device, got {first['environment']['device']} and "
                f"{run['device']}"
            )
        for row in found["problems"]:
            rows[row["layout"], *row["extents"].values()] = {**row, "run": run}
    return {**first, "problems": list(rows.values())}


def main(*paths: str) -> None:
    """Writes FOLDER/KERNEL-DEVICE.json: of results files, then the folder."""
    *sources, folder = paths
    found = merged(*(winners(json.loads(Path(p).read_text(encoding="utf-8"))) for p in sources))
    device = found["environment"]["device"].lower().split()[-1]
    path = Path(folder) / f"{found['kernel']}-{device}.json"
    rows = ",\n  ".join(json.dumps(row) for row in found.pop("problems"))
    head = json.dumps(found, indent=1)[:-2]
    path.write_text(f'{head},\n "problems": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
