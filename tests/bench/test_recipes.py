"""Recipes that others ran: rows are read as they say, and the table's lines and counts follow from what was found."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autoplan.cluster import ClusterSpec
from autoplan.models.named import resolve_model
from tests.bench.recipes.adapters import with_adapters
from tests.bench.recipes.clusters import NODES
from tests.bench.recipes.document import NOT_RUN, lines_of, parts
from tests.bench.recipes.price import JobPlans, Planned, job_plans_of, plan_job
from tests.bench.recipes.row import Job, Recipe, Refused, understood
from tests.bench.recipes.shapes import ATTENTION, EVERY, FUSED, SHAPES, UNKNOWN, nanotron, nemotron

FIELDS = ("id", "model", "gpu", "n_gpus", "global_batch", "micro_batch", "seq", "dp", "tp", "cp", "pp",
          "virtual_stages", "ep", "etp", "fsdp", "zero", "recompute", "precision", "source")  # fmt: skip


def row(**said: str) -> dict[str, str]:
    plain = dict.fromkeys(FIELDS, "") | {"id": "r0", "model": "LLAMA3_70B", "gpu": "H100", "n_gpus": "64",
                                         "global_batch": "256", "micro_batch": "1", "seq": "8192"}  # fmt: skip
    return plain | said


def pins(**said: str) -> dict[str, object]:
    read = understood(row(**said))
    assert isinstance(read, Recipe)
    return read.pins.pinned()


def test_axes_are_pinned_and_dp_follows() -> None:
    assert pins(tp="4", pp="4", cp="2") == {"dp": 2, "tp": 4, "pp": 4, "cp": 2, "ep": 1, "micro_batch": 1}


def test_stages_on_a_rank_are_interleaved() -> None:
    said = pins(tp="4", pp="4", virtual_stages="5", recompute="full")
    assert (said["pipeline_schedule"], said["virtual_stages"], said["recompute"]) == ("interleaved", 5, "full")


def test_experts_lie_on_the_dense_layers_ranks() -> None:
    said = pins(model="Qwen3_30B_a3B", ep="8", tp="2")
    assert (said["dp"], said["ep"], said["tp"], said["micro_batch"]) == (32, 8, 2, 1)
    said = pins(model="Qwen3_235B_a22B", ep="8", etp="1", tp="2", pp="8")
    assert (said["dp"], said["ep"], said["etp"]) == (4, 8, 1)
    beyond = understood(row(model="Qwen3_235B_a22B", ep="32", tp="2", pp="8"))
    assert isinstance(beyond, Refused) and "no union" in beyond.reason


def test_recipes_that_train_adapters_alone_have_them_beside_frozen_weights() -> None:
    tuned = understood(row(source="AutoModel", model="Qwen2.5 32B", global_batch="32"))
    assert isinstance(tuned, Recipe) and tuned.job.adapters == EVERY and "rank 16" in tuned.notes[0]
    benchmark = understood(row(model="llama2_70b_lora", seq="", global_batch="8", n_gpus="8"))
    assert isinstance(benchmark, Recipe) and (benchmark.job.adapters, benchmark.job.seq) == (ATTENTION, 8192)
    summary = "Megatron-Bridge@067f987d performance summary"
    fused = understood(row(source=summary, n_gpus="8", global_batch="32", tp="2", pp="4"))
    assert isinstance(fused, Recipe) and fused.job.adapters == FUSED and "LLAMA3_70B (LoRA) on 8" in fused.text
    for whole in (row(source="AutoModel", model="Llama3 70B", global_batch="128"), row(source=summary, n_gpus="32")):
        read = understood(whole)
        assert isinstance(read, Recipe) and not read.job.adapters


@pytest.mark.parametrize(("devices", "layers"), [("32", "7"), ("96", "21"), ("192", "42"), ("576", "")])
def test_a_model_cut_down_for_fewer_devices_has_the_layers_that_were_run(devices: str, layers: str) -> None:
    read = understood(row(source="dgxc-benchmarking@1b9bb6b", model="Llama3.1-405B", n_gpus=devices))
    assert isinstance(read, Recipe)
    assert read.job.settings == ((f"num_hidden_layers={layers}",) if layers else ())
    assert (f"({layers} layers)" in read.text) == bool(layers)


def test_an_adapted_model_trains_its_adapters_alone() -> None:
    net = with_adapters(nn.ModuleDict({"up": nn.Linear(6, 4), "down": nn.Linear(4, 6)}), ("up",), 2, 4)
    assert {name for name, p in net.named_parameters() if p.requires_grad} == {"up.lora_a.weight", "up.lora_b.weight"}
    x = torch.ones(1, 6)
    up, product = net["up"], net["up"].lora_b.weight @ net["up"].lora_a.weight
    torch.testing.assert_close(up(x), x @ (up.base.weight + 2 * product).T + up.base.bias)


def test_fsdp_is_the_third_level_and_one_rank_of_it_is_none() -> None:
    assert pins(fsdp="64", zero="1")["zero"] == 3
    assert pins(fsdp="1", zero="1")["zero"] == 1
    assert "zero" not in pins()


def test_what_a_row_leaves_out_is_told() -> None:
    read = understood(row(global_batch="", micro_batch="2", precision="FP8"))
    assert isinstance(read, Recipe) and read.job.batch == 128
    told = [note.split(":")[0] for note in read.notes]
    assert told == ["The batch isn't given", "Planned in bf16 where the row ran FP8."]


@pytest.mark.parametrize("said", [{"model": "model"}, {"gpu": "an abacus"}, {"seq": ""}, {"n_gpus": "60", "tp": "8"}])
def test_rows_that_say_too_little_are_refused_with_a_reason(said) -> None:
    read = understood(row(**said))
    assert isinstance(read, Refused) and read.reason


def test_every_cluster_is_one_and_no_model_is_both_known_and_unknown() -> None:
    for profile, per_node in NODES.values():
        assert ClusterSpec.of(f"2x{per_node} {profile}").devices == 2 * per_node
    assert not set(SHAPES) & set(UNKNOWN)


@pytest.mark.parametrize(
    ("shape", "billions"),
    [(nanotron(2048, 8192, 16, 32, True), 1.34), (nanotron(3072, 8192, 28, 24, True), 3.57),
     (nanotron(8192, 28672, 80, 64, False), 80.0), (SHAPES["Nemotron4-340B"], 341), (SHAPES["Kimi K2"], 1027),
     (SHAPES["Grok1-314B"], 316), (SHAPES["Nemotron_3_Nano"], 31.58), (SHAPES["Nemotron_3_Super"], 120.6),
     (nemotron(6144, 24576, 32, 48, 8, ""), 15.6)],
)  # fmt: skip
def test_shapes_have_as_many_parameters_as_published(shape, billions) -> None:
    model = resolve_model(shape.model, shape.settings, batch=1, seq=128).model
    module = model() if callable(model) and not hasattr(model, "parameters") else model
    assert sum(p.numel() for p in module.parameters()) / 1e9 == pytest.approx(billions, rel=0.005)


JOB = Job("hf:llama", ("num_hidden_layers=2", "hidden_size=64", "intermediate_size=128", "num_attention_heads=4",
                       "num_key_value_heads=4", "vocab_size=256"), "1x4 h100-sxm", 8, 32)  # fmt: skip


def recipe(name: str, **said: int) -> Recipe:
    read = understood(row(n_gpus="4"))
    assert isinstance(read, Recipe)
    return Recipe(name, name, JOB, type(read.pins)(**said), ())


def test_a_job_is_planned_freely_and_as_pinned() -> None:
    recipes = [recipe("a", dp=4), recipe("b", dp=3)]
    found = plan_job(JOB, recipes)
    assert found.ours.plan and found.theirs["a"].step_s >= found.ours.step_s > 0
    assert not found.theirs["b"].plan and "3" in found.theirs["b"].reason
    assert job_plans_of(found.to_dict()) == found


def cells_of(printed: dict[str, str]) -> list[tuple[str, ...]]:
    page = f"<!-- table -->\n{printed['table']}\n<!-- end of table -->"
    return list(lines_of(page).values())


PLANS = JobPlans(Planned("dp=4", 1.0, 0.5, 2 * 10**9, 31.0),
                 {"a": Planned("tp=4", 2.0, 0.25, 10**9, 1.0), "b": Planned(reason="doesn't fit: 9 GB" + 200 * "!")},
                 80 * 10**9, 3 * 2**30, "2026-11-27")  # fmt: skip
OTHER = Recipe("c", "c", Job("hf:gpt2", (), "1x4 h100-sxm", 8, 32), recipe("c").pins, ())


def test_the_table_tells_theirs_ours_and_what_was_not_run() -> None:
    printed = parts([recipe("a"), recipe("b"), OTHER, Refused("d", "d", "no model")], {JOB: PLANS}, {})
    cells = cells_of(printed)
    assert cells[0][2:] == ("2.00 s", "1.0 GB", "dp=4", "1.00 s", "2.0 GB", "0.5000", "1.0, 31.0", "3.00", "2026-11-27")
    assert cells[1][2] == PLANS.theirs["b"].reason and cells[1][7] == "-", "all of why it doesn't fit"
    assert cells[2][2] == NOT_RUN and cells[3][2] == "not planned: no model"
    for told in ("ours takes 0.500 of theirs on average over 1 rows, from 0.500 to 0.500; it is more than 0.2% slower",
                 "more than 30 s of the processor in 2 rows: a, b", "more than 2 GiB in 2 of 2 rows"):  # fmt: skip
        assert told in printed["summary"]


def test_a_row_that_is_not_planned_keeps_the_line_of_the_page_unless_it_says_something_else_now() -> None:
    rows = [recipe("a"), recipe("b")]
    before = {cells[0]: cells for cells in cells_of(parts(rows, {JOB: PLANS}, {}))}
    again = parts(rows, {}, before)
    assert cells_of(again) == list(before.values())
    assert again["summary"] == parts(rows, {JOB: PLANS}, {})["summary"]
    assert cells_of(parts([recipe("a", tp=4)], {}, before))[0][2] == NOT_RUN
