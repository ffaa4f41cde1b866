"""Whether gradients of placed tables are made of looked-up rows alone.

Nothing may need the gradient of a whole table. That is so where its ranks have it alone, so that nothing is summed, and
where the optimizer leaves an element without a gradient as it is, its state included:

    rowwise-adagrad   a += 0, w -= lr · 0 / (√a + eps)
    adagrad           likewise, by elements
    sgd               w -= lr · 0; with momentum a row moves on by what it got before

Weight decay moves every row. Under mixed precision, or with the optimizer on the host, gradients go to masters. A
compiled segment gives what autograd knows, and these rows go past it (``runtime.looked_up``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autoplan.ir.graph import Model, Node
from autoplan.ir.tables import CACHED, LOOKUPS, SPARSE, Cached
from autoplan.option_values import MOVING, ROWWISE, SET_RATES
from autoplan.options import Inference, Parallelism, Training

ON_DEVICE = (None, "none", "activations")  # values of ``offload`` that leave parameters and their states there


def whole_because(
    training: Training | Inference, parallelism: Parallelism, alone: bool, names: Sequence[str]
) -> str:
    """Why gradients of placed tables are as large as the tables; "" where they are of looked-up rows alone.

    alone  whether each part of the tables is on one device only
    names  the user's, of one of the tables, which are all in one group
    """
    if isinstance(training, Inference):
        return "nothing is trained"
    if not alone:
        return "they are summed over the ranks that have the same tables"
    if training.mixed:
        return f"precision={training.precision!r} adds them up in float32 masters' dtype"
    if parallelism.offload not in ON_DEVICE:
        return f"offload={parallelism.offload!r} takes them to the host"
    if training.compile:
        return "compiled segments give whole ones; Training(compile=False) has rows"
    return moving_all(training, names)


def moving_all(training: Training, names: Sequence[str]) -> str:
    """What has an update change elements without a gradient, or their state; "" for an optimizer that doesn't."""
    number = training.group_of(names)
    how = training.updating(number)
    given: Mapping[str, Any] = how.optimizer_settings()
    if number:
        given = {**given, **dict(training.groups[number - 1].options)}
    beside = len(training.optimizers) > 1
    if how.optimizer not in (ROWWISE, "sgd") and (how.optimizer != "adagrad" or beside):
        return f"{how.optimizer} moves rows that have none" + " beside other optimizers" * (how.optimizer == "adagrad")
    for name in MOVING:
        if given.get(name):
            return f"{name}={given[name]!r} moves rows that have none"
    if how.optimizer == "adagrad" and given.get("eps") == 0:
        return "eps=0 divides 0 by 0 in rows that have none"
    if training.lr_schedule is not None and training.lr_schedule.name in SET_RATES:
        return f"{training.lr_schedule.name} sets a momentum"
    return ""


def with_rows(model: Model, sparse: bool, cached: Cached | None = None) -> Model:
    """The model whose placed tables have gradients of looked-up rows alone, or of all; ``cached``: that lie so."""
    how = ((SPARSE, True),) * sparse + (((CACHED, cached.arguments),) if cached else ())
    blocks = (replace(block, nodes=tuple(marked(node, how) for node in block.nodes)) for block in model.blocks)
    return replace(model, blocks=tuple(blocks))


def is_sparse(node: Node) -> bool:
    """Whether it looks tables up whose gradients are of rows."""
    return node.op == LOOKUPS and bool(dict(node.kwargs).get(SPARSE))


def marked(node: Node, how: tuple) -> Node:
    return replace(node, kwargs=how) if node.op == LOOKUPS else node


def kept_of_rows(training: Training, names: Sequence[str]) -> str:
    """What the optimizer keeps of a row that was looked up, as ``ir.tables.Cached.state`` has it."""
    optimizer = training.updating(training.group_of(names)).optimizer
    return {ROWWISE: "row", "adagrad": "element"}.get(optimizer, "none")
