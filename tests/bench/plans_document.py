"""Published choices beside ours: the table of docs/appendix/plans.md, printed by ``make plans``.

    python -m tests.bench.plans_document [--only 405B] [--write docs/appendix/plans.md]

Each case (``tests.bench.published_choices``) is planned in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from autoplan.report.words import seconds_text
from autoplan.search.budget import FULL
from tests.bench.prices.document import rewritten
from tests.bench.published_choices import CASES, Case, Found, Priced, found_of, plan_both

HEADER = ("case", "plan", "parallelism", "step", "TFLOP/s a device", "MFU", "memory")
TIME_LIMIT_S = 1800
SHARE_TOLD = 0.03  # of the difference, below which a part of it goes unsaid
WAITS = (
    ("bubble_s", "in the pipeline's bubble"),
    ("tensor_s", "for collectives of the tensor axis in the open"),
    ("data_s", "for collectives of the data axis in the open"),
    ("messages_s", "for messages between stages"),
)


def in_fresh_process(case: Case) -> Found:
    """Both plans of a case; RuntimeError, with what the process said last, where it fails."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.bench.plans_document", "--case", case.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{case.name}: {(done.stderr.strip().splitlines() or ['it ended without a word'])[-1]}")
    return found_of(json.loads(done.stdout.splitlines()[-1]))


def flops_of(case: Case, found: Found) -> float:
    """FLOPs of a step as the publication counts them."""
    return own_flops(found) if case.counts is None else case.counts


def own_flops(found: Found) -> float:
    """FLOPs of the model's products and attention in a step, nothing recomputed."""
    return found.ours.mfu * found.ours.step_s * found.devices * found.peak


def measured_s(case: Case, found: Found) -> float:
    return flops_of(case, found) / (found.devices * case.tflops * 1e12)


def rows(case: Case, found: Found) -> list[tuple[str, ...]]:
    """Measured, theirs priced, ours priced."""
    lines = [cells(case, found, "measured", "as published", measured_s(case, found), "")]
    for whose, plan in (("theirs", found.theirs), ("ours", found.ours)):
        if plan is None:
            lines.append((case.name, whose, "doesn't fit, see below", "-", "-", "-", "-"))
            continue
        memory = f"{plan.memory_bytes / 1e9:.1f} of {found.wall_bytes / 1e9:.1f} GB"
        lines.append(cells(case, found, whose, plan.plan, plan.step_s, memory))
    return lines


def cells(case: Case, found: Found, whose: str, plan: str, step_s: float, memory: str) -> tuple[str, ...]:
    rate = flops_of(case, found) / (found.devices * step_s) / 1e12
    mfu = own_flops(found) / (found.devices * found.peak * step_s)
    return (case.name, whose, plan, f"{step_s:.2f} s", f"{rate:.0f}", f"{100 * mfu:.1f}%", memory or "-")


def reason(ours: Priced, theirs: Priced) -> str:
    """Where the seconds between the two plans lie, the largest part first; from their prices alone."""
    saved_s = theirs.step_s - ours.step_s
    if ours.plan == theirs.plan:
        return "Ours is theirs."
    if abs(saved_s) <= FULL.tolerance * theirs.step_s:
        apart = f"{100 * abs(saved_s) / theirs.step_s:.2f}%"
        return f"Both take as long, to {apart}: the search stops at {FULL.tolerance:.1%}."
    parts = [(getattr(theirs, name) - getattr(ours, name), f"waits {{}} {where}") for name, where in WAITS]
    parts.append((theirs.computes_s - ours.computes_s, f"computes {{}} ({computing(ours, theirs)})"))
    told = sorted((part for part in parts if abs(part[0]) > SHARE_TOLD * abs(saved_s)), key=lambda part: -abs(part[0]))
    sentences = [text.format(f"{seconds_text(abs(s))} {'less' if s > 0 else 'more'}") for s, text in told]
    share = f"{100 * saved_s / theirs.step_s:.1f}%"
    return f"Ours takes {seconds_text(saved_s)} ({share}) less a step: it {'; it '.join(sentences)}."


def computing(ours: Priced, theirs: Priced) -> str:
    """What bears on the operators' own seconds."""
    again = f"recomputes {ours.again} of {ours.blocks} blocks where theirs recomputes {theirs.again}"
    return f"it {again}, and has microbatches of {products(ours)} where theirs has {products(theirs)}"


def products(plan: Priced) -> str:
    return f"{plan.rows} row{'s' if plan.rows > 1 else ''} over {plan.tp} device{'s' if plan.tp > 1 else ''}"


def parts(found: Mapping[str, Found]) -> dict[str, str]:
    """Every printed part of docs/appendix/plans.md by the name between its marks."""
    cases = [case for case in CASES if case.name in found]
    lines = [HEADER, ("---",) * len(HEADER), *(row for case in cases for row in rows(case, found[case.name]))]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    told = [f"- **{case.name}.** {' '.join(sentences(found[case.name]))}" for case in cases]
    sources = [f"- {case.name}: {case.tflops:.0f} TFLOP/s a device; {case.source}." for case in cases]
    return {
        "date": f"Planned on {date.today().isoformat()}.",
        "table": table,
        "reasons": "\n".join(told),
        "sources": "\n".join(sources),
    }


def sentences(found: Found) -> Sequence[str]:
    last = "No plan under the published fields fits." if found.theirs is None else reason(found.ours, found.theirs)
    return (last, *found.notes)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of a case's name")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the document whose marked parts are rewritten")
    parser.add_argument("--case", help="plan this one here and print what was found as JSON")
    given = parser.parse_args(arguments)
    if given.case:
        print(json.dumps(plan_both(next(case for case in CASES if case.name == given.case)).to_dict()))
        return 0
    if given.only and given.write:
        parser.error("--write takes all cases")
    found = {case.name: in_fresh_process(case) for case in CASES if given.only in case.name}
    printed = parts(found)
    print("\n\n".join(printed.values()))
    if given.write:
        given.write.write_text(rewritten(given.write.read_text(encoding="utf-8"), printed), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
