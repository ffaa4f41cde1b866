"""What a user asks for: how to train, and which parts of the parallelism are pinned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from autoplan.arguments.keywords import keywords, shown
from autoplan.arguments.synonyms import PARALLELISM_NAMES, TRAINING_NAMES
from autoplan.arguments.values import Settings, is_number, is_pair, is_whole, settings
from autoplan.errors import ParallelismError
from autoplan.ir.buckets import Compression, compression
from autoplan.ir.folding import Folding, fold
from autoplan.ir.mesh import TENSOR, Mesh
from autoplan.ir.parameter_groups import OPTIMIZER_FIELDS, ParameterGroup, as_groups
from autoplan.lr_schedule import LRSchedule, as_schedule
from autoplan.option_values import (
    CONTINUOUS,
    NONE_AT_ZERO,
    PARALLEL,
    REDUCE_DTYPES,
    SIZES,
    TRAINED,
    check_ahead,
    check_all_reduce,
    check_chunks,
    check_exchange,
    check_how,
    check_shares,
)  # fmt: skip


@keywords(ParallelismError, TRAINING_NAMES)
@dataclass(frozen=True)
class Training:
    """How the program trains.

    optimizer       "adamw", "adam", "sgd", "muon", …: a class of torch.optim by its lower-case name; "lamb";
                    or "rowwise-adagrad", for embedding tables (``runtime.optim.rowwise_adagrad``)
    precision       "fp32", "fp64", "bf16" (parameters too); "bf16-mixed", "fp16-mixed": compute in bfloat16 or float16
                    with float32 masters, gradients and optimizer state; float16 with dynamic loss scaling
    learning_rate
    weight_decay, betas, eps, momentum   the optimizer's own, where it has them; None: its default
    clip_grad_norm  the global norm that gradients are clipped to before each optimizer step; None: not clipped
    compile         the segments are compiled, on devices whose profile says that programs are; a CPU runs them eagerly
    seed            of dropout and other random operators
    optimizer_options  further options of the optimizer, by its own names: a mapping, or pairs
    lr_schedule     of the learning rate: an LRSchedule, its fields as a mapping, or its name; None: constant
    reduce_dtype    "fp32" or "bf16", in which gradients are summed over the axes that split the batch and its rows;
                    None: that in which they are stored. ZeRO accumulates the gradients of microbatches in it, too
    groups          of parameters with options of their own, or an optimizer: ParameterGroups, or mappings of ``match``
                    and options; the first that matches a parameter has it, other parameters are as Training says
    statistics      what a step computes with several microbatches: "batch", the loss of the whole batch; "microbatch",
                    the mean of the microbatches' losses, each as the module computes it from its rows alone, load
                    balancing, batch norm and denominators included
    outer_learning_rate, outer_momentum   of ``Parallelism.outer_optimizer``; as Douillard et al. 2023 have them
    compression_start   steps with whole gradients before ``Parallelism.compression`` begins; None: 0; for 1-bit Adam
                    and LAMB 100
    delay_compensation  of servers that apply gradients as they arrive (``Parallelism.ahead``): factor of the term by
                    which a gradient is taken on to the weights that it meets (Zheng et al. 2017); None: as it comes
    randomness      what dropout draws: "global", what one device draws, by each element's place; "per-rank", each rank
                    its own part, by torch's own kernels, alike where ranks hold the same. Attention then drops within
                    its fused kernel. It isn't equal to one device, nor to another plan
    expert_capacity  what each expert takes at most of a row's choices, as a multiple of an even share; the rest is
                    dropped, by ``expert_dropping``: "order", the later ones, or "score", those of lower score. None:
                    nothing is dropped
    """

    optimizer: str = "adamw"
    precision: str = "fp32"
    learning_rate: float = 1e-3
    weight_decay: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    momentum: float | None = None
    clip_grad_norm: float | None = None
    compile: bool = True
    seed: int = 0
    optimizer_options: Settings = ()
    lr_schedule: LRSchedule | None = None
    reduce_dtype: str | None = None
    groups: tuple[ParameterGroup, ...] = ()
    statistics: str = "batch"
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9
    randomness: str = "global"
    compression_start: int | None = None
    expert_capacity: float | None = None
    expert_dropping: str = "order"
    delay_compensation: float | None = None

    def __post_init__(self) -> None:
        check_how(self.precision, self.compile)
        if not isinstance(self.optimizer, str):
            given = self.optimizer if isinstance(self.optimizer, type) else type(self.optimizer)
            name = given.__name__.lower() if given.__module__.startswith("torch.optim") else "adamw"
            cause, remedy = "an optimizer is given by its lower-case name", f"give '{name}', and its settings by name"
            raise ParallelismError(f"optimizer={shown(self.optimizer)}", cause, remedy)
        for name in ("learning_rate", "weight_decay", "eps", "momentum"):
            value = getattr(self, name)
            if not (is_number(value) and value >= 0) and (value is not None or name == "learning_rate"):
                raise ParallelismError(f"{name}={value!r}", "it is a number of at least 0", "give 0 or more")
        if not is_number(self.outer_learning_rate) or self.outer_learning_rate <= 0:
            raise ParallelismError(f"outer_learning_rate={self.outer_learning_rate!r}", "it is above 0", "give 0.7")
        if not is_number(self.outer_momentum) or not 0 < self.outer_momentum < 1:
            cause = "Nesterov's momentum is a number between 0 and 1"
            raise ParallelismError(f"outer_momentum={self.outer_momentum!r}", cause, "give for example 0.9")
        if isinstance(self.betas, list):
            object.__setattr__(self, "betas", tuple(self.betas))
        if self.betas is not None and not is_pair(self.betas):
            cause = "they are a pair of numbers from 0 to below 1"
            raise ParallelismError(f"betas={self.betas!r}", cause, "give for example (0.9, 0.999)")
        if self.clip_grad_norm is not None and not (is_number(self.clip_grad_norm) and self.clip_grad_norm > 0):
            raise ParallelismError(f"clip_grad_norm={self.clip_grad_norm!r}", "a norm is positive", "give 1.0, say")
        if not is_whole(self.seed):
            raise ParallelismError(f"seed={self.seed!r}", "a seed is a whole number", "give for example 0")
        if (factor := self.delay_compensation) is not None and not (is_number(factor) and factor > 0):
            raise ParallelismError(f"delay_compensation={factor!r}", "it is a positive number", "give for example 0.04")
        if self.compression_start is not None and (not is_whole(self.compression_start) or self.compression_start < 0):
            raise ParallelismError(f"compression_start={self.compression_start!r}", "it counts steps", "give 0 or more")
        if self.reduce_dtype is not None and self.reduce_dtype not in REDUCE_DTYPES:
            cause = f"gradients are summed in one of {REDUCE_DTYPES}, or as they are stored"
            raise ParallelismError(f"reduce_dtype={self.reduce_dtype!r}", cause, "give one of them, or leave it out")
        if (limit := self.expert_capacity) is not None and not (is_number(limit) and limit > 0):
            raise ParallelismError(f"expert_capacity={limit!r}", "it is a positive number", "give for example 1.25")
        for name, allowed in TRAINED.items():
            if (given := getattr(self, name)) not in allowed:
                raise ParallelismError(f"{name}={given!r}", "no such choice", f"use one of {allowed}")
        object.__setattr__(self, "optimizer_options", settings("optimizer_options", self.optimizer_options))
        object.__setattr__(self, "lr_schedule", as_schedule(self.lr_schedule))
        object.__setattr__(self, "groups", as_groups(self.groups))

    @property
    def mixed(self) -> bool:
        """Whether parameters are updated in float32 and computed with in half precision."""
        return self.precision in ("bf16-mixed", "fp16-mixed")

    @property
    def scales_loss(self) -> bool:
        """Whether the loss is scaled, so that small gradients don't vanish in float16."""
        return self.precision == "fp16-mixed"

    @property
    def microbatch_statistics(self) -> bool:
        """Whether each microbatch has statistics and a loss of its own."""
        return self.statistics == "microbatch"

    @property
    def draws_by_rank(self) -> bool:
        """Whether each rank draws for itself what drops out."""
        return self.randomness == "per-rank"

    @property
    def optimizers(self) -> tuple[str, ...]:
        """All that update some parameters, each once: its own, then those of groups."""
        return tuple(dict.fromkeys((self.optimizer, *(group.optimizer for group in self.groups if group.optimizer))))

    def group_of(self, names: Sequence[str]) -> int:
        """The number of a parameter's group, by all of its names; 0: it is in none."""
        return next((number for number, group in enumerate(self.groups, 1) if group.has(names)), 0)

    def updating(self, number: int) -> Training:
        """What it says of the optimizer of one group's parameters; 0: of those in none. With an optimizer of its own a
        group's options are in it, but for its learning rate; without one they aren't."""
        group = self.groups[number - 1] if number else None
        if group is None or group.optimizer in (None, self.optimizer):
            return self
        own = tuple((name, value) for name, value in group.options if name != "lr")
        bare = replace(self, weight_decay=None, betas=None, eps=None, momentum=None, groups=())
        return replace(bare, optimizer=group.optimizer, optimizer_options=own)

    def optimizer_fields(self) -> dict[str, Any]:
        """The optimizer's options that have fields here, by torch's names; those that aren't given left out."""
        return {name: getattr(self, f) for f, name in OPTIMIZER_FIELDS.items() if getattr(self, f) is not None}

    def optimizer_settings(self) -> dict[str, Any]:
        """All that is said of the optimizer's options, by torch's names."""
        return self.optimizer_fields() | dict(self.optimizer_options)

    def with_precision(self, precision: str) -> Training:
        """The same in another precision; what is exact sums nothing in less."""
        return replace(self, precision=precision, reduce_dtype=None if precision == "fp64" else self.reduce_dtype)


@keywords(ParallelismError, TRAINING_NAMES)
@dataclass(frozen=True)
class Inference:
    """Plans the forward alone."""

    precision: str = "fp32"
    compile: bool = True

    def __post_init__(self) -> None:
        check_how(self.precision, self.compile)

    @property
    def microbatch_statistics(self) -> bool:
        """See ``Training.microbatch_statistics``: there is no loss."""
        return False

    @property
    def draws_by_rank(self) -> bool:
        """See ``Training.draws_by_rank``: nothing drops out."""
        return False


@keywords(ParallelismError, PARALLELISM_NAMES)
@dataclass(frozen=True)
class Parallelism:
    """A parallelism; a field that is None is left to the search.

    dp, cp, tp, pp   sizes of the data, context, tensor and pipeline axes, whose product is the cluster's device count.
                     Over cp the sequence is split; None: 1, or what long rows ask for
    ep, etp          a mixture's experts on the same ranks: split over ep of them, and each expert over etp. Of
                     dp * cp * tp ranks edp = dp * cp * tp / (ep * etp) have the same (``ir.folding``)
    cp_attention     how attention is split over cp: "heads" (Ulysses), "rows" of the queries, keys and values gathered,
                     or "ring", where these go round
    zero             0 (plain data parallel), 1, 2 or 3
    dp_replicate     replicas of what ZeRO shards (HSDP): it shards over dp / dp_replicate ranks that lie together, and
                     gradients are summed across. 1: over all of dp
    micro_batch      rows of the batch in one microbatch on one data-parallel rank
    pipeline_schedule  "gpipe", "1f1b", "interleaved", "zero-bubble"; or one without a flush, whose gradients are of
                     older weights (``runtime.continuous``): "pipedream", "pipedream-vertical-sync" or "pipedream-2bw"
    virtual_stages   stages on one pipeline rank
    recompute        "none", "selective" or "full" of all blocks that repeat; "auto": of as many as memory asks for
    sequence_parallel  activations between the tensor-parallel operators split along the sequence
    offload          what lies in the host's memory: "optimizer" (its state), "parameters" (and that state),
                     "activations" (what repeated blocks keep for their backward); "nvme": the optimizer's state on the
                     node's disks; or "none". Where no field at all is pinned the search tries it
                     (``search.further.host_memory``); where any is, None means "none"
    tensor           factors of tp, outermost first: one mesh axis for each ("tp", "tp2", "tp3"); (tp,) is one axis
    tensor_system    how weights and activations lie over these axes: "2d", "2.5d", "3d" (``search.space.tensor_axes``),
                     or over one axis "ulysses", "context-parallel", "ring-attention", "vocab-parallel",
                     "expert-parallel", "expert-all-to-all", "expert-partial-sum", "table-parallel"
                     (``search.space.row_systems``)
    local_steps      steps that each replica takes by itself between two averages of all (local SGD); None or 1: none,
                     gradients are summed in every step
    outer_optimizer  "nesterov": in place of an average, an update of what all began with by the mean of the replicas'
                     changes (DiLoCo)
    gossip           "ring" or "exponential": after every local_steps, or every step, each replica averages with its
                     neighbours on that graph alone (D-PSGD)
    compression      of gradients over the data axis: "powersgd", factors of low rank (``compression_rank``, None: 4);
                     "topk", each rank's largest elements (``compression_rate``, their share, None: 0.01); "int8",
                     "fp8", eight bits an element; "1bit", "1bit-lamb": 1-bit Adam and LAMB
                     (``runtime.parallel.compression``)
    compression_within  size of a group of neighbouring data-parallel ranks, such as a node's, which sum gradients
                     whole; compressed ones go between such groups alone. None or 1: between all ranks
    servers          data-parallel ranks that are parameter servers (Li et al. 2014): each has a shard of the weights,
                     and alone its optimizer state; the others push gradients to it and pull weights from it
    staleness        of servers: how many updates old the weights are that gradients are computed with; None or 0: none
    backups          of their workers so many whose gradients a step does without: it is by the mean of those that are
                     there first (Chen et al. 2016); None or 0: none
    ahead            of servers that apply each worker's gradients as they arrive: how many steps a worker may be ahead
                     of the slowest, or "unbounded"; None or 0: none, servers wait for all gradients of a step
    tp_overlap       chunks into which a gather before column-parallel products, or a sum after a row-parallel one, is
                     cut: one is sent while another is multiplied; "auto": as many as is quickest of each; None or 1:
                     it isn't cut
    all_reduce       of gradients over the data axis: "ring", "tree" (binomial) or "hierarchical" (in a node a
                     reduce-scatter, between nodes an all-reduce, in the node an all-gather), or several with the sizes
                     of buckets between them, "tree<64KiB<hierarchical". None: on processors by what is predicted to be
                     quickest; libraries of accelerators choose for themselves
    tables           of "table-parallel", where tables lie: "device"; "host" or "nvme" (disks), behind a cache on the
                     device of ``table_cache`` of their rows (None: 0.2). ``table_misses``: of looked-up rows the share
                     that isn't there, which prices take (None: as Zipf's law has it). None: on the device if they fit
    ep_overlap       beside what a mixture's tokens travel to their experts: "shared", the shared expert; a number, of
                     as many chunks of tokens one is sent while another is computed; "auto": what is quickest of each
    """

    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    zero: int | None = None
    micro_batch: int | None = None
    pipeline_schedule: str | None = None
    virtual_stages: int | None = None
    recompute: str | None = None
    sequence_parallel: bool | None = None
    offload: str | None = None
    tensor: tuple[int, ...] | None = None
    tensor_system: str | None = None
    local_steps: int | None = None
    cp: int | None = None
    ep: int | None = None
    cp_attention: str | None = None
    dp_replicate: int | None = None
    etp: int | None = None
    outer_optimizer: str | None = None
    compression: str | None = None
    compression_rank: int | None = None
    gossip: str | None = None
    compression_rate: float | None = None
    servers: int | None = None
    staleness: int | None = None
    tp_overlap: int | str | None = None
    ep_overlap: int | str | None = None
    compression_within: int | None = None
    backups: int | None = None
    ahead: int | str | None = None
    all_reduce: str | None = None
    tables: str | None = None
    table_cache: float | None = None
    table_misses: float | None = None

    def __post_init__(self) -> None:
        for name in SIZES:
            size, least = getattr(self, name), int(name not in NONE_AT_ZERO)
            if size is not None and (not is_whole(size) or size < least):
                cause = f"a size is a whole number of at least {least}"
                raise ParallelismError(f"{name}={size!r}", cause, f"give {name}>={least}")
        for name, allowed in PARALLEL.items():
            self._one_of(name, allowed)
        check_chunks(self.tp_overlap)
        check_exchange(self.ep_overlap)
        check_ahead(self.ahead)
        check_all_reduce(self.all_reduce)
        check_shares(table_cache=self.table_cache, table_misses=self.table_misses)
        if self.tensor is not None:
            self._check_factors(self.tensor)

    def __repr__(self) -> str:
        """The fields that are set: of thirty, most plans have few."""
        return f"Parallelism({', '.join(f'{name}={value!r}' for name, value in self.pinned().items())})"

    def _check_factors(self, factors: tuple[int, ...]) -> None:
        counted = isinstance(factors, tuple) and all(is_whole(factor) and factor >= 1 for factor in factors)
        if not counted or not 1 <= len(factors) <= len(TENSOR):
            raise ParallelismError(
                f"tensor={factors!r}", f"a tensor axis is a tuple of one to {len(TENSOR)} factors of at least 1",
                "give for example (2, 4), or leave it out",
            )  # fmt: skip
        product = math.prod(factors)
        if self.tp is not None and product != self.tp:
            raise ParallelismError(
                f"tensor={factors!r}", f"it multiplies to {product}, and tp is {self.tp}", f"give tp={product}"
            )

    def _one_of(self, name: str, allowed: tuple) -> None:
        value = getattr(self, name)
        if value is not None and not any(value == one and type(value) is type(one) for one in allowed):
            raise ParallelismError(f"{name}={value!r}", "no such choice", f"use one of {allowed}, or None")

    @property
    def steps_locally(self) -> bool:
        """Whether replicas step by themselves, and are averaged from time to time or with their neighbours."""
        return self.local_steps not in (None, 1) or self.gossip is not None

    @property
    def replica_mean_loss(self) -> bool:
        """Whether each replica's loss is the mean over its own rows."""
        return self.steps_locally or self.tolerates_stragglers

    @property
    def tolerates_stragglers(self) -> bool:
        """Whether a step waits for no worker that is late."""
        return self.backups is not None or bool(self.ahead)

    @property
    def continuous(self) -> bool:
        """Whether the pipeline isn't flushed between steps, and gradients are of older weights."""
        return self.pipeline_schedule in CONTINUOUS

    @property
    def splits_backward(self) -> bool:
        """Whether the gradients of parameters are computed apart from those of inputs, later."""
        return self.pipeline_schedule == "zero-bubble"

    @property
    def asynchronous(self) -> bool:
        """Whether a step is another than one device's on the whole batch."""
        return self.replica_mean_loss or self.continuous or bool(self.staleness) or self.compression is not None

    @property
    def compressed(self) -> Compression | None:
        """How a plan's gradients go over the data axis; None: they are summed whole."""
        sizes = self.compression_rank, self.compression_rate, self.compression_within
        return compression(self.compression, *sizes)

    @property
    def tensor_sizes(self) -> tuple[int, ...]:
        """Of the tensor axes, outermost first."""
        return self.tensor or (self.tp or 1,)

    @property
    def folding(self) -> Folding:
        """How experts lie on the ranks of the dense layers, of a plan's parallelism; over none where they can't."""
        tensor = self.tensor_sizes
        folded = fold(self.dp or 1, self.cp or 1, tensor, self.ep or 1, self.etp or math.prod(tensor))
        return folded or Folding()

    def mesh(self, microbatches: int | None = None) -> Mesh:
        """A plan's mesh."""
        folding = self.folding
        data, outer = folding.data, (self.dp or 1) // folding.data
        return Mesh.planned(self.pp or 1, outer, data, self.cp or 1, self.tensor_sizes, microbatches, folding.inner)

    def pinned(self) -> dict[str, object]:
        """The fields that are not left to the search."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
