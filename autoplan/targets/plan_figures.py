"""A plan's figures as trainers ask for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from autoplan.errors import ParallelismError
from autoplan.ir.choice import most_recomputed
from autoplan.ir.graph import batch_rows
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism, Training

TORCH_DTYPES = {"bf16": "bfloat16", "bf16-mixed": "bfloat16", "fp16-mixed": "float16", "fp32": "float32"}
UNPRICED = "how each operator is split, and where stages are cut: the trainer's own way, whose price isn't in this one"

INEXACT = (
    "local_steps", "outer_optimizer", "compression", "compression_rank", "compression_rate", "gossip", "servers",
    "staleness", "tp_overlap", "ep_overlap", "compression_within", "backups", "ahead", "all_reduce",
    "tables", "table_cache", "table_misses",
)  # fmt: skip
"""Fields whose steps aren't one device's, or that no other trainer knows."""


@dataclass(frozen=True)
class Values:
    """rows         of one optimizer step
    sequence     tokens in a row; None where the first input isn't [rows, tokens]
    accumulated  microbatches of a step on one replica
    layers       how often the block that repeats most stands in the model, and its class
    """

    record: PlanRecord
    training: Training
    parallelism: Parallelism
    rows: int
    sequence: int | None
    accumulated: int
    layers: int
    layer_class: str

    @property
    def micro_batch(self) -> int:
        """Rows of a microbatch on one replica."""
        return max(1, self.rows // (self.replicas * self.accumulated))

    @property
    def replicas(self) -> int:
        """Ranks that see rows of their own."""
        return self.parallelism.dp or 1


def values_of(record: PlanRecord) -> Values:
    """ParallelismError for a plan that doesn't train."""
    if not isinstance(record.training, Training):
        raise ParallelismError("plan.export_config()", "this plan doesn't train", "plan with Training()")
    uses = Counter(segment.block for segment in record.model.segments)
    block, layers = uses.most_common(1)[0]
    shape = record.model.batch[0].type.shape
    text = not record.model.batch[0].type.floating and len(shape) == 2
    chosen = record.chosen
    parallelism = chosen.parallelism
    if parallelism.recompute == "auto":  # a trainer's is of all layers
        parallelism = replace(parallelism, recompute=most_recomputed(chosen.stages))
    return Values(
        record, record.training, parallelism, batch_rows(record.model), shape[1] if text else None,
        record.chosen.microbatches, layers, record.model.blocks[block].name,
    )  # fmt: skip


class Translation:
    """The parallelism as a trainer can be told it, and what is lost of the plan's by that."""

    def __init__(self, parallelism: Parallelism) -> None:
        one = parallelism.tensor is not None and len(parallelism.tensor) == 1  # an axis like any other
        self.parallelism = replace(parallelism, tensor=None) if one else parallelism
        self.lost: list[str] = []

    def instead(self, why: str, **fields: object) -> None:
        """Takes other fields, and says why."""
        before = {name: getattr(self.parallelism, name) for name in fields}
        if before != fields:
            said = ", ".join(f"{name}={value}" for name, value in before.items())
            taken = ", ".join(f"{name}={value}" for name, value in fields.items())
            self.lost.append(f"{said} ({why}): {taken}")
            self.parallelism = replace(self.parallelism, **fields)  # type: ignore[arg-type]

    def without(self, *fields: str) -> None:
        """Says what else has no words there."""
        for name in fields:
            value = getattr(self.parallelism, name)
            if value not in (None, "none", False) and (name, value) != ("local_steps", 1):
                self.lost.append(f"{name}={value}: no such option")
                self.parallelism = replace(self.parallelism, **{name: None})

    def all_data(self, devices: int, why: str) -> None:
        """All devices along dp."""
        p = self.parallelism
        if (p.tp or 1) * (p.pp or 1) * (p.cp or 1) * (p.ep or 1) > 1:
            sizes = {"dp": p.dp, "tp": p.tp, "pp": p.pp, "cp": p.cp, "ep": p.ep}
            said = ", ".join(f"{name}={size}" for name, size in sizes.items() if size)
            self.lost.append(f"{said} ({why}): dp={devices}, with ZeRO, microbatch and recomputation found anew")
            self.parallelism = Parallelism(
                dp=devices,
                tp=1,
                pp=1,
                cp=1,
                ep=1,
                etp=1,
                offload=p.offload,
                local_steps=p.local_steps,
                outer_optimizer=p.outer_optimizer,
                gossip=p.gossip,
                servers=p.servers,
                staleness=p.staleness,
                backups=p.backups,
                ahead=p.ahead,
                compression=p.compression,
                compression_rank=p.compression_rank,
                compression_rate=p.compression_rate,
                compression_within=p.compression_within,
                all_reduce=p.all_reduce,
                dp_replicate=p.dp_replicate,
            )


def mixed_recompute(record: PlanRecord, translation: Translation) -> None:
    """A trainer recomputes every layer alike."""
    repeated = sum(n for n in Counter(s.block for s in record.model.segments).values() if n > 1)
    again = sum(stage.recompute + stage.selective for stage in record.chosen.stages)
    p = translation.parallelism
    if p.recompute not in (None, "none") and again < repeated:
        translation.lost.append(f"recomputation of {again} of {repeated} layers: all of them, {p.recompute}")
