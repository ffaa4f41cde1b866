"""Prices of bytes that lead to points of the Pareto front of time against bytes.

What the leanest spend for a byte says little of those between. Prices are sought at which two known answers cost the
same, since any that is cheaper there lies on the hull between them.
"""

from __future__ import annotations

from autoplan.search.intra_op.solve import Solution, Weights

ALONE = 8.0  # times all the time of the fastest, that bytes of one kind cost where they alone are to be few


def states_alone(fastest: Solution) -> Weights:
    """Prices under which bytes of parameters count, and nothing else."""
    return Weights(ALONE * fastest.time_s / max(fastest.state_bytes, 1.0), 0.0)


def kept_alone(fastest: Solution) -> Weights:
    """Prices under which bytes kept count, and nothing else."""
    return Weights(0.0, ALONE * fastest.time_s / max(fastest.kept_bytes, 1.0))


def between(fast: Solution, lean: Solution, direction: Weights) -> Weights | None:
    """The prices, of those in a direction, at which two answers cost the same; None where the one is better in both
    time and bytes."""
    states, kept = fast.state_bytes - lean.state_bytes, fast.kept_bytes - lean.kept_bytes
    saved = direction.state * states + direction.kept * kept
    more_s = lean.time_s - fast.time_s
    if saved <= 0 or more_s <= 0:
        return None
    return Weights(direction.state * more_s / saved, direction.kept * more_s / saved)
