"""Plans with a context axis, tried where others run out: nothing fits, pipelines stand idle, or rows are long.

Rows bound data parallelism, a node bounds tensor parallelism. With few long rows on many devices only stages are left,
and too few microbatches go through them. There the sequence is split over an axis of its own, which may span nodes.
Microbatches have one row: more would hold more, and a long row fills a device.
"""

from __future__ import annotations

from dataclasses import replace

from autoplan.options import Parallelism
from autoplan.search.evaluate import Evaluated
from autoplan.search.space.candidates import Candidate, divisors, settings
from autoplan.search.state import SearchState

IDLE = 0.2  # share of a step in a pipeline's bubble from which on a context axis is tried
LONG = 32768  # tokens of a row from which on one is tried in any case
LEAST_TOKENS = 1024  # of a row on one device: with fewer its products are too small to be worth an axis
MOST_GATHERED = 16  # ranks that gather each other's keys and values; a ring moves the same bytes under its compute


def wants_context(work: SearchState, best: Evaluated | None) -> bool:
    """Whether the best plan without a context axis may leave much to gain."""
    return best is None or best.timeline.bubble_fraction > IDLE or work.limits.tokens >= LONG


def in_context(work: SearchState, pinned: Parallelism) -> list[Candidate]:
    """Every setting with a context axis; none where one is pinned, or another system on the tensor axes, or no
    attention runs over a sequence."""
    said = (pinned.cp, pinned.ep, pinned.tensor, pinned.tensor_system, pinned.sequence_parallel)
    tokens = work.limits.tokens
    if any(field is not None for field in said) or not tokens:
        return []
    sizes = [cp for cp in divisors(work.limits.devices) if 1 < cp <= tokens // LEAST_TOKENS and tokens % cp == 0]
    one_row = replace(pinned, micro_batch=pinned.micro_batch or 1)
    found = (s for cp in sizes for s in settings(work.limits, replace(one_row, cp=cp)))
    return work.lying([s for s in found if is_worth(s, tokens)])


def is_worth(setting: Candidate, tokens: int) -> bool:
    """Whether a device is left enough of a row, and gathers no more keys and values than is sensible."""
    ways, gathers = setting.cp * setting.tp, setting.cp_attention == "rows"
    return tokens % ways == 0 and tokens // ways >= LEAST_TOKENS and (setting.cp <= MOST_GATHERED or not gathers)
