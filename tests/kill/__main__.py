"""The command: kills of one training after another, a line for each."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import tests.kill
from tests.kill.case import PLANS, STEPS, Case, Outcome
from tests.kill.training import MOMENTS, Kill

STEPS_TOGETHER = 120  # of two jobs: the one that starts later finds the other still training
A_RUN = 10  # kills in one training, at most
Disturb = Callable[[Case, str, int, random.Random], Iterator[Kill | Outcome]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(tests.kill.__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=50, help="kills in all")
    parser.add_argument("--two-jobs", type=int, default=0, metavar="N", help="kills of two jobs on one folder")
    parser.add_argument("--seed", type=int, default=None, help="of the moments and ranks; else a new one, printed")
    parser.add_argument("--plan", choices=PLANS, action="append", help="only this one")
    parser.add_argument("--keep", type=Path, help="folder for checkpoints and logs; else a temporary one")
    return parser.parse_args()


def kill_all(
    plans: Sequence[str], times: int, seed: int, root: Path, disturb: Disturb, steps: int = STEPS
) -> list[Outcome]:
    """Trainings of each plan in turn until there have been so many kills; a line for each."""
    chance, outcomes, done = random.Random(seed), [], 0
    cases = [Case(plan, root / plan.replace(" ", "-"), steps) for plan in plans]
    for case in cases:
        say(f"{case.plan}: {case.steps} steps undisturbed, {case.start_s:.1f} s to the first, {case.step_s:.3f} s each")
    while done < times:
        number = len(outcomes)
        case = cases[number % len(cases)]
        for event in disturb(case, f"disturbed-{number}", min(A_RUN, times - done), chance):
            if isinstance(event, Kill):
                done += 1
                say(kill_line(done, case.plan, event))
            else:
                outcomes.append(event)
                say(outcome_line(event))
    return outcomes


def kill_line(number: int, plan: str, kill: Kill) -> str:
    where = "inside a save" if kill.saving else f"aimed at a {kill.moment}"
    left = "no checkpoint yet" if kill.left is None else f"{kill.left} readable"
    return f"kill {number:3d}  {plan:10s} rank {kill.rank}  {where:18s} after {kill.steps:3d} steps; {left}"


def outcome_line(outcome: Outcome) -> str:
    said = "bit for bit the undisturbed one" if not outcome.different else f"DIFFERS: {', '.join(outcome.different)}"
    return f"{outcome.plan}: {len(outcome.kills)} kills, {said}"


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    options = arguments()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    say(f"seed {seed}")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        disturb: Disturb = Case.disturbed_together if options.two_jobs else Case.disturbed
        times = options.two_jobs or options.times
        steps = STEPS_TOGETHER if options.two_jobs else STEPS
        root = options.keep or Path(temporary)
        outcomes = kill_all(options.plan or list(PLANS), times, seed, root, disturb, steps)
    kills = [kill for outcome in outcomes for kill in outcome.kills]
    failed = [outcome for outcome in outcomes if outcome.different]
    by_moment = ", ".join(f"{sum(k.moment == moment for k in kills)} at a {moment}" for moment in MOMENTS)
    say(
        f"{len(kills)} kills ({by_moment}) in {len(outcomes)} trainings: {sum(k.saving for k in kills)} inside a save, "
        f"{len(outcomes) - len(failed)} trainings bit for bit the undisturbed one, {len(failed)} not; "
        f"{time.perf_counter() - began:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
