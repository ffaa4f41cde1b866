"""Tokens that travel beside what is computed: which operators these are, what hides, what is written, refused, told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from autoplan import Parallelism, Training, forbid
from autoplan.cost.operators.token_exchange import Computed, hidden_of
from autoplan.emit.program_text import emit_program
from autoplan.errors import LayoutError, ParallelismError
from autoplan.ir.choice import BlockChoice, tensor_mesh
from autoplan.ir.codec import decode, encode
from autoplan.lower.after_search import program_of
from autoplan.plan import Plan
from autoplan.redistribution.shared_experts import Beside, beside_mixture, in_order
from tests.support.mixtures import deepseek_v3, wide_qwen3
from tests.support.planning import parallelize_alone


def planned(
    module: nn.Module, how: object, *, cluster: str = "1x4 h100-sxm", tokens: int = 32, **pinned: object
) -> Plan:
    ids = torch.zeros(8, tokens, dtype=torch.int64, device="meta")
    sizes = {"dp": 4, "tp": 1, "pp": 1, "ep": 4, "micro_batch": 2, **pinned, "ep_overlap": how}
    return parallelize_alone(
        module.to("meta"), cluster, {"input_ids": ids, "labels": ids}, effort="fast",
        parallelism=Parallelism(**sizes), training=Training(compile=False),  # type: ignore[arg-type]
        constraints=[forbid("autoplan.experts", "P", axis="ep")],
    )  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Plan:
    return planned(deepseek_v3(), "shared")


@pytest.fixture(scope="module")
def whole() -> Plan:
    return planned(deepseek_v3(), None)


def test_of_one_chunk_weights_gradients_hide_what_goes_back() -> None:
    assert hidden_of(1, 5.0, 3.0, Computed(7.0), 0.0) == (0.0, 0.0)
    assert hidden_of(1, 5.0, 3.0, Computed(7.0, 2.0), 0.0) == (0.0, 2.0)
    assert hidden_of(1, 5.0, 3.0, Computed(7.0, 9.0), 0.0) == (0.0, 3.0)


def test_a_shared_expert_hides_what_is_computed_meanwhile() -> None:
    assert hidden_of(1, 5.0, 3.0, Computed(7.0, 0.0, there=4.0, back=1.0), 0.0) == (4.0, 1.0)
    assert hidden_of(1, 5.0, 3.0, Computed(7.0, 1.0, there=6.0, back=9.0), 0.0) == (5.0, 3.0)
    assert hidden_of(1, 6.0, 3.0, Computed(7.0, 0.0, there=6.0, back=9.0), 0.5) == (4.0, 2.0)  # it slows the compute


def test_of_chunks_the_first_there_and_the_last_back_are_in_the_open() -> None:
    """Each other one runs beside a chunk that is computed, and no longer than that takes."""
    assert hidden_of(4, 1.0, 1.0, Computed(9.0), 0.0) == (3.0, 3.0)
    assert sum(hidden_of(2, 4.0, 4.0, Computed(3.0), 0.0)) == 6.0
    for chunks in (2, 3, 8):
        there, back = hidden_of(chunks, 2.0, 3.0, Computed(1.0, 0.5), 0.0)
        assert there + back <= 1.5 * chunks
        assert there <= 2.0 * (chunks - 1) and back <= 3.0 * chunks


def test_a_shared_expert_stands_beside_the_others(shared: Plan) -> None:
    record = shared.record
    block, choice = record.model.blocks[-2], record.chosen.blocks[-2]
    mesh = tensor_mesh(record.chosen.mesh)
    ((name, how),) = choice.exchanges
    beside = beside_mixture(block, choice, mesh, name)
    made = {node.name: node for node in block.nodes}
    assert how == "shared" and [made[n].module.rpartition(".")[2] for n in beside.last] == ["down_proj"]
    modules = [made[n].module.rpartition(".")[2] for n in beside.first if "linear" in made[n].op]
    assert sorted(modules) == ["gate_proj", "up_proj"]
    ordered = in_order(block, {name: beside})
    assert sorted(map(str, ordered.nodes)) == sorted(map(str, block.nodes))
    known = {v.name for v in (*block.inputs, *block.externals, *block.parameters, *block.buffers)}
    for node in ordered.nodes:
        assert set(node.operands) <= known
        known.add(node.name)
    assert not Beside()


def test_it_is_written_between_the_three_calls(shared: Plan) -> None:
    source = emit_program(shared.lowered, "a plan")
    body = source[source.index("_sent = send_tokens(") :]
    places = [body.index(text) for text in ("gate_proj", "_given = run_experts(", "down_proj = ", "= return_tokens(")]
    assert places == sorted(places)
    assert "tokens travel under shared experts" in shared.report()


def test_hidden_seconds_are_told_and_no_plan_is_slower_for_them(shared: Plan, whole: Plan) -> None:
    found = [c for c in shared.predicted.collectives if c.kind == "all-to-all"]
    assert sum(c.hidden_s > 0 for c in found) == 4 < len(found)  # all but the counts
    assert all(c.hidden_s < c.seconds for c in found)
    before = [c for c in whole.predicted.collectives if c.kind == "all-to-all"]
    assert [(c.where, c.bytes, c.count, c.seconds) for c in found] == [
        (c.where, c.bytes, c.count, c.seconds) for c in before
    ]
    (back,) = (c for c in before if c.hidden_s)  # tokens' gradients, under weights'
    assert "(backward)" in back.where
    assert shared.predicted.step_time_s < whole.predicted.step_time_s


def test_a_plan_is_read_back(shared: Plan) -> None:
    blocks = shared.record.chosen.blocks
    data = json.loads(json.dumps(encode(blocks)))
    assert decode(tuple[BlockChoice, ...], data, "plan.json") == blocks and any(block.exchanges for block in blocks)


def test_a_flight_without_a_shared_expert_is_refused(whole: Plan) -> None:
    """As an edited plan may say."""
    plan = planned(wide_qwen3(), None)
    record = plan.record
    names = [[node.name for node in block.nodes if node.op == "autoplan.experts"] for block in record.model.blocks]
    pairs = zip(record.chosen.blocks, names, strict=True)
    blocks = tuple(replace(choice, exchanges=tuple((n, "shared") for n in found)) for choice, found in pairs)
    with pytest.raises(LayoutError, match="there is none"):
        program_of(replace(record, chosen=replace(record.chosen, blocks=blocks)))


def test_chunks_are_sent_one_beside_another_that_is_computed() -> None:
    plan = planned(wide_qwen3(), 2, tokens=4096)
    whole = planned(wide_qwen3(), None, tokens=4096)
    assert "chunks=2" in emit_program(plan.lowered, "a plan") and "tokens travel in 2 chunks" in plan.report()
    found, before = (
        [c for c in each.predicted.collectives if c.kind == "all-to-all"] for each in (plan, whole)
    )
    assert [c.count for c in found] == [c.count * (1 if place == 0 else 2) for place, c in enumerate(before)]
    assert all(0 < c.hidden_s <= c.seconds for c in found[1:]) and not found[0].hidden_s


def test_left_to_the_search_no_way_is_quicker() -> None:
    ways = {how: planned(deepseek_v3(), how).predicted.step_time_s for how in (None, "shared", 2, "auto")}
    assert ways["auto"] == min(ways.values())


@pytest.mark.parametrize(
    ("pinned", "said"),
    [
        ({"pipeline_schedule": "zero-bubble", "pp": 2, "dp": 2, "ep": 2}, "gives both at once|give both at once"),
        ({"how": 0}, "at least 1"),
        ({"how": "all"}, "a number of chunks"),
    ],
)
def test_what_cannot_be_is_refused(pinned: dict[str, object], said: str) -> None:
    with pytest.raises(ParallelismError, match=said):
        planned(deepseek_v3(), **{"how": "shared", **pinned})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "cluster", "why"),
    [
        ("shared", "1x4 h100-sxm", "no shared expert"),
        ("auto", "1x4 cpu", "nothing is predicted to be quicker"),
    ],
)
def test_what_nothing_runs_beside_is_told(how: str, cluster: str, why: str) -> None:
    told = " ".join(planned(wide_qwen3(), how, cluster=cluster).report(verbose=True).split())
    assert f"No effect: ep_overlap='{how}', for" in told and why in told
