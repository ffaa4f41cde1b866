"""Plans whose ranks draw their own dropout: what is printed, said, priced, verified and refused."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import autoplan
from autoplan import Parallelism, Training
from autoplan.cost.operators.operator_seconds import operators_of
from autoplan.emit.sized_program import program_text
from autoplan.errors import ParallelismError
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import MICROBATCH
from autoplan.ir.randomness import ATTENTION, DROPOUT, drops_by_rank, random_operators
from autoplan.ir.typed_program import Compute, LoweredBlock
from autoplan.lower.after_search import program_of
from autoplan.lower.one_seed import check_one_seed
from autoplan.plan import Plan
from autoplan.rules.registry import rule_of
from autoplan.runtime.ops.attention.heads import attention_with_dropout
from autoplan.runtime.ops.global_random import step_keys
from tests.support import zoo
from tests.support.planning import parallelize_unproved

PINNED = Parallelism(dp=2, tp=2, pp=1, micro_batch=2)


@functools.cache
def planned(randomness: str, cluster: str = "1x4 cpu", **training: object) -> Plan:
    module, batch, _ = zoo.small("gpt2", layers=2, dropout=0.25)
    told = Training(randomness=randomness, **training)  # type: ignore[arg-type]
    return parallelize_unproved(module, cluster, batch, training=told, parallelism=PINNED)


def text(plan: Plan) -> str:
    """Its program.py."""
    return program_text(plan.record, str(plan))


def test_the_program_says_who_draws() -> None:
    own = text(planned("per-rank"))
    assert "dropout_by_rank(c_proj_1, 0.25, key=dropout_key, call=self.first_dropout + 1, axes=(self.dp,))" in own
    assert "attention_by_rank(q, k, v, dropout_p=0.25, is_causal=True, " in own
    assert "call=self.first_dropout, axes=(self.dp, self.tp,))" in own
    assert "self.attention_drawn_over = (self.dp, self.tp,)" in own
    assert "attention_with_dropout" not in own and "microbatch_dim" not in own


@pytest.mark.slow
def test_the_default_is_what_it_was() -> None:
    """Asked for again, a plan that draws by rank is the default one."""
    default = text(planned("global"))
    assert "by_rank" not in default and "attention_drawn_over" not in default and "microbatch_dim" in default
    again = planned("per-rank").what_if(training=Training())
    assert text(again) == default
    other = planned("global").what_if(training=Training(randomness="per-rank"))
    assert text(other) == text(planned("per-rank"))


def test_the_plan_and_its_report_say_so(tmp_path: object) -> None:
    plan = planned("per-rank")
    loaded = autoplan.load(plan.export(f"{tmp_path}/out"))
    assert loaded.record.training.draws_by_rank
    said = " ".join(loaded.report(verbose=True).split())
    assert "dropout drawn per rank" in said and "The draws aren't one device's" in said
    assert "no scores go through memory" in said
    assert loaded.report() == plan.report()
    assert "per rank" not in planned("global").report()


def test_it_is_verified_with_draws_that_one_device_has() -> None:
    result = planned("per-rank").verify()
    assert result.passed
    assert "what each rank draws for itself (randomness='per-rank') no one device draws" in result.note


def test_no_other_randomness() -> None:
    with pytest.raises(ParallelismError, match=r"randomness='rank'.*'per-rank'"):
        Training(randomness="rank")


def test_on_a_gpu_attention_is_quicker_and_keeps_less() -> None:
    def priced(randomness: str) -> tuple[float, float]:
        plan = planned(randomness, "1x4 a100-sxm-80gb", precision="bf16-mixed")
        found = [o for b in plan.record.model.blocks for o in operators_of(b, fuses=True).values()]
        return plan.predicted.step_time_s, sum(o.beside for o in found if o.node.op == ATTENTION)

    (own_s, own_bytes), (placed_s, placed_bytes) = priced("per-rank"), priced("global")
    assert own_s < placed_s and own_bytes < placed_bytes


def test_masks_are_kept_in_eager_mode_alone() -> None:
    model = planned("per-rank").record.model
    for fuses, kept in ((False, 1.0), (True, 0.0)):
        found = [o for b in model.blocks for o in operators_of(b, fuses=fuses).values() if o.node.op == DROPOUT]
        assert found and all(operator.beside == kept for operator in found)


def test_scores_are_accounted_for_as_they_are_kept() -> None:
    """Of the default, whose attention drops by each element's place."""
    block, node = next((b, n) for b in planned("global").record.model.blocks for n in b.nodes if n.op == ATTENTION)
    types = block.types()
    q, k, v = (torch.randn(types[name].shape, requires_grad=True) for name in node.operands)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        attention_with_dropout(q, k, v, None, 0.25, True, key=step_keys(0, 0, 1)[0], call=0)
    for tensor in (q, k, v):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    rule = rule_of(node, types)
    told = rule.saved_bytes_per_element * node.type.elements
    scores = q.shape[-2] * k.shape[-2]  # which of them are seen is a byte each, once for all heads
    inputs = q.nbytes + k.nbytes  # copied into order for the product
    assert "out" not in rule.saved
    assert told <= sum(kept.values()) <= told + scores + inputs + 16


def test_attentions_of_a_compiled_segment_are_split_alike() -> None:
    lowered = program_of(planned("per-rank").record)
    check_one_seed(lowered)
    block = next(b for b in lowered.blocks if any(c.op == ATTENTION for c in random_operators(b)))
    drops = next(s for s in block.body if isinstance(s, Compute) and s.op == ATTENTION and drops_by_rank(s))
    dims = drops.value.layout.dims
    assert MICROBATCH in dims[0]
    whole = Layout((dims[0], (), *dims[2:]), drops.value.layout.rest)
    other = replace(drops, value=replace(drops.value, name="another", layout=whole))
    two = with_body(block, (*block.body, other))
    with pytest.raises(ParallelismError, match=r"several seeds.*compile=False"):
        check_one_seed(replace(lowered, blocks=tuple(two if b is block else b for b in lowered.blocks)))


def with_body(block: LoweredBlock, body: tuple) -> LoweredBlock:
    return replace(block, body=body)
