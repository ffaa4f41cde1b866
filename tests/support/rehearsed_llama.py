"""Small plans, exported and rehearsed rank by rank, each rank in a process of its own: a fake device is for life."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism, Training
from autoplan.rehearsal import rehearse
from autoplan.rehearsal.records import RankTrace
from autoplan.rules.constraints import Constraint
from tests.support.planning import parallelize_unproved

TRAINING = Training(optimizer="adamw", precision="bf16-mixed", clip_grad_norm=1.0)
ROWS, LENGTH = 8, 32


@dataclass(frozen=True)
class Rehearsed:
    """A plan with the first rank of each of its pipeline stages, by its number."""

    record: PlanRecord
    folder: Path
    traces: Mapping[int, RankTrace]

    @property
    def program(self) -> str:
        return (self.folder / "program.py").read_text()


def llama(layers: int = 2, *, tied: bool = False) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, use_cache=False, tie_word_embeddings=tied,
    )  # fmt: skip
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def mixtral(layers: int = 2) -> MixtralForCausalLM:
    config = MixtralConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, use_cache=False, num_local_experts=4, pad_token_id=0,
    )  # fmt: skip
    with torch.device("meta"):
        return MixtralForCausalLM(config)


def rehearsed(
    folder: Path, parallelism: Parallelism, devices: int, layers: int = 2, *, tied: bool = False,
    experts: bool = False, training: Training = TRAINING, constraints: Sequence[Constraint] = (),
    cluster: str | None = None,
) -> Rehearsed:  # fmt: skip
    """The plan of a small Llama, or Mixtral, on one node, exported to a folder and rehearsed operator by operator.

    cluster  of so many devices, in place of the node
    """
    ids = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
    model = mixtral(layers) if experts else llama(layers, tied=tied)
    cluster, batch = cluster or f"1x{devices} h100-sxm", {"input_ids": ids, "labels": ids}
    plan = parallelize_unproved(
        model, cluster, batch, training=training, parallelism=parallelism, effort="fast", constraints=constraints,
    )  # fmt: skip
    plan.export(folder)
    width = devices // (parallelism.pp or 1)
    ranks = range(0, devices, width)
    traces = rehearse.each_apart([(folder, rank, None, False) for rank in ranks])
    broken = [trace for trace in traces if isinstance(trace, str)]
    assert not broken, broken
    return Rehearsed(plan.record, folder, dict(zip(ranks, traces, strict=True)))
