"""What a full recomputation runs again is what is priced: an eager layer's second forward stops at its last saved
tensor, and its parameters aren't gathered for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from autoplan.emit.calls.column_products import Lines
from autoplan.ir.typed_program import Move
from autoplan.options import Parallelism
from autoplan.rehearsal.pricing.price_check import balance
from autoplan.rehearsal.pricing.priced_operators import AGAIN, FORWARD, launched, places_of
from autoplan.rehearsal.pricing.priced_plan import PlanPrices, RankShare
from autoplan.search.block_cost.early_stop import left_out
from autoplan.search.block_cost.live import walk_through
from tests.support.rehearsed_llama import TRAINING, rehearsed

EAGER = replace(TRAINING, compile=False)
PINNED = Parallelism(dp=1, tp=2, pp=1, micro_batch=4, recompute="full")
KINDS = {
    "tensor": (2, PINNED, "llama"),
    "sequence, zero 3": (4, replace(PINNED, dp=2, zero=3, micro_batch=2, sequence_parallel=True), "llama"),
    "chunks": (2, replace(PINNED, sequence_parallel=True, tp_overlap=2), "llama"),
    "biases and dropout": (2, PINNED, "gpt2"),
    "biases": (1, replace(PINNED, tp=1), "gpt2, no dropout"),
    "mixture": (2, replace(PINNED, tp=1, dp=2, ep=2, micro_batch=2), "mixtral"),
}
QUICK = ("sequence, zero 3", "biases and dropout")
LEFT = {
    "tensor": ["down_proj", "down_proj", "add_3"],
    "chunks": ["add_3"],
}


def gpt2(dropout: float) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=64, use_cache=False, resid_pdrop=dropout,
        embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    with torch.device("meta"):
        return GPT2LMHeadModel(config)


def names_left_out(share: RankShare, block: int) -> list[str]:
    choice = share.plan.record.chosen.blocks[block]
    block_of = share.plan.record.model.blocks[block]
    return [name for name, _ in left_out(walk_through(block_of, choice, share.plan.operators[block], share.prices))]


@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k in QUICK else pytest.mark.slow) for k in KINDS])
def test_what_runs_again_is_what_is_priced(kind: str, tmp_path: Path) -> None:
    devices, pinned, name = KINDS[kind]
    model = gpt2(0.0 if "no" in name else 0.1) if name.startswith("gpt2") else None
    found = rehearsed(tmp_path / "out", pinned, devices, training=EAGER, model=model, experts=name == "mixtral")
    plan = PlanPrices.of(found.record)
    for trace in found.traces.values():
        account, share = balance(plan, trace), plan.share(trace)
        assert account.holds, str(account)
        _, full, _ = share.uses()
        calls = launched(trace, places_of(found.program, plan.lowered))
        counts = Counter((each.place.block, each.place.statement, each.phase) for each in calls)
        for block in full:
            line_of = Lines.of(plan.lowered.blocks[block]).line_of
            left = names_left_out(share, block)
            assert left == LEFT.get(kind, left) and left
            sums = {s.value.name for s in plan.lowered.blocks[block].body if isinstance(s, Move) and s.source in left}
            skipped = {line_of.get(value, value) for value in left} | sums
            ran = {s: n for (b, s, phase), n in counts.items() if b == block and s and phase == FORWARD}
            again = {s: n for (b, s, phase), n in counts.items() if b == block and s and phase == AGAIN}
            assert again == {statement: n for statement, n in ran.items() if statement not in skipped}


def test_a_compiled_layer_runs_whole_again_and_an_eager_one_does_not(tmp_path: Path) -> None:
    seconds = {}
    for compiled in (False, True):
        found = rehearsed(tmp_path / str(compiled), PINNED, 2, training=replace(TRAINING, compile=compiled))
        plan = PlanPrices.of(found.record)
        price, chain = plan.found.point.prices[1], plan.found.stage_model.chain
        moves = [moved for moved in price.moves if not moved.reruns]
        seconds[compiled] = price.forward_s - price.rerun_s - sum(moved.forward_s for moved in moves)
        assert len(moves) == (0 if compiled else 1)
        assert chain.full_s[1] == pytest.approx(price.rerun_s)
    assert seconds[False] > seconds[True] == 0


def test_parameters_are_gathered_for_the_backward_alone(tmp_path: Path) -> None:
    """A layer that runs again reads what its backward gathers, and hides more of that."""
    found = rehearsed(tmp_path / "out", KINDS["sequence, zero 3"][1], 4, training=EAGER)
    plan = PlanPrices.of(found.record)
    chain, price, data = plan.found.stage_model.chain, plan.found.point.prices[1], plan.found.stage_model.data
    held = price.parameters, price.frozen
    gather_s = data.exposed_forward_s(price.forward_s, *held)
    copy_s, _ = data.copies_s(sum(price.parameters.values()))
    assert gather_s + copy_s > 0 and chain.forward_s[1] == pytest.approx(price.forward_s + gather_s + copy_s)
    assert chain.full_s[1] == pytest.approx(price.rerun_s - chain.covered_s[1])
    longer_s = price.backward_s + price.rerun_s
    found_s = [data.exposed_backward_s(seconds, *held) for seconds in (price.backward_s, longer_s)]
    assert chain.covered_s[1] == pytest.approx(found_s[0] - found_s[1]) and chain.covered_s[1] >= 0
