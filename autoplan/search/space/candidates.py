"""The candidates to be tried: meshes, microbatches, ZeRO levels, schedules, recomputation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from autoplan.cost.interleaved import deals_rounds
from autoplan.errors import ParallelismError
from autoplan.ir.mesh import TENSOR, Mesh
from autoplan.options import Parallelism
from autoplan.search.space.tensor_axes import SYSTEMS as TENSOR_LAYOUTS


@dataclass(frozen=True, order=True)
class Setting:
    """One combination of sizes and options; what is left is how operators and segments lie.

    micro_batch     rows of one microbatch on one data-parallel rank
    recompute       "none", "selective", "full", or "auto": as many segments as the wall asks for, each as cheaply;
                    "selective" where activations are offloaded, which takes its place (``load.chain_of``)
    virtual_stages  stages on one pipeline rank: stage k of the chain runs on rank k modulo pp
    offload         "none", "optimizer", "parameters" or "activations": what the host's memory holds
    tensor          factors of tp, outermost first, one mesh axis for each; () is one axis
    tensor_system   how tensors lie over these axes, by the name of a system (``rows``, ``tensor``); "": as is cheapest
    local_steps     steps from one average of the replicas to the next; 1: gradients are summed in every step
    versions        of the weights: 2 where gradients are those of the version before the last (PipeDream-2BW)
    """

    pp: int
    dp: int
    tp: int
    micro_batch: int
    microbatches: int
    zero: int
    schedule: str
    recompute: str
    virtual_stages: int = 1
    offload: str = "none"
    tensor: tuple[int, ...] = ()
    tensor_system: str = ""
    local_steps: int = 1
    versions: int = 1

    @property
    def stages(self) -> int:
        """Parts into which the chain is cut."""
        return self.pp * self.virtual_stages

    @property
    def mesh(self) -> Mesh:
        tensor = dict(zip(TENSOR, self.factors, strict=False))
        return Mesh.of(pp=self.pp, dp=self.dp, **tensor, mb=self.microbatches)

    @property
    def factors(self) -> tuple[int, ...]:
        """Sizes of the tensor axes, outermost first."""
        return self.tensor or (self.tp,)


@dataclass(frozen=True)
class Limits:
    """What bounds the settings.

    devices, node   of the cluster, and of one of its nodes
    rows            of the batch
    segments        of the chain
    only_one        (axis, reason) for each batch axis that must have size 1
    fuses           whether segments are compiled, so that a backward gives all its gradients at once
    """

    devices: int
    node: int
    rows: int
    segments: int
    only_one: tuple[tuple[str, str], ...] = ()
    fuses: bool = True


VIRTUAL_STAGES = (1, 2, 4, 8)
LEAST_BUBBLE = 0.04  # the share of a step that has to be idle for twice as many stages on a rank to be tried
MOST_ACTIONS = 2**15
"""Forwards and backwards of a step, beyond which interleaving saves too little to be tried: its bubble falls with the
microbatches."""


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def settings(limits: Limits, pinned: Parallelism) -> Iterator[Setting]:
    """Every setting that the cluster, the batch and what is pinned allow.

    A tensor axis stays within a node unless it is pinned.
    """
    for pp, dp, tp in meshes(limits, pinned):
        for micro_batch in micro_batches(limits, pinned, dp):
            microbatches = limits.rows // (dp * micro_batch)
            for schedule, virtual_stages in schedules(limits, pinned, pp, microbatches):
                for zero in zero_levels(pinned, pp, dp):
                    if schedule == "zero-bubble" and zero == 3:
                        continue
                    recompute = "none" if schedule == "zero-bubble" else pinned.recompute or "auto"
                    recompute = "selective" if pinned.offload == "activations" else recompute
                    for tensor in factorings(limits, pinned, tp):
                        system = pinned.tensor_system or ""
                        yield Setting(
                            pp, dp, tp, micro_batch, microbatches, zero, schedule, recompute, virtual_stages,
                            tensor=tensor, tensor_system=system, offload=pinned.offload or "none",
                            local_steps=pinned.local_steps or 1, versions=1 + pinned.two_versions,
                        )  # fmt: skip


def factorings(limits: Limits, pinned: Parallelism, tp: int) -> list[tuple[int, ...]]:
    """The factors of the tensor axis to be tried, () for one axis: those that are pinned; one axis, and, where it
    spans several nodes, one axis across them and one inside (``work`` tries more where they can win)."""
    if pinned.tensor is not None:
        return [pinned.tensor if len(pinned.tensor) > 1 else ()] if math.prod(pinned.tensor) == tp else []
    spans = tp > limits.node > 1 and tp % limits.node == 0
    return [(), (tp // limits.node, limits.node)] if spans else [()]


def meshes(limits: Limits, pinned: Parallelism) -> Iterator[tuple[int, int, int]]:
    """(pp, dp, tp) whose product is the number of devices."""
    alone = {axis for axis, _ in limits.only_one}
    for tp in divisors(limits.devices):
        if pinned.tp not in (None, tp) or (pinned.tp is None and tp > limits.node):
            continue
        if (pinned.sequence_parallel or pinned.tensor_system) and tp == 1:  # what is split is split along this axis
            continue
        for pp in divisors(limits.devices // tp):
            dp = limits.devices // tp // pp
            wanted = pinned.pp in (None, pp) and pinned.dp in (None, dp)
            wanted = wanted and not (pinned.steps_locally and dp == 1) and not (pinned.two_versions and pp == 1)
            if wanted and pp <= limits.segments and limits.rows % dp == 0 and not ("dp" in alone and dp > 1):
                yield pp, dp, tp


def micro_batches(limits: Limits, pinned: Parallelism, dp: int) -> list[int]:
    rows = limits.rows // dp
    if any(axis == "mb" for axis, _ in limits.only_one):
        return [rows] if pinned.micro_batch in (None, rows) else []
    return [b for b in divisors(rows) if pinned.micro_batch in (None, b) and b % batch_ways(pinned) == 0]


def batch_ways(pinned: Parallelism) -> int:
    """Over how many ranks the tensor axes split the rows of a microbatch further, as a named system asks."""
    if pinned.tensor_system is None or pinned.tensor is None:
        return 1
    sizes = dict(zip(TENSOR, pinned.tensor, strict=False))
    return math.prod(sizes[axis] for axis in TENSOR_LAYOUTS[pinned.tensor_system].whole)


def schedules(limits: Limits, pinned: Parallelism, pp: int, microbatches: int) -> list[tuple[str, int]]:
    """(schedule, stages on a rank). 1F1B holds fewer microbatches than GPipe and takes as long; it needs as many
    microbatches as stages. Of the others those whose rounds the microbatches fill (``in_rounds``)."""
    alone = pinned.virtual_stages in (None, 1)
    possible = ["gpipe"] if pp > 1 and microbatches < pp else ["1f1b"]
    order = order_of(pinned)
    wanted = ["gpipe"] if order == "gpipe" else [s for s in possible if order in (None, s)]
    found = [(s, 1) for s in wanted if alone]
    if pp == 1 or not deals_rounds(pp, microbatches) or order in ("gpipe", "1f1b"):
        return found
    return found + in_rounds(limits, pinned, pinned.pipeline_schedule or "interleaved", pp, microbatches)


def order_of(pinned: Parallelism) -> str | None:
    """The schedule whose order of forwards and backwards the pinned one has: PipeDream-2BW's is 1F1B's, flush and all
    (``runtime.optim.weight_stashing``)."""
    return "1f1b" if pinned.two_versions else pinned.pipeline_schedule


def in_rounds(
    limits: Limits, pinned: Parallelism, schedule: str, pp: int, microbatches: int
) -> list[tuple[str, int]]:
    """Interleaved and zero-bubble, with counts of stages that double; where not pinned only up to ``MOST_ACTIONS``.
    Zero-bubble is tried only where it is pinned: a compiled segment's backward would run twice
    (``cost.interleaved.split_backward``), and torch splits no backward of stages that share what they compute."""
    counts = VIRTUAL_STAGES if pinned.virtual_stages is None else (pinned.virtual_stages,)
    least = 1 if schedule == "zero-bubble" else 2
    found = []
    for count in counts:
        fits = least <= count and pp * count <= limits.segments
        helps = 2 * (pp - 1) >= LEAST_BUBBLE * max(1, count - (least == 1)) * microbatches  # idle with fewer stages
        helps = helps and (microbatches > 1 or least == 1)  # one alone has none to go between
        if fits and (pinned.pipeline_schedule or (helps and 2 * pp * count * microbatches <= MOST_ACTIONS)):
            found.append((schedule, count))
    return found


def zero_levels(pinned: Parallelism, pp: int, dp: int) -> list[int]:
    """Under a pipeline ZeRO-2 is ZeRO-1: its engine reduces gradients once, after the last microbatch."""
    if pinned.zero is not None:
        return [pinned.zero]
    if pinned.asynchronous:
        return [0]
    if pinned.offload == "parameters":  # fully_shard moves its shards, and does so on one rank too
        return [3]
    if dp == 1:
        return [0]
    return [0, 1, 2, 3] if pp == 1 else [0, 1, 3]


def check_pinned(limits: Limits, pinned: Parallelism) -> None:
    """ParallelismError, with the nearest remedy, for what is pinned and can't be."""
    check_supported(pinned)
    check_product(limits.devices, pinned)
    check_batch(limits, pinned)
    if pinned.pp is not None and pinned.pp > limits.segments:
        raise ParallelismError(
            f"pp={pinned.pp}", f"the model is a chain of {limits.segments} parts", f"give pp<={limits.segments}"
        )


def check_supported(pinned: Parallelism) -> None:
    if pinned.virtual_stages not in (None, 1) and pinned.pipeline_schedule in ("gpipe", "1f1b", "pipedream-2bw"):
        raise ParallelismError(
            f"virtual_stages={pinned.virtual_stages}", "1f1b, gpipe and pipedream-2bw have one stage on a rank",
            "leave it out",
        )
    if pinned.virtual_stages == 1 and pinned.pipeline_schedule == "interleaved":
        raise ParallelismError(
            "virtual_stages=1 with pipeline_schedule='interleaved'", "with one stage on a rank that is 1f1b",
            "give 2 or more",
        )
    if pinned.pipeline_schedule == "zero-bubble":
        check_zero_bubble(pinned)
    if pinned.asynchronous:
        check_asynchronous(pinned)


def check_zero_bubble(pinned: Parallelism) -> None:
    """What can't wait for the weights' gradients, which are computed later from what is held until then."""
    if pinned.zero == 3:
        raise ParallelismError(
            "zero=3 with pipeline_schedule='zero-bubble'",
            "parameters would be given back between the two passes of a backward, and gradients come out wrong",
            "use zero=2, or pipeline_schedule='interleaved'",
        )
    if pinned.recompute in ("full", "selective"):
        raise ParallelismError(
            f"recompute={pinned.recompute!r} with pipeline_schedule='zero-bubble'",
            "each of the two passes of a backward would run the segment again",
            "use recompute='none', or pipeline_schedule='interleaved'",
        )


def check_asynchronous(pinned: Parallelism) -> None:
    """What replicas that step by themselves, and what two versions of the weights, can't go with."""
    name = "local_steps" if pinned.steps_locally else "pipeline_schedule"
    what = f"{name}={getattr(pinned, name)!r}"
    if pinned.zero:
        cause = "ranks whose weights differ" if pinned.steps_locally else "a second version of the weights"
        raise ParallelismError(
            f"{what} with zero={pinned.zero}",
            f"fully_shard keeps one version of each weight, not {cause}",
            "use zero=0",
        )
    if pinned.offload not in (None, "none"):
        raise ParallelismError(
            f"{what} with offload={pinned.offload!r}",
            "what lies with the host is one version of the weights, alike on all replicas",
            "leave offload out",
        )
    if pinned.steps_locally and pinned.two_versions:
        raise ParallelismError(what, "with two versions of the weights there is no rule of it", "use one or the other")
    if pinned.steps_locally and pinned.dp == 1:
        raise ParallelismError(f"{what} with dp=1", "there are no replicas to average", "give dp=2 or more")
    if pinned.two_versions and pinned.pp == 1:
        raise ParallelismError(f"{what} with pp=1", "without a pipeline nothing is in flight", "give pp=2 or more")


def check_product(devices: int, pinned: Parallelism) -> None:
    """The pinned sizes have to divide the device count, and to be it where all three are given."""
    sizes = {name: getattr(pinned, name) for name in ("pp", "dp", "tp") if getattr(pinned, name) is not None}
    product = 1
    for size in sizes.values():
        product *= size
    if (product == devices) if len(sizes) == 3 else (devices % product == 0):
        return
    text = " ".join(f"{name}={size}" for name, size in sizes.items())
    raise ParallelismError(
        text, f"they multiply to {product}, and the cluster has {devices} devices", nearest_product(devices, sizes)
    )


def nearest_product(devices: int, sizes: dict[str, int]) -> str:
    """The remedy: one of the sizes changed, or left out."""
    for name in ("dp", "tp", "pp"):
        if name in sizes:
            rest = 1
            for other, size in sizes.items():
                rest *= size if other != name else 1
            if devices % rest == 0:
                return f"give {name}={devices // rest}" + (", or leave it out" if len(sizes) < 3 else "")
    return f"give sizes that multiply to {devices}"


def check_batch(limits: Limits, pinned: Parallelism) -> None:
    for axis, reason in limits.only_one:
        if axis == "dp" and (pinned.dp or 1) > 1:
            raise ParallelismError(f"dp={pinned.dp}", reason, "use tp or pp instead")
    dp, micro = pinned.dp or 1, pinned.micro_batch or 1
    if limits.rows % (dp * micro):
        named = [f"{n}={v}" for n, v in (("dp", pinned.dp), ("micro_batch", pinned.micro_batch)) if v is not None]
        raise ParallelismError(
            f"a batch of {limits.rows} rows",
            f"it does not divide by {dp * micro} ({' '.join(named)})",
            f"give a batch of {max(1, round(limits.rows / (dp * micro))) * dp * micro} rows",
        )


def no_setting(limits: Limits, pinned: Parallelism) -> ParallelismError:
    """The error where the pinned fields, each possible alone, leave nothing together."""
    text = " ".join(f"{name}={value}" for name, value in pinned.pinned().items()) or "any parallelism"
    reasons = "; ".join(f"{axis} must be 1 ({reason})" for axis, reason in limits.only_one)
    reasons = "; ".join(filter(None, (reasons, too_few_parts(limits, pinned))))
    if order_of(pinned) == "1f1b":
        reasons = "; ".join(filter(None, (reasons, "1f1b needs at least as many microbatches as stages")))
    cause = f"no mesh of {limits.devices} devices and batch of {limits.rows} rows allows it"
    return ParallelismError(
        text, f"{cause}; {reasons}" if reasons else cause, remedy_for(limits, pinned)
    )


def too_few_parts(limits: Limits, pinned: Parallelism) -> str:
    """Why there are no rounds of several stages on a rank, where the chain or the pipeline is why."""
    if pinned.pipeline_schedule not in ("interleaved", "zero-bubble") and (pinned.virtual_stages or 1) == 1:
        return ""
    if pinned.pp == 1:
        return f"{pinned.pipeline_schedule or 'several stages on a rank'} needs a pipeline"
    stages = (pinned.pp or 2) * (pinned.virtual_stages or (2 if pinned.pipeline_schedule == "interleaved" else 1))
    said = f"{stages} stages need as many parts, and the model has {limits.segments}"
    return said if stages > limits.segments else ""


def remedy_for(limits: Limits, pinned: Parallelism) -> str:
    if pinned.micro_batch is not None and any(axis == "mb" for axis, _ in limits.only_one):
        return "leave micro_batch out: all rows of a rank are one microbatch"
    if limits.rows % limits.devices and not pinned.tp and not pinned.pp:
        return f"give a batch that divides by {limits.devices}, or pin fewer fields"
    return "pin fewer fields, or give a larger batch"
