"""What a rehearsal found: each class of ranks beside what was planned for it, and whether all of them meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from autoplan.emit.source import size_text
from autoplan.errors import RehearsalError
from autoplan.rehearsal.pricing.price_check import Balance
from autoplan.rehearsal.records import Finding, Peak, RankClass, RankTrace
from autoplan.rehearsal.world.deadlock import Deadlock
from autoplan.rehearsal.world.matching import Mismatch
from autoplan.report.table import paragraph, table
from autoplan.report.words import seconds_text, size_in, unit_for

MOST = 10  # differences of prices that are told
WRONG = ("wrong device", "failed")
"""Findings with which a program doesn't run; the others cost time."""


@dataclass(frozen=True)
class RehearsedClass:
    """Ranks that run the same calls, of which the first was rehearsed.

    peak_bytes       with all of the step's microbatches: where fewer were run, carried on as it grew between two runs
    growth_bytes     for each further microbatch, once the schedule is full
    predicted_bytes  that the plan predicts for it
    """

    ranks: RankClass
    trace: RankTrace = field(repr=False)
    peak_bytes: int
    growth_bytes: float
    predicted_bytes: int

    @property
    def off(self) -> float:
        """What the prediction is off by, as a share of what was rehearsed."""
        return self.predicted_bytes / self.peak_bytes - 1

    @property
    def peak(self) -> Peak:
        return self.trace.peak


@dataclass(frozen=True)
class WorldOutcome:
    """All ranks together.

    mismatches   what doesn't meet; None where only some of the ranks were rehearsed, so that it isn't known
    deadlock     where nothing goes on, whether sends wait for their receives or not
    simulated_s  the step by the order of all ranks' calls at the plan's prices; where fewer microbatches were run,
                 carried on as it grew between two runs; None where only one was made, of fewer, and of a pipeline
                 without a flush, whose calls are those of a step that fills it and drains it
    """

    mismatches: tuple[Mismatch, ...] | None = None
    deadlock: Deadlock | None = None
    simulated_s: float | None = None


@dataclass(frozen=True)
class Rehearsal:
    """A plan's program, rehearsed.

    name          of the plan, in a line
    devices       ranks of the world
    microbatches  of a step; ``run`` of them were run
    limit_bytes   of a device
    failed        (class, what it says) of those that broke off
    together      whether all ranks meet
    balances      of each class the collectives and messages that the plan prices against those that were issued
    predicted_s   the step that the plan predicts
    seconds       that it took here
    """

    name: str
    devices: int
    microbatches: int
    run: int
    limit_bytes: int
    classes: tuple[RehearsedClass, ...]
    failed: tuple[tuple[RankClass, str], ...]
    together: WorldOutcome
    balances: tuple[Balance, ...]
    predicted_s: float
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the program runs: every rank to its end, all calls meet, nothing hangs, and it fits."""
        wrong = any(finding.what in WRONG for finding in self.findings)
        fits = all(one.peak_bytes <= self.limit_bytes for one in self.classes)
        return not (wrong or self.failed or self.together.mismatches or self.together.deadlock) and fits

    @property
    def faults(self) -> NoReturn:
        """The former name."""
        raise AttributeError("Rehearsal.faults: it is called findings. use Rehearsal.findings.")

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all classes, each once, with the most that a rank has of it."""
        found: dict[tuple[str, str, str], int] = {}
        for one in self.classes:
            for finding in one.trace.findings:
                key = (finding.what, finding.line, finding.text)
                found[key] = max(found.get(key, 0), finding.count)
        return tuple(Finding(*key, count=count) for key, count in found.items())

    def __str__(self) -> str:
        return "\n".join(lines(self))

    def check(self) -> None:
        """RehearsalError where it didn't pass."""
        if not self.passed:
            raise RehearsalError(
                "plan.rehearse()", f"the program would not run as planned:\n{self}",
                "report it with the plan.json: a program that hangs or doesn't fit is autoplan's mistake",
            )  # fmt: skip

    def to_dict(self) -> Mapping[str, Any]:
        """As plain data, without the calls."""
        unmet = self.together.mismatches
        classes = [
            {
                "ranks": len(one.ranks.ranks), "first": one.ranks.first, "reason": one.ranks.reason,
                "peak_bytes": one.peak_bytes, "growth_bytes": one.growth_bytes,
                "predicted_bytes": one.predicted_bytes, "peak": asdict(one.peak), "held": dict(one.trace.held),
                "curve": [list(point) for point in one.trace.curve],
            }
            for one in self.classes
        ]  # fmt: skip
        return {
            "plan": self.name, "passed": self.passed, "devices": self.devices, "microbatches": self.microbatches,
            "run": self.run, "limit_bytes": self.limit_bytes, "classes": classes,
            "failed": [[ranks.reason, text] for ranks, text in self.failed],
            "mismatches": None if unmet is None else [one.text for one in unmet],
            "deadlock": None if self.together.deadlock is None else self.together.deadlock.text,
            "simulated_s": self.together.simulated_s, "predicted_s": self.predicted_s,
            "differences": [str(difference) for one in self.balances for difference in one.differences],
            "findings": [asdict(finding) for finding in self.findings], "seconds": self.seconds,
        }  # fmt: skip


def lines(found: Rehearsal) -> list[str]:
    """The rehearsal in words: the verdict, the classes' memory, what is alive at the fullest peak, the findings."""
    verdict = "would run" if found.passed else "would NOT run"
    of = f"{found.run} of {found.microbatches} microbatches" if found.run < found.microbatches else "the whole step"
    count = len(found.classes) + len(found.failed)
    classes = f"{count} class{'es' if count > 1 else ''} of ranks"
    told = [
        found.name,
        f"The program {verdict}: {found.devices:,} ranks in {classes}, {of} of each run in {found.seconds:.0f} s here.",
    ]
    told += unfit(found)
    told += [f"  {ranks.reason}: {text}" for ranks, text in found.failed]
    if found.classes:
        told += ["", memory_table(found), "", *fullest(max(found.classes, key=lambda one: one.peak_bytes))]
    told += ["", *meeting(found), *pricing(found)]
    if found.findings:
        told += ["", "Told besides:"]
        told += [paragraph(f"{one.line}: {one.text} (a step: {one.count} times)") for one in found.findings]
    return told


def unfit(found: Rehearsal) -> list[str]:
    """Which ranks need more than a device has, where any do."""
    over = [one for one in found.classes if one.peak_bytes > found.limit_bytes]
    if not over:
        return []
    most = max(over, key=lambda one: one.peak_bytes)
    count = sum(len(one.ranks.ranks) for one in over)
    return [
        f"It doesn't fit: {size_text(most.peak_bytes)} ({most.ranks.reason}), where a device has "
        f"{size_text(found.limit_bytes)} for it; {count:,} of {found.devices:,} ranks take more than that."
    ]


def memory_table(found: Rehearsal) -> str:
    size, unit = unit_for(max(one.peak_bytes for one in found.classes))
    header = (
        "ranks", "each of", f"rehearsed {unit}", f"predicted {unit}", "off by", "operators", "collectives",
        "peak during",
    )  # fmt: skip
    rows = []
    for one in found.classes:
        kinds = Counter(call.kind for call in one.trace.calls)
        over = " (over the limit)" if one.peak_bytes > found.limit_bytes else ""
        rows.append((
            one.ranks.reason, f"{len(one.ranks.ranks):,}", f"{size_in(size, one.peak_bytes)}{over}",
            size_in(size, one.predicted_bytes), f"{one.off:+.1%}", f"{kinds['operator']:,}",
            f"{kinds['collective'] + kinds['send'] + kinds['receive']:,}", one.peak.during,
        ))  # fmt: skip
    return table(header, rows, right=range(1, 7))


def fullest(one: RehearsedClass) -> list[str]:
    """What stands at a class's peak."""
    told = [f"At the peak of {one.ranks.reason}, in {one.peak.during} at {one.peak.line}:"]
    told += [f"  {size_text(alive.bytes):>9}  {alive.kind} ({alive.storages})" for alive in one.peak.kinds]
    told.append("Made by:")
    told += [
        f"  {size_text(group.bytes):>9}  {group.name} at {group.line or 'start'} ({group.count})"
        for group in one.peak.largest[:6]
    ]
    if one.growth_bytes > 0:
        told.append(f"Each further microbatch adds {size_text(one.growth_bytes)}.")
    return told


def meeting(found: Rehearsal) -> list[str]:
    met = found.together
    if found.failed:
        return ["Whether all ranks meet isn't known: some broke off."]
    if met.mismatches is None:
        return ["Whether all ranks meet isn't known: not all were rehearsed."]
    if met.mismatches:
        return ["Calls that don't meet:", *(paragraph(one.text) for one in met.mismatches)]
    if met.deadlock is not None:
        return [f"It hangs: {met.deadlock.text}"]
    return ["Every collective meets its members and every message its receiver; the order on the streams has an end."]


def pricing(found: Rehearsal) -> list[str]:
    """The plan's prices against the program's calls."""
    if not found.balances:
        return []
    calls = max(sum(call.count for call in one.priced) for one in found.balances)
    differences = sorted({str(difference) for one in found.balances for difference in one.differences})
    told = [f"Collectives and messages: up to {calls:,} a rank are issued and priced, with their bytes."]
    told += [paragraph(text) for text in differences[:MOST]]
    told += [f"  and {len(differences) - MOST} more"] if len(differences) > MOST else []
    if found.together.simulated_s is not None:
        by_order, off = found.together.simulated_s, found.predicted_s / found.together.simulated_s - 1
        told.append(f"The step by the order of all calls takes {seconds_text(by_order)}; predicted "
                    f"{seconds_text(found.predicted_s)} ({off:+.1%}).")  # fmt: skip
    return told
