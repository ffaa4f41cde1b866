"""Runs random programs by seed, or by a range of seeds: ``python -m tests.equality.programs 17 100-199``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch

from tests.equality.programs.check import Pools, failures
from tests.equality.programs.draw import draw_program
from tests.equality.programs.setting import draw_setting


def seeds_of(words: Sequence[str]) -> list[int]:
    """ "17" is one seed, "100-199" a hundred."""
    ranges = [[int(end) for end in word.split("-")] for word in words]
    return [seed for ends in ranges for seed in range(ends[0], ends[-1] + 1)]


def main(words: Sequence[str]) -> int:
    torch.set_num_threads(1)
    failed = []
    with Pools() as pools:
        for seed in seeds_of(words):
            start, setting = time.perf_counter(), draw_setting(seed)
            found = failures([seed], pools)
            failed += found
            steps = len(draw_program(seed, setting).steps)
            verdict = f"{'FAILS' if found else 'equal'}  {time.perf_counter() - start:5.1f} s"
            print(f"seed {seed:4}  {verdict}  {steps:2} steps, {setting}", flush=True)
            for failure in found:
                print(f"{failure}\n", flush=True)
    print(f"{len(failed)} of {len(seeds_of(words))} fail: {[failure.seed for failure in failed]}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
