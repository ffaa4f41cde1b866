"""The values that options take by name."""

import re

from autoplan.arguments.values import is_number
from autoplan.errors import ParallelismError

PRECISIONS = ("fp32", "fp64", "bf16", "bf16-mixed", "fp16-mixed")
CONTINUOUS = ("pipedream", "pipedream-vertical-sync", "pipedream-2bw")  # pipelines without a flush between steps
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", *CONTINUOUS)
RECOMPUTE = ("none", "selective", "full", "auto")
UNBOUNDED = "unbounded"  # workers that are ahead of others by any number of steps
AUTO = "auto"  # chunks of collectives beside products, each as many as is quickest
SHARED = "shared"  # a mixture's tokens travel while shared experts compute
OFFLOADS = ("optimizer", "parameters", "activations")
ON_DISK = "nvme"  # the optimizer's state on the node's disks: a remedy where nothing else fits
DEVICE, IN_HOST = "device", "host"
TABLES = (DEVICE, IN_HOST, ON_DISK)  # where embedding tables lie; off the device it has a cache of their rows
OF_OPTIMIZER = ("optimizer", ON_DISK)  # under which parameters stay on the device, masters and states don't
REDUCE_DTYPES = ("fp32", "bf16")
STATISTICS = ("batch", "microbatch")
SIZES = (
    "dp", "tp", "pp", "cp", "ep", "etp", "micro_batch", "virtual_stages", "local_steps", "dp_replicate",
    "compression_rank", "servers", "staleness", "compression_within", "backups",
)  # fmt: skip
"""Fields of Parallelism that are numbers."""
NONE_AT_ZERO = ("staleness", "backups")
"""Of them those that may be 0, which asks for none."""
OUTER_OPTIMIZERS = ("nesterov",)
GOSSIP = ("ring", "exponential")
RING, TREE, HIERARCHICAL = ALL_REDUCES = ("ring", "tree", "hierarchical")
"""Ways to sum gradients over the data axis."""
COMPRESSIONS = ("powersgd", "int8", "fp8", "topk", "1bit", "1bit-lamb")
RANDOMNESS = ("global", "per-rank")
EXPERT_DROPPING = ("order", "score")
TRAINED = {"statistics": STATISTICS, "randomness": RANDOMNESS, "expert_dropping": EXPERT_DROPPING}
"""What fields of Training may be."""
SHAPES = ("constant", "linear", "cosine")
MOVING = ("weight_decay", "momentum")  # options by which an update moves elements without a gradient
SET_RATES = {"OneCycleLR": "its max_lr", "CyclicLR": "its base_lr and max_lr"}
"""Schedules that read no learning rate but their own options."""
WATCHES = "ReduceLROnPlateau"
"""The schedule that looks at the loss."""
ELEMENTWISE = (
    "adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop", "rprop", "sgd",
)  # fmt: skip
"""Optimizers that update an element from its own gradient and state alone: parts are updated as the whole is."""
ROWWISE = "rowwise-adagrad"
"""Looks at a row of a matrix."""
SEVERAL = tuple(name for name in (*ELEMENTWISE, ROWWISE) if name != "rprop")
"""Optimizers of which each group of parameters may have another."""

CP_ATTENTION = ("heads", "rows", "ring")
TENSOR_SYSTEMS = (
    "2d", "2.5d", "3d", "ulysses", "context-parallel", "ring-attention", "vocab-parallel", "expert-parallel",
    "expert-all-to-all", "expert-partial-sum", "table-parallel",
)  # fmt: skip
PARALLEL = {
    "zero": (0, 1, 2, 3), "pipeline_schedule": SCHEDULES, "recompute": RECOMPUTE, "tensor_system": TENSOR_SYSTEMS,
    "offload": ("none", *OFFLOADS, ON_DISK), "cp_attention": CP_ATTENTION, "outer_optimizer": OUTER_OPTIMIZERS,
    "compression": COMPRESSIONS, "gossip": GOSSIP, "sequence_parallel": (True, False), "tables": TABLES,
}  # fmt: skip
"""What fields of Parallelism may be."""


def check_chunks(chunks: object) -> None:
    """ParallelismError for what is no number of chunks."""
    if chunks not in (None, AUTO) and (not isinstance(chunks, int) or isinstance(chunks, bool) or chunks < 1):
        cause = f"it is a number of chunks of at least 1, or {AUTO!r}"
        raise ParallelismError(f"tp_overlap={chunks!r}", cause, "give for example 4, or leave it out")


def check_shares(**shares: object) -> None:
    """ParallelismError for what is no share of something."""
    for name, share in shares.items():
        if share is not None and not (isinstance(share, int | float) and is_number(share) and 0 <= share <= 1):
            raise ParallelismError(f"{name}={share!r}", "it is a share, from 0 to 1", "give for example 0.2")


def check_exchange(how: object) -> None:
    """ParallelismError for what says nothing about how a mixture's tokens are exchanged."""
    if how not in (None, AUTO, SHARED) and (not isinstance(how, int) or isinstance(how, bool) or how < 1):
        cause = f"it is {SHARED!r}, a number of chunks of at least 1, or {AUTO!r}"
        raise ParallelismError(f"ep_overlap={how!r}", cause, f"give for example {SHARED!r} or 2, or leave it out")


def check_ahead(steps: object) -> None:
    """ParallelismError for what is no number of steps that a worker may be ahead."""
    if steps not in (None, UNBOUNDED) and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 0):
        cause = f"it is a number of steps of at least 0, or {UNBOUNDED!r}"
        raise ParallelismError(f"ahead={steps!r}", cause, f"give for example 3 or {UNBOUNDED!r}, or leave it out")


def cuts(chunks: object) -> bool:
    """Whether so many chunks are asked for that something is to be cut."""
    return isinstance(chunks, int) and chunks > 1


def check_how(precision: object, compile: object) -> None:
    """ParallelismError for a precision that is none, or a choice of compilation that is neither."""
    if precision not in PRECISIONS:
        raise ParallelismError(f"precision={precision!r}", "no such precision", f"use one of {PRECISIONS}")
    if not isinstance(compile, bool):
        raise ParallelismError(f"compile={compile!r}", "it is compiled or not", "give True or False")


SUM_RULE = re.compile(rf"({'|'.join(ALL_REDUCES)})(<\d+[KM]iB<({'|'.join(ALL_REDUCES)}))*")
"""``tree<64KiB<ring``: a tree for buckets below 64 KiB, a ring from there on."""


def check_all_reduce(rule: object) -> None:
    """ParallelismError for what says nothing about how gradients are summed."""
    if rule is not None and not (isinstance(rule, str) and SUM_RULE.fullmatch(rule)):
        cause = f"it is one of {', '.join(ALL_REDUCES)}, or several with the sizes of buckets between them"
        remedy = f"give for example {HIERARCHICAL!r} or 'tree<64KiB<ring', or None: what is quickest"
        raise ParallelismError(f"all_reduce={rule!r}", cause, remedy)
