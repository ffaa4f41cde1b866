"""Clusters of several kinds of device: which kind each pipeline rank is on, and what unequal stages gain at most.

Ranks are numbered as the cluster's devices are, the pipeline's axis outermost: rank k holds devices k·width on, with
width = dp·tp. One whose devices are all of one kind runs at that kind's pace and fills that kind's memory; one that
mixes kinds has the pace of the slowest and the memory of the smallest (``Topology.device``), and so have all ranks
under schedules that give a rank several stages or split the backward.

With c the seconds of the chain at the slowest's pace, and ρ_k the least share of its seconds that any block takes on
rank k, a rank that is busy for t seconds of each microbatch has run no more than t/ρ_k of c. The least slowest stage
and sum of stages that run all of c fill some ranks evenly, the quickest ones, and leave the others empty; with n of
them filled, even stages bound the schedule as they do where all devices are alike:

    min over n of  slots(n)·c / Σ_{k<n} 1/ρ_k,   ρ ascending                                       least_uneven_slots
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from autoplan.cost import Device, Topology
from autoplan.cost.interleaved import is_interleaved
from autoplan.search.space.candidates import Candidate


def kinds_of(topology: Topology) -> tuple[Device, ...]:
    """The kinds of device, each once; none where all devices are alike."""
    kinds = tuple(dict.fromkeys(device for device, _ in topology.groups))
    return kinds if len(kinds) > 1 else ()


def devices_of(topology: Topology, candidate: Candidate) -> tuple[Device, ...]:
    """What each pipeline rank is priced on; none where all have the pace of the slowest."""
    return rank_devices(topology, candidate.pp, candidate.stage_devices, candidate.schedule)


def rank_devices(topology: Topology, ranks: int, width: int, schedule: str) -> tuple[Device, ...]:
    """The same of so many pipeline ranks, each of ``width`` devices."""
    if ranks == 1 or is_interleaved(schedule) or not kinds_of(topology):
        return ()
    found = tuple(topology.among(rank * width, width) for rank in range(ranks))
    return found if any(device != topology.device for device in found) else ()


def headroom_bytes(topology: Topology, device: Device) -> int:
    """What may be filled of a device beyond what may be filled of the smallest; nothing of one that is no kind."""
    kinds = kinds_of(topology)
    return device.usable_bytes - min(kind.usable_bytes for kind in kinds) if device in kinds else 0


def pace(seconds: Sequence[float], slowest_s: Sequence[float]) -> float:
    """ρ: the least share of its seconds on the slowest that any block takes."""
    return min((own / slow for own, slow in zip(seconds, slowest_s, strict=True) if slow > 0), default=1.0)


def least_uneven_slots(paces: Sequence[float], slots: Callable[[int], float]) -> float:
    """Times that the chain at the slowest's pace takes in a step, at least.

    paces   ρ of each rank, positive
    slots   the same times for so many ranks that are all alike, were each to take the chain's seconds
    """
    speeds = itertools.accumulate(1 / share for share in sorted(paces))
    return min(slots(n) / speed for n, speed in enumerate(speeds, start=1))
