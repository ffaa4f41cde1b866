"""Another number of processes than the plan's: a plan for them is found from its record, once, and training goes on."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import autoplan
from autoplan.cluster import ClusterSpec
from autoplan.elastic import main, replanned, requests, resized
from autoplan.errors import AutoplanError, LaunchError
from autoplan.lower.resized import planned_sizes
from autoplan.options import Parallelism, Training
from autoplan.runtime.elastic import world_size
from autoplan.runtime.elastic.scaled_batch import RATES, scaled_rate, scaled_rows
from tests.support import zoo
from tests.support.planning import parallelize_alone

NODES = {  # (cluster, processes, of each node): the devices of each node, and nodes
    ("4x2 cpu", 6, 2): (2, 3),
    ("1x8 cpu", 6, 2): (2, 3),
    ("1x8 cpu", 16, 8): (8, 2),
    ("2x4 cpu", 4, 4): (4, 1),
    ("2x8 h100-sxm", 8, 4): (4, 2),
    ("2x4 cpu", 3, 3): (3, 1),
}


@pytest.mark.parametrize("given", NODES, ids=str)
def test_the_cluster_is_what_is_there(given: tuple[str, int, int]) -> None:
    found = resized(ClusterSpec.parse(given[0]), *given[1:])
    assert (found.devices_per_node, found.nodes) == NODES[given] and found.devices == given[1]


def test_levels_are_kept_where_they_divide() -> None:
    levels = (("pod", 4, "ib-ndr"), ("all", 2, "ib-ndr"))
    pods = ClusterSpec(nodes=8, devices_per_node=8, device="h100-sxm", levels=levels)
    assert resized(pods, 32, 8).levels[-1].size == 1
    assert resized(pods, 24, 8).levels == () and resized(pods, 24, 8).devices == 24


def test_what_is_there_may_not_be_known() -> None:
    unlike = ClusterSpec(groups=((1, 8, "h100-sxm"), (1, 8, "a100-sxm-80gb")))
    with pytest.raises(LaunchError, match="nodes of several kinds"):
        resized(unlike, 8, 8)
    with pytest.raises(LaunchError, match="no whole number of nodes of 3"):
        resized(ClusterSpec.parse("2x4 cpu"), 7, 3)


def test_pins_are_given_up_in_turn_but_never_the_rule_of_a_step() -> None:
    told = [said for _, said in requests(Parallelism(dp=2, pp=2, zero=1))]
    assert told == ["", "dp, pp found anew", "dp, pp, zero found anew"]
    local = list(requests(Parallelism(dp=4, local_steps=4)))
    assert [one.local_steps for one, _ in local if isinstance(one, Parallelism)] == [4, 4]
    assert list(requests("zero3")) == [("zero3", "")]
    between = list(requests(Parallelism(dp=16, compression="int8", compression_within=8)))
    assert [said for _, said in between] == ["", "dp, compression_within found anew"]
    assert between[1][0] == Parallelism(compression="int8")
    summed = list(requests(Parallelism(dp=4, all_reduce="hierarchical")))
    assert [said for _, said in summed] == ["", "dp, all_reduce found anew"]
    gpipe = requests(Parallelism(pipeline_schedule="gpipe"))
    assert [said for _, said in gpipe] == ["", "pipeline_schedule found anew"]
    assert [said for _, said in requests(Parallelism(micro_batch=2))] == ["", "micro_batch found anew"]


def test_a_batch_is_scaled_to_whole_rows_and_the_rate_as_told() -> None:
    assert [scaled_rows(32, 4, ranks) for ranks in (3, 4, 8)] == [24, 32, 64]
    with pytest.raises(LaunchError, match=r"6 rows for 4 ranks, which are 4\.5 for 3"):
        scaled_rows(6, 4, 3)
    assert [scaled_rate(0.1, how, 9, 36) for how in RATES] == [0.1, 0.025, 0.05]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module, batch, loss_fn = zoo.small("mlp")
    pins = Parallelism(dp=2, tp=2, pp=1)
    plan = parallelize_alone(
        module, "1x4 cpu", batch, loss_fn=loss_fn, training=Training(compile=False), parallelism=pins
    )
    return plan.export(tmp_path_factory.mktemp("elastic") / "out")


class Taken:
    """A program as ``start`` of train.py sees it: what a checkpoint's ``extra`` has, and the rates that are set."""

    def __init__(self, extra: dict[str, float] | None) -> None:
        self.extra, self.rates, self.steps, self.rank = extra, [], 2, 1
        self.spec = SimpleNamespace(training=Training(learning_rate=0.4), start=SimpleNamespace(stored=True))
        self.set_learning_rate = self.rates.append

    def latest_checkpoint(self, folder: Path) -> Path | None:
        return folder if self.extra is not None else None

    def load_checkpoint(self, folder: Path) -> dict[str, float]:
        assert self.extra is not None
        return self.extra

    def init_weights(self, seed: int | None) -> None:
        assert seed is None


RESUMED = [  # extra, --lr, --elastic-rate, rows of 32 planned: the rate that is set, and what the next one has
    (None, None, "linear", 16, [0.2], (0.4, 0.5)),
    (None, None, "keep", 16, [], (0.4, 1.0)),
    ({"rate": 0.4, "rate_scale": 0.5}, None, "linear", 16, [], (0.4, 0.5)),
    ({"rate": 0.4, "rate_scale": 0.5}, None, "linear", 32, [0.4], (0.4, 1.0)),
    ({"rate": 0.4, "rate_scale": 0.5}, None, "keep", 32, [0.4], (0.4, 1.0)),
    ({"rate": 0.8, "rate_scale": 1.0}, None, "linear", 16, [0.4], (0.8, 0.5)),
    ({"rate": 0.8, "rate_scale": 0.5}, 0.1, "linear", 16, [0.05], (0.1, 0.5)),
    ({}, None, "linear", 64, [0.8], (0.4, 2.0)),
]


@pytest.mark.parametrize("case", RESUMED, ids=str)
def test_a_resumed_rate_is_the_base_rate_times_the_present_scale(exported: Path, tmp_path: Path, case: tuple) -> None:
    extra, rate, how, rows, wanted, kept = case
    found = importlib.util.spec_from_file_location("exported_train", exported / "train.py")
    assert found is not None and found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    program = Taken(extra)
    given = argparse.Namespace(checkpoint_dir=tmp_path, lr=rate, elastic_rate=how, weights=None, seed=0)
    _, left = script.start(program, given, rows, 32)
    assert program.rates == pytest.approx(wanted) and tuple(left.values()) == pytest.approx(kept)


def started(patch: pytest.MonkeyPatch, ranks: int) -> None:
    """As torchrun starts the first process of so many."""
    for name, value in {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "LOCAL_RANK": 0, "RANK": 0}.items():
        patch.setenv(name, str(value))


@pytest.mark.slow
def test_a_folder_without_a_plan_is_none(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = autoplan.load(exported)
    started(monkeypatch, 2)
    found = plan.at_world_size()
    assert found.folder is not None
    shutil.rmtree(found.folder)
    found.folder.mkdir()
    assert plan.at_world_size().record == found.record


def test_another_size_is_planned_once_and_loaded_by_all(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = autoplan.load(exported)
    started(monkeypatch, 4)
    assert plan.at_world_size() is plan
    started(monkeypatch, 2)
    found = plan.at_world_size()
    assert found.record.chosen.mesh.devices == 2 and found.record.model == plan.record.model
    assert found.record.training == plan.record.training and found.predicted.step_time_s > 0
    written = exported / "elastic" / f"1x2-{found.folder.name[4:]}"
    assert found.folder == written
    scaled, told = replanned(plan, 2, 2, "scale")
    rows = planned_sizes(plan.record.model).rows
    assert told == f"{rows // 2} rows a step in place of {rows}; dp, tp, pp found anew"
    assert planned_sizes(scaled.record.model).rows == rows // 2 and planned_sizes(found.record.model).rows == rows
    assert world_size.target_of(exported, 2, 2, "scale") != written
    with pytest.raises(LaunchError, match="batch='grow'"):
        plan.at_world_size(batch="grow")
    monkeypatch.setattr(world_size, "PLANNER", "no.such.module")
    assert plan.at_world_size().record == found.record
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert plan.at_world_size().record == found.record
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(LaunchError, match=r"a plan for 1 processes: the first process of this node made no plan"):
        plan.at_world_size(timeout_s=0.1)


def test_what_cannot_be_planned_is_told_and_leaves_nothing(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    module, batch, loss_fn = zoo.small("mlp")
    pins, training = Parallelism(dp=4, tp=1, pp=1, local_steps=4), Training(compile=False)
    plan = parallelize_alone(module, "1x4 cpu", batch, loss_fn=loss_fn, training=training, parallelism=pins)
    folder = plan.export(tmp_path / "out")
    with pytest.raises(AutoplanError):
        replanned(autoplan.load(folder), 1, 1)
    assert main([str(folder), "1", "1", str(folder / "elastic" / "1"), "keep"]) == world_size.TOLD
    assert "local_steps=4: no mesh of 1 devices" in capsys.readouterr().err and not (folder / "elastic").exists()


def test_a_folder_that_cannot_be_written_is_told(exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "elastic").write_text("a file")
    assert main([str(exported), "2", "2", str(tmp_path / "elastic" / "2"), "keep"]) == world_size.TOLD
    assert "can't be written" in capsys.readouterr().err


def test_without_torchrun_there_is_no_other_size(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(LaunchError, match="start it with torchrun"):
        autoplan.load(exported).at_world_size()
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "x")
    with pytest.raises(LaunchError, match="WORLD_SIZE=x"):
        autoplan.load(exported).at_world_size()
