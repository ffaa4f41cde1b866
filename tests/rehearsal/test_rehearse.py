"""Rehearsed programs: memory beside real ranks', classes beside all ranks, and what they would trip over."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import autoplan
from autoplan.cli import main
from autoplan.cli.planning import check_outputs
from autoplan.errors import InputsError, RehearsalError
from autoplan.export.folder import program_spec, seal_folder
from autoplan.rehearsal import rehearse as rehearsing
from autoplan.rehearsal.outcome import Rehearsal
from autoplan.rehearsal.rank_classes import rank_classes
from autoplan.rehearsal.records import RankTrace
from autoplan.rehearsal.rehearse import rehearse
from autoplan.verify.local_ranks import RankPool
from tests.support.planning import parallelize_alone
from tests.support.rehearsed_plans import llama, mixtral, planned, tensors_of_rank
from tests.support.sampling import sampled

SCALAR_BYTES = 4  # of each microbatch's loss
WITHIN = 0.01  # of what a real rank's tensors take
PLANS = {
    "ddp": {"dp": 4, "zero": 0},
    "zero1, two microbatches": {"dp": 4, "zero": 1, "micro_batch": 2},
    "zero2": {"dp": 4, "zero": 2, "micro_batch": 2},
    "zero3": {"dp": 4, "zero": 3, "micro_batch": 2},
    "tensor": {"tp": 4, "sequence_parallel": False},
    "sequence": {"tp": 4, "sequence_parallel": True},
    "gpipe": {"pp": 4, "pipeline_schedule": "gpipe", "micro_batch": 2},
    "1f1b, recomputed": {"pp": 4, "pipeline_schedule": "1f1b", "micro_batch": 2, "recompute": "full"},
    "1f1b, selective": {"pp": 2, "dp": 2, "zero": 0, "micro_batch": 2, "recompute": "selective"},
    "interleaved": {
        "pp": 2, "tp": 2, "pipeline_schedule": "interleaved", "virtual_stages": 2, "micro_batch": 2,
        "sequence_parallel": False,
    },
    "all": {"pp": 2, "tp": 2, "micro_batch": 2, "pipeline_schedule": "1f1b", "recompute": "full"},
}  # fmt: skip


@pytest.fixture(scope="module")
def two_stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of two stages and two data ranks."""
    fields = {"pp": 2, "dp": 2, "zero": 1, "micro_batch": 4, "pipeline_schedule": "1f1b"}
    return planned(llama(2), "1x4 cpu", **fields).export(tmp_path_factory.mktemp("plan") / "out")


@pytest.fixture
def exported(two_stages: Path, tmp_path: Path) -> Path:
    """A copy of that plan, to be edited."""
    return Path(shutil.copytree(two_stages, tmp_path / "out"))


@pytest.mark.parametrize("name", sampled(PLANS, ["zero1, two microbatches"]))
def test_its_peak_is_what_real_ranks_take(name: str, tmp_path: Path) -> None:
    layers = 4 if "pp" in PLANS[name] else 2
    folder = planned(llama(layers), "1x4 cpu", **PLANS[name]).export(tmp_path / "out")
    with RankPool(4, timeout_s=120) as pool:
        real = pool.run(tensors_of_rank, str(folder))
    found = rehearse(folder)
    assert found.passed, str(found)
    for one in found.classes:
        for rank in one.ranks.ranks:
            assert one.peak_bytes == pytest.approx(real[rank], rel=WITHIN), f"{name}, rank {rank}"


@pytest.mark.parametrize(
    "fields",
    sampled(
        [
            {"dp": 3, "zero": 3, "micro_batch": 4},
            {"dp": 3, "zero": 1, "pp": 2, "micro_batch": 2},
            {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "micro_batch": 2},
            {"dp": 8, "ep": 2, "zero": 1, "micro_batch": 1},
        ],
        [{"dp": 3, "zero": 3, "micro_batch": 4}],
    ),
)
def test_ranks_of_a_class_run_the_same_calls(fields: dict, tmp_path: Path) -> None:
    devices = fields.get("dp", 1) * fields.get("tp", 1) * fields.get("pp", 1)
    plan = planned(mixtral() if "ep" in fields else llama(2), f"1x{devices} cpu", **fields)
    folder = plan.export(tmp_path / "out")
    classes = rank_classes(program_spec(plan.record, folder))
    assert sorted(rank for each in classes for rank in each.ranks) == list(range(devices))
    count = plan.record.chosen.microbatches
    traces = rehearsing.each_apart([(folder, rank, count, True) for rank in range(devices)])
    assert not [trace for trace in traces if isinstance(trace, str)]
    for each in classes:
        first = traces[each.first]
        for rank in each.ranks[1:]:
            assert traces[rank].calls == first.calls, f"{each.reason}: rank {rank} and rank {each.first}"
            assert traces[rank].peak == first.peak


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"pp": 2, "pipeline_schedule": "interleaved", "virtual_stages": 2}, marks=pytest.mark.slow),
        pytest.param({"pp": 4, "pipeline_schedule": "1f1b"}, marks=pytest.mark.slow),
        pytest.param({"pp": 2, "pipeline_schedule": "zero-bubble", "virtual_stages": 2}, marks=pytest.mark.slow),
    ],
)
def test_a_pipeline_holds_what_is_in_flight_however_many_microbatches_there_are(fields: dict, tmp_path: Path) -> None:
    plan = planned(llama(), f"1x{fields['pp']} cpu", micro_batch=2, **fields)
    folder, most = plan.export(tmp_path / "out"), plan.record.chosen.microbatches
    fills = 2 * fields["pp"] * fields.get("virtual_stages", 1)
    assert fills < most
    for rank in (0, fields["pp"] - 1):
        few, every = rehearsing.each_apart([(folder, rank, count, True) for count in (fills, most)])
        assert_held_alike(few, every, most - fills)


def assert_held_alike(few: RankTrace, every: RankTrace, further: int) -> None:
    """But for the loss of each further microbatch."""
    for kind in ("activations", "messages", "gradients"):
        held = [sum(one.bytes for one in trace.peak.kinds if one.kind == kind) for trace in (few, every)]
        assert abs(held[1] - held[0]) <= SCALAR_BYTES * further, f"rank {few.rank}: {kind}"


def edited(folder: Path, pattern: str, replacement: str) -> int:
    """program.py with a line edited, its edit taken; the line's number."""
    file = folder / "program.py"
    text = file.read_text()
    found = re.search(pattern, text)
    assert found, pattern
    file.write_text(text[: found.start()] + found.expand(replacement) + text[found.end() :])
    seal_folder(folder)
    return text[: found.start()].count("\n") + 1


def test_its_former_name_of_findings_tells_the_new_one() -> None:
    with pytest.raises(AttributeError, match=r"use Rehearsal\.findings"):
        _ = object.__new__(Rehearsal).faults


def test_a_value_that_the_host_asks_for_is_told_with_its_line(exported: Path) -> None:
    asks = r"\1\2 = F.silu(\3\n\1assert \2.sum().item() is not None"
    line = edited(exported, r"(?m)^( +)(\w+) = F\.silu\((.*)$", asks)
    found = rehearse(exported)
    assert any(one.what == "host stop" and one.line == f"program.py:{line + 1}" for one in found.findings)


def test_a_tensor_on_the_host_is_told_with_its_line(exported: Path) -> None:
    line = edited(exported, r"(?m)^( +)(\w+) = F\.silu\((.*)$", r"\1\2 = F.silu(\3\n\1\2 = \2 + torch.ones(\2.shape)")
    found = rehearse(exported)
    assert not found.passed
    assert any(f"program.py:{line + 1}" in text and "device" in text for _, text in found.failed), found.failed


def test_a_collective_that_some_ranks_lack_is_told(exported: Path) -> None:
    """The last stage alone runs one more, over the pipeline's ranks, which its partner doesn't."""
    edited(
        exported, r"(?m)^( +)loss = cross_entropy\((.*)$",
        r"\1loss = cross_entropy(\2\n\1torch.distributed.all_reduce(torch.ones(4, device=loss.device))",
    )  # fmt: skip
    found = rehearse(exported)
    assert not found.passed
    assert found.together.mismatches or found.together.deadlock
    assert "all-reduce" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields", [{"micro_batch": 1}, {"tp": 2, "micro_batch": 2, "recompute": "full"}], ids=["pipeline", "tensor"]
)
def test_fewer_microbatches_tell_what_each_further_one_adds(fields: dict, tmp_path: Path) -> None:
    """On two stages, the last has one message more at once in the fourth microbatch than in the third."""
    devices, count = 2 * fields.get("tp", 1), 24 // fields["micro_batch"]
    plan = planned(llama(2), f"1x{devices} cpu", pp=2, pipeline_schedule="1f1b", **fields)
    folder = plan.export(tmp_path / "out")
    some, every = rehearse(folder), rehearse(folder, microbatches=count)
    assert some.run == 6 and every.run == count
    for less, more in zip(some.classes, every.classes, strict=True):
        assert less.peak_bytes == more.peak_bytes
        assert less.growth_bytes > 0


def test_the_time_of_a_step_of_many_microbatches_is_carried_on(tmp_path: Path) -> None:
    """By what further ones take once the schedule is full, with as much in flight; of a few that were asked for alone,
    it isn't known."""
    plan = planned(llama(1), "1x2 cpu", pp=2, pipeline_schedule="1f1b", micro_batch=3)
    folder, count = plan.export(tmp_path / "out"), plan.record.chosen.microbatches
    some, every, few = rehearse(folder), rehearse(folder, microbatches=count), rehearse(folder, microbatches=2)
    assert some.run == 6 < count == every.run
    assert some.together.simulated_s == pytest.approx(every.together.simulated_s, rel=1e-3)
    assert few.together.simulated_s is None
    for less, more in zip(some.classes, every.classes, strict=True):
        assert_held_alike(less.trace, more.trace, count - some.run)


@pytest.mark.slow
def test_between_its_messages_a_stage_neither_gathers_nor_reduces(tmp_path: Path) -> None:
    """But for the chain's first stage, for which nobody waits; what is summed is waited for after all backwards."""
    fields = {"pp": 2, "pipeline_schedule": "interleaved", "virtual_stages": 2, "dp": 2, "zero": 1, "micro_batch": 2}
    found = rehearse(planned(llama(), "1x4 h100-sxm", "bf16-mixed", **fields).export(tmp_path / "out"))
    assert found.passed, str(found)
    for one in found.classes:
        calls = one.trace.calls
        for names in ("all-gather", "fsdp.split_with_sizes_copy"), ("reduce-scatter sum", "fsdp.chunk_cat"):
            within = [c for c in calls if c.name in names and c.during != "start"]
            assert {c.during.partition(" of ")[2] for c in within} == ({"stage 0"} if 0 in one.trace.stages else set())
            assert len([c for c in calls if c.name in names]) > len(within)
        sums = {c.stream for c in calls if c.name.startswith("reduce-scatter") and c.stream}
        waits = [c for c in calls if c.kind == "join" and not c.stream and sums.intersection(c.of)]
        last = max(c.number for c in calls if c.during.startswith("backward"))
        assert sum(c.number > last for c in waits) >= 2


@pytest.mark.slow
def test_a_mixture_whose_tokens_travel() -> None:
    found = planned(mixtral(), "1x4 cpu", tp=4, tensor_system="expert-all-to-all").rehearse()
    assert found.passed, str(found)
    names = {call.name for one in found.classes for call in one.trace.calls if call.kind == "collective"}
    assert names & {"all-to-all", "all-to-all-v"}


@pytest.mark.slow
def test_a_compiled_plan_keeps_less_than_the_eager_one() -> None:
    """The plan is for GPUs, none of which is here."""
    plan = planned(llama(2), "1x2 h100-sxm", "bf16-mixed", tp=2)
    found = plan.rehearse()
    assert found.passed and len(found.classes) == 1, str(found)
    kept = sum(one.bytes for one in found.classes[0].peak.kinds if one.kind == "activations")
    assert kept > 0
    assert found.to_dict()["passed"] is True


STOPS = {"ddp": {"dp": 2}, "zero3": {"dp": 2, "zero": 3}, "1f1b": {"pp": 2, "micro_batch": 2}}


@pytest.mark.parametrize("name", sampled(STOPS, ["zero3"]))
def test_a_dense_step_waits_for_no_device(name: str) -> None:
    found = planned(llama(2), "1x2 h100-sxm", "bf16-mixed", **STOPS[name]).rehearse()
    assert found.passed, str(found)
    for one in found.classes:
        assert any(call.kind == "operator" for call in one.trace.calls)
        assert not [call for call in one.trace.calls if call.kind == "stop"]


@pytest.mark.slow
def test_a_mixture_waits_for_the_counts_of_its_tokens_alone() -> None:
    """Once a layer and microbatch, in the forward."""
    plan = planned(mixtral(), "1x2 h100-sxm", "bf16-mixed", tp=2, tensor_system="expert-all-to-all", micro_batch=12)
    found = plan.rehearse(microbatches=2)
    assert found.passed, str(found)
    for one in found.classes:
        stops = [call for call in one.trace.calls if call.kind == "stop"]
        assert len(stops) == 2 * 2, "layers times microbatches"
        assert all(call.name == "host.read" and call.during.startswith("forward") for call in stops)


def test_wrong_arguments_are_told(exported: Path) -> None:
    for ranks in ("4", "0,x", ""):
        with pytest.raises(InputsError, match="ranks="):
            rehearse(exported, ranks)
    with pytest.raises(InputsError, match="microbatches=99"):
        rehearse(exported, microbatches=99)


def test_the_command_prints_what_was_found(exported: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["rehearse", str(exported), "--ranks", "0,2", "--json", str(exported.parent / "found.json")]) == 0
    told = capsys.readouterr().out
    assert "rank 0" in told and "rank 2" in told and "isn't known" in told
    assert (exported.parent / "found.json").stat().st_size > 100


def test_an_export_may_be_rehearsed_and_its_report_tells(tmp_path: Path) -> None:
    folder = planned(llama(1), "1x2 cpu", dp=2).export(tmp_path / "out", rehearse=True)
    found = json.loads((folder / "rehearsal.json").read_text())
    assert found["passed"] and found["classes"][0]["peak_bytes"] > 0
    assert "would run as planned" in (folder / "report.html").read_text()
    assert autoplan.load(folder).record.chosen.parallelism.dp == 2  # it is none of the files that are sealed


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rehearse": True}, "^--rehearse: .* give --export"),
        ({"scaling": True}, "^--scaling: .* give --export"),
        ({"explain": "0", "verbose": True}, "^--verbose: with --explain"),
    ],
)
def test_an_option_of_what_is_not_written_is_refused(given: dict[str, object], said: str) -> None:
    unset = {"export": None, "rehearse": False, "scaling": False, "explain": None, "verbose": False}
    with pytest.raises(InputsError, match=said):
        check_outputs(argparse.Namespace(**unset | given))


def test_a_mixture_in_single_precision_is_no_fault() -> None:
    """Torch infers the shapes of grouped products in bfloat16 alone."""
    found = planned(mixtral(), "1x2 cpu", tp=2, micro_batch=12).rehearse(microbatches=1)
    assert found.passed, str(found)


def test_a_plan_of_the_forward_alone_is_refused(tmp_path: Path) -> None:
    plan = parallelize_alone(
        llama(1), "1x2 cpu", {"input_ids": torch.zeros(2, 8, dtype=torch.int64)}, training=autoplan.Inference()
    )
    with pytest.raises(RehearsalError, match="Inference"):
        plan.rehearse()
