"""What a plan prices is what its program issues, and the other way round; whatever is changed in a trace is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import starmap
from pathlib import Path

import pytest

from autoplan import forbid
from autoplan.errors import RehearsalError
from autoplan.options import Parallelism
from autoplan.rehearsal import rehearse
from autoplan.rehearsal.pricing.parameter_calls import WHOLE
from autoplan.rehearsal.pricing.price_check import CROSSING, Balance, balance
from autoplan.rehearsal.pricing.priced_operators import places_of
from autoplan.rehearsal.pricing.priced_plan import PlanPrices
from autoplan.rehearsal.pricing.seconds import copied_once_s, copied_s, prices_of, seconds_of
from autoplan.rehearsal.records import Call, RankTrace
from tests.support.operator_accounts import operator_account
from tests.support.rehearsed_llama import TRAINING, Rehearsed, rehearsed

KINDS = {
    "tensor": (4, 2, Parallelism(dp=1, tp=4, pp=1, micro_batch=4)),
    "sequence": (4, 2, Parallelism(dp=1, tp=4, pp=1, micro_batch=4, sequence_parallel=True)),
    "zero 0": (4, 2, Parallelism(dp=2, tp=2, pp=1, zero=0, micro_batch=2)),
    "zero 1": (2, 2, Parallelism(dp=2, tp=1, pp=1, zero=1, micro_batch=2)),
    "zero 2": (2, 2, Parallelism(dp=2, tp=1, pp=1, zero=2, micro_batch=2)),
    "zero 3": (2, 2, Parallelism(dp=2, tp=1, pp=1, zero=3, micro_batch=2)),
    "replicas, zero 1": (4, 2, Parallelism(dp=4, dp_replicate=2, tp=1, pp=1, zero=1, micro_batch=1)),
    "replicas, zero 3": (4, 2, Parallelism(dp=4, dp_replicate=2, tp=1, pp=1, zero=3, micro_batch=1)),
    "1f1b": (4, 4, Parallelism(dp=1, tp=2, pp=2, micro_batch=2, pipeline_schedule="1f1b")),
    "1f1b, zero 3": (4, 4, Parallelism(dp=2, tp=1, pp=2, zero=3, micro_batch=1, pipeline_schedule="1f1b")),
    "interleaved": (
        2, 4, Parallelism(dp=1, tp=1, pp=2, micro_batch=2, pipeline_schedule="interleaved", virtual_stages=2),
    ),
    "gossip": (4, 2, Parallelism(dp=2, tp=2, pp=1, micro_batch=2, gossip="ring")),
    "powersgd": (
        4, 2, Parallelism(dp=2, tp=2, pp=1, micro_batch=2, compression="powersgd", compression_rank=2),
    ),
    "powersgd, interleaved": (
        4, 4,
        Parallelism(
            dp=2, tp=1, pp=2, micro_batch=2, pipeline_schedule="interleaved", virtual_stages=2, compression="powersgd",
        ),
    ),
    "int8, interleaved": (
        4, 4,
        Parallelism(
            dp=2, tp=1, pp=2, micro_batch=2, pipeline_schedule="interleaved", virtual_stages=2, compression="int8",
        ),
    ),
    "1bit": (2, 2, Parallelism(dp=2, tp=1, pp=1, micro_batch=2, compression="1bit")),
    "1bit-lamb": (2, 2, Parallelism(dp=2, tp=1, pp=1, micro_batch=2, compression="1bit-lamb")),
    "topk": (4, 2, Parallelism(dp=2, tp=2, pp=1, micro_batch=2, compression="topk", compression_rate=0.05)),
    "powersgd between pairs": (
        4, 2, Parallelism(dp=4, tp=1, pp=1, micro_batch=1, compression="powersgd", compression_within=2),
    ),
    "1bit between pairs": (
        4, 2, Parallelism(dp=4, tp=1, pp=1, micro_batch=1, compression="1bit", compression_within=2),
    ),
    "recomputed": (4, 2, Parallelism(dp=2, tp=2, pp=1, zero=1, micro_batch=2, recompute="full")),
    "selective": (2, 2, Parallelism(dp=1, tp=2, pp=1, micro_batch=2, recompute="selective")),
    "sequence, selective": (
        2, 2, Parallelism(dp=1, tp=2, pp=1, micro_batch=2, recompute="selective", sequence_parallel=True),
    ),
    "chunks": (2, 2, Parallelism(dp=1, tp=2, pp=1, micro_batch=2, sequence_parallel=False, tp_overlap=4)),
    "chunks, recomputed": (
        4, 2, Parallelism(dp=2, tp=2, pp=1, micro_batch=2, recompute="full", sequence_parallel=True, tp_overlap=2),
    ),
    "chunks, sequence, selective": (
        2, 2,
        Parallelism(dp=1, tp=2, pp=1, micro_batch=2, recompute="selective", sequence_parallel=True, tp_overlap=4),
    ),
    "ring": (4, 2, Parallelism(dp=1, cp=4, tp=1, pp=1, micro_batch=4, cp_attention="ring")),
    "ring, sequence": (
        4, 2, Parallelism(dp=1, cp=2, tp=2, pp=1, micro_batch=4, cp_attention="ring", sequence_parallel=True),
    ),
}  # fmt: skip
"""(devices, layers, what is pinned)"""
FLASH = "aten._scaled_dot_product_flash_attention"
QUICK = ("recomputed", "chunks, sequence, selective")  # tensor, sequence and data axes, ZeRO are among them


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in KINDS],
    ids=[name.replace(", ", "-").replace(" ", "-") for name in KINDS],
)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    devices, layers, parallelism = KINDS[request.param]
    one_bit = parallelism.compressed is not None and parallelism.compressed.one_bit
    training = replace(TRAINING, clip_grad_norm=None) if one_bit else TRAINING
    training = replace(training, optimizer="lamb") if parallelism.compression == "1bit-lamb" else training
    return rehearsed(tmp_path_factory.mktemp("plan") / "out", parallelism, devices, layers, training=training)


@pytest.fixture(scope="module")
def plan(found: Rehearsed) -> PlanPrices:
    return PlanPrices.of(found.record)


def test_a_plan_priced_again_is_the_plan(found: Rehearsed, plan: PlanPrices) -> None:
    assert plan.found.step_s == pytest.approx(found.record.chosen.predicted.step_time_s, rel=1e-12)


def test_every_call_is_priced_and_every_priced_call_is_made(found: Rehearsed, plan: PlanPrices) -> None:
    for trace in found.traces.values():
        account = balance(plan, trace)
        assert account.holds, str(account)
        issued, unpriced = [c for c in trace.calls if c.kind in CROSSING], sum(c.count for c in account.left_out)
        assert unpriced <= 6 and unpriced < len(issued)


@pytest.mark.parametrize("zero", [2, 3])
def test_a_step_of_fewer_microbatches_is_priced_as_one(tmp_path: Path, zero: int) -> None:
    """As rehearsals of many microbatches run: ZeRO-3 gathers parameters, and both scatter gradients, in each."""
    found = rehearsed(tmp_path / "out", replace(KINDS["zero 3"][2], zero=zero), 2)
    (trace,) = rehearse.each_apart([(found.folder, 0, 1, False)])
    assert not isinstance(trace, str), trace
    assert trace.microbatches < next(iter(found.traces.values())).microbatches
    account = balance(PlanPrices.of(found.record), trace)
    assert account.holds, str(account)


def test_an_edited_program_is_told(found: Rehearsed, plan: PlanPrices) -> None:
    edited = found.program.replace("        return ", "        spare = 1\n        return ")
    with pytest.raises(RehearsalError, match="edited, or of another release"):
        places_of(edited, plan.lowered)


def test_products_have_the_flops_that_are_priced(found: Rehearsed, plan: PlanPrices) -> None:
    for trace in found.traces.values():
        account = operator_account(plan, trace, found.program)
        assert account.flops and not account.differences, account.differences
        assert not account.unrun
        layer = [each for each in account.flops if each.block == "LlamaDecoderLayer"]
        products = ", ".join(each.statement for each in layer).split(", ")
        assert len(products) == 8  # seven products and attention
        assert {FLASH, f"{FLASH}_backward"} <= {call.name for call in trace.calls}


def test_the_calls_of_a_rank_take_what_the_plan_says(found: Rehearsed, plan: PlanPrices) -> None:
    for trace in found.traces.values():
        seconds, stages, costs = seconds_of(plan, trace, found.program), plan.found.stages, plan.found.stage_model
        mine = [(stages[k], (stages[k].first, stages[k].last)) for k in trace.stages]
        forward_s, backward_s, update_s = (spent_s(trace, seconds, part) for part in ("forward", "backward", "update"))
        local_s = sum(costs.once_s(at)[3] for _, at in mine)
        met_s = sum(costs.once_s(at)[0] for _, at in mine) if plan.found.candidate.gossip else 0.0  # after the update
        local_s += met_s
        assert update_s + once_copied_s(plan, trace, seconds) == pytest.approx(local_s)
        if plan.found.candidate.zero:  # gathers and scatters stand beside, of which the plan hides a part
            assert sum(seconds) > sum(costs.forward_s(at) - costs.exposed_s(at) for _, at in mine)
            continue
        if plan.found.candidate.compressed:
            backward_s += spent_s(trace, seconds, "start")  # factors follow the last backward of a schedule
        summed_s = sum(costs.once_s(at)[0] + costs.once_s(at)[2] for _, at in mine)  # over data and over tensor axes
        summed_s -= met_s
        again = [costs.backward_s(at, stage.recompute, stage.selective) for stage, at in mine]
        blocks = [found.record.model.segments[k].block for _, at in mine for k in range(*at)]
        moves = [moved for block in blocks for moved in plan.found.point.prices[block].moves]
        again_of = [costs.recomputed(at, stage.recompute, stage.selective) for stage, at in mine]
        whole, partly = ([flag for each in again_of for flag in each[place]] for place in (0, 1))
        runs = zip(blocks, partly, strict=True)
        repeated = [block for block, full in zip(blocks, whole, strict=True) if full]
        twice = [moved for block, part in runs if part for moved in plan.found.point.prices[block].moves if moved.again]
        slowdown = costs.data.prices.device.overlap_slowdown
        in_full = (1 + slowdown) * trace.microbatches  # of what is hidden: the calls, and what they slow
        ahead_s = in_full * sum(moved.hidden_forward_s for moved in moves)
        chunked = found.record.chosen.parallelism.tp_overlap is not None
        assert (ahead_s > 0) == (plan.found.candidate.cp > 1 or chunked)  # a ring's blocks hide its sends
        wanted_s = trace.microbatches * sum(costs.forward_s(at) for _, at in mine) + ahead_s
        hidden_s = sum(moved.hidden_backward_s for moved in moves) + sum(moved.hidden_again_s for moved in twice)
        hidden_s += sum(m.hidden_forward_s for block in repeated for m in plan.found.point.prices[block].moves)
        slowed_s = in_full * hidden_s
        once_s = sum(costs.once_s(at)[1] for _, at in mine)
        back_s = trace.microbatches * sum(again) + summed_s + slowed_s + slowdown * once_s
        assert forward_s + backward_s == pytest.approx(wanted_s + back_s)
        if not ahead_s:  # a ring's messages share their seconds by their bytes, those of both ways together
            assert forward_s == pytest.approx(wanted_s)
        if len(stages) == 1:
            found_s = plan.found.step_s + ahead_s + slowed_s + (1 + slowdown) * once_s
            assert sum(seconds) == pytest.approx(found_s)


def once_copied_s(plan: PlanPrices, trace: RankTrace, seconds: Sequence[float]) -> float:
    """What fully_shard's copies take, wherever they are made, beside those of each microbatch."""
    share = plan.share(trace)
    copies = copied_s(share)
    each_s = sum(copies.values()) - sum(copied_once_s(share))
    return sum(seconds[c.number] for c in trace.calls if c.name in copies and c.during != "update") - each_s


def spent_s(trace: RankTrace, seconds: Sequence[float], phase: str) -> float:
    calls = [c for c in trace.calls if c.kind not in ("send", "receive")]
    return sum(seconds[c.number] for c in calls if c.during.startswith(phase))


def test_each_call_of_each_rank_has_its_price(found: Rehearsed, plan: PlanPrices) -> None:
    price = prices_of(plan, found.traces.values(), found.program)
    for trace in found.traces.values():
        seconds = [price(trace, call) for call in trace.calls]
        assert min(seconds) == 0 < max(seconds)
        assert not any(s for s, c in zip(seconds, trace.calls, strict=True) if c.kind in ("wait", "join", "stop"))


def test_whatever_is_changed_is_told(found: Rehearsed, plan: PlanPrices) -> None:
    """For every kind of call a rank issues: one of it lacking, issued twice, of other bytes, over another group."""
    for trace in found.traces.values():
        alike = {(c.kind, c.name, c.bytes, c.span): c for c in trace.calls if c.kind in CROSSING and c.span}
        for call in alike.values():
            for account in starmap(told, [(plan, trace, call, change) for change in CHANGES]):
                assert not account.holds
                assert any(d.kind in call.name for d in account.differences)


@pytest.mark.slow
def test_gradients_of_tied_embeddings_are_priced(tmp_path: Path) -> None:
    """Stages that read the same parameter sum its gradients; so do ranks of the data axis before, with all others."""
    pinned = Parallelism(dp=2, tp=1, pp=2, zero=0, micro_batch=2, pipeline_schedule="1f1b")
    found = rehearsed(tmp_path / "out", pinned, 4, tied=True)
    plan = PlanPrices.of(found.record)
    (row,) = [c for c in found.record.chosen.predicted.collectives if c.where == "gradients of tied weights"]
    assert (row.kind, row.axis, row.bytes, row.count) == ("all-reduce", "pp", 256 * 64 * 4, 1) and row.seconds > 0
    for trace in found.traces.values():
        account = balance(plan, trace)
        assert account.holds, str(account)
        assert any(call.where == row.where and call.seconds == pytest.approx(row.seconds) for call in account.priced)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"dp": 2, "tp": 1, "zero": 1},
        pytest.param({"dp": 1, "tp": 2}, marks=pytest.mark.slow),
        pytest.param({"dp": 2, "tp": 2, "zero": 3}, marks=pytest.mark.slow),
    ],
    ids=["zero1", "tensor", "both"],
)
def test_whole_matrices_are_gathered_around_their_update_at_a_price(tmp_path: Path, fields: dict) -> None:
    """Muon's: a matrix, its gradient and its momentum, over each axis that splits it; all are waited for."""
    pinned, devices = Parallelism(pp=1, micro_batch=2, **fields), fields["dp"] * fields["tp"]
    found = rehearsed(tmp_path / "out", pinned, devices, training=replace(TRAINING, optimizer="muon"))
    (trace,), plan = found.traces.values(), PlanPrices.of(found.record)
    account = balance(plan, trace)
    assert account.holds, str(account)
    gathers = [call for call in account.priced if call.where == WHOLE]
    assert gathers and all(call.count % 3 == 0 and call.seconds > 0 for call in gathers)
    waited = {number for call in trace.calls if call.kind == "wait" for number in call.of}
    assert {c.number for c in trace.calls if c.kind == "collective" and c.during == "update"} <= waited
    seconds = seconds_of(plan, trace, found.program)
    spent = sum(seconds[c.number] for c in trace.calls if c.during == "update") + once_copied_s(plan, trace, seconds)
    share = plan.share(trace)
    assert spent == pytest.approx(sum(share.stage_model.once_s(at)[3] for at in share.intervals))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dp", "ep", "zero", "kind"),
    [
        (4, 2, 0, "all-reduce"), (4, 2, 1, "reduce-scatter"), (4, 2, 3, "reduce-scatter"),
        (8, 4, 1, "reduce-scatter"), (8, 4, 3, "reduce-scatter"),  # two ranks share an expert, cut by its columns
    ],
)  # fmt: skip
def test_dense_weights_and_experts_are_priced_over_groups_of_their_own(
    tmp_path: Path, dp: int, ep: int, zero: int, kind: str
) -> None:
    """Dense weights are whole along ep, whose ranks have gradients of other rows; experts are split over it."""
    pinned = Parallelism(dp=dp, ep=ep, tp=1, pp=1, zero=zero, micro_batch=1)
    found = rehearsed(tmp_path / "out", pinned, dp, experts=True)
    (trace,), plan = found.traces.values(), PlanPrices.of(found.record)
    account = balance(plan, trace)
    assert account.holds, str(account)
    held = {axes: sum(2 * math.prod(p.local_shape) for p in plan.lowered.parameters if p.reduce_axes == axes)
            for axes in (("dp", "ep"), ("dp",))}  # fmt: skip
    rows = [c for c in found.record.chosen.predicted.collectives if c.where == "gradients"]
    assert {(c.kind, c.axis) for c in rows} == {(kind, "dp,ep"), (kind, "dp")}
    assert {c.axis: c.bytes for c in rows} == {",".join(axes): 2 * size for axes, size in held.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("ep", "replicas"), [(4, 1), (2, 2)])
def test_experts_axis_alone_shards_what_is_whole_along_it(tmp_path: Path, ep: int, replicas: int) -> None:
    """Dense weights are gathered and scattered over ep; of experts each rank has its own, and exchanges nothing but
    with replicas, each of which has all."""
    pinned = Parallelism(dp=4, ep=ep, tp=1, pp=1, zero=3, micro_batch=1, dp_replicate=replicas)
    found = rehearsed(tmp_path / "out", pinned, 4, experts=True)
    (trace,), plan = found.traces.values(), PlanPrices.of(found.record)
    account = balance(plan, trace)
    assert account.holds, str(account)
    rows = [c for c in found.record.chosen.predicted.collectives if c.where in ("gradients", "parameters")]
    across = {("all-reduce", "dp.outer2")} if replicas == 2 else set()
    assert {(c.kind, c.axis) for c in rows} == {("all-gather", "ep"), ("reduce-scatter", "ep")} | across


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pinned", "axes"),
    [
        ({"dp": 2, "tp": 2, "ep": 4, "etp": 1, "zero": 1, "sequence_parallel": True}, "ep,tp"),
        ({"dp": 2, "cp": 2, "ep": 4, "zero": 3, "cp_attention": "rows"}, "ep,cp"),
        ({"dp": 2, "tp": 2, "ep": 2, "etp": 2, "zero": 1}, "ep"),
    ],
)
def test_tokens_travel_over_all_axes_that_split_experts_at_once(tmp_path: Path, pinned: dict, axes: str) -> None:
    """And what is issued is what is priced, as everywhere."""
    asked = Parallelism(**{"tp": 1, "pp": 1, "micro_batch": 2} | pinned)
    travel = [forbid("autoplan.experts", "P", axis="ep")]
    found = rehearsed(tmp_path / "out", asked, 4, experts=True, constraints=travel)
    (trace,), plan = found.traces.values(), PlanPrices.of(found.record)
    account = balance(plan, trace)
    assert account.holds, str(account)
    over = {c.axis for c in found.record.chosen.predicted.collectives if c.where.endswith("experts")}
    assert axes in over and over <= {axes, "tp"}
    message = max((c for c in trace.calls if c.name.startswith("all-to-all")), key=lambda call: call.bytes)
    fewer = told(plan, trace, message, lambda call: [replace(call, bytes=round(0.95 * call.bytes))])
    assert {d.bytes for d in fewer.differences if d.issued} >= {round(0.95 * message.bytes)}, str(fewer)


def told(plan: PlanPrices, trace: RankTrace, call: Call, change: Callable[[Call], list[Call]]) -> Balance:
    at = trace.calls.index(call)
    changed = (*trace.calls[:at], *change(call), *trace.calls[at + 1 :])
    return balance(plan, replace(trace, calls=changed))


def lacks(call: Call) -> list[Call]:
    return []


def doubles(call: Call) -> list[Call]:
    return [call, replace(call, number=-1)]


def grows(call: Call) -> list[Call]:
    return [replace(call, bytes=call.bytes + 4)]


def moves(call: Call) -> list[Call]:
    return [replace(call, span=((64, 2),))]


CHANGES = (lacks, doubles, grows, moves)
