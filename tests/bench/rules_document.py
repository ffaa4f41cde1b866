"""Our rules and DTensor's, operator by operator: what ``make rules`` prints into docs/appendix/rules.md.

python -m tests.bench.rules_document [--write docs/appendix/rules.md]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

import autoplan.rules.builtin  # noqa: F401  registers them
from autoplan.rules.registry import registered
from tests.bench.dtensor_rules import silent_meshes
from tests.bench.prices.document import rewritten
from tests.bench.rules_compared import Way, comparable, products, ways
from tests.bench.rules_explained import EXPLANATIONS, explanation_of
from tests.support.rule_samples import samples
from tests.support.simulate import Case

PRODUCTS = 40  # of each sample, on two axes


@dataclass
class Compared:
    """An operator's samples: ways on one axis and on two, the disagreements among them by explanation."""

    samples: int = 0
    ours: int = 0
    theirs: int = 0
    both: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, Way] = field(default_factory=dict)
    pairs: int = 0
    apart: int = 0

    def add(self, single: Sequence[Way], double: Sequence[Way]) -> None:
        self.samples += 1
        self.ours += sum(bool(way.ours) for way in single)
        self.theirs += sum(way.theirs.kind == "runs" for way in single)
        self.both += sum(way.agree for way in single)
        self.pairs += len(double)
        self.apart += sum(not way.agree for way in double)
        for way in single:
            if not way.agree:
                found = explanation_of(way)
                name = found.name if found else "unexplained"
                self.reasons[name] += 1
                self.examples.setdefault(name, way)


def compared(cases: Iterable[Case]) -> dict[str, Compared]:
    """Every comparable sample's operator, compared on two ranks and on two times two."""
    cases = [case for case in cases if comparable(case)]
    found: dict[str, Compared] = {}
    with silent_meshes() as (pair, square):
        for case in cases:
            single = ways(case, pair)
            found.setdefault(case.node.op, Compared()).add(single, products(case, single, square, PRODUCTS))
    return found


def table(found: Mapping[str, Compared]) -> str:
    head = ("operator", "ours", "DTensor's", "both", "on 2x2, of", "apart there", "disagreements")
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for op, row in sorted(found.items()):
        reasons = ", ".join(f"{name} {count}" for name, count in row.reasons.most_common())
        cells = (f"`{op.removeprefix('aten.')}`", row.ours, row.theirs, row.both, row.pairs, row.apart, reasons)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def reasons(found: Mapping[str, Compared]) -> str:
    """Each explanation with how many disagreements it covers, in which operators, and one of them."""
    lines = []
    for e in EXPLANATIONS:
        rows = {op: row for op, row in found.items() if e.name in row.reasons}
        if not rows:
            continue
        count = sum(row.reasons[e.name] for row in rows.values())
        example = next(row.examples[e.name] for row in rows.values())
        who = {"ours": "only ours", "DTensor's": "only DTensor's", "both": "results differ"}[e.who]
        shapes = ", ".join(str(list(t.shape)) for t in example.case.tensors)
        lines.append(f"**{e.name}** ({who}; {count} in {len(rows)} operators). {e.text}")
        lines.append(f"For one: `{example.case.node.op.removeprefix('aten.')}` of {shapes}, {example}.\n")
    return "\n".join(lines).rstrip()


def summary(found: Mapping[str, Compared]) -> str:
    total = Compared()
    for row in found.values():
        total.ours, total.theirs, total.both = total.ours + row.ours, total.theirs + row.theirs, total.both + row.both
        total.samples, total.pairs = total.samples + row.samples, total.pairs + row.pairs
        total.apart += row.apart
    rules = sum(function.__module__.startswith("autoplan.") for function in registered().values())
    without = [op for op, row in found.items() if set(row.reasons) and row.theirs == 0]
    alike = sum(not row.reasons for row in found.values())
    return (
        f"{rules} operators have rules; {len(found)} of them read tensors and are torch's, so that DTensor can be "
        f"asked (torch {torch.__version__.partition('+')[0]}). For {alike} of these it takes exactly what ours take, "
        f"for {len(without)} it has nothing. Of {total.samples} samples' placements on two ranks ours take "
        f"{total.ours}, DTensor's {total.theirs}, both with one result {total.both}. Of {total.pairs} products of "
        f"placements that both take, on two times two ranks, {total.apart} are taken by one alone."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="the document to write into")
    path: Path | None = parser.parse_args().write
    found = compared(map(Case.of, samples()))
    parts = {"summary": summary(found), "disagreements": reasons(found), "operators": table(found)}
    if path is None:
        print("\n\n".join(parts.values()))
        return
    path.write_text(rewritten(path.read_text(), parts))


if __name__ == "__main__":
    main()
