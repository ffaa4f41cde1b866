"""Local variables of program.py are called as a person would call them; what no line shows stands at its top."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from autoplan.emit.program_notes import inside_comments, step_notes
from autoplan.emit.program_text import emit_program
from autoplan.emit.readable import readable_names
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Compute
from autoplan.lower.after_search import program_of
from autoplan.models.named import resolve_model
from autoplan.options import Parallelism, Training
from autoplan.report.explain import explain_text
from cost_models.pipeline import actions
from tests.support.hand_made import llama
from tests.support.planning import alone, parallelize_alone
from tests.support.records import record_of


@cache
def record(**pinned: object) -> PlanRecord:
    with alone():
        return record_of(llama(layers=4), "1x4 cpu", **pinned)


def source(plan: PlanRecord) -> str:
    return emit_program(program_of(plan), "a plan", (), plan.chosen)


SMALL = ("hidden_size=64", "intermediate_size=128", "num_hidden_layers=2", "num_attention_heads=4",
         "num_key_value_heads=2", "vocab_size=256")  # fmt: skip


@pytest.fixture(scope="module")
def traced() -> PlanRecord:
    """A Llama as it is traced: its operators are called after modules, or after themselves."""
    made = resolve_model("hf:llama", SMALL, batch=8, seq=16)
    pinned = Parallelism(dp=2, tp=2, pp=1)
    return parallelize_alone(made.model, "1x4 cpu", made.example_inputs, parallelism=pinned).record


def test_attention_reads_q_k_and_v(traced: PlanRecord) -> None:
    text = source(traced)
    assert "grouped_query_attention(q, k, v" in text, "in float32, where a kernel may take no groups"
    kinds = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    (layer,) = [node for node in kinds if node.name == "LlamaDecoderLayer"]
    stored = [n.id for n in ast.walk(layer) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    assert len(stored) == len(set(stored)), "each value has a variable of its own"
    assert not [name for name in stored if re.fullmatch(r"(transpose|reshape|mul|cast|add)(_\d+)?", name)]
    assert "residual" in stored


def test_grouped_attention_under_a_mask_is_the_runtimes() -> None:
    """In half precision the flash kernel takes groups, and no mask of a sliding window."""
    for model, window, own in (("hf:llama", (), False), ("hf:mistral", ("sliding_window=8",), True)):
        made = resolve_model(model, (*SMALL, *window), batch=8, seq=16)
        plan = parallelize_alone(
            made.model, "1x2 cpu", made.example_inputs, parallelism=Parallelism(dp=2, tp=1, pp=1),
            training=Training(precision="bf16-mixed"),
        )  # fmt: skip
        text = source(plan.record)
        assert ("= grouped_query_attention(" in text) == own
        assert ("= F.scaled_dot_product_attention(" in text) != own


def test_a_name_says_what_a_value_was_made_of(traced: PlanRecord) -> None:
    for block in program_of(traced).blocks:
        names, values = readable_names(block), {s.value.name for s in block.body}
        assert names.keys() == values
        for statement in block.body:
            if isinstance(statement, Compute) and statement.module.endswith(f".{statement.value.name}"):
                assert names[statement.value.name] == statement.value.name


def test_a_variable_can_be_explained(traced: PlanRecord) -> None:
    assert "= add(" in explain_text(traced, "residual") and "= add(" in explain_text(traced, "q")


def test_collectives_inside_an_operator_stand_beside_it() -> None:
    plan = record(dp=1, tp=4, pp=1)
    lowered = program_of(plan)
    comments = inside_comments(plan.chosen, lowered)
    inside = [(n, s) for n, b in enumerate(lowered.blocks) for s in b.body if isinstance(s, Compute) and s.body]
    assert comments.keys() == {(n, s.value.name) for n, s in inside} and inside
    text = source(plan)
    for (number, name), comment in comments.items():
        sent = [c for c in plan.chosen.predicted.collectives if c.where == f"{lowered.blocks[number].name} {name}"]
        assert sent and all(f"{c.kind} over {c.axis}" in comment for c in sent) and comment in text


def test_what_the_data_axis_sums_stands_at_the_top() -> None:
    plan = record(dp=4, tp=1, pp=1, zero=0)
    head = ast.get_docstring(ast.parse(source(plan)))
    gradients = next(c for c in plan.chosen.predicted.collectives if c.where == "gradients")
    assert head is not None and f"gradients: {gradients.kind} over dp" in head


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_schedule_stands_at_the_top(schedule: str) -> None:
    plan = record(dp=1, tp=1, pp=4, micro_batch=1, pipeline_schedule=schedule)
    lines = step_notes(plan.chosen, program_of(plan))
    for rank in (0, 3):
        told = next(line for line in lines if line.startswith(f"  rank {rank}: ")).split(": ")[1].split()
        order = actions(schedule, rank, 4, plan.chosen.microbatches)
        assert told[: len(order)] == [f"{a.kind}{a.microbatch}" for a in order[:10]] + ["…"] * (len(order) > 10)


def test_no_note_is_wider_than_a_line() -> None:
    for schedule in ("1f1b", "gpipe"):
        plan = record(dp=1, tp=1, pp=4, micro_batch=1, pipeline_schedule=schedule)
        assert all(len(line) <= 110 for line in step_notes(plan.chosen, program_of(plan)))
