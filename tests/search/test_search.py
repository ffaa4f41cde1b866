"""Whole searches over graphs made by hand: walls, pinned fields, systems, errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.cost.zero_costs import DataAxis
from autoplan.errors import DoesNotFitError, ParallelismError
from autoplan.ir.choice import Chosen
from autoplan.ir.graph import Model
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Inference, Parallelism, Training
from autoplan.rules.constraints import forbid, pin, replicated
from autoplan.search.entry import search
from autoplan.search.space.row_systems import ROW_SYSTEMS
from autoplan.search.space.systems import SYSTEMS, resolve
from tests.support.hand_made import llama, mlp
from tests.support.planning import alone

CPU, ADAMW = ClusterSpec.parse("1x4 cpu"), Training()
OF_EXPERTS = ("expert-parallel", "expert-all-to-all", "expert-partial-sum")
NEED_MORE = ("auto", "2.5d", "3d", "3d-hybrid", *OF_EXPERTS, "table-parallel")  # than four devices, experts, or tables


def plan(model: Model, parallelism: str | Parallelism = "auto", cluster: ClusterSpec = CPU, training: Training = ADAMW,
         **more: object) -> Chosen:  # fmt: skip
    with alone():
        return search(model, cluster, training, resolve(parallelism, cluster), **more)[0]  # type: ignore[arg-type]


def check(model: Model, chosen: Chosen, cluster: ClusterSpec = CPU) -> None:
    """What every choice keeps to."""
    assert chosen.mesh.devices == cluster.devices
    filled = {"dp", "tp", "pp", "zero", "micro_batch", "pipeline_schedule", "recompute"}
    assert chosen.parallelism.pinned().keys() >= filled
    runs = [(s.first, s.last) for s in chosen.stages]
    assert runs[0][0] == 0 and runs[-1][1] == len(model.segments)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(runs))
    assert max(m.total for m in chosen.predicted.peak_bytes) <= cluster.usable_bytes
    for block, choice in zip(model.blocks, chosen.blocks, strict=True):
        assert [n for n, _ in choice.strategies] == [n.name for n in block.nodes]
        axes = [name for name in chosen.mesh.names if name != "pp"]
        assert all([a for a, _ in s.axes] == axes for _, s in choice.strategies)
    assert [n for n, _ in chosen.constants] == [n.name for n in model.constants]


@pytest.mark.parametrize(
    "parallelism",
    ["auto", "ddp", "zero3", "megatron", Parallelism(pp=2), Parallelism(tp=2, pp=2), Parallelism(dp=2, tp=2)],
    ids=str,
)
def test_a_choice_is_complete_and_keeps_what_is_pinned(parallelism: str | Parallelism) -> None:
    model = llama()
    chosen = plan(model, parallelism)
    check(model, chosen)
    for name, value in resolve(parallelism, CPU).pinned().items():
        assert getattr(chosen.parallelism, name) == value


@pytest.mark.parametrize("system", [s for s in SYSTEMS if s not in NEED_MORE])
def test_every_system_plans(system: str) -> None:
    model = llama() if system in ROW_SYSTEMS else mlp(layers=10)  # what has a sequence, heads and a vocabulary
    cluster = ClusterSpec.parse("2x2 cpu") if system.startswith("hierarchical-") else CPU
    training = Training(optimizer="lamb" if system.endswith("lamb") else "adamw")
    chosen = plan(model, system, cluster, training)
    check(model, chosen, cluster)
    assert (chosen.parallelism.compression_within == 2) == ("hierarchical-" in system and "reduce" not in system)


def test_between_nodes_there_have_to_be_two() -> None:
    with pytest.raises(ParallelismError, match=r"hierarchical-topk: .*there is one\. use topk, or more nodes"):
        resolve("hierarchical-topk", CPU)


def test_a_hybrid_of_three_axes_has_all_three() -> None:
    cluster = ClusterSpec.parse("1x8 cpu")
    chosen = plan(llama(), "3d-hybrid", cluster)
    assert min(chosen.mesh.size(axis) for axis in ("dp", "tp", "pp")) >= 2


def test_a_pinned_tensor_axis_is_used() -> None:
    chosen = plan(llama(), Parallelism(tp=4))
    stored = dict(chosen.blocks[1].parameters)
    assert all(stored[f"{name}.weight"].state("tp").kind == "S" for name in ("q", "o", "gate", "up", "down"))


def test_an_automatic_plan_is_never_slower_than_plain_data_parallel() -> None:
    for model in (mlp(), llama()):
        assert plan(model).predicted.step_time_s <= plan(model, "ddp").predicted.step_time_s


def test_a_lower_wall_is_kept_by_recomputation_or_sharding_and_costs_time() -> None:
    model = llama(batch=32, seq=128, layers=6)
    free = plan(model, Parallelism(pp=2, tp=1, dp=2, micro_batch=8))
    peak = max(m.total for m in free.predicted.peak_bytes)
    tight = replace(CPU, memory_bytes=int(peak * 0.75))
    held = plan(model, Parallelism(pp=2, tp=1, dp=2, micro_batch=8), tight)
    check(model, held, tight)
    assert held.predicted.step_time_s > free.predicted.step_time_s
    assert any(s.recompute for s in held.stages) or held.parallelism.zero != free.parallelism.zero


def test_recomputation_can_be_pinned() -> None:
    model = llama()
    full = plan(model, Parallelism(pp=2, recompute="full"))
    assert sum(s.recompute for s in full.stages) == 4
    assert sum(s.recompute for s in plan(model, Parallelism(pp=2, recompute="none")).stages) == 0


def test_selective_recomputation_lies_between_none_and_full() -> None:
    """In bytes and in seconds; what it repeats is no collective."""
    model = llama(batch=32, seq=64)
    found = {
        kind: plan(model, Parallelism(dp=1, pp=2, tp=2, micro_batch=8, recompute=kind, sequence_parallel=False))
        for kind in ("none", "selective", "full")
    }
    none, selective = found["none"], found["selective"]
    assert (none.parallelism.recompute, selective.parallelism.recompute) == ("none", "selective")
    assert sum(s.selective for s in selective.stages) == 4 and not any(s.recompute for s in selective.stages)
    seconds = [chosen.predicted.step_time_s for chosen in found.values()]
    kept = [max(m.activations for m in chosen.predicted.peak_bytes) for chosen in found.values()]
    assert seconds == sorted(seconds) and kept == sorted(kept, reverse=True)
    runs = [sum(c.count for c in chosen.predicted.collectives if c.axis == "tp") for chosen in found.values()]
    assert runs[0] == runs[1] < runs[2]


def test_what_fits_nowhere_says_what_would() -> None:
    model = llama(hidden=256, ffn=1024, vocab=4096)
    tiny = replace(CPU, memory_bytes=12_000_000)
    with pytest.raises(DoesNotFitError) as caught:
        plan(model, "auto", tiny)
    text = str(caught.value)
    assert "needs" in text and "of which" in text and "adamw" in text
    nodes = int(caught.value.remedy.split("Nearest that fits: ")[1].split()[0])
    more = replace(tiny, nodes=nodes)
    check(model, plan(model, "auto", more), more)


def test_what_a_pinned_field_rules_out_is_named_as_the_remedy() -> None:
    model = llama(hidden=256, ffn=1024, vocab=4096)
    whole = plan(model, Parallelism(dp=4, tp=1, pp=1, zero=0))
    wall = int(max(m.total for m in whole.predicted.peak_bytes) * 0.7)
    with pytest.raises(DoesNotFitError, match="in place of"):
        plan(model, Parallelism(dp=4, tp=1, pp=1, zero=0, recompute="none"), replace(CPU, memory_bytes=wall))


@pytest.mark.parametrize(
    ("pinned", "words"),
    [
        (Parallelism(dp=3), "multiply to 3, and the cluster has 4 devices"),
        (Parallelism(dp=2, tp=1, pp=1), "give dp=4"),
        (Parallelism(pipeline_schedule="zero-bubble", zero=3), "use zero=2, or pipeline_schedule='interleaved'"),
        (Parallelism(pipeline_schedule="zero-bubble", recompute="full"), "would run the segment again"),
        (Parallelism(pipeline_schedule="1f1b", virtual_stages=2), "1f1b has one stage on a rank"),
        (Parallelism(pipeline_schedule="interleaved", virtual_stages=1), "give 2 or more"),
        (Parallelism(offload="parameters", zero=1), "go to the host shard by shard"),
        (Parallelism(compression="powersgd", zero=2), "each rank its part, whole. use zero=0"),
        (Parallelism(compression="powersgd", offload="optimizer"), "lies beside the gradients, on the device"),
        (Parallelism(compression="powersgd", local_steps=4), "sum no gradients. use one or the other"),
        (Parallelism(compression="powersgd", pipeline_schedule="pipedream-2bw"), "are of older weights, for which"),
        (Parallelism(servers=5), "servers=5 with dp=4: servers are on the data-parallel ranks"),
        (Parallelism(servers=1, dp=1), "servers=1 with dp=1: there is no other rank to push gradients"),
        (Parallelism(servers=1, tp=2), "servers=1 with tp=2: a server has parameters whole"),
        (Parallelism(servers=1, zero=1), "ZeRO shares the states out over all ranks, as servers on all workers do"),
        (Parallelism(servers=1, gossip="ring"), "servers take whole gradients of all workers in every step"),
        (Parallelism(servers=1, pipeline_schedule="pipedream-2bw"), "give staleness=1 for gradients that are one step"),
        (Parallelism(staleness=1), "staleness=1: it counts the updates of parameter servers"),
        (Parallelism(ahead=1), "ahead=1: it says how far workers of parameter servers"),
        (Parallelism(servers=1, ahead=1, staleness=1), "none waits and none is dropped. use one or the other"),
        (Parallelism(backups=1), "backups=1: they are workers beside parameter servers"),
        (Parallelism(servers=1, backups=1, staleness=1), "weights are the newest. use one or the other"),
        (Parallelism(servers=1, backups=8), "of one worker at least. give backups="),
        (Parallelism(gossip="ring", zero=1), "gossip='ring' with zero=1: fully_shard keeps one version"),
        (Parallelism(gossip="ring", dp=1), "gossip='ring' with dp=1: there are no replicas"),
        (Parallelism(gossip="ring", local_steps=4, outer_optimizer="nesterov"), "no beginning in common"),
        (Parallelism(compression="powersgd", gossip="ring"), "sum no gradients. use one or the other"),
        (Parallelism(compression="powersgd", dp=1), "no gradient goes over the data axis. give dp=2 or more"),
        (Parallelism(compression="int8", cp=2), "of which each rank there has a part. give cp=1"),
        (Parallelism(compression="topk", ep=2), "of which each rank there has a part. give ep=1"),
        (Parallelism(compression="int8", compression_rate=0.1), "top-k sends, and compression='int8'"),
        (Parallelism(compression_within=2), "between which ranks compressed gradients go, and compression=None"),
        (Parallelism(compression="int8", compression_within=4, dp=4), "between two or more. give a divisor of dp"),
        (Parallelism(compression="int8", compression_within=3, dp=4), "between two or more. give a divisor of dp"),
        (Parallelism(compression="powersgd", compression_within=2, dp=8, ep=4), "or one. give a multiple of 4"),
        (Parallelism(compression="topk", compression_rate=1.5), "compression_rate=1.5: it is the share of elements"),
        (Parallelism(compression_rank=2), "compression_rank=2: factors of low rank have one, and compression=None"),
    ],
)
def test_what_can_not_be_pinned(pinned: Parallelism, words: str) -> None:
    with pytest.raises(ParallelismError, match=words):
        resolve(pinned, CPU)


def test_an_unknown_system_is_answered_with_those_there_are() -> None:
    with pytest.raises(ParallelismError, match="auto, dp, ddp, zero1"):
        resolve("alpa", CPU)


@pytest.mark.parametrize("training", [Training(clip_grad_norm=1.0), Training(precision="fp16-mixed")])
def test_a_step_with_backup_workers_asks_nothing_of_all_ranks(training: Training) -> None:
    with pytest.raises(ParallelismError, match="a step waits for no worker that is late"):
        search(llama(), CPU, training, Parallelism(servers=1, backups=1))


def test_no_backup_workers_are_none() -> None:
    assert Parallelism(servers=2, backups=0, staleness=0).backups == 0
    given, plain = (plan(llama(), Parallelism(servers=2, backups=b)) for b in (0, None))
    assert given.parallelism == plain.parallelism and given.parallelism.backups is None
    with pytest.raises(ParallelismError, match="backups>=0"):
        Parallelism(servers=2, backups=-1)


def test_gradients_applied_as_they_arrive_are_told_and_priced() -> None:
    """An update for each worker, none of whose pushes a backward hides; 0 steps ahead are synchronous servers."""
    plans = {a: search(llama(), CPU, ADAMW, Parallelism(servers=4, ahead=a))[0] for a in (None, 0, 2, "unbounded")}
    assert plans[0].parallelism == plans[None].parallelism and plans[0].parallelism.ahead is None
    more, less = plans[2].predicted, plans[0].predicted
    assert plans[2].parallelism.ahead == 2 and plans["unbounded"].predicted == more
    assert more.step_time_s > less.step_time_s and more.peak_bytes[0].total > less.peak_bytes[0].total
    with pytest.raises(ParallelismError, match="whole parameters, which all ranks ask for at once"):
        search(llama(), CPU, Training(optimizer="lamb"), Parallelism(servers=4, ahead=2))
    with pytest.raises(ParallelismError, match="it is a number of steps of at least 0, or 'unbounded'"):
        Parallelism(servers=4, ahead=-1)


def test_backup_workers_are_priced() -> None:
    """A push of three workers in four, in the open; two copies of a shard for workers that are late."""
    asked = Parallelism(servers=4, micro_batch=2, recompute="none")
    plain, spare = (plan(llama(), replace(asked, backups=b)).predicted for b in (None, 1))
    pushes = [next(c for c in p.collectives if c.kind == "push") for p in (plain, spare)]
    assert pushes[1].seconds == pytest.approx(0.75 * pushes[0].seconds) and pushes[1].hidden_s == 0
    prices: Any = SimpleNamespace(training=True, summed=1.0, stored=1.0, topology=None)
    shards = [DataAxis(0, 4, prices, servers=4, backups=b).beside_update(np.array([100.0])) for b in (0, 1)]
    assert float(shards[0][0]) == 3 * 25 and float(shards[1][0]) == 2 * 25 + 2 * 25


@pytest.mark.parametrize(
    ("training", "staleness", "words"),
    [
        (Training(optimizer="muon"), 0, "it updates a fused projection as one matrix"),
        (Training(precision="fp16-mixed"), 1, "a step that overflows would be skipped"),
        (Inference(), 0, "a forward alone updates none"),
    ],
)
def test_what_servers_can_not_train(training: Training | Inference, staleness: int, words: str) -> None:
    with pytest.raises(ParallelismError, match=words):
        search(llama(), CPU, training, Parallelism(servers=1, staleness=staleness))


@pytest.mark.parametrize(
    ("training", "words"),
    [
        (Training(optimizer="sgd"), "it sends Adam's momentum. use adamw or adam"),
        (Training(clip_grad_norm=1.0), "whose change isn't a gradient's norm"),
        (Training(compression_start=0), "there is no variance to freeze"),
        (Training(optimizer_options={"amsgrad": True}), "a weight decay alone. leave them out"),
        (Training(groups=({"match": "*", "lr": 1.0, "maximize": True},)), "{'maximize': True}: its own Adam"),
    ],
)
def test_what_one_bit_adam_can_not_be_trained_with(training: Training, words: str) -> None:
    with pytest.raises(ParallelismError, match=words):
        search(llama(), CPU, training, Parallelism(compression="1bit"))


def test_one_bit_lamb_is_lamb_s() -> None:
    with pytest.raises(ParallelismError, match=r"it sends LAMB's momentum\. use lamb"):
        search(llama(), CPU, Training(), Parallelism(compression="1bit-lamb"))
    training = Training(optimizer="lamb", clip_grad_norm=1.0)
    with pytest.raises(ParallelismError, match="whose change isn't a gradient's norm"):
        search(llama(), CPU, training, Parallelism(compression="1bit-lamb"))


@pytest.mark.parametrize(
    ("training", "words"),
    [
        (Training(precision="fp16-mixed"), "under another scale of the loss. use bf16-mixed"),
        (Training(precision="bf16"), "use bf16-mixed"),
        (Training(precision="bf16-mixed", reduce_dtype="bf16"), "added up as gradients are stored"),
    ],
)
def test_what_compressed_gradients_can_not_be_computed_in(training: Training, words: str) -> None:
    with pytest.raises(ParallelismError, match=words):
        search(llama(), CPU, training, Parallelism(compression="powersgd"))


@pytest.mark.parametrize(
    ("schedule", "training", "words"),
    [
        ("pipedream", Training(clip_grad_norm=1.0), "of which there is no one norm"),
        ("pipedream", Training(optimizer="lamb"), "over stages that are differently late"),
        ("pipedream", Training(lr_schedule=LRSchedule("ReduceLROnPlateau")), "other batches than the loss"),
        ("pipedream-2bw", Training(precision="fp16-mixed"), "others of the same scale are in flight"),
    ],
)
def test_what_a_pipeline_without_a_flush_can_not_train_with(schedule: str, training: Training, words: str) -> None:
    with pytest.raises(ParallelismError, match=words):
        search(llama(), CPU, training, Parallelism(pp=4, pipeline_schedule=schedule))


def test_a_pipeline_without_a_flush_has_no_bubble_and_holds_its_versions() -> None:
    pinned = Parallelism(dp=1, tp=1, pp=4, micro_batch=2, pipeline_schedule="1f1b")
    plain, full = plan(llama(), pinned), plan(llama(), replace(pinned, pipeline_schedule="pipedream-2bw"))
    assert full.predicted.step_time_s < plain.predicted.step_time_s
    for one, two in zip(plain.predicted.peak_bytes, full.predicted.peak_bytes, strict=True):
        assert two.parameters == 2 * one.parameters and one.gradients <= two.gradients <= 2 * one.gradients


@pytest.mark.parametrize(
    ("pinned", "words"),
    [
        (Parallelism(micro_batch=5), "a batch of 8 rows: it does not divide by 5"),
        (Parallelism(pp=4, pipeline_schedule="pipedream-2bw", micro_batch=8), "as many microbatches as stages"),
    ],
)
def test_batches_that_do_not_divide(pinned: Parallelism, words: str) -> None:
    with pytest.raises(ParallelismError, match=words):
        plan(llama(), pinned)


@pytest.mark.parametrize("rows", [4, 8])
def test_1f1b_goes_with_fewer_microbatches_than_stages(rows: int) -> None:
    pinned = Parallelism(dp=1, tp=1, pp=4, pipeline_schedule="1f1b", micro_batch=rows)
    chosen = plan(llama(), pinned)
    assert chosen.parallelism.pipeline_schedule == "1f1b" and chosen.microbatches == 8 // rows < 4
    alike = plan(llama(), replace(pinned, pipeline_schedule="gpipe"))
    assert chosen.predicted.step_time_s <= alike.predicted.step_time_s * (1 + 1e-9)  # no message passes under compute


def test_more_stages_than_parts() -> None:
    with pytest.raises(ParallelismError, match="a chain of 4 parts"):
        plan(mlp(layers=2), Parallelism(pp=8), ClusterSpec.parse("1x8 cpu"))


def test_constraints_hold() -> None:
    model = llama()
    ruled = (pin("q", "S(2)"), replicated("attn.o"), forbid("gate", "S(2)"))
    chosen = plan(model, Parallelism(tp=2), constraints=ruled)
    layer = dict(chosen.blocks[1].strategies)
    assert str(layer["q"].on("tp").output) == "S(2)"
    assert str(layer["o"].on("tp").output) in ("R", "I")
    assert str(layer["gate"].on("tp").output) != "S(2)"


def test_a_constraint_on_nothing_is_an_error() -> None:
    with pytest.raises(ParallelismError, match="no operator, module or node of that name"):
        plan(llama(), constraints=(pin("nothing", "R"),))


@pytest.mark.parametrize(
    ("ruled", "said"),
    [
        (lambda: pin("", "R"), "constraint on '': it names nothing"),
        (lambda: pin("q"), "constraint on 'q': it names no state"),
        (lambda: forbid("q", "S(0)", axis="dp"), "axis='dp': an operator's layout is chosen along tensor axes alone"),
        (lambda: pin("q", "R", operand=-1), "operand=-1: it is a position"),
        (lambda: plan(llama(), constraints=(pin("q", "R", operand=7),)), "constraint on operand 7 of 'q'"),
        (
            lambda: plan(llama(), Parallelism(tp=2), constraints=(pin("q", "S(2)", axis="tp2"), pin("q", "S(9)"))),
            "constraints on 'q': they leave q (aten.linear.default) no way to run. the states it can give on axis tp",
        ),
        (
            lambda: plan(llama(), Parallelism(tp=2), constraints=(pin("q", "S(9)", operand=1),)),
            "constraints on 'q': they leave q (aten.linear.default) no way to run. the states that operand 1 can have",
        ),
    ],
)
def test_a_constraint_that_can_t_hold_is_an_error(ruled: Callable[[], object], said: str) -> None:
    with pytest.raises(ParallelismError) as error:
        ruled()
    assert str(error.value).startswith(said)


def test_a_constraint_on_a_module_s_operand_is_on_those_that_have_it() -> None:
    chosen = plan(llama(), Parallelism(tp=2), constraints=(forbid("attn", "S(0)", operand=1),))
    ways = dict(chosen.blocks[1].strategies)
    assert str(ways["q"].on("tp").inputs[1]) != "S(0)" and any(len(way.on("tp").inputs) == 1 for way in ways.values())


def test_alternatives_hold_the_classical_choices() -> None:
    _, others, report = search(llama(), CPU, Training(), Parallelism())
    assert {a.name for a in others} >= {"plain data parallel", "ZeRO-3", "tensor parallel in the node"}
    assert all(a.step_time_s > 0 and (a.over_bytes == 0 or math.isfinite(a.step_time_s)) for a in others)
    assert 0 <= report.optimality_gap < 0.01 and report.solver in ("HiGHS", "PULP_CBC_CMD", "CBC")


def test_the_step_time_is_that_of_the_schedule_and_what_follows_it() -> None:
    chosen = plan(llama(), Parallelism(pp=4, micro_batch=1))
    assert chosen.parallelism.pipeline_schedule == "1f1b" and chosen.microbatches == 8
    assert 0.2 < chosen.predicted.bubble_fraction < 0.8
    assert chosen.predicted.step_time_s > 0 and 0 < chosen.predicted.mfu < 1
