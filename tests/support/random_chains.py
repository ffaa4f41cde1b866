"""Chains drawn at random for several stages on each rank, and every way to divide them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autoplan.cost.interleaved import InterleavedSchedule
from autoplan.search.inter_op.chain_costs import ChainCosts, Division, even_stages
from autoplan.search.inter_op.rank_memory import SegmentBytes

SCHEDULES = [("interleaved", 2), ("zero-bubble", 1), ("zero-bubble", 2)]


def chain(
    seed: int, schedule: str, virtual_stages: int, recompute: str, segments: int, microbatches: int,
    turns: bool = False, by_turns: Sequence[int] = (),
) -> ChainCosts:  # fmt: skip
    """A random chain, its first and last segment unlike the others, under no wall. ``by_turns``: the kinds of those
    between, which take turns."""
    rng, ranks = random.Random(seed), 2
    kinds = max(by_turns) + 1 if by_turns else rng.choice([1, 2])
    between = [by_turns[i % len(by_turns)] if by_turns else i * kinds // (segments - 2) for i in range(segments - 2)]
    order = [kinds, *between, kinds + 1]

    def along(low: float, high: float) -> np.ndarray:
        return np.array([rng.uniform(low, high) for _ in range(kinds + 2)])[order]

    forward, kept, inputs = along(1, 3), along(5, 10), np.ones(segments)
    weights = 2 * forward * along(0.3, 0.6) * (schedule == "zero-bubble")
    messages = np.array([[rng.uniform(0.05, 0.2) * (k > 0)] * segments for k in range(ranks * virtual_stages)])
    border = inputs * (np.arange(segments) > 0)  # none in front of the first segment
    parameters = along(10, 30)
    memory = SegmentBytes(
        parameters=parameters, elsewhere=0.3 * parameters, untouched=0.1 * parameters,
        bucketed=0.02 * parameters, frozen=0.2 * parameters,
        kept=kept, inputs=inputs,
        selective=0.5 * kept, rebuilt=0.8 * kept, constants=along(0, 1), working=along(2, 6), gathered=along(0, 2),
        alone=along(0, 5),
        message=along(0.2, 0.5) * border, unkept=along(0, 0.2) * border,
        repeated=np.array([kind < kinds for kind in order]), ties=(), ties_elsewhere=(), ties_frozen=(), messages=3,
        state_share=0.6, update_share=0.1, shard_share=0.3, gradient_shares=np.array([0.0, 0.1, 0.4, 0.4]),
        sharded_gradients=np.array([0.0, 0.05, 0.2, 0.2]), stashed=np.zeros((ranks, 2)),
    )  # fmt: skip
    return ChainCosts(
        forward, 2 * forward, weights, 2 * forward, forward, 0.3 * forward, messages, memory, recompute, schedule,
        ranks, virtual_stages, microbatches, 1e9,
        InterleavedSchedule(schedule, ranks, microbatches, virtual_stages, turns=turns),
    )


def walled(costs: ChainCosts, share: float) -> ChainCosts:
    """Under a wall of a share of what even stages hold."""
    limit = share * (costs.over(costs.pinned(even_stages(costs))) + costs.memory_limit)
    return replace(costs, memory_limit=limit)


def divisions(costs: ChainCosts) -> list[Division]:
    """Every cut, and every count that may be recomputed."""
    found = []
    for cuts in itertools.combinations(range(1, len(costs)), costs.stages - 1):
        stages = tuple(itertools.pairwise((0, *cuts, len(costs))))
        if costs.recompute != "auto":
            found.append(costs.pinned(stages))
            continue
        options = [[(a, b) for a in range(n + 1) for b in range(n + 1 - a)] for n in costs.counts(stages)]
        for chosen in itertools.product(*options):
            found.append(Division(stages, tuple(a for a, _ in chosen), tuple(b for _, b in chosen)))
    return found
