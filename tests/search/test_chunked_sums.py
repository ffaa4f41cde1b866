"""Redistributions in chunks beside products: pinned, written in the program, priced as they run, kept in a plan."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autoplan.cost import Prices, operators_of
from autoplan.cost.chunk_seconds import beside_products, best_chunks
from autoplan.emit.program_text import emit_program
from autoplan.errors import LayoutError, ParallelismError
from autoplan.ir.choice import BlockChoice, tensor_mesh
from autoplan.ir.codec import decode, encode
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import LoweredBlock, Move
from autoplan.lower.after_search import program_of
from autoplan.options import Parallelism, Training
from autoplan.redistribution.chunks import check_cut, products_beside
from autoplan.report.idle_options import idle_options
from autoplan.report.words import headline
from tests.support.hand_made import llama
from tests.support.records import record_of

MIXED = Training(precision="bf16-mixed")
SIZES = {"batch": 8, "seq": 2048, "hidden": 4096, "ffn": 14336, "vocab": 4096, "layers": 4, "dtype": "bfloat16"}
PINNED = {"tp": 4, "dp": 1, "pp": 1, "micro_batch": 2, "tensor": (4,)}


def record(**pinned: object) -> PlanRecord:
    return record_of(llama(**SIZES), "1x4 h100-sxm", MIXED, **{**PINNED, **pinned})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def cut() -> PlanRecord:
    return record(sequence_parallel=True, tp_overlap=4)


@pytest.fixture(scope="module")
def summed() -> PlanRecord:
    return record(sequence_parallel=False, tp_overlap=4)


def layer(found: PlanRecord) -> LoweredBlock:
    return program_of(found).blocks[1]


def steps(found: PlanRecord) -> list[tuple[str, int]]:
    return [(s.op, s.chunks) for m in layer(found).body if isinstance(m, Move) for s in m.collectives if s.forward]


def test_a_layers_gathers_and_sums_are_cut(cut: PlanRecord, summed: PlanRecord) -> None:
    assert steps(cut) == [("all_gather", 4), ("reduce_scatter", 4)] * 2
    assert steps(summed) == [("all_reduce", 4)] * 2
    source, whole = (emit_program(program_of(found), "a plan") for found in (cut, summed))
    assert source.count("chunked_linear(") == 3 and source.count("row_linear(") == 2  # a head's, too
    assert "chunked_linear(" not in whole and whole.count("row_linear(") == 2
    assert "in 4 chunks, under the product" in source and "all_gather(" not in source.partition("class Layer")[2]


def test_a_plan_says_so_and_is_read_back(cut: PlanRecord) -> None:
    assert cut.chosen.parallelism.tp_overlap == 4 and "tensor collectives in 4 chunks" in headline(cut)
    data = json.loads(json.dumps(encode(cut.chosen.blocks)))
    assert decode(tuple[BlockChoice, ...], data, "plan.json") == cut.chosen.blocks


def test_nothing_is_cut_unless_it_is_asked_for() -> None:
    found = record(sequence_parallel=True)
    assert {chunks for _, chunks in steps(found)} == {1} and found.chosen.parallelism.tp_overlap is None
    assert "chunk" not in headline(found)


def test_chunks_are_priced_as_they_run(cut: PlanRecord) -> None:
    """As many times as there are chunks, each of so many bytes; at most all but one of them is hidden."""
    whole = {c.where: c for c in record(sequence_parallel=True).chosen.predicted.collectives if c.axis == "tp"}
    found = {c.where: c for c in cut.chosen.predicted.collectives if c.axis == "tp"}
    assert set(found) == set(whole)
    hidden = [c for c in found.values() if c.count == 4 * whole[c.where].count]
    assert {c.kind for c in hidden} == {"all-gather", "reduce-scatter"} and len(hidden) == 7
    for one in hidden:
        assert one.bytes * 4 == whole[one.where].bytes and one.seconds > whole[one.where].seconds
        assert 0 < one.hidden_s <= 0.75 * one.seconds
        assert whole[one.where].hidden_s == 0
    back = [c for c in found.values() if c.kind == "reduce-scatter" and "(backward)" in c.where]
    assert len(back) == 3 and all(c == whole[c.where] for c in back)  # the gradient's sum, as it was


def test_what_is_hidden_is_what_the_products_last(cut: PlanRecord) -> None:
    mesh, block, choice = tensor_mesh(cut.chosen.mesh), cut.model.blocks[1], cut.chosen.blocks[1]
    prices = Prices(mesh, cut.cluster.topology(), True, True, 1, chunks=(2, 8))
    operators, strategies = operators_of(block, fuses=True), dict(choice.strategies)
    for number, nodes in products_beside(block, choice, mesh).items():
        (step,) = choice.hops[number].steps or ()
        products, cost = [(operators[n.name], strategies[n.name]) for n in nodes], prices.step(step, True)
        beside = beside_products(prices, step, cost, products)
        slowdown = prices.device.overlap_slowdown
        product_s = sum(prices.operator(*product).forward_s for product in products)
        assert beside.hidden_forward_s >= min(0.75 * product_s, 0.75 * cost.forward_s / (1 + slowdown)) * (1 - 1e-9)
        assert beside.more_forward_s > 0
        assert (beside.hidden_backward_s > 0) == (step.op == "reduce_scatter") == (beside.more_backward_s > 0)
        assert beside_products(prices, replace(step, chunks=1), cost, products).cost.seconds == 0
        one = replace(step, chunks=1)
        assert best_chunks(prices, one, prices.step(one, True), 6, products, True)[0] == 2  # 8 don't divide 6 rows
        asked = replace(prices, chunks=(1, 2, 8))
        best, saved_s = best_chunks(asked, one, asked.step(one, True), 1024, products, True)
        assert saved_s >= 0 and (best == 1) == (saved_s == 0)


def test_left_to_the_search_each_is_cut_where_that_is_quicker(summed: PlanRecord) -> None:
    """As pinned again; never slower than whole, nor than any number of chunks for all."""
    whole, found = record(sequence_parallel=False), record(sequence_parallel=False, tp_overlap="auto")
    assert found.chosen.parallelism.tp_overlap == "auto" and "tensor collectives in chunks" in headline(found)
    assert 1 < max(chunks for _, chunks in steps(found)) <= 16
    seconds = [each.chosen.predicted.step_time_s for each in (whole, found, summed)]
    assert seconds[1] < min(seconds[0], seconds[2])
    assert record(**found.chosen.parallelism.pinned()).chosen.predicted.step_time_s == seconds[1]


def test_left_to_the_search_nothing_is_cut_where_nothing_hides() -> None:
    found = record_of(llama(), "1x4 cpu", tp=4, dp=1, pp=1, micro_batch=8, tp_overlap="auto", sequence_parallel=True)
    assert {chunks for _, chunks in steps(found)} == {1} and found.chosen.parallelism.tp_overlap is None
    asked = replace(found.asked, parallelism=Parallelism(tp_overlap="auto"))
    (told,) = (line for line in idle_options(replace(found, asked=asked)) if "tp_overlap" in line)
    assert told.startswith("No effect: tp_overlap='auto', for nothing is predicted to be quicker for it")


def test_a_device_that_waits_for_each_collective_hides_none() -> None:
    found = record_of(llama(), "1x4 cpu", tp=4, dp=1, pp=1, micro_batch=8, tp_overlap=2, sequence_parallel=True)
    assert ("reduce_scatter", 2) in steps(found)
    assert not any(c.hidden_s for c in found.chosen.predicted.collectives if c.axis == "tp")


def test_rows_that_do_not_divide_stay_whole_and_that_is_told() -> None:
    found = record_of(llama(), "1x2 cpu", tp=2, dp=1, pp=1, micro_batch=8, tp_overlap=7)
    assert {chunks for _, chunks in steps(found)} == {1}
    asked = replace(found.asked, parallelism=Parallelism(tp_overlap=7))
    assert idle_options(replace(found, asked=asked))[0].startswith("No effect: tp_overlap=7")


@pytest.mark.parametrize(
    ("pinned", "said"),
    [
        ({"pipeline_schedule": "zero-bubble", "pp": 2, "tp": 2}, "gives both at once"),
        ({"tp": 1, "dp": 4}, "over the tensor axis"),
        ({"tp_overlap": 0}, "at least 1"),
        ({"tp_overlap": "all"}, "number of chunks"),
    ],
)
def test_what_cannot_be_is_refused(pinned: dict[str, object], said: str) -> None:
    with pytest.raises(ParallelismError, match=said):
        record_of(llama(), "1x4 cpu", **{"tp_overlap": 2, **pinned})  # type: ignore[arg-type]


def test_a_cut_where_no_product_stands_is_refused(cut: PlanRecord) -> None:
    """As an edited plan may say."""
    block = layer(cut)
    check_cut(block)
    with pytest.raises(LayoutError, match="no product runs beside them"):
        check_cut(replace(block, hidden=()))
