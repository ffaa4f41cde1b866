"""Checks what a user pins: each error names the value, the cause and the remedy.

Three kinds: fields that exclude each other (``conflicts``), sizes that don't multiply to the cluster or divide the
batch, and what the host's memory is asked to keep. Where each field is possible alone and nothing is together,
``no_setting`` says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from autoplan.cluster import ClusterSpec
from autoplan.errors import ParallelismError
from autoplan.ir.folding import Folding
from autoplan.option_values import AUTO, CONTINUOUS, ELEMENTWISE, HIERARCHICAL, ON_DISK, cuts
from autoplan.options import Inference, Parallelism, Training
from autoplan.search.space.candidates import SpaceLimits, divisors, foldings
from autoplan.search.space.gradient_checks import (
    Conflict,
    all_reduce_conflicts,
    compressed_training,
    compression_conflicts,
    raise_first,
    served_training,
    server_conflicts,
    several_optimizers,
    table_conflicts,
)


def check_pinned(limits: SpaceLimits, pinned: Parallelism) -> None:
    """ParallelismError for what is pinned and can't be on this cluster, with this batch and model."""
    check_supported(pinned)
    check_product(limits.devices, pinned)
    check_experts(limits, pinned)
    check_batch(limits, pinned)
    if pinned.pp is not None and pinned.pp > limits.segments:
        raise ParallelismError(
            f"pp={pinned.pp}", f"the model is a chain of {limits.segments} parts", f"give pp<={limits.segments}"
        )


def check_supported(pinned: Parallelism) -> None:
    """ParallelismError for fields that exclude each other, whatever the cluster."""
    raise_first(schedule_conflicts(pinned))
    raise_first(table_conflicts(pinned))
    raise_first(replica_conflicts(pinned))
    if pinned.steps_locally or pinned.continuous or pinned.outer_optimizer:
        raise_first(asynchronous_conflicts(pinned))
    raise_first(compression_conflicts(pinned))
    if pinned.backups and not pinned.servers:
        cause = "they are workers beside parameter servers, which take the first gradients that are there"
        raise ParallelismError(f"backups={pinned.backups}", cause, "give servers=1 or more, too, or leave it out")
    if pinned.ahead and not pinned.servers:
        cause = "it says how far workers of parameter servers may be from one another"
        raise ParallelismError(f"ahead={pinned.ahead!r}", cause, "give servers=1 or more, too, or leave it out")
    if pinned.staleness and not pinned.servers:
        cause = "it counts the updates of parameter servers that a worker's weights are behind"
        raise ParallelismError(f"staleness={pinned.staleness}", cause, "give servers=1 or more, too, or leave it out")


def check_servers(pinned: Parallelism, devices: int) -> None:
    """ParallelismError for what parameter servers on so many devices can't go with."""
    raise_first(server_conflicts(pinned, devices))


def check_sums(pinned: Parallelism, cluster: ClusterSpec) -> None:
    """ParallelismError for what a pinned all-reduce of gradients can't go with."""
    hosts = [device.host for device, _ in cluster.topology().kinds]
    processors = all(host is not None and host.own for host in hosts)
    raise_first(all_reduce_conflicts(pinned, cluster.devices // cluster.topology().levels[0].size, processors))


def check_trained(pinned: Parallelism, training: Training | Inference) -> None:
    """ParallelismError where a forward alone is to follow a rule of updates, and for gradients that aren't to be
    compressed in the way that they are computed."""
    if isinstance(training, Training):
        raise_first(several_optimizers(pinned, training))
        raise_first(compressed_training(pinned, training))
        raise_first(served_training(pinned, training))
        raise_first(continuous_training(pinned, training))
    elif pinned.all_reduce:
        given, cause = f"all_reduce={pinned.all_reduce!r} with Inference()", "a forward alone has no gradients"
        raise ParallelismError(given, cause, "leave it out")
    elif pinned.asynchronous or pinned.servers:
        given = "servers" if pinned.servers else "compression" if pinned.compression else "pipeline_schedule"
        given = "gossip" if pinned.gossip else "local_steps" if pinned.steps_locally else given
        cause = "it says when weights are updated, and a forward alone updates none"
        raise ParallelismError(f"{given}={getattr(pinned, given)!r} with Inference()", cause, "leave it out")


def schedule_conflicts(pinned: Parallelism) -> Iterator[Conflict]:
    """Stages on a rank, what can't wait for the weights' gradients of a split backward, and attention over one rank."""
    count, recompute, order = pinned.virtual_stages, pinned.recompute, pinned.pipeline_schedule
    yield (
        count not in (None, 1) and order in ("gpipe", "1f1b", *CONTINUOUS), f"virtual_stages={count}",
        f"{order} has one stage on a rank", "leave it out",
    )  # fmt: skip
    yield (
        count == 1 and order == "interleaved", "virtual_stages=1 with pipeline_schedule='interleaved'",
        "with one stage on a rank that is 1f1b", "give 2 or more",
    )  # fmt: skip
    yield (
        pinned.cp == 1 and pinned.cp_attention, f"cp_attention={pinned.cp_attention!r} with cp=1",
        "it says how attention is split over cp", "give cp=2 or more, or leave it out",
    )  # fmt: skip
    splits, chunks = order == "zero-bubble", pinned.tp_overlap
    yield (
        splits and cuts(chunks), f"tp_overlap={chunks} with pipeline_schedule='zero-bubble'",
        "its backward asks for inputs' and weights' gradients apart, and a product in chunks gives both at once",
        "leave it out, or use pipeline_schedule='interleaved'",
    )  # fmt: skip
    yield (
        cuts(chunks) and pinned.tp == 1, f"tp_overlap={chunks} with tp=1",
        "it cuts collectives over the tensor axis", "give tp=2 or more, or leave it out",
    )  # fmt: skip
    how = pinned.ep_overlap
    yield (
        splits and how not in (None, 1, AUTO), f"ep_overlap={how!r} with pipeline_schedule='zero-bubble'",
        "its backward asks for inputs' and weights' gradients apart, and experts in flight give both at once",
        "leave it out, or use pipeline_schedule='interleaved'",
    )  # fmt: skip
    yield (
        splits and pinned.zero == 3, "zero=3 with pipeline_schedule='zero-bubble'",
        "parameters would be given back between the two passes of a backward, and gradients come out wrong",
        "use zero=2, or pipeline_schedule='interleaved'",
    )  # fmt: skip
    yield (
        splits and recompute in ("full", "selective"), f"recompute={recompute!r} with pipeline_schedule='zero-bubble'",
        "each of the two passes of a backward would run the segment again",
        "use recompute='none', or pipeline_schedule='interleaved'",
    )  # fmt: skip


def replica_conflicts(pinned: Parallelism) -> Iterator[Conflict]:
    """What replicas of sharded states can't go with."""
    replicas, dp = pinned.dp_replicate or 1, pinned.dp
    what = f"dp_replicate={replicas}"
    yield (
        replicas > 1 and (pinned.zero == 0 or pinned.asynchronous), f"{what} without ZeRO",
        "it counts replicas of what ZeRO shards, and nothing is sharded", "give zero=1, 2 or 3, or leave it out",
    )  # fmt: skip
    yield (
        dp is not None and dp % replicas > 0, f"{what} with dp={dp}", "each replica has as many ranks of dp",
        "give a divisor of dp",
    )  # fmt: skip
    yield (
        dp == replicas > 1 and pinned.cp in (None, 1), f"{what} with dp={dp}", "each replica has one rank of dp",
        "give fewer replicas, or zero=0 with dp_replicate=1",
    )  # fmt: skip


def asynchronous_conflicts(pinned: Parallelism) -> Iterator[Conflict]:
    """What replicas that step by themselves, and a pipeline that holds older versions of the weights, can't go with."""
    locally, older = pinned.steps_locally, pinned.continuous
    what = f"local_steps={pinned.local_steps}" if locally else f"pipeline_schedule={pinned.pipeline_schedule!r}"
    what = f"gossip={pinned.gossip!r}" if pinned.gossip else what
    weights = "ranks whose weights differ" if locally else "older ones beside the newest"
    yield (
        pinned.zero, f"{what} with zero={pinned.zero}", f"fully_shard keeps one version of each weight, not {weights}",
        "use zero=0",
    )  # fmt: skip
    yield (
        pinned.offload not in (None, "none"), f"{what} with offload={pinned.offload!r}",
        "what lies with the host is one version of the weights, alike on all replicas", "leave offload out",
    )  # fmt: skip
    yield (
        locally and older, f"{what} with pipeline_schedule={pinned.pipeline_schedule!r}",
        "what replicas average isn't defined where a pipeline holds older weights", "use one or the other",
    )  # fmt: skip
    yield locally and pinned.dp == 1, f"{what} with dp=1", "there are no replicas to average", "give dp=2 or more"
    yield (
        pinned.outer_optimizer and not locally, f"outer_optimizer={pinned.outer_optimizer!r} without local_steps",
        "it updates by what replicas have changed in several steps", "give local_steps=50, say",
    )  # fmt: skip
    yield (
        pinned.outer_optimizer and pinned.gossip, f"{what} with outer_optimizer={pinned.outer_optimizer!r}",
        "neighbours have no beginning in common that it could update", "use one or the other",
    )  # fmt: skip
    yield older and pinned.pp == 1, f"{what} with pp=1", "without a pipeline nothing is in flight", "give pp=2 or more"


def continuous_training(pinned: Parallelism, training: Training) -> Iterator[Conflict]:
    """What of a training a pipeline without a flush can't go with: what looks at all stages' gradients of one batch,
    where stages are differently late, and what looks at a batch before it is updated by."""
    what, late = f"pipeline_schedule={pinned.pipeline_schedule!r}", pinned.pipeline_schedule == "pipedream"
    if not pinned.continuous:
        return
    yield (
        training.scales_loss, f"{what} with precision={training.precision!r}",
        "a gradient that overflows is found while others of the same scale are in flight", "use bf16-mixed",
    )  # fmt: skip
    yield (
        late and training.clip_grad_norm, f"{what} with clip_grad_norm={training.clip_grad_norm}",
        "stages have gradients of different batches at a time, of which there is no one norm",
        "use pipeline_schedule='pipedream-vertical-sync' or 'pipedream-2bw', or don't clip",
    )  # fmt: skip
    yield (
        late and not {*training.optimizers} <= {*ELEMENTWISE}, f"{what} with optimizer={training.optimizer!r}",
        "it looks at whole parameters, over stages that are differently late",
        "use an optimizer of single elements, such as 'adamw', or pipeline_schedule='pipedream-2bw'",
    )  # fmt: skip
    yield (
        late and training.lr_schedule is not None and training.lr_schedule.name == "ReduceLROnPlateau",
        f"{what} with lr_schedule='ReduceLROnPlateau'", "stages update by other batches than the loss that it looks at",
        "give a schedule that goes by the number of updates",
    )  # fmt: skip


def check_product(devices: int, pinned: Parallelism) -> None:
    """The pinned sizes have to divide the device count, and to be it where dp, tp and pp are all given."""
    names = ("pp", "dp", "cp", "tp")
    sizes = {name: size for name in names if (size := getattr(pinned, name)) is not None}
    product, all_given = math.prod(sizes.values()), {"pp", "dp", "tp"} <= set(sizes)
    if (product == devices) if all_given else (devices % product == 0):
        return
    text = " ".join(f"{name}={size}" for name, size in sizes.items())
    cause = f"they multiply to {product}, and the cluster has {devices} devices"
    raise ParallelismError(text, cause, nearest_product(devices, sizes, all_given))


def nearest_product(devices: int, sizes: dict[str, int], all_given: bool) -> str:
    """The remedy: one of the sizes changed, or left out."""
    for name in ("dp", "tp", "pp", "cp"):
        rest = math.prod(size for other, size in sizes.items() if other != name)
        if name in sizes and devices % rest == 0:
            return f"give {name}={devices // rest}" + ("" if all_given else ", or leave it out")
    return f"give sizes that multiply to {devices}"


def check_experts(limits: SpaceLimits, pinned: Parallelism) -> None:
    """Experts have to divide, and their folding to be one of the dense layers' ranks (``ir.folding``)."""
    ep, etp, tp = pinned.ep or 1, pinned.etp, pinned.tp
    text = f"ep={ep}" + (f" etp={etp}" if etp is not None else "")
    if ep == 1:
        if etp not in (None, tp):
            cause = "it is over how many ranks each expert is split, where experts are over ep"
            raise ParallelismError(f"etp={etp}", cause, "give ep too, or leave etp out")
        return
    if not limits.experts:
        raise ParallelismError(text, "the model has no mixture of experts", "use another system, such as 'zero3'")
    if limits.experts % ep:
        cause = f"a mixture of {limits.experts} experts doesn't divide by it"
        raise ParallelismError(f"ep={ep}", cause, f"give ep={math.gcd(limits.experts, ep)}")
    if etp not in (None, tp) and pinned.tensor_system is not None:
        cause = f"{pinned.tensor_system} says what all tensor ranks do"
        raise ParallelismError(f"{text} with tensor_system={pinned.tensor_system!r}", cause, "leave one of them out")
    if etp is not None and tp is not None and tp % etp:
        raise ParallelismError(f"etp={etp}", f"it is a part of tp={tp}, and doesn't divide it", "give a divisor of tp")
    found = list(foldings(limits, replace(pinned, micro_batch=None)))
    if not found:
        raise unfolded(limits, pinned, text)
    check_shared(pinned, text, [(dp // folding.data, cp, folding) for (_, dp, cp, _), (_, folding) in found])


def unfolded(limits: SpaceLimits, pinned: Parallelism, text: str) -> ParallelismError:
    """The error where experts can't lie over ep of the ranks that the dense layers' axes leave."""
    sizes = {name: size for name in ("dp", "cp", "tp", "pp") if (size := getattr(pinned, name)) is not None}
    stage, ways, wanted = limits.devices // (pinned.pp or 1), (pinned.ep or 1) * (pinned.etp or 1), pinned.ep or 1
    if stage % ways:
        cause = f"they multiply to {ways}, and a stage has {stage} devices"
    else:
        over = " ".join(f"{name}={size}" for name, size in sizes.items()) or f"{stage} devices"
        cause = "experts lie over the tensor ranks beyond etp, then cp or a part of it, then a part of dp"
        cause = f"{cause}: so they can't over {over}"
    others = (ep for ep in divisors(limits.experts) if ep > 1)
    possible = [ep for ep in others if any(True for _ in foldings(limits, replace(pinned, ep=ep, micro_batch=None)))]
    near = min(possible, key=lambda ep: (abs(math.log(ep / wanted)), ep), default=0)
    return ParallelismError(text, cause, f"give ep={near}" if near else "leave ep and etp out")


def check_shared(pinned: Parallelism, text: str, found: list[tuple[int, int, Folding]]) -> None:
    """Replicas of what ZeRO shards have to divide the data ranks that have the same experts.

    found  these ranks, cp and the folding of each mesh
    """
    replicas = pinned.dp_replicate or 1
    left = [(dp, folding.beside_data(cp)) for dp, cp, folding in found]
    if replicas == 1 or any(dp % replicas == 0 and dp // replicas * around > 1 for dp, around in left):
        return
    most = max(dp for dp, _ in left)
    ranks = "1 data rank" if most == 1 else f"{most} data ranks"
    cause = f"experts over ep leave {ranks} with the same, which replicas and what shards within one divide among them"
    possible = [n for n in range(1, replicas) for dp, around in left if dp % n == 0 and dp // n * around > 1]
    remedy = f"give dp_replicate={max(possible, default=1)}, or a smaller ep"
    raise ParallelismError(f"dp_replicate={replicas} with {text}", cause, remedy)


def check_batch(limits: SpaceLimits, pinned: Parallelism) -> None:
    for axis, reason in limits.only_one:
        if axis == "dp" and (pinned.dp or 1) > 1:
            raise ParallelismError(f"dp={pinned.dp}", reason, "use tp or pp instead")
    ways = (pinned.dp or 1) * (pinned.micro_batch or 1)
    if limits.rows % ways:
        named = [f"{n}={v}" for n, v in (("dp", pinned.dp), ("micro_batch", pinned.micro_batch)) if v is not None]
        raise ParallelismError(
            f"a batch of {limits.rows} rows",
            f"it does not divide by {ways} ({' '.join(named)})",
            f"give a batch of {max(1, round(limits.rows / ways)) * ways} rows",
        )


def check_offload(pinned: Parallelism, cluster: ClusterSpec, training: Training | Inference | None = None) -> None:
    """ParallelismError for an offload without a host, without training, or of what wouldn't be there."""
    if pinned.offload not in (None, "none"):
        raise_first(offload_conflicts(pinned, cluster, training))


def offload_conflicts(
    pinned: Parallelism, cluster: ClusterSpec, training: Training | Inference | None
) -> Iterator[Conflict]:
    value, device = f"offload={pinned.offload!r}", cluster.profile()[0]
    activations, recompute = pinned.offload == "activations", pinned.recompute
    yield (
        device.host is None, value,
        f"the profile of {device.name} has no figures of a host (host.memory, host.link, host.bandwidth; of a device "
        "whose memory is the host's, host.own)",
        "add a table [host] to the profile, or leave offload out",
    )  # fmt: skip
    yield (
        activations and recompute in ("full", "selective"), f"{value} with recompute={recompute!r}",
        "what the host keeps isn't computed again", "give one of the two",
    )  # fmt: skip
    yield (
        activations and pinned.pipeline_schedule == "zero-bubble", f"{value} with pipeline_schedule='zero-bubble'",
        "each of the two passes of a backward would fetch what the host keeps",
        "use pipeline_schedule='interleaved', or '1f1b'",
    )  # fmt: skip
    yield (
        isinstance(training, Inference), value, "a forward alone keeps no optimizer state and no activations",
        "leave it out, or use more devices",
    )  # fmt: skip
    yield (
        pinned.offload == ON_DISK and device.host is not None and device.host.disk is None, value,
        f"the profile of {device.name} has no figures of a disk (host.disk.memory, host.disk.read, host.disk.write)",
        "add a table [host.disk] to the profile, or leave offload out",
    )  # fmt: skip
    optimizer = training.optimizer if isinstance(training, Training) else "adamw"
    yield (
        pinned.offload == ON_DISK and optimizer not in ELEMENTWISE, f"{value} with optimizer={optimizer!r}",
        "it looks at more than the part of a parameter whose turn it is", f"give one of {', '.join(ELEMENTWISE)}",
    )  # fmt: skip
    yield (
        pinned.offload == "parameters" and pinned.zero not in (None, 3), f"{value} with zero={pinned.zero}",
        "parameters go to the host shard by shard, between uses", "give zero=3, or offload='optimizer'",
    )  # fmt: skip


def no_setting(limits: SpaceLimits, pinned: Parallelism) -> ParallelismError:
    """The error where the pinned fields, each possible alone, leave nothing together."""
    text = " ".join(f"{name}={value}" for name, value in pinned.pinned().items()) or "any parallelism"
    reasons = [f"{axis} must be 1 ({reason})" for axis, reason in limits.only_one] + [too_few_parts(limits, pinned)]
    if pinned.pipeline_schedule == "pipedream-2bw":
        reasons.append("pipedream-2bw needs at least as many microbatches as stages")
    if (within := pinned.compression_within or 1) > 1:
        reasons.append(f"compression_within={within} needs dp={2 * within} or another multiple, two groups or more")
    if HIERARCHICAL in (pinned.all_reduce or ""):
        reasons.append(
            f"all_reduce={pinned.all_reduce!r} needs dp with two ranks or more in each of two nodes or more, as many "
            f"in each, where a node has {limits.node} devices"
        )
    if cuts(pinned.tp_overlap):
        reasons.append("tp_overlap needs tp=2 or more")
    cause = f"no mesh of {limits.devices} devices and batch of {limits.rows} rows allows it"
    return ParallelismError(text, "; ".join(filter(None, [cause, *reasons])), remedy_for(limits, pinned))


def too_few_parts(limits: SpaceLimits, pinned: Parallelism) -> str:
    """Why there are no rounds of several stages on a rank, where the chain or the pipeline is why."""
    if pinned.pipeline_schedule not in ("interleaved", "zero-bubble") and (pinned.virtual_stages or 1) == 1:
        return ""
    if pinned.pp == 1:
        return f"{pinned.pipeline_schedule or 'several stages on a rank'} needs a pipeline"
    stages = (pinned.pp or 2) * (pinned.virtual_stages or (2 if pinned.pipeline_schedule == "interleaved" else 1))
    return f"{stages} stages need as many parts, and the model has {limits.segments}" * (stages > limits.segments)


def remedy_for(limits: SpaceLimits, pinned: Parallelism) -> str:
    if pinned.micro_batch is not None and any(axis == "mb" for axis, _ in limits.only_one):
        return "leave micro_batch out: all rows of a rank are one microbatch"
    if limits.rows % limits.devices and not pinned.tp and not pinned.pp:
        return f"give a batch that divides by {limits.devices}, or pin fewer fields"
    return "pin fewer fields, or give a larger batch"
