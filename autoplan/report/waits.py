"""How long one device waits in a step, for what: never more than the step together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from autoplan.ir.choice import PricedCollective
from autoplan.ir.record import PlanRecord


def spent_s(record: PlanRecord, *, hidden: bool) -> float:
    """Seconds of a step's collectives on one device, on the pipeline rank that has most of them; with or without those
    that compute hides. Each is told for the rank on which its block stands most often: others have as much of it as
    they have of the block."""
    found = record.chosen.predicted.collectives
    uses = uses_of(record)
    borders = received_s([seconds_of(c, hidden) for c in found if c.kind == "send"], len(uses))
    return max(
        received + sum(seconds_of(c, hidden) * share(c, held, uses) for c in found if c.kind != "send")
        for received, held in zip(borders, uses, strict=True)
    )


def per_device(record: PlanRecord) -> list[PricedCollective]:
    """The collectives as one device runs them: messages between stages are one row, of the pipeline rank that receives
    most of them."""
    found = record.chosen.predicted.collectives
    sent, uses = [c for c in found if c.kind == "send"], uses_of(record)
    if not sent:
        return list(found)
    seconds, hidden, runs = (
        received_s([float(getattr(c, name)) for c in sent], len(uses)) for name in ("seconds", "hidden_s", "count")
    )
    rank = seconds.index(max(seconds))
    largest = max(sent, key=lambda c: c.bytes)
    own = {"count": round(runs[rank]), "seconds": seconds[rank], "hidden_s": hidden[rank]}
    one = replace(largest, where="from stage to stage", **own)  # type: ignore[arg-type]
    place = found.index(sent[0])
    return [*found[:place], one, *(c for c in found[place:] if c.kind != "send")]


def uses_of(record: PlanRecord) -> list[Counter[str]]:
    """For each pipeline rank, how often each block stands on it: stage k is on rank k modulo their number."""
    stages, segments = record.chosen.stages, record.model.segments
    names = [[record.model.blocks[s.block].name for s in segments[stage.first : stage.last]] for stage in stages]
    ranks = record.chosen.parallelism.pp or 1
    return [Counter(name for held in names[rank::ranks] for name in held) for rank in range(ranks)]


def share(collective: PricedCollective, held: Counter[str], uses: Sequence[Counter[str]]) -> float:
    """Of a block's collective, how much a rank has of the most that one has; all of what belongs to no block."""
    block = collective.where.split(" ")[0]
    most = max(counts[block] for counts in uses)
    return held[block] / most if most else 1.0


def seconds_of(collective: PricedCollective, hidden: bool) -> float:
    return collective.seconds if hidden else collective.seconds - collective.hidden_s


def received_s(borders: Sequence[float], ranks: int) -> list[float]:
    """Seconds in which each rank receives.

    borders  seconds of what crosses each border between stages, both ways: a stage receives half of what crosses each
             of its own
    ranks    of the pipeline: stage k is on rank k modulo these
    """
    halves = [0.0, *(seconds / 2 for seconds in borders), 0.0]
    stages = [before + after for before, after in pairwise(halves)]
    return [sum(stages[rank::ranks]) for rank in range(ranks)]
