"""Recipes that others ran, beside ours: docs/appendix/recipes.md, printed by ``make recipes``.

    python -m tests.bench.recipes [--from FILE] [--only TEXT] [--seconds N] [--kept FILE] [--write FILE]

Each job is planned in a process of its own. What was found is kept, so that a run that was cut off goes on where the
sources are the same. Rows of jobs that this run doesn't plan keep the line that the page has, which says when they were
planned.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from tests.bench.fresh_process import in_fresh_process
from tests.bench.prices.document import rewritten
from tests.bench.recipes.document import lines_of, parts
from tests.bench.recipes.price import JobPlans, job_plans_of, plan_job
from tests.bench.recipes.row import BESIDE, Job, Recipe, read

TIME_LIMIT_S = 900
ROOT = Path(__file__).resolve().parents[3]


def grouped(recipes: Sequence[Recipe]) -> dict[Job, list[Recipe]]:
    jobs: defaultdict[Job, list[Recipe]] = defaultdict(list)
    for recipe in recipes:
        jobs[recipe.job].append(recipe)
    return dict(jobs)


def key(job: Job, sources: str) -> str:
    """Of what was found for a job by these sources: others may find something else."""
    return json.dumps([sources, *astuple(job)])


def sources_digest() -> str:
    """Of everything that reads rows, plans and prices; what writes the page isn't among it."""
    digest = hashlib.sha256()
    for folder in ("autoplan", "cost_models", "tests/bench/recipes"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".toml") and path.parts[-2:] != ("recipes", "document.py"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def found_of(data: dict) -> JobPlans | str:
    return data["error"] if "error" in data else job_plans_of(data)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="file", type=Path, default=BESIDE, help="the recipes, a CSV file")
    parser.add_argument("--only", default="", help="a part of a row's text")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further job after so many")
    parser.add_argument("--kept", type=Path, default=Path("build/recipes.json"), help="what was found so far")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the document whose marked parts are rewritten")
    parser.add_argument("--row", help="plan the job of this one here and print what was found as JSON")
    given = parser.parse_args(arguments)
    if not given.file.exists():
        parser.error(f"{given.file} doesn't exist: say with --from where the recipes are")
    rows = read(given.file)
    jobs = grouped([row for row in rows if isinstance(row, Recipe)])
    if given.row:
        job = next(row.job for row in rows if isinstance(row, Recipe) and row.name == given.row)
        print(json.dumps(plan_job(job, jobs[job]).to_dict()))
        return 0
    kept: dict[str, dict] = json.loads(given.kept.read_text(encoding="utf-8")) if given.kept.exists() else {}
    start, sources = time.monotonic(), sources_digest()
    for job, recipes in jobs.items():
        wanted = any(given.only in recipe.text for recipe in recipes)
        if not wanted or key(job, sources) in kept or time.monotonic() - start > given.seconds:
            continue
        asked = ("--from", str(given.file), "--row", recipes[0].name)
        kept[key(job, sources)] = in_fresh_process("tests.bench.recipes", *asked, limit_s=TIME_LIMIT_S)
        given.kept.parent.mkdir(parents=True, exist_ok=True)
        given.kept.write_text(json.dumps(kept), encoding="utf-8")
        print(recipes[0].text, told(kept[key(job, sources)]), flush=True)
    page = given.write.read_text(encoding="utf-8") if given.write else ""
    found = {job: found_of(kept[key(job, sources)]) for job in jobs if key(job, sources) in kept}
    printed = parts(rows, found, lines_of(page))
    print(printed["summary"])
    if given.write:
        given.write.write_text(rewritten(page, printed), encoding="utf-8")
    return 0


def told(data: dict) -> str:
    """A line of progress."""
    if "error" in data:
        return data["error"]
    steps = [f"{one['step_s']:.2f} s" if one["plan"] else one["reason"][:120] for one in data["theirs"].values()]
    ours = data["ours"]
    return f"theirs {'; '.join(steps)}; ours {ours['step_s']:.2f} s {ours['plan']}{ours['reason'][:120]}"


if __name__ == "__main__":
    raise SystemExit(main())
