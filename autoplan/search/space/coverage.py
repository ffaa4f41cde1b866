"""What a search tried, and what it left out, in words.

What it left out is asked of the rules that list its candidates (``candidates``). A value that a user could pin, and
that these rules then allow, is left out if no candidate has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from autoplan.errors import ParallelismError
from autoplan.option_values import OFFLOADS, ON_DISK, SCHEDULES
from autoplan.options import Parallelism
from autoplan.search.space.candidates import Candidate, SpaceLimits, all_candidates, divisors
from autoplan.search.space.pinned_checks import check_pinned

MOST_STAGES = 8  # on a rank, up to which it is asked whether they were tried
BESIDE = ("ep", "cp")  # axes that few plans have
NAMED = 4  # values of a field that are named


def searched(tried: Collection[Candidate]) -> str:
    """The sizes and options of the candidates: "dp 1 to 64, tp 1 to 8, pp 1; microbatches of 1 to 4 rows; ..."."""
    every = [s.sizes for s in tried]
    values = {name: {sizes[name] for sizes in every} for name in ("dp", "ep", "cp", "tp", "pp")}
    sizes = ", ".join(f"{name} {span(found)}" for name, found in values.items() if found != {1} or name not in BESIDE)
    rows = f"microbatches of {span({s.rows for s in tried})} rows"
    zero, stages = f"ZeRO {span({s.zero for s in tried})}", {s.virtual_stages for s in tried}
    schedules, hosts = ({s.schedule for s in tried if s.pp > 1}, {s.offload for s in tried} - {"none"})
    several = f" of {span(stages)} stages on a rank" if stages != {1} else ""
    piped = [f"schedule {text(sorted(schedules))}{several}"] if schedules else []
    offloads = [f"offload of {text(sorted(hosts))}"] if hosts else []
    return "; ".join([sizes, rows, zero, *piped, *offloads])


def span(values: Collection[int]) -> str:
    least, most = min(values), max(values)
    return str(least) if least == most else f"{least} to {most}"


def left_out(limits: SpaceLimits, pinned: Parallelism, tried: Collection[Candidate]) -> tuple[str, ...]:
    """What could be pinned beside what is pinned, and no candidate has."""

    def beside(name: str, value: Any) -> Iterator[Candidate]:
        """The candidates of a further pin that weren't tried."""
        if getattr(pinned, name) is not None:
            return iter(())
        try:
            own = replace(pinned, **{name: value})
            check_pinned(limits, own)
        except ParallelismError:
            return iter(())
        return (s for s in all_candidates(limits, own) if s not in tried)

    def values(name: str, possible: Iterable[Any], known: Collection, least_pp: int = 1) -> list[Any]:
        """Of a field's values, those that no candidate has, and some could have with so many pipeline ranks."""
        return [v for v in possible if v not in known and any(s.pp >= least_pp for s in beside(name, v))]

    def untried(axes: tuple[str, ...]) -> bool:
        """Whether each of these axes was tried, and never all of them together, though they can lie so."""
        sizes = [tuple(s.sizes[axis] for axis in axes) for s in tried]
        if any(min(own) > 1 for own in sizes) or not all(max(own, default=1) > 1 for own in zip(*sizes, strict=True)):
            return False
        least = [min(size for size in own if size > 1) for own in zip(*sizes, strict=True)]
        asked = {axis: size for axis, size in zip(axes, least, strict=True) if getattr(pinned, axis) is None}
        return any(True for _ in all_candidates(limits, replace(pinned, **asked)))

    sizes = divisors(limits.devices)
    tensor = values("tp", sizes, {s.tp for s in tried})
    across = " (across nodes)" if all(tp > limits.node for tp in tensor) else ""
    schedules = values("pipeline_schedule", SCHEDULES, {s.schedule for s in tried}, 2)
    stages = values("virtual_stages", range(2, MOST_STAGES + 1), {s.virtual_stages for s in tried})
    factors = [(tp // part, part) for tp in sizes for part in divisors(tp)[1:-1] if pinned.tensor_system is None]
    contexts = values("cp", [n for n in sizes[1:] if limits.tokens and limits.tokens % n == 0], {s.cp for s in tried})
    experts = [n for n in sizes[1:] if limits.experts and limits.experts % n == 0]
    experts = values("ep", experts, {s.sizes["ep"] for s in tried})
    factored = any(True for pair in factors for _ in beside("tensor", pair))
    offloads = {kind: list(beside("offload", kind)) for kind in (*OFFLOADS, ON_DISK)}
    piped = [kind for kind, missed in offloads.items() if missed and all(s.pp > 1 for s in missed)]
    others = [kind for kind, missed in offloads.items() if missed and kind not in piped]
    apart = [axes for count in (2, 3) for axes in itertools.combinations(("ep", "cp", "tp"), count) if untried(axes)]
    together = [axes for axes in apart if len(axes) == len(apart[0])]
    told = (
        (tensor, f"tp {text(tensor)}{across}"),
        (factored, "several tensor axes"),
        (contexts, f"cp {text(contexts)}"),
        (experts, f"ep {text(experts)}"),
        *((True, " beside ".join(axes)) for axes in together),
        (schedules, f"schedule {text(schedules)}"),
        (stages, f"{text(stages)} stages on a rank"),
        (piped, f"offload of {text(piped)} under a pipeline"),
        (others, f"offload of {text(others)}"),
        (any(True for _ in beside("local_steps", 2)), "replicas that step by themselves"),
        (any(True for _ in beside("compression", "powersgd")), "compressed gradients"),
        (any(True for _ in beside("servers", 1)), "parameter servers"),
        (any(s not in tried for s in all_candidates(limits, pinned)), "some sizes of microbatches"),
    )
    return tuple(words for left, words in told if left)


def text(values: Iterable[object]) -> str:
    """The first few of them."""
    named = [str(value) for value in values]
    return ", ".join(named if len(named) <= NAMED else [*named[:NAMED], "…"])
