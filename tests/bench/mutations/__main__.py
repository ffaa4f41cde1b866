"""Puts faults into rehearsed plans and counts those that are found: ``python -m tests.bench.mutations``.

    python -m tests.bench.mutations [--faults 1000] [--programs 60] [--seed 0] [PLAN ...]

Of all faults so many are in the text of programs, the others in traces. Ends with status 1 where one isn't found, or
where something is told of a plan as it is, or of one of 200 worlds that are made at random.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from autoplan.rehearsal.world.matching import mismatches
from autoplan.rehearsal.world.rank_equivalence import World
from tests.bench.mutations.programs import program_mutations
from tests.bench.mutations.traces import Mutation, false_alarms, mutations
from tests.bench.mutations.worlds import PLANS, rehearsed
from tests.support.rehearsed import world_of
from tests.support.rehearsed_worlds import Job

WORLDS = 200


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.mutations")
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--programs", type=int, default=60, help="of the faults, those in program.py")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("plans", nargs="*", metavar="PLAN", help="; ".join(PLANS))
    given = parser.parse_args()
    names = given.plans or list(PLANS)
    done: list[Mutation] = []
    alarms: list[str] = []
    with tempfile.TemporaryDirectory() as root:
        for number, name in enumerate(names):
            world = rehearsed(name, Path(root) / name.replace(", ", "-").replace(" ", "-"))
            alarms += [f"{name}: {text}" for text in false_alarms(world)]
            texts = share(given.programs, number, len(names))
            done += program_mutations(world, texts, given.seed + number, Path(root))
            done += mutations(world, share(given.faults, number, len(names)) - texts, given.seed + number)
            print(f"{name}: {len(done)} faults so far, {sum(not one.told for one in done)} not found", flush=True)
    alarms += [f"world {seed}: {one.text}" for seed in range(WORLDS) for one in mismatches(world_at_random(seed))]
    print("\n".join(summary(done, alarms, len(names))))
    return int(bool(alarms) or not all(one.told for one in done))


def share(count: int, number: int, of: int) -> int:
    """The part of a count that falls to one of so many."""
    return count * (number + 1) // of - count * number // of


def world_at_random(seed: int) -> World:
    """A correct program of up to 27 ranks, as hypothesis draws them in tests/rehearsal."""
    chance = random.Random(seed)
    pp, dp, tp = (chance.randint(1, 3) for _ in range(3))
    count, layers, stream = chance.randint(1, 3), chance.randint(1, 2), chance.randint(0, 1)
    job = Job(pp, dp, tp, count, layers, chance.random() < 0.5, stream, (1, 2, 3))
    return world_of(job.programs(), job.stage)


def summary(done: list[Mutation], alarms: list[str], plans: int) -> list[str]:
    kinds, found = Counter(one.kind for one in done), Counter(one.kind for one in done if one.told)
    lines = [f"{kind:26} {found[kind]:4} of {count:4} found" for kind, count in sorted(kinds.items())]
    missed = (one for one in done if not one.told)
    lines += [f"not found: {one.plan}, {one.kind} of {one.ranks} at {sorted(one.lines)[:3]}" for one in missed]
    lines += [f"false alarm: {text}" for text in alarms]
    lines.append(f"{sum(found.values())} of {len(done)} faults found; {len(alarms)} false alarms on {plans} plans and "
                 f"{WORLDS} worlds at random")  # fmt: skip
    return lines


if __name__ == "__main__":
    sys.exit(main())
