"""Plans and seconds of many searches, before and after a change: ``make bench-jobs``.

    python -m tests.bench.search_jobs --write before.json
    python -m tests.bench.search_jobs --against before.json

The jobs are the rows of search_jobs.csv, drawn once, and the cases of examples/bench_search.py. Each is planned in a
process of its own; seconds are the processor's. With ``--against`` each row shows both and their ratios.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

from examples.bench_search import CASES, TIME_LIMIT_S, Case, measure
from tests.bench.fresh_process import in_fresh_process

JOBS = Path(__file__).with_name("search_jobs.csv")


def jobs() -> dict[str, Case]:
    """By name: the drawn ones, then those of the bench."""
    with JOBS.open(newline="") as file:
        drawn = [
            Case(row["job"], row["model"], row["cluster"], int(row["batch"]), int(row["seq"]) if row["seq"] else None,
                 tuple(row["settings"].split()))
            for row in csv.DictReader(file)
        ]  # fmt: skip
    return {case.name: case for case in drawn} | CASES


def row(name: str, now: dict, before: dict | None) -> str:
    if "error" in now:
        same = before is not None and before.get("error") == now["error"]
        return f"{name:<20} {'(as before) ' if same else ''}{now['error'][:120]}"
    text = f"{name:<20} {now['cpu_s']:7.2f} {now['step_time_s']:12.6g}"
    if before and "error" not in before:
        ratios = now["cpu_s"] / before["cpu_s"], now["step_time_s"] / before["step_time_s"]
        text += f"   {before['cpu_s']:7.2f} {before['step_time_s']:12.6g}   {ratios[0]:5.2f} {ratios[1]:8.5f}"
    elif before:
        text += f"   before: {before['error'][:60]}"
    return f"{text}  {now['plan']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="a part of a job's name; may be given again")
    parser.add_argument("--write", type=Path, metavar="FILE", help="what was measured, as JSON, written after each job")
    parser.add_argument("--against", type=Path, metavar="FILE", help="such a file, written before the change")
    parser.add_argument("--job", help="plan this one here and print what was measured as JSON")
    given = parser.parse_args()
    if given.job:
        print(json.dumps(measure(jobs()[given.job])))
        return
    before = json.loads(given.against.read_text()) if given.against else {}
    found: dict[str, dict] = {}
    for name in (n for n in jobs() if not given.only or any(part in n for part in given.only)):
        found[name] = in_fresh_process("tests.bench.search_jobs", "--job", name, limit_s=TIME_LIMIT_S)
        print(row(name, found[name], before.get(name)), flush=True)
        if given.write:
            given.write.write_text(json.dumps(found, indent=1))
    summarise(found, before)


def summarise(found: dict[str, dict], before: dict[str, dict]) -> None:
    """The processor's seconds of all together, and the jobs whose plan became slower."""
    done = {name: each for name, each in found.items() if "error" not in each}
    print(f"{len(done)} of {len(found)} planned in {sum(each['cpu_s'] for each in done.values()):.1f} CPU seconds")
    both = [name for name in done if "error" not in before.get(name, {"error": ""})]
    if both:
        was, now = (sum(each[name]["cpu_s"] for name in both) for each in (before, done))
        slower = [name for name in both if done[name]["step_time_s"] > before[name]["step_time_s"] * 1.001]
        print(f"of {len(both)} planned before, too: {now:.1f} CPU seconds, {was:.1f} before ({now / was:.2f} times)")
        print(f"plans slower by more than 0.1%: {', '.join(slower) or 'none'}")


if __name__ == "__main__":
    main()
