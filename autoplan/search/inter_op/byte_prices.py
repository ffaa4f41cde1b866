"""What a byte is worth to the stages of a candidate: prices at which the operator problem is solved again.

What is fastest alone may not fit in company. A stage that recomputes pays a price for each byte it saves: the seconds
that its dearest recomputation spends for a byte held, the dual of its memory limit. At that price the operator problem

    minimise  time + π·(share·state bytes + n·kept bytes)                        n: microbatches in flight on that stage

is solved again; its answer either needs less recomputation and is faster for it, or is one that is known, and then no
other is better at that price. Where nothing fits, the price is first so high that bytes alone count, then comes down;
and where nothing fits even so, those of parameters alone count, since what is kept can be recomputed (``pareto``).

Where the host updates parameters, each byte of them costs a step what its copies and its update on the host take. The
operator problem doesn't know of that, so it is a price of its own, whatever the memory.
"""

from __future__ import annotations

import math

import numpy as np

from autoplan.cost.prices import STREAMED
from autoplan.cost.step import update_s
from autoplan.ir.choice import StageChoice
from autoplan.search.inter_op.parameter_shares import parameter_share
from autoplan.search.inter_op.stage_model import StageModel
from autoplan.search.intra_op.solve import Solution, Weights

STEEP = 1.0  # times all the time of the fastest, that all bytes cost: more, and what isn't counted grows
EASING = 1 / 8  # by which prices come down between the leanest and the fastest


def steep(fastest: Solution, stage_model: StageModel, ease: float = 1.0) -> Weights:
    """Prices under which bytes count as much as time, or less by a factor; of bytes of parameters and of those kept
    as a candidate holds them, to a power of two, so that many candidates ask for the same."""
    exact = parameter_share(stage_model.data, stage_model.states) / max(stage_model.in_flight)
    share = 2.0 ** round(math.log2(exact)) if exact > 0 else 0.0  # 0: all of it is the host's
    held = share * fastest.state_bytes + fastest.kept_bytes
    price = STEEP * ease * fastest.time_s / max(held, 1.0)
    return Weights(price * share, price)


def duals(stage_model: StageModel, stages: tuple[StageChoice, ...]) -> Weights | None:
    """What a byte is worth on the stage that recomputes for longest; None where none does."""
    spent = [recomputed_s(stage_model.at(k), stage) for k, stage in enumerate(stages)]
    worst = int(np.argmax(spent))
    if spent[worst] <= 0:
        return None
    flight = stage_model.in_flight[worst]
    price = seconds_per_byte(stage_model.at(worst), stages[worst])
    if not math.isfinite(price):
        return None
    share = parameter_share(stage_model.data, stage_model.states)
    return Weights(price / flight * share + host_price(stage_model).state, price)


def host_price(stage_model: StageModel) -> Weights:
    """What the host's update of a byte of parameters takes of a step, for each of its microbatches; nothing where the
    device updates it."""
    data = stage_model.data
    if not data.offloads:
        return Weights()
    updated = STREAMED * data.optimizer_share * data.updated
    one_s, two_s = (update_s(n * updated, stage_model.passes, data, stage_model.states) for n in (1, 2))
    return Weights((two_s - one_s) / STREAMED / stage_model.candidate.microbatches, 0.0)


def recomputed_s(stage_model: StageModel, stage: StageChoice) -> float:
    """Seconds that a stage runs again in each microbatch."""
    at = (stage.first, stage.last)
    return stage_model.backward_s(at, stage.recompute, stage.selective) - stage_model.backward_s(at, 0, 0)


def seconds_per_byte(stage_model: StageModel, stage: StageChoice) -> float:
    """The dearest recomputation that a stage uses: seconds for each byte kept of one microbatch."""
    chain = stage_model.chain
    again = [i for i in range(stage.first, stage.last) if chain.repeated[i]]
    full = [(chain.forward_s[i], chain.kept[i] - chain.inputs[i]) for i in again[: stage.recompute]]
    part = again[stage.recompute : stage.recompute + stage.selective]
    some = [(chain.again_s[i], chain.kept[i] - chain.selective[i]) for i in part]
    return float(max((seconds / saved for seconds, saved in full + some if saved > 0), default=math.inf))
