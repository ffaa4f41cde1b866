"""Pipeline ranks that hold several stages each: their loads as ``pieces`` have them, and what a rank holds of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoplan.cost.interleaved import runs_rounds, split_backward, splits
from autoplan.ir.choice import StageChoice, StageMemory
from autoplan.search.inter_op.chain_costs import Division, Pieces
from autoplan.search.inter_op.stage_model import Loads, parameter_share


def pieces_of(loads: Loads, wall: float) -> Pieces:
    """The chain of a setting, as its schedule runs it. A parameter that several segments read counts for each of them,
    which is no less than ranks hold."""
    chain, setting, data = loads.chain, loads.setting, loads.data
    whole, grads = data.gathered_segments
    sides = [split(loads, first=first) for first in (False, True)]
    borders = [loads.border_s(rank)[:-1] for rank in range(setting.pp)]
    messages = np.tile(borders, (setting.virtual_stages, 1))
    messages[0] = 0.0
    many, leaving = setting.microbatches, np.concatenate([[0.0], chain.outputs[:-1]])
    assert loads.rounds is not None
    return Pieces(
        forward_s=chain.forward_s,
        backward_s=sides[0][0],
        weights_s=sides[0][1],
        whole_s=sides[1][0],
        full_s=chain.forward_s,
        part_s=chain.again_s,
        states=chain.parameters * parameter_share(data, loads.states),
        kept=chain.kept,
        inputs=chain.inputs,
        selective=chain.selective,
        rebuilt=chain.rebuilt,
        constants=chain.constants,
        working=chain.working,
        gathered=(whole + grads) * chain.parameters,
        received=received_times(loads) * chain.inputs,
        sent=many * leaving,
        leaving=leaving,
        updating=chain.parameters * loads.updates_together,
        alone=np.asarray(loads.largest_alone(chain.largest_parameter)),
        reduced=np.asarray(loads.reduced(chain.parameters)),
        messages_s=messages,
        repeated=chain.repeated,
        recompute=setting.recompute,
        schedule=setting.schedule,
        ranks=setting.pp,
        virtual_stages=setting.virtual_stages,
        microbatches=many,
        wall=wall,
        rounds=loads.rounds,
    )


def received_times(loads: Loads) -> int:
    """Buffers of what enters a stage: one for each microbatch; where the backward is split, also the gradients that it
    sends back, which stay until the next step (torch.distributed.pipelining, ``stage_backward_input``)."""
    return loads.setting.microbatches * (2 if splits(loads.setting.schedule) else 1)


def split(loads: Loads, *, first: bool) -> tuple[np.ndarray, np.ndarray]:
    """(seconds of each segment's backward, of these for its parameters' gradients) on the first stage, or a later."""
    chain = loads.chain
    if not splits(loads.setting.schedule):
        return chain.backward_s, np.zeros(len(chain))
    fuses = loads.data.prices.fuses
    pairs = [
        split_backward(float(b), float(w), first=first, fuses=fuses)
        for b, w in zip(chain.backward_s, chain.weights_s, strict=True)
    ]
    backward_s, weights_s = np.array(pairs).T
    return backward_s, weights_s


def backwards_of(loads: Loads, stages: Sequence[StageChoice]) -> tuple[list[float], list[float]]:
    """(seconds of each stage's backward, of these for its parameters' gradients)."""
    whole_s, waits_s = [], []
    distinct = len(stages) if loads.ranks else min(2, len(stages))
    parts = [split(loads.at(number), first=number == 0) for number in range(distinct)]
    for number, s in enumerate(stages):
        run, (backward_s, weights_s) = slice(s.first, s.last), parts[min(number, distinct - 1)]
        at, own = (s.first, s.last), loads.at(number)
        again_s = own.backward_s(at, s.recompute, s.selective) - own.backward_s(at, 0)
        whole_s.append(float(backward_s[run].sum()) + again_s)
        waits_s.append(float(weights_s[run].sum()) + again_s * (splits(loads.setting.schedule) and number == 0))
    return whole_s, waits_s


def stages_of(division: Division) -> tuple[StageChoice, ...]:
    """The same in the words of a choice."""
    return tuple(
        StageChoice(*at, full, part)
        for at, full, part in zip(division.stages, division.full, division.part, strict=True)
    )


def of_rank(stages: Sequence[StageChoice], rank: int, ranks: int) -> Sequence[tuple[int, StageChoice]]:
    """(number, stage) of those on a pipeline rank."""
    return [(number, stage) for number, stage in enumerate(stages) if number % ranks == rank]


def memory_of(loads: Loads, stages: tuple[StageChoice, ...]) -> tuple[StageMemory, ...]:
    """Bytes on one device of each pipeline rank at its busiest."""
    if not runs_rounds(loads.setting.schedule):
        return tuple(
            loads.memory(k, (s.first, s.last), s.recompute, s.selective) for k, s in enumerate(stages)
        )
    return tuple(rank_memory(loads, stages, rank) for rank in range(loads.setting.pp))


def rank_memory(loads: Loads, stages: tuple[StageChoice, ...], rank: int) -> StageMemory:
    """All stages of one rank: states and buffers of each, activations at the moment at which they are most, and one
    largest transient; a parameter that it reads twice counted once."""
    chain, data, many = loads.chain, loads.data, loads.setting.microbatches
    once, there, buffers, working, parameter, rebuilt = [], [], 0.0, 0.0, 0.0, 0.0
    held: dict[str, int] = {}
    assert loads.rounds is not None
    for number, stage in of_rank(stages, rank, loads.setting.pp):
        run = slice(stage.first, stage.last)
        full, part = loads.recomputed((stage.first, stage.last), stage.recompute, stage.selective)
        kept = np.where(full, chain.inputs[run], np.where(part, chain.selective[run], chain.kept[run]))
        leaving = chain.outputs[stage.last - 1] if number < len(stages) - 1 else 0.0
        once.append(kept.sum() + chain.constants[run].max() + leaving)
        there.append(loads.hosted_bytes((stage.first, stage.last), part))
        buffers += received_times(loads) * chain.inputs[stage.first] if number else 0.0
        buffers += many * leaving
        working = max(working, chain.working[run].max())
        parameter = max(parameter, chain.parameters[run].max())
        rebuilt = max(rebuilt, chain.kept[run][full].max(initial=0.0), chain.rebuilt[run][part].max(initial=0.0))
        held |= dict(pair for segment in chain.held[run] for pair in segment)
    parameters = sum(held.values())
    hosted = float((loads.rounds.held[rank] @ np.array(there)).max())
    flight = float((loads.rounds.held[rank] @ np.array(once)).max())
    whole, grads = data.gathered_segments
    transients = working + (whole + grads) * parameter + rebuilt
    emptied = float(loads.emptied(parameters, max(held.values(), default=0), parameter))
    return StageMemory(
        round(parameters * data.parameter_share),
        round(parameters * data.gradient_share) if data.prices.training else 0,
        round(parameters * data.states_share(loads.states)),
        round(flight + buffers),
        round(max(transients, emptied - flight)),
        round(parameters * data.host_share(loads.states) + hosted),
    )


def unties(loads: Loads, stages: tuple[StageChoice, ...]) -> bool:
    """Whether ZeRO would hold as two a parameter that two stages of one rank read (``runtime.parallel.zero``)."""
    if not loads.data.zero or loads.setting.virtual_stages == 1:
        return False
    for rank in range(loads.setting.pp):
        read = [
            {name for segment in loads.chain.held[s.first : s.last] for name, _ in segment}
            for _, s in of_rank(stages, rank, loads.setting.pp)
        ]
        if sum(map(len, read)) > len(set().union(*read)):
            return True
    return False
