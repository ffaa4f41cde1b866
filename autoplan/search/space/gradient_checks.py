"""Errors for what gradient compression, parameter servers and a pinned all-reduce can't be combined with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoplan.arguments.values import is_number
from autoplan.errors import ParallelismError
from autoplan.ir.buckets import ONE_BIT
from autoplan.option_values import ELEMENTWISE, HIERARCHICAL, IN_HOST, OF_OPTIMIZER, ON_DISK, RING, TREE, WATCHES
from autoplan.options import Parallelism, Training

Conflict = tuple[object, str, str, str]
"""Whether it is there, what is given, why that can't be, and the remedy."""
OF_ONE_KIND = (
    ("compression_rank", "powersgd", "factors of low rank have one"),
    ("compression_rate", "topk", "it is the share of elements that top-k sends"),
)
"""Fields of one compression alone, which it is, and why."""
OF_ONE_BIT = ("lr", "betas", "eps", "weight_decay")
"""Options of 1-bit Adam, by torch's names."""

SERVE = (
    ("compression_start", "compression"), ("outer_learning_rate", "outer_optimizer"),
    ("outer_momentum", "outer_optimizer"), ("delay_compensation", "ahead"),
)  # fmt: skip
EXAMPLES = {
    "compression": "compression='powersgd'", "outer_optimizer": "outer_optimizer='nesterov'",
    "ahead": "servers=1, ahead='unbounded'",
}  # fmt: skip
"""Fields of a training that nothing reads without a field of the parallelism, and which."""


def unread(pinned: Parallelism, training: Training) -> dict[str, str]:
    """Fields of a training that are set, and nothing reads: each with the parallelism's field that would."""
    given = ((field, reader) for field, reader in SERVE if getattr(training, field) != getattr(Training, field))
    return {field: reader for field, reader in given if not getattr(pinned, reader)}  # a size of 0 is as good as none


def check_read(pinned: Parallelism, training: Training) -> None:
    """ParallelismError for a field of a training that nothing reads."""
    for field, reader in unread(pinned, training).items():
        value, cause = getattr(training, field), f"{reader} alone reads it, and no search chooses one by itself"
        remedy = f"pin it, as in Parallelism({EXAMPLES[reader]}), or leave {field} out"
        raise ParallelismError(f"{field}={value!r} without {reader}", cause, remedy)
    if training.expert_capacity is None and training.expert_dropping != Training.expert_dropping:
        given = f"expert_dropping={training.expert_dropping!r} without expert_capacity"
        raise ParallelismError(given, "nothing is dropped then", "give expert_capacity=1.25, say, or leave it out")


def without_unread(pinned: Parallelism, training: Training) -> Training:
    """A training for another parallelism than it was given with."""
    return replace(training, **{field: getattr(Training, field) for field in unread(pinned, training)})


def raise_first(conflicts: Iterator[Conflict]) -> None:
    for there, *error in conflicts:
        if there:
            raise ParallelismError(*error)


def compression_conflicts(pinned: Parallelism) -> Iterator[Conflict]:
    """What gradients that go compressed can't go with."""
    what = f"compression={pinned.compression!r}"
    for field, kind, why in OF_ONE_KIND:
        yield (
            getattr(pinned, field) and pinned.compression != kind, f"{field}={getattr(pinned, field)}",
            f"{why}, and compression={pinned.compression!r}", f"give compression={kind!r}, or leave it out",
        )  # fmt: skip
    yield (
        pinned.compression_within and not pinned.compression, f"compression_within={pinned.compression_within}",
        "it says between which ranks compressed gradients go, and compression=None",
        "give compression='powersgd', say, or leave it out",
    )  # fmt: skip
    how, rate = pinned.compressed, pinned.compression_rate
    yield (
        rate is not None and not (is_number(rate) and 0 < rate <= 1), f"compression_rate={rate!r}",
        "it is the share of elements that are sent", "give for example 0.01",
    )  # fmt: skip
    if how is None:
        return
    yield (
        pinned.zero, f"{what} with zero={pinned.zero}",
        "fully_shard sums gradients itself, each rank its part, whole", "use zero=0",
    )  # fmt: skip
    yield (
        pinned.offload in (*OF_OPTIMIZER, "parameters"), f"{what} with offload={pinned.offload!r}",
        "what it takes and leaves out lies beside the gradients, on the device", "leave offload out",
    )  # fmt: skip
    yield (
        pinned.steps_locally, f"{what} with local_steps={pinned.local_steps} or gossip={pinned.gossip!r}",
        "replicas that step by themselves sum no gradients", "use one or the other",
    )  # fmt: skip
    yield (
        pinned.continuous, f"{what} with pipeline_schedule={pinned.pipeline_schedule!r}",
        "gradients there are of older weights, for which compression isn't defined", "use one or the other",
    )  # fmt: skip
    for name, size in () if how.linear else (("cp", pinned.cp), ("ep", pinned.ep)):
        yield (
            (size or 1) > 1, f"{what} with {name}={size}",
            "it compresses the gradient of a replica's rows, of which each rank there has a part", f"give {name}=1",
        )  # fmt: skip
    yield pinned.dp == 1, f"{what} with dp=1", "no gradient goes over the data axis", "give dp=2 or more"
    within, dp = how.within, pinned.dp
    yield (
        dp is not None and (dp % within > 0 or dp == within > 1), f"compression_within={within} with dp={dp}",
        "groups have as many ranks each, and gradients go compressed between two or more",
        "give a divisor of dp below it, or leave it out",
    )  # fmt: skip
    apart = pinned.folding.data if dp is not None else 1
    yield (
        within > 1 and within % apart, f"compression_within={within} with ep={pinned.ep}",
        f"{apart} ranks along dp have different experts, and what lies together has all of them or one",
        f"give a multiple of {apart}, or leave it out",
    )  # fmt: skip


def compressed_training(pinned: Parallelism, training: Training) -> Iterator[Conflict]:
    """What of a training gradients that go compressed can't go with."""
    if not pinned.compression:
        return
    what = f"compression={pinned.compression!r}"
    yield (
        training.scales_loss, f"{what} with precision={training.precision!r}",
        "what a step leaves out would be added under another scale of the loss", "use bf16-mixed",
    )  # fmt: skip
    yield (
        training.precision == "bf16", f"{what} with precision='bf16'",
        "what a step leaves out would be lost in rounding", "use bf16-mixed",
    )  # fmt: skip
    yield (
        training.reduce_dtype, f"{what} with reduce_dtype={training.reduce_dtype!r}",
        "what is sent is added up as gradients are stored", "use one or the other",
    )  # fmt: skip
    if pinned.compression in ONE_BIT:
        yield from one_bit_training(what, training)


def one_bit_training(what: str, training: Training) -> Iterator[Conflict]:
    """What of a training 1-bit Adam, or 1-bit LAMB, can't go with."""
    start, lamb = training.compression_start, what.endswith("lamb'")
    yield (
        training.optimizer not in (("lamb",) if lamb else ("adam", "adamw")),
        f"{what} with optimizer={training.optimizer!r}",
        f"it sends {'LAMB' if lamb else 'Adam'}'s momentum", "use lamb" if lamb else "use adamw or adam",
    )  # fmt: skip
    yield (
        training.clip_grad_norm, f"{what} with clip_grad_norm={training.clip_grad_norm}",
        "what is sent is a momentum, whose change isn't a gradient's norm", "leave it out",
    )  # fmt: skip
    yield (
        start == 0, f"{what} with compression_start=0", "before the first update there is no variance to freeze",
        "give 15 to 25% of the training's steps",
    )  # fmt: skip
    has = f"its own {'LAMB' if lamb else 'Adam'} has a learning rate, betas, eps and a weight decay alone"
    yield (
        training.optimizer_options, f"{what} with optimizer_options={dict(training.optimizer_options)!r}",
        has, "leave them out",
    )  # fmt: skip
    for group in training.groups:
        further = {name: value for name, value in group.options if name not in OF_ONE_BIT}
        yield further, f"{what} with the group {group.title!r} of {further!r}", has, "leave them out"


def several_optimizers(pinned: Parallelism, training: Training) -> Iterator[Conflict]:
    """What a training whose groups have optimizers of their own can't go with."""
    what = " and ".join(training.optimizers)
    several = len(training.optimizers) > 1
    for name in ("servers", "local_steps", "gossip", "compression"):
        value = getattr(pinned, name)
        yield (
            several and value and (name, value) != ("local_steps", 1), f"{name}={value!r} with the optimizers {what}",
            "it knows the state of one optimizer for all parameters", "give all groups the same optimizer",
        )  # fmt: skip
    yield (
        several and pinned.continuous, f"pipeline_schedule={pinned.pipeline_schedule!r} with the optimizers {what}",
        "stages update apart, by one optimizer", "give all groups the same optimizer, or use '1f1b'",
    )  # fmt: skip
    yield (
        several and pinned.offload not in (None, "none", "activations"),
        f"offload={pinned.offload!r} with the optimizers {what}",
        "what the host updates has one optimizer", "give all groups the same optimizer, or leave offload out",
    )  # fmt: skip


def server_conflicts(pinned: Parallelism, devices: int) -> Iterator[Conflict]:
    """What parameter servers can't go with."""
    what = f"servers={pinned.servers}"
    ranks = pinned.dp or devices
    yield (
        (pinned.servers or 0) > ranks, f"{what} with dp={ranks}", "servers are on the data-parallel ranks, one on each",
        f"give servers={ranks} or fewer",
    )  # fmt: skip
    yield ranks == 1, f"{what} with dp=1", "there is no other rank to push gradients or pull weights", "leave it out"
    for name in ("tp", "pp", "cp", "ep"):
        size = getattr(pinned, name)
        yield (
            size not in (None, 1), f"{what} with {name}={size}",
            "a server has parameters whole, and its workers are data-parallel replicas", f"use {name}=1",
        )  # fmt: skip
    yield (
        pinned.zero, f"{what} with zero={pinned.zero}",
        "ZeRO shares the states out over all ranks, as servers on all workers do", "use zero=0, or no servers",
    )  # fmt: skip
    yield (
        pinned.offload in (*OF_OPTIMIZER, "parameters"), f"{what} with offload={pinned.offload!r}",
        "what is pulled and updated lies on the device", "leave offload out",
    )  # fmt: skip
    for name in ("local_steps", "gossip", "compression", "outer_optimizer"):
        value = getattr(pinned, name)
        yield (
            value not in (None, 1), f"{what} with {name}={value!r}",
            "servers take whole gradients of all workers in every step", "use one or the other",
        )  # fmt: skip
    spare = pinned.backups or 0
    yield (
        spare >= ranks, f"backups={spare} with dp={ranks}", "a step is by the gradients of one worker at least",
        f"give backups={ranks - 1} or fewer",
    )  # fmt: skip
    yield (
        spare and pinned.staleness, f"backups={spare} with staleness={pinned.staleness}",
        "a worker that is late is dropped, so that weights are the newest", "use one or the other",
    )  # fmt: skip
    for name in ("staleness", "backups"):
        yield (
            pinned.ahead and getattr(pinned, name), f"ahead={pinned.ahead!r} with {name}={getattr(pinned, name)}",
            "where gradients are applied as they arrive, none waits and none is dropped", "use one or the other",
        )  # fmt: skip
    yield (
        pinned.continuous, f"{what} with pipeline_schedule={pinned.pipeline_schedule!r}",
        "there is no pipeline beside servers", "give staleness=1 for gradients that are one step old",
    )  # fmt: skip


def all_reduce_conflicts(pinned: Parallelism, nodes: int, processors: bool) -> Iterator[Conflict]:
    """What a pinned all-reduce of gradients can't go with; ``processors``: whether all devices are some."""
    what, rule = f"all_reduce={pinned.all_reduce!r}", pinned.all_reduce or ""
    for name, none, why in (
        ("zero", 0, "fully_shard scatters gradients, and sums none whole"),
        ("servers", None, "gradients go to servers, which add them up"),
        ("compression", None, "gradients are sent in another form, and added up as they come"),
        ("local_steps", 1, "replicas that step by themselves sum no gradients"),
        ("gossip", None, "replicas that step by themselves sum no gradients"),
    ):
        value = getattr(pinned, name)
        yield value not in (None, none), f"{what} with {name}={value!r}", why, "use one or the other"
    yield (
        pinned.dp == 1 and pinned.cp in (None, 1), f"{what} with dp=1", "no gradient goes over the data axis",
        "give dp=2 or more, or leave it out",
    )  # fmt: skip
    yield (
        not processors and (RING in rule or TREE in rule), f"{what} on accelerators",
        "their library takes a ring or a tree by itself, by size",
        f"leave it out, set NCCL_ALGO where the program starts, or give {HIERARCHICAL!r}",
    )  # fmt: skip
    yield (
        HIERARCHICAL in rule and nodes == 1, what, "it sums in each node and then between nodes, and there is one",
        "leave it out, or use more nodes",
    )  # fmt: skip


def served_training(pinned: Parallelism, training: Training) -> Iterator[Conflict]:
    """What of a training parameter servers can't go with."""
    yield (
        pinned.servers and not {*training.optimizers} <= {*ELEMENTWISE, "lamb"},
        f"servers={pinned.servers} with optimizer={training.optimizer!r}",
        "it updates a fused projection as one matrix, whose pieces servers have apart",
        "use an optimizer of single elements, such as 'adamw', or zero=1",
    )  # fmt: skip
    for there, given, why in (
        (training.clip_grad_norm, f"clip_grad_norm={training.clip_grad_norm}", "a norm is of all servers' shards"),
        (training.scales_loss, f"precision={training.precision!r}", "whether a gradient overflowed all ranks tell"),
    ):
        late = f"backups={pinned.backups}" if pinned.backups else f"ahead={pinned.ahead!r}"
        yield (
            (pinned.backups or pinned.ahead) and there, f"{late} with {given}",
            f"{why}, and a step waits for no worker that is late", "leave it out",
        )  # fmt: skip
    yield (
        pinned.ahead and not {*training.optimizers} <= {*ELEMENTWISE},
        f"ahead={pinned.ahead!r} with optimizer={training.optimizer!r}",
        "its norms are of whole parameters, which all ranks ask for at once", "use 'adamw', or another of elements",
    )  # fmt: skip
    watches = pinned.ahead and training.lr_schedule is not None and training.lr_schedule.name == WATCHES
    yield (
        watches, f"ahead={pinned.ahead!r} with a schedule that looks at the loss",
        "each worker has a loss of its own, and then a rate", "use a schedule of the number of steps",
    )  # fmt: skip
    yield (
        pinned.staleness and pinned.servers and training.scales_loss,
        f"staleness={pinned.staleness} with precision={training.precision!r}",
        "a step that overflows would be skipped while the weights that it read are gone", "use bf16-mixed",
    )  # fmt: skip


def table_conflicts(pinned: Parallelism) -> Iterator[Conflict]:
    """What says where tables lie, and can't."""
    value, away = f"tables={pinned.tables!r}", pinned.tables in (IN_HOST, ON_DISK)
    yield (
        pinned.tables and pinned.tensor_system != "table-parallel", value,
        "it says where tables lie that are placed", "give tensor_system='table-parallel', too, or leave it out",
    )  # fmt: skip
    for name in ("table_cache", "table_misses"):
        yield (
            getattr(pinned, name) is not None and not away, f"{name}={getattr(pinned, name)!r}",
            "it is of the cache before tables that lie off the device", f"give tables={IN_HOST!r}, or leave it out",
        )  # fmt: skip
    yield (
        away and pinned.offload not in (None, "none"), f"{value} with offload={pinned.offload!r}",
        "the host's memory, or its disks, hold either tables or what is offloaded", "give one of the two",
    )  # fmt: skip
