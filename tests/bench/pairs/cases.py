"""Which pairs there are: a way by hand, the parallelism that our program is pinned to, and the models that it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autoplan import Parallelism
from tests.bench.pairs.byhand import alone, ddp, experts, megatron, pipeline, sharded, tensor
from tests.bench.pairs.measured import Step

PRECISIONS = ("fp32", "bf16-mixed")
ALL = ("Llama", "GPT-2, dropout", "Mixtral")
DROPPING = ("GPT-2, dropout", "GPT-2, dropout in attention")


@dataclass(frozen=True)
class Case:
    """A pair.

    by_hand       (module, batch, precision, microbatches) -> Step; of a pipeline also the layers of each stage
    parallelism   that our plan is pinned to, beside its microbatches' rows; an axis that it lacks has one rank
    microbatches  of a step
    ways          ranks that share a batch's rows
    compiled      both sides are compiled, so what a dispatch mode sees says nothing
    randomness    what our dropout draws
    """

    by_hand: Callable[..., Step]
    parallelism: Mapping[str, object]
    ranks: int = 2
    microbatches: int = 2
    ways: int = 1
    models: tuple[str, ...] = ALL
    compiled: bool = False
    randomness: str = "global"

    def pinned(self, rows: int) -> Parallelism:
        fields = {"dp": 1, "tp": 1, "pp": 1, "ep": 1, "recompute": "none", **self.parallelism}
        return Parallelism(micro_batch=rows // (self.microbatches * self.ways), **fields)  # type: ignore[arg-type]


CASES: Mapping[str, Case] = {
    "the module": Case(alone.eager, {}, ranks=1, microbatches=1),
    "the module, compiled": Case(alone.compiled, {}, ranks=1, microbatches=1, compiled=True),
    "DDP, no_sync": Case(ddp.ddp, {"dp": 2, "zero": 0}, ways=2),
    "the module, drawn per rank": Case(
        alone.eager, {}, ranks=1, microbatches=1, models=DROPPING, randomness="per-rank"
    ),
    "DDP, drawn per rank": Case(ddp.ddp, {"dp": 2, "zero": 0}, ways=2, models=DROPPING, randomness="per-rank"),
    "fully_shard, ZeRO-1": Case(sharded.zero1, {"dp": 2, "zero": 1}, ways=2),
    "fully_shard, ZeRO-3": Case(sharded.zero3, {"dp": 2, "zero": 3}, ways=2),
    "DTensor, sequence parallel": Case(tensor.llama, {"tp": 2, "sequence_parallel": True}, models=("Llama",)),
    "pipelining, 1F1B": Case(pipeline.pipelined, {"pp": 2, "pipeline_schedule": "1f1b"}, microbatches=4),
    "pipelining, interleaved": Case(
        pipeline.pipelined, {"pp": 2, "pipeline_schedule": "interleaved", "virtual_stages": 2}, microbatches=4
    ),
    "Megatron's layer": Case(megatron.llama, {"tp": 2, "sequence_parallel": False}, models=("Llama",)),
    "all-to-all experts": Case(experts.mixtral, {"dp": 2, "ep": 2}, ways=2, models=("Mixtral",)),
}
