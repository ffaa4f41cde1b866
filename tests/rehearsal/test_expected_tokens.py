"""A rehearsal has no values, so a mixture counts what the plan's prices take: the rows of the busiest rank."""

from __future__ import annotations

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from autoplan import Parallelism, Training, forbid
from autoplan.cost.operators.operator_seconds import grouped_of, operators_of
from autoplan.ir.record import PlanRecord
from autoplan.rehearsal.expected_tokens import EXPERTS, expected_of, tokens_as_priced
from autoplan.runtime.ops.experts import dispatch
from tests.support.planning import parallelize_unproved

RANKS, EACH, CHOICES, TOKENS = 4, 2, 2, 256


@pytest.fixture(scope="module")
def record() -> PlanRecord:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 256}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_local_experts": RANKS * EACH, "num_experts_per_tok": CHOICES}
    with torch.device("meta"):
        model = MixtralForCausalLM(MixtralConfig(**sizes, **heads, **experts))
        ids = torch.zeros(2 * RANKS, TOKENS, dtype=torch.int64)
    plan = parallelize_unproved(
        model, f"1x{RANKS} h100-sxm", {"input_ids": ids, "labels": ids},
        training=Training(precision="bf16-mixed", compile=False),
        constraints=[forbid("autoplan.experts", "P", axis="ep")],
        parallelism=Parallelism(dp=RANKS, tp=1, pp=1, ep=RANKS, zero=0, micro_batch=1, recompute="none"),
    )  # fmt: skip
    return plan.record


def test_what_is_counted_is_what_is_priced(record: PlanRecord) -> None:
    block, choice = next(
        (block, choice)
        for block, choice in zip(record.model.blocks, record.chosen.blocks, strict=True)
        if any(node.op == EXPERTS for node in block.nodes)
    )
    name = next(node.name for node in block.nodes if node.op == EXPERTS)
    operator = operators_of(block, fuses=False)[name]
    grouped, travel = grouped_of(operator, dict(choice.strategies)[name], record.chosen.mesh)
    index = torch.empty(int(travel.tokens), CHOICES)
    with tokens_as_priced(record):
        rows, choices = dispatch.expected(index, EACH, RANKS)
    assert rows * RANKS == pytest.approx(travel.rows, abs=RANKS)
    assert choices * RANKS == pytest.approx(grouped.rows * grouped.experts, abs=RANKS)


def test_the_busiest_rank_gets_more_than_an_even_share(record: PlanRecord) -> None:
    index = torch.empty(TOKENS, CHOICES)
    even = dispatch.expected(index, EACH, RANKS)
    with tokens_as_priced(record):
        busiest = dispatch.expected(index, EACH, RANKS)
        unknown = dispatch.expected(index, 2 * EACH, RANKS)
    assert unknown == dispatch_of(2 * EACH)  # of a mixture that the plan doesn't have
    assert busiest[0] > even[0] and busiest[1] > even[1]
    assert dispatch.expected(index, EACH, RANKS) == even
    assert set(expected_of(record)) == {(CHOICES, EACH, RANKS)}


def dispatch_of(experts: int) -> tuple[int, int]:
    """Where every expert is as likely, by counting: a token misses a rank if all of its choices are elsewhere."""
    whole, others = experts * RANKS, experts * (RANKS - 1)
    missed = others * (others - 1) / (whole * (whole - 1))
    return round(TOKENS * (1 - missed)), TOKENS * CHOICES // RANKS
