"""When nothing fits: what is needed, on which stage, what dominates there, and the nearest remedies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from autoplan.errors import DoesNotFitError, ParallelismError
from autoplan.ir.choice import StageMemory
from autoplan.option_values import ON_DISK
from autoplan.options import Parallelism, Training
from autoplan.search.driver import least_plan
from autoplan.search.evaluate import Evaluated
from autoplan.search.explain.remedies import Remedy, remedies
from autoplan.search.further.axes import in_context, over_experts
from autoplan.search.space.heterogeneous import headroom_bytes
from autoplan.search.state import SearchState, candidates

NOTHING_NEAR = "Nothing near fits: give a smaller model, or devices with more memory"
GB, MB = 1e9, 1e6


def does_not_fit(work: SearchState, pinned: Parallelism) -> DoesNotFitError | ParallelismError:
    """The error for a model, cluster and pinned fields of which no plan fits; or of which none is more than the same on
    fewer devices."""
    nearest = least_on_any_axes(work, pinned)
    found = remedies(work, pinned)
    if nearest.over_bytes(work.cluster.usable_bytes) == 0 and not nearest.exceeds_host:
        return only_idle(nearest, pinned, found)
    remedy = f"Nearest that fits: {', or '.join(map(str, found))}" if found else NOTHING_NEAR
    return DoesNotFitError(work.prepared.model.name, f"does not fit: {needs(work, nearest)}", remedy)


def only_idle(nearest: Evaluated, pinned: Parallelism, found: Sequence[Remedy]) -> ParallelismError:
    """The error where memory suffices, but what fits has a tensor axis that nobody asked for, and that splits
    nothing."""
    s = nearest.candidate
    told = " ".join(f"{name}={value}" for name, value in pinned.pinned().items()) or f"tp={s.tp}"
    mesh = s.sizes_text
    cause = f"what is left has a tensor axis that splits nothing ({mesh}): fewer devices do the same"
    others = "".join(f", or {one}" for one in found)
    return ParallelismError(told, cause, f"pin tp={s.tp} to have it split the weights{others}")


def leanest(work: SearchState, pinned: Parallelism) -> Evaluated:
    """The plan that needs least of its fullest device, with no axis beside the tensor's that isn't pinned;
    ParallelismError where none runs whatever the memory."""
    best = least_plan(work, candidates(work.limits, pinned))
    if best is None:
        raise never_runs(pinned)
    return best


def least_on_any_axes(work: SearchState, pinned: Parallelism) -> Evaluated:
    """The same with the contexts' and experts' axes that the search tries where nothing fits, each size by itself."""
    sizes = sorted({candidate.sizes["ep"] for candidate in over_experts(work, pinned, None)})
    asked = (replace(pinned, ep=ep, tp=pinned.tp or 1) for ep in sizes)
    further = (in_context(work, pinned), *(candidates(work.limits, own) for own in asked))
    known = [found for possible in further if (found := least_plan(work, possible)) is not None]
    return min([leanest(work, pinned), *known], key=lambda found: found.over_bytes(0.0))


def never_runs(pinned: Parallelism) -> ParallelismError:
    """The error where no candidate runs whatever the memory: its ranks read a parameter on several of their stages."""
    told = " ".join(f"{name}={value}" for name, value in pinned.pinned().items())
    cause = "ZeRO would hold as two a parameter that two stages of one rank read"
    return ParallelismError(told, cause, "pin virtual_stages=1, or zero=0")


def needs(work: SearchState, nearest: Evaluated) -> str:
    """What the leanest plan needs where it needs most, and of what; of the host where that is what lacks."""
    cluster, s, stage = work.cluster, nearest.candidate, nearest.fullest
    memory, memory_limit = nearest.memory[stage], cluster.usable_bytes + nearest.stage_model.at(stage).headroom
    kind, size = max(kinds(memory), key=lambda pair: pair[1])
    states = sum((m.parameters + m.gradients + m.optimizer) * s.stage_devices for m in nearest.memory)
    if memory.total <= memory_limit and s.offload != "none":
        place = "its host's disk" if s.offload == ON_DISK else "the host's memory"
        return (
            f"{model_text(work)} with offload={s.offload!r} needs {sized(max(m.host for m in nearest.memory))} of "
            f"{place} for a device, and {cluster} has {sized(nearest.stage_model.data.host.memory_bytes)} for each"
        )
    return (
        f"{model_text(work)} needs {sized(memory.total)} on a device in the leanest plan found "
        f"({s.sizes_text}, ZeRO-{s.zero}, stage {stage}), of which {sized(size)} are {kind}, and "
        f"each of {cluster} offers {sized(memory_limit)}; its states take {sized(states, 0)} of the cluster's "
        f"{sized(sum(usable * count for usable, count in offered(work)), 0)}"
    )


def sized(bytes: float, digits: int = 1) -> str:
    """``74.7 GB``; what is less than a tenth of one in MB."""
    size, unit = (bytes / GB, "GB") if bytes >= GB / 10 else (bytes / MB, "MB")
    return f"{size:.{digits}f} {unit}"


def kinds(memory: StageMemory) -> Iterator[tuple[str, int]]:
    """What a device's bytes are of."""
    return ((f.name, getattr(memory, f.name)) for f in fields(memory) if f.name != "host")


def offered(work: SearchState) -> Iterator[tuple[int, int]]:
    """(bytes that may be filled of a device, devices) of each kind."""
    topology, least = work.operators.topology, work.cluster.usable_bytes
    return ((least + headroom_bytes(topology, device), count) for device, count in topology.kinds)


def model_text(work: SearchState) -> str:
    elements = sum(p.type.elements for p in work.prepared.model.parameters)
    count = f"{elements / 1e9:.1f} billion" if elements >= 1e9 else f"{elements / 1e6:.1f} million"
    training = work.training
    with_what = f" with {training.optimizer} in {training.precision}" if isinstance(training, Training) else ""
    return f"{count} parameters{with_what}"
