"""Published rows through the search, pinned as they were run: a part of docs/appendix/accuracy.md.

    python -m tests.bench.published_steps [--published FOLDER] [--only TEXT] [--rows N] [--workers N]
                                          [--seconds N] [--list] [--kept FILE] [--write FILE] [--write-short FILE]

Rows that share a trace are planned in one process after another. What was found is kept, so that a run that was cut off
goes on where the sources are the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.bench.closed_form.published import default_folder
from tests.bench.published_steps.answered import Answered
from tests.bench.published_steps.by_device import by_device
from tests.bench.published_steps.document import line, printed
from tests.bench.published_steps.job import Job, Traced
from tests.bench.published_steps.price import Planned, plan_group
from tests.bench.published_steps.rows import Published, published
from tests.bench.recipes.__main__ import sources_digest

SECTION = re.compile(r"(<!-- planned -->\n).*?(<!-- /planned -->)", re.DOTALL)
NOT_RUN = "not planned in this run"
TRACES_A_PROCESS = 12  # so that what one leaves behind doesn't grow


def key(job: Job, sources: str) -> str:
    """Of what was found for a job by these sources: others may find something else."""
    text = repr((job, job.cluster.topology()))
    return f"{sources} {hashlib.sha256(text.encode()).hexdigest()[:24]}"


def by_trace(jobs: Sequence[Job]) -> dict[Traced, list[Job]]:
    groups: defaultdict[Traced, list[Job]] = defaultdict(list)
    for job in jobs:
        groups[job.traced].append(job)
    return dict(groups)


def plans(groups: Mapping[Traced, list[Job]], workers: int) -> Iterator[tuple[list[Job], list[Planned]]]:
    """Each group's jobs with their plans, as they come."""
    if not groups:
        return
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=TRACES_A_PROCESS) as pool:
        yield from pool.imap_unordered(plan_group, groups.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, default=default_folder(), help="the folder of published tables")
    parser.add_argument("--only", default="", help="a part of a row's family or label")
    parser.add_argument("--rows", type=int, help="of each family no more than so many")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after the plans that are done by then")
    parser.add_argument("--list", action="store_true", help="print every row")
    parser.add_argument("--kept", type=Path, default=Path("build/published_steps.json"), help="what was found so far")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the document whose marked part is rewritten")
    parser.add_argument("--write-short", type=Path, metavar="FILE", help="the same, of a line a device")
    given = parser.parse_args(arguments)
    rows = chosen(published(given.published), given.only, given.rows)
    kept: dict[str, dict] = json.loads(given.kept.read_text(encoding="utf-8")) if given.kept.exists() else {}
    sources = sources_digest()
    jobs = [row.asked for row in rows if not isinstance(row.asked, str)]
    missing = list({key(job, sources): job for job in jobs if key(job, sources) not in kept}.values())
    start, left = time.monotonic(), by_trace(missing)
    for group, found in plans(left if given.seconds > 0 else {}, given.workers):
        kept |= {key(job, sources): plan.to_dict() for job, plan in zip(group, found, strict=True)}
        given.kept.parent.mkdir(parents=True, exist_ok=True)
        given.kept.write_text(json.dumps(kept), encoding="utf-8")
        if time.monotonic() - start > given.seconds:
            break
    answered = [Answered(row, answer(row, kept, sources)) for row in rows]
    if given.list:
        print("\n".join(line(one) for one in answered))
    text = printed(answered)
    print(text)
    for document, section in ((given.write, text), (given.write_short, by_device(answered))):
        if document and not rewritten(document, section):
            parser.error(f"{document} has no part <!-- planned -->: make validate writes it first")
    return 0


def rewritten(document: Path, section: str) -> bool:
    """Whether a document has a marked part, which then holds the section."""
    before = document.read_text(encoding="utf-8")
    if not SECTION.search(before):
        return False
    document.write_text(SECTION.sub(lambda found: f"{found[1]}{section}\n{found[2]}", before), encoding="utf-8")
    return True


def chosen(rows: Sequence[Published], only: str, most: int | None) -> list[Published]:
    """Those that a text names, spread over each family where that has more than ``most``."""
    named = [row for row in rows if only in f"{row.family} {row.label}"]
    if most is None:
        return named
    families = {row.family: [r for r in named if r.family == row.family] for row in named}
    return [row for own in families.values() for row in own[:: max(1, len(own) // most)][:most]]


def answer(row: Published, kept: Mapping[str, dict], sources: str) -> Planned:
    if isinstance(row.asked, str):
        return Planned(reason=row.asked)
    found = kept.get(key(row.asked, sources))
    return Planned(reason=NOT_RUN) if found is None else Planned(**found)


if __name__ == "__main__":
    raise SystemExit(main())
