"""Plans of one small Llama, predicted and measured on clusters that this machine can be: ``make bench-live``.

    python -m tests.bench.live [--rounds 4] [--calibrate 60] [--two-nodes PATH] [--keep FOLDER]
        [--write docs/appendix/accuracy.md]

Calibrates four gloo processes on one node, and as two nodes of two joined by a link of 200 Mbit/s; plans, exports
and runs every plan of ``cases``; prints predicted beside measured. Ends with status 1 where the times' order agrees by
less than 0.9, where what ``auto`` chose takes over 5% longer than the fastest, or where it chose the same on both.

A tool outside of this repository makes two nodes, and needs root, ip and tc for it: $TWO_NODES or --two-nodes names it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests.bench.live.clusters import CLUSTERS, TWO_NODES, Missing
from tests.bench.live.measured import measure
from tests.bench.live.table import failures, section, write_section


def arguments() -> argparse.Namespace:
    described = "Predicted against measured step times."
    parser = argparse.ArgumentParser(prog="python -m tests.bench.live", description=described)
    parser.add_argument("--rounds", type=int, default=4, help="timed steps of each plan, after one to warm up")
    parser.add_argument("--calibrate", type=float, default=60.0, help="seconds to calibrate each cluster for; 0: take "
                        "the profiles that --keep's folder holds")  # fmt: skip
    parser.add_argument("--two-nodes", type=Path, default=Path(os.environ.get("TWO_NODES", TWO_NODES)), metavar="PATH",
                        help="the tool that makes two nodes of one machine")  # fmt: skip
    parser.add_argument("--cluster", choices=[c.name for c in CLUSTERS], action="append", help="only this one")
    parser.add_argument("--write", type=Path, help="the document whose section is written")
    parser.add_argument("--keep", type=Path, help="folder for profiles, programs and times; else a temporary one")
    return parser.parse_args()


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    options = arguments()
    torch.set_num_threads(1)
    began = time.perf_counter()
    wanted = [cluster for cluster in CLUSTERS if options.cluster is None or cluster.name in options.cluster]
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        try:
            for cluster in wanted:
                cluster.check(options.two_nodes)
            found = [
                measure(c, folder / c.name.replace(" ", "-"), options.rounds, options.calibrate, options.two_nodes, say)
                for c in wanted
            ]
        except Missing as missing:
            print(missing, file=sys.stderr)
            return 2
        text = section(found)  # a report reads the profile
    say(f"\n{text}\n{time.perf_counter() - began:.0f} s in all")
    if options.write and len(found) == len(CLUSTERS):
        write_section(text, options.write)
    said = failures(found)
    for line in said:
        say(f"NOT REACHED: {line}")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
