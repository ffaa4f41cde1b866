"""A candidate's data axis, and the bytes that it has a device hold for each byte of parameter."""

from __future__ import annotations

import math

import numpy as np

from autoplan.cost.interleaved import ACCUMULATING, SENDING, WAITING, in_one_round, splits
from autoplan.cost.prices import Prices
from autoplan.cost.zero_costs import DataAxis
from autoplan.search.inter_op.chain import Chain
from autoplan.search.space.candidates import Candidate


def gathered_bytes(data: DataAxis, chain: Chain) -> np.ndarray:
    """[segments] bytes of parameters, and of their gradients, that stand whole at once beside what is stored."""
    whole, gradients = data.gathered_segments
    return (whole + gradients) * chain.parameters + whole * chain.gathered_frozen


def data_axis(candidate: Candidate, prices: Prices, states: float) -> DataAxis:
    """A candidate's data axis; ``states``: elements of optimizer state for each parameter element."""
    axes = candidate.shard_axes
    return DataAxis(
        candidate.zero, math.prod(prices.mesh.size(axis) for axis in axes), prices, candidate.pp > 1, candidate.offload,
        late=splits(candidate.schedule), local_steps=candidate.local_steps, outer=bool(candidate.outer_optimizer),
        averaged=1.0 if candidate.outer_optimizer else 1.0 + states,
        versions=candidate.versions, axis=",".join(axes), wide=candidate.wide, replicas=candidate.dp_replicate,
    )  # fmt: skip


def parameter_share(data: DataAxis, states: float) -> float:
    """Bytes of parameter, gradient and optimizer state that the device holds for each byte of parameter."""
    return data.parameter_share + data.gradient_shares[SENDING] + data.states_share(states)


def shard_share(data: DataAxis, states: float) -> float:
    """Of these bytes those that ZeRO shards, gradients aside."""
    return data.sharded * data.shard_share + data.states_share(states) if data.zero else 0.0


def least_share(data: DataAxis, states: float, candidate: Candidate) -> float:
    """No parameter takes fewer bytes for each of its own, be it dense or an expert, when most is in flight."""
    turns = in_one_round(candidate.schedule, candidate.pp, candidate.microbatches)
    standing = WAITING if turns else ACCUMULATING
    whole = data.parameter_share + data.states_share(states) + data.gradient_shares[standing]
    return whole - data.elsewhere * (shard_share(data, states) + data.sharded_gradients[standing])
