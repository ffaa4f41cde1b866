"""Sums of inputs' gradients that run under weights' gradients: priced by search and plan alike, written in the program,
and never where the backward is split."""

from __future__ import annotations

import pytest

from autoplan.emit.program_text import emit_program
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Move
from autoplan.lower.after_search import program_of
from autoplan.options import Training
from tests.support.hand_made import llama
from tests.support.records import record_of

MIXED = Training(precision="bf16-mixed")
SIZES = {"batch": 16, "seq": 256, "hidden": 512, "ffn": 1536, "vocab": 4096, "layers": 4, "dtype": "bfloat16"}


def record(cluster: str = "1x8 h100-sxm", **pinned: object) -> PlanRecord:
    return record_of(llama(**SIZES), cluster, MIXED, **{"tp": 8, "micro_batch": 2, **pinned})  # type: ignore[arg-type]


def source_of(found: PlanRecord) -> str:
    return emit_program(program_of(found), "a plan")


def hidden_s(found: PlanRecord) -> dict[str, float]:
    predicted = found.chosen.predicted.collectives
    return {c.where: c.hidden_s for c in predicted if c.axis == "tp" and "(backward)" in c.where and c.hidden_s}


@pytest.mark.parametrize("sequence", [False, True], ids=["whole rows", "sequence parallel"])
def test_a_decoders_inputs_are_summed_under_its_weights_gradients(sequence: bool) -> None:
    """Of attention and the feed-forward: what enters them, not what leaves them."""
    found = record(sequence_parallel=sequence)
    decoder = program_of(found).blocks[1]
    moves = {s.value.name: s for s in decoder.body if isinstance(s, Move)}
    assert [len(products) for _, products in decoder.hidden] == [3, 2]
    assert {moves[name].collectives[0].op for name, _ in decoder.hidden} == {
        "all_gather" if sequence else "to_replicate"
    }
    assert len([where for where in hidden_s(found) if where.startswith(decoder.name)]) == 2
    call = "gathered_linear(" if sequence else "column_linear("
    assert source_of(found).count(call) == 3  # attention's, the feed-forward's, the vocabulary's


def test_no_more_is_hidden_than_there_is() -> None:
    for one in record().chosen.predicted.collectives:
        assert 0.0 <= one.hidden_s <= one.seconds


def test_nothing_hides_under_what_a_split_backward_computes_later() -> None:
    found = record(pp=2, tp=4, pipeline_schedule="zero-bubble")
    assert not any(block.hidden for block in program_of(found).blocks)
    assert not hidden_s(found)
    assert "column_linear(" not in source_of(found)


def test_a_device_that_waits_for_each_collective_hides_none() -> None:
    found = record_of(llama(), "1x4 cpu", tp=4, micro_batch=8)
    assert any(block.hidden for block in program_of(found).blocks)
    assert not hidden_s(found)


def test_what_is_gathered_is_gathered_again_under_products_where_a_segment_recomputes_selectively() -> None:
    """It isn't kept, nor a step of its own before the backward: the call gathers, and says so."""
    found = record(sequence_parallel=True, recompute="selective")
    source, decoder = source_of(found), program_of(found).blocks[1]
    gathered = {moved for moved, _ in decoder.hidden}
    assert len(gathered) == 2 and gathered <= set(decoder.again)
    assert source.count("regathered_linear(") == 2 and source.count("keeps(self)") == 2
    assert "again in a backward that recomputes" in source
    again = {c.where: c for c in found.chosen.predicted.collectives if c.kind == "all-gather" and c.hidden_s}
    assert len(again) == 2 and all(c.where.startswith(decoder.name) for c in again.values())
    for one in again.values():
        assert 0.0 < one.hidden_s <= one.seconds / 2  # once ahead, in the open; once again
    whole = record(sequence_parallel=True, recompute="none").chosen.predicted
    assert not any(c.kind == "all-gather" and c.hidden_s for c in whole.collectives)
