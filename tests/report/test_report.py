from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autoplan.cluster import ClusterSpec
from autoplan.emit.source import size_text
from autoplan.errors import AutoplanError
from autoplan.ir.choice import Alternative, PricedCollective, StageChoice
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Compute
from autoplan.lower.after_search import program_of
from autoplan.options import Parallelism
from autoplan.report.explain import explain_text
from autoplan.report.explain.one_change import local_options
from autoplan.report.notes import notes_of
from autoplan.report.price_tables import stage_text
from autoplan.report.table import WIDTH, table
from autoplan.report.text_report import report_text
from autoplan.report.words import headline, seconds_text
from cost_models.hardware import PROFILES
from tests.support.hand_made_plans import CLUSTER, plan
from tests.support.planning import parallelize_alone


@pytest.fixture(scope="module")
def record() -> PlanRecord:
    return plan(Parallelism(dp=2, tp=2, pp=1, micro_batch=1))


def choose(record: PlanRecord, **changes: object) -> PlanRecord:
    return replace(record, chosen=replace(record.chosen, **changes))


def predict(record: PlanRecord, **changes: object) -> PlanRecord:
    return choose(record, predicted=replace(record.chosen.predicted, **changes))


def test_the_plan_in_one_line(record: PlanRecord) -> None:
    pinned = Parallelism(dp=4, tp=8, pp=2, zero=1, micro_batch=1, pipeline_schedule="1f1b", recompute="full")
    stages = (StageChoice(0, 3, 1), StageChoice(3, 6, 2))
    full = choose(record, parallelism=pinned, microbatches=16, stages=stages)
    assert headline(full) == "dp=4 tp=8 pp=2, 1F1B, 16 microbatches of 1, ZeRO-1, recompute 3 of 4 blocks"
    mixed = choose(full, stages=(StageChoice(0, 3, 1, 1), StageChoice(3, 6, 1)))
    assert headline(mixed).endswith("recompute 3 of 4 blocks (1 selectively)")
    assert stage_text(mixed, mixed.chosen.stages[0]).endswith("(1 recompute, 1 recompute selectively)")
    partly = choose(full, stages=(StageChoice(0, 3, 0, 2), StageChoice(3, 6, 0, 1)))
    assert headline(partly).endswith("recompute 3 of 4 blocks (all selectively)")
    bare = Parallelism(dp=1, tp=1, pp=1, zero=0, micro_batch=8, pipeline_schedule="1f1b", recompute="none")
    alone = choose(record, parallelism=bare, microbatches=1, stages=(StageChoice(0, 6, 0),))
    assert headline(alone) == "one device, 1 microbatch of 8"


def test_the_report_is_deterministic_and_narrow(record: PlanRecord) -> None:
    text = report_text(record)
    assert text == report_text(record)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert headline(record) in text.splitlines()[2]


def test_every_operator_and_parameter_stands_in_the_report(record: PlanRecord) -> None:
    text = report_text(record)
    lowered = program_of(record)
    for block in lowered.blocks:
        part = text[text.index(f"Block {block.name}:") :].split("\n\n")[0]
        rows = {line.split()[0] for line in part.splitlines()[1:]}
        assert {p.name for p in block.parameters} <= rows
        assert {s.value.name for s in block.body} <= rows
        for statement in block.body:
            if isinstance(statement, Compute):
                shape = f"[{', '.join(map(str, statement.value.local_shape))}]"
                assert re.search(rf"^  {statement.value.name} .*{re.escape(shape)}", part, re.MULTILINE)


def test_every_redistribution_s_bytes_stand_in_the_report(record: PlanRecord) -> None:
    text = report_text(record)
    moved = [line for line in text.splitlines() if " moving " in line]
    assert len(moved) == sum(not isinstance(s, Compute) for b in program_of(record).blocks for s in b.body)
    assert any(re.search(r"all-reduce over tp 16 KiB", line) for line in moved)  # 1 x 64 x 64 floats


def test_every_collective_with_what_hides(record: PlanRecord) -> None:
    collectives = (
        PricedCollective("Layer o", "all-reduce", "tp", 2**27, 64, 0.5, 0.0),
        PricedCollective("gradients", "reduce-scatter", "dp", 2**30, 1, 0.25, 0.25),
        PricedCollective("stage 0 -> 1", "send", "pp", 2**20, 8, 0.002, 0.001),
    )
    text = report_text(predict(record, collectives=collectives, step_time_s=2.0))
    rows = text[text.index("Collectives of one step") :].split("\n\n")[0].splitlines()
    assert rows[0].endswith("752 ms, 251 ms of it hidden, 25.1% of the step in the open")
    assert [row.split() for row in rows[2:]] == [
        "Layer o all-reduce tp 128 MiB 64 500 ms no".split(),
        "gradients reduce-scatter dp 1 GiB 1 250 ms yes".split(),
        "from stage to stage send pp 1 MiB 8 2.00 ms 1.00 ms of it".split(),
    ]


def test_memory_by_kind_against_the_wall(record: PlanRecord) -> None:
    text = report_text(record)
    part = text[text.index("Memory of one device") :].split("\n\n")[0].splitlines()
    held = record.chosen.predicted.peak_bytes[0]
    assert len(part) == 2 + len(record.chosen.stages)
    cells = part[2].split()
    assert "MiB (memory limit: 3.26 GiB)" in part[0] and cells[6] == f"{held.total / 2**20:.3g}"
    assert cells[0] == "0" and cells[7] == f"{100 * held.total / CLUSTER.usable_bytes:.0f}%"
    assert "Embed, 4 x Layer, Head" in part[2]


def test_what_of_the_memory_is_reserved(record: PlanRecord) -> None:
    """Of the profile's reserve the report tells, of a wall that a user set it doesn't: there is none."""
    reserved = CLUSTER.profile()[0].reserved_bytes
    assert reserved == CLUSTER.profile()[0].memory_bytes - CLUSTER.usable_bytes > 0
    assert f"usable ({size_text(reserved)} are reserved)" in report_text(record)
    walled = replace(record, cluster=replace(CLUSTER, memory_bytes=10**9))
    assert "reserved)" not in report_text(walled)


def test_a_plan_that_leaves_less_than_the_margin_says_so(record: PlanRecord) -> None:
    peak = max(memory.total for memory in record.chosen.predicted.peak_bytes)
    within, margin = replace(record, cluster=replace(CLUSTER, memory_bytes=round(1.02 * peak))), 0.03
    assert "less than the margin" not in report_text(record) + report_text(within)
    short = replace(within, cluster=replace(within.cluster, memory_margin=margin))
    assert "less than the margin, 3% of the limit" in " ".join(report_text(short).split())


def test_the_copies_of_a_save_are_told_where_they_do_not_fit(record: PlanRecord, tmp_path: Path) -> None:
    """On CPUs alone: from an accelerator they go to the host, known or not."""
    held = record.chosen.predicted.peak_bytes[0]
    copied = held.parameters + held.optimizer
    told = f"an asynchronous save copies up to {size_text(copied)} into the same memory"
    figures = (PROFILES / "h100-sxm.toml").read_text()
    hostless = tmp_path / "hostless.toml"
    hostless.write_text(re.sub(r"^\[host\b.*?(?=^\[(?!host)|\Z)", "", figures, flags=re.MULTILINE | re.DOTALL))
    others = ("h100-sxm", 0, False), (str(hostless), 0, False)
    for device, more, said in (("cpu", copied - 1, True), ("cpu", copied, False), *others):
        cluster = replace(CLUSTER, device=device, memory_bytes=held.total + more)
        assert any(told in note for note in notes_of(replace(record, cluster=cluster))) == said



def test_the_alternatives_say_by_how_much(record: PlanRecord) -> None:
    given = (
        Alternative("plain data parallel", Parallelism(dp=4), 3.0, 0),
        Alternative("ZeRO-3", Parallelism(dp=4, zero=3), 1.0, 3 * 2**30),
        Alternative("tensor parallel in the node", Parallelism(tp=4), 0.0, 0, "3 heads don't divide by 4"),
    )
    text = report_text(replace(predict(record, step_time_s=2.0), alternatives=given))
    rows = text[text.index("Beside it") :].split("\n\n")[0].splitlines()
    assert re.fullmatch(r"  plain data parallel +3\.00 s +\+50\.0%  yes +dp=4", rows[3])
    assert re.fullmatch(r"  ZeRO-3 +1\.00 s +-50\.0%  no, 3 GiB too much +dp=4, ZeRO-3", rows[4])
    assert rows[5].endswith("3 heads don't divide by 4")
    why = " ".join(text[text.index("\nWhy\n") :].split("\n\n")[0].split())
    assert "plain data parallel also fits and takes 1.50 times as long" in why
    assert "Not plain" not in why  # it waits for nothing
    assert "ZeRO-3 would take 1.00 s, but exceeds the memory limit by 3 GiB a device" in why


def test_a_slower_system_is_told_with_what_it_waits_for(record: PlanRecord) -> None:
    sums = PricedCollective("gradients", "all-reduce", "dp", 2**20, 1, 1.0, 0.25)
    data = Alternative("plain data parallel", Parallelism(dp=4, tp=1, pp=1), 3.0, 0, "", sums)
    piped = Alternative("dp=1 tp=1 pp=4 zero=0", Parallelism(dp=1, tp=1, pp=4), 2.5, 0, "", None, 0.5)
    told = replace(predict(record, step_time_s=2.0), alternatives=(data, piped))
    two = replace(told, cluster=ClusterSpec.parse("2x2 cpu"))
    for found, where in ((told, "within a node"), (two, "between nodes")):
        text = report_text(found)
        why = " ".join(text[text.index("\nWhy\n") :].split("\n\n")[0].split())
        assert "pp=4 zero=0 also fits and takes 1.25 times as long, waiting 500 ms in the pipeline's bubble." in why
        waits = f"waiting 750 ms for gradients (all-reduce over dp, {where})"
        assert f"Not plain data parallel: it takes 1.50 times as long, {waits}." in why
    text = report_text(replace(told, alternatives=(data,)))
    assert "plain data parallel also fits and takes 1.50" in text and "Not plain" not in text  # once is enough
    text = report_text(replace(told, alternatives=(replace(data, step_time_s=1.0),)))
    assert "Quicker: plain data parallel also fits and takes 0.50 times as long" in text


def test_a_named_system_that_is_the_plan_says_so(record: PlanRecord) -> None:
    step_s = record.chosen.predicted.step_time_s
    same = Alternative("a system", record.chosen.parallelism, step_s, 0)
    text = report_text(replace(record, alternatives=(same,)))
    assert re.search(r"^  a system .* yes +the chosen plan is this one$", text, re.MULTILINE)
    assert "a system also fits" not in text


def test_an_operator_is_explained_with_its_alternatives(record: PlanRecord) -> None:
    text = explain_text(record, "mlp.down")
    assert "down = linear(prod [8, 64, 192], down.weight [64, 192]) -> [8, 64, 64]" in text
    assert "in Layer, of which the model has 4 that run alike" in text
    ways = [line for line in text.splitlines() if "->" in line and re.match(r"    +[\d.]+ .?s", line)]
    assert sum("chosen" in way for way in ways) == 1
    assert any(way.endswith("Shard(2), Shard(1) -> Partial") for way in ways)  # row-parallel
    assert any(way.endswith("Replicate, Shard(0) -> Shard(2)") for way in ways)  # column-parallel
    assert any(way.endswith("Replicate, Replicate -> Replicate") for way in ways)


def test_options_are_ranked_and_split_work_and_weights(record: PlanRecord) -> None:
    index, block = next((i, b) for i, b in enumerate(record.model.blocks) if b.name == "Layer")
    node = next(n for n in block.nodes if n.name == "down")
    options = local_options(record, index, node, "tp")
    totals = [o.total_s for o in options if o.total_s is not None]
    assert totals == sorted(totals) and sum(o.chosen for o in options) == 1
    whole = next(o for o in options if o.strategy.on("tp").factor == "" and o.strategy.on("tp").output.kind in "RI")
    halved = next(o for o in options if o.strategy.on("tp").factor == "k")
    assert halved.parameter_bytes * 2 == whole.parameter_bytes == 64 * 192 * 4
    assert halved.compute_s < whole.compute_s


@pytest.mark.parametrize("name", ["1.q.weight", "q", "attn.q"])
def test_a_parameter_an_operator_or_a_module_can_be_named(record: PlanRecord, name: str) -> None:
    text = explain_text(record, name)
    assert "q = linear(n1 [8, 64, 64], q.weight [64, 64])" in text and text.count("On tp, each way's time") == 1


def test_a_large_module_is_listed(record: PlanRecord) -> None:
    text = explain_text(record, "2")
    layer = next(b for b in record.model.blocks if b.name == "Layer")
    assert {line.split()[0] for line in text.splitlines()[3:]} == {n.name for n in layer.nodes}


def test_an_unknown_name_is_answered_with_the_nearest(record: PlanRecord) -> None:
    with pytest.raises(AutoplanError) as error:
        explain_text(record, "mlp.dwn")
    assert str(error.value).startswith("'mlp.dwn': the model has no module, parameter or operator of that name.")
    assert "mlp.down" in error.value.remedy


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0"), (12.345, "12.3 s"), (123.4, "123 s"), (1.0, "1.00 s"), (0.9999, "1.00 s"), (0.0456, "45.6 ms"),
     (7.891e-6, "7.89 µs"), (2e-9, "0.00 µs"), (3600.0, "3,600 s")],
)  # fmt: skip
def test_seconds_as_people_write_them(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_a_table_wraps_its_last_column() -> None:
    text = table(["a", "b"], [["1", "word " * 40], ["22", "x"]], right=(0,))
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert lines[0] == "   a  b" and lines[1].startswith("   1  word") and lines[2].startswith("      word")
    assert lines[-1] == "  22  x"


def test_a_compression_without_anything_to_compress_is_told() -> None:
    """Not that gradients are approximations: a matrix [8, 8] is no larger than its factors."""
    rows, loss = (torch.zeros(4, 8), torch.zeros(4, 8)), torch.nn.functional.mse_loss
    text = str(parallelize_alone(torch.nn.Linear(8, 8), "1x2 cpu", rows, loss_fn=loss, parallelism="powersgd").report())
    assert "Nothing is compressed" in text
    assert "approximation" not in text


def test_a_weight_is_explained_by_each_of_its_names(record: PlanRecord) -> None:
    """A tied one has several; a piece of a fused one is found by the whole one's."""
    first, *rest = record.model.parameters
    piece = replace(rest[-1], source="fused.weight", dim=0, start=0, stop=4)
    renamed = (replace(first, aliases=("lm_head.weight",)), *rest[:-1], piece)
    known = replace(record, model=replace(record.model, parameters=renamed))
    for name, own in (("lm_head.weight", first.name), ("fused.weight", piece.name)):
        assert explain_text(known, name).split("\n", 1)[1] == explain_text(known, own).split("\n", 1)[1]
