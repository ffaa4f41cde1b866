"""Which systems run on two nodes, and on how many processes of each."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.cluster import ClusterSpec
from autoplan.errors import ParallelismError
from autoplan.option_values import ALL_REDUCES
from autoplan.options import Parallelism
from autoplan.search.space.systems import SYSTEMS, resolve
from tests.bench.systems import cases

PINS = {f"{way} all-reduce": way for way in ALL_REDUCES}
SIZES = (2, 4)  # processes of a node


@dataclass(frozen=True)
class Case:
    """One system, or a pin beside them (``ALL_REDUCES``): where it runs, or why it doesn't.

    processes  of each of the two nodes
    pinned     the system's name; or what it stands for on as many devices of one node, where its group has to be
               larger than a node
    """

    system: str
    model: str
    processes: int = 0
    pinned: str | Parallelism = ""
    reason: str = ""


def all_cases() -> tuple[Case, ...]:
    """Every named system, on one model; and each all-reduce of gradients."""
    named = (case_of(system, cases.models_of(system)[0]) for system in SYSTEMS)
    pins = (Case(name, cases.MODELS[0], SIZES[0], Parallelism(dp=4, all_reduce=way)) for name, way in PINS.items())
    return (*named, *pins)


def case_of(system: str, model: str) -> Case:
    """The smallest two nodes that the system is defined on; its groups span them where a node is too small for one."""
    reasons = []
    for processes in SIZES:
        for nodes in (2, 1):
            try:
                there = resolve(system, ClusterSpec.of(f"{nodes}x{2 * processes // nodes} cpu"))
                resolve(there, ClusterSpec.of(f"2x{processes} cpu"))
            except ParallelismError as error:
                reasons.append(str(error))
            else:
                return Case(system, model, processes, system if nodes == 2 else there)
    return Case(system, model, reason=reasons[-1])
