"""Tables off the device, behind a cache of their rows: equal to one device, and bit for bit to tables on the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autoplan
from autoplan import Inference, Parallelism, Training
from autoplan.cluster import ClusterSpec
from autoplan.errors import DoesNotFitError, ParallelismError
from autoplan.export.folder import opened
from autoplan.rehearsal.rehearse import rehearse
from autoplan.runtime.memory.disk_memory import on_disk
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.program import Program
from autoplan.search.tables.cached_tables import harmonic
from autoplan.verify.local_ranks import RankPool
from tests.support.planning import parallelize_alone
from tests.support.recommenders import HOW, LIMIT, MIXED, ROWS, SIZES, Large, Recommender, batch, planned, trained

STEPS = 6
SMALL = {"tp": 4, "table_cache": 0.0, "micro_batch": ROWS // 4}  # room for what a microbatch looks up, no more


def batches(count: int = STEPS) -> list[tuple[Tensor, ...]]:
    """Of all rows of each table, the low ones more often, the padding ones among them."""
    torch.manual_seed(7)
    found = []
    for _ in range(count):
        dense, _, shares, _, _, clicks = batch()
        low = [(torch.rand(ROWS, n) ** 2 * size).long() for n, size in zip((3, 3, 3, 3, 2, 1), SIZES, strict=True)]
        given = (dense, torch.stack(low[:4], 1), shares, low[4], low[5][:, 0], clicks)
        found.append(tuple(x.double() if x.is_floating_point() else x for x in given))
    return found


def weights() -> dict[str, Tensor]:
    torch.manual_seed(3)
    return {key: value.double() for key, value in Recommender().state_dict().items()}


def on_one_device(how: Training) -> dict[str, Tensor]:
    model = Recommender().double()
    model.load_state_dict(weights())
    optimizer = build_optimizer(model.named_parameters(), how)
    for given in batches():
        model(*given).backward()
        nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def on_ranks(rank: int, world: int, folder: str, between: bool = False, saves: str = "") -> dict[str, Any]:
    """Steps, ``between`` which weights are read and a batch is evaluated; what is left, and what caches did.

    saves  a folder for a checkpoint in the middle, from which another program goes on
    """
    plan, given = opened(folder), batches()
    program = Program(plan.spec(), plan.module())
    program.load_weights(weights())
    losses = []
    for number, each in enumerate(given, 1):
        if between:
            program.evaluate(each)
            program.state_dict(full=True)
            program.optimizer.load_state_dict(program.optimizer.state_dict())
        losses.append(float(program.step(each)))
        program.optimizer.step()
        program.optimizer.zero_grad()
        if saves and number == len(given) // 2:
            program.save_checkpoint(saves)
            program.load_weights(weights())
            program.load_checkpoint(saves)
    slots = {
        start: (box.slots, box.count) for _, cache in program._caches() for start, box in cache.boxes.items()
    }
    return {
        "weights": program.state_dict(full=True), "losses": losses, "slots": slots, "misses": program.table_misses(),
        "devices": {h.values.device.type for h in program.held},
        "on disk": {
            on_disk(each)
            for held, _ in program._caches() for each in (held.values, *program.optimizer.state[held.updated].values())
            if each.shape == held.values.shape
        },
    }  # fmt: skip


def exported(how: Training, to: Path, name: str, **pinned: Any) -> str:
    return str(planned(MIXED, how, **pinned).export(to / name))


@pytest.mark.parametrize("name", HOW)
def test_a_cache_smaller_than_a_step_s_rows_equals_one_device(pool: RankPool, tmp_path: Path, name: str) -> None:
    how = trained(HOW[name])
    folder = exported(how, tmp_path, "cached", **SMALL, tables="host")
    assert "cached=('host', " in (Path(folder) / "program.py").read_text().replace('"', "'")
    ranks = pool.run(on_ranks, folder)
    plain = pool.run(on_ranks, exported(how, tmp_path, "plain", tp=4, micro_batch=ROWS // 4, tables="device"))
    expected = on_one_device(how)
    for key, value in expected.items():
        torch.testing.assert_close(ranks[0]["weights"][key], value, rtol=1e-10, atol=1e-10)
        assert torch.equal(ranks[0]["weights"][key], plain[0]["weights"][key]), "bit for bit as without a cache"
    assert ranks[0]["losses"] == plain[0]["losses"]
    assert any(slots < count for rank in ranks for slots, count in rank["slots"].values()), "rows gave way"
    assert any(share > 0.1 for rank in ranks for share in rank["misses"].values())
    assert not plain[0]["slots"] and not plain[0]["misses"]


@pytest.mark.parametrize("name", ["rowwise-adagrad", "adagrad"])
def test_reading_and_saving_in_between_changes_nothing(pool: RankPool, tmp_path: Path, name: str) -> None:
    """Weights, the optimizer's state, an evaluation, a checkpoint that is loaded again: all see whole tables."""
    folder = exported(trained(HOW[name]), tmp_path, "cached", **SMALL, tables="host")
    once = pool.run(on_ranks, folder)[0]
    for more in ((True,), (False, str(tmp_path / "saved"))):
        again = pool.run(on_ranks, folder, *more)[0]
        assert again["losses"] == once["losses"]
        assert all(torch.equal(again["weights"][key], value) for key, value in once["weights"].items())


def resumed(rank: int, world: int, folder: str, at: str) -> dict[str, Tensor]:
    """The second half of the steps."""
    plan = opened(folder)
    program = Program(plan.spec(), plan.module())
    program.load_checkpoint(at)
    for each in batches()[STEPS // 2 :]:
        program.step(each)
        program.optimizer.step()
        program.optimizer.zero_grad()
    return program.state_dict(full=True)


def test_a_checkpoint_goes_to_a_plan_with_tables_elsewhere(pool: RankPool, tmp_path: Path) -> None:
    """Bit for bit, both ways."""
    how, saved = trained(HOW["rowwise-adagrad"]), [str(tmp_path / f"saved-{n}") for n in range(2)]
    cached = exported(how, tmp_path, "cached", **SMALL, tables="host")
    plain = exported(how, tmp_path, "plain", tp=4, micro_batch=ROWS // 4, tables="device")
    once = pool.run(on_ranks, cached, False, saved[0])[0]["weights"]
    pool.run(on_ranks, plain, False, saved[1])
    for folder, at in ((plain, saved[0]), (cached, saved[1]), (cached, saved[0])):
        again = pool.run(resumed, folder, at)[0]
        assert all(torch.equal(again[key], value) for key, value in once.items())


def test_tables_on_disks_equal_those_on_the_device(pool: RankPool, tmp_path: Path) -> None:
    how = trained(HOW["adagrad"])
    folder = exported(how, tmp_path, "disk", **SMALL, tables="nvme")
    cached, resumed = pool.run(on_ranks, folder)[0], pool.run(on_ranks, folder, False, str(tmp_path / "saved"))[0]
    plain = pool.run(on_ranks, exported(how, tmp_path, "plain", tp=4, micro_batch=ROWS // 4))[0]
    assert all(torch.equal(cached["weights"][key], value) for key, value in plain["weights"].items())
    assert all(torch.equal(resumed["weights"][key], value) for key, value in plain["weights"].items())
    assert cached["slots"]
    assert cached["on disk"] == resumed["on disk"] == {True}, "what a checkpoint brings is laid there, too"


def test_the_report_and_the_headline_say_it() -> None:
    plan = planned(MIXED, trained(HOW["rowwise-adagrad"]), **SMALL, tables="host", table_misses=0.25)
    report = plan.report(verbose=True)
    assert "fused_uvm_caching" in report and "table_misses=0.25" in report and "tables on host" in report
    assert "tables on host, 0 of rows cached, 0.25 of rows missed" in report
    assert "fused " in planned(MIXED, trained(HOW["sgd"]), tp=4).report(verbose=True)
    pinned = plan.record.chosen.parallelism
    assert (pinned.tables, pinned.table_cache, pinned.table_misses) == ("host", 0.0, 0.25)


ROWWISE = trained(HOW["rowwise-adagrad"])


@pytest.mark.parametrize(
    ("how", "pinned", "cause"),
    [
        (Training(compile=False), {}, "adamw moves rows that have none"),
        (Training(optimizer="sgd", precision="bf16-mixed", compile=False), {}, "masters"),
        (ROWWISE, {"tp": 2, "dp": 2}, "summed over the ranks"),
        (ROWWISE, {"offload": "optimizer"}, "either tables or what is offloaded"),
        (Inference(), {}, "nothing is trained"),
        (ROWWISE, {"tables": "device", "table_cache": 0.1}, "of the cache before tables"),
        (ROWWISE, {"table_cache": 1.5}, "it is a share, from 0 to 1"),
        (ROWWISE, {"tables": "attic"}, "no such choice"),
    ],
)
def test_what_cant_be_is_refused(how: Training | Inference, pinned: dict[str, Any], cause: str) -> None:
    asked = {"tp": 4, "tables": "host", **pinned}
    with pytest.raises(ParallelismError, match=cause):
        planned(None, how, **asked)  # type: ignore[arg-type]


def test_tables_that_are_not_placed_lie_nowhere_else() -> None:
    with pytest.raises(ParallelismError, match="it says where tables lie that are placed"):
        parallelize_alone(Recommender(), "1x4 cpu", batch(), parallelism=Parallelism(tables="host"))


def large(how: Training, memory: int | None, cluster: str = "1x4 h100-sxm", **pinned: Any) -> autoplan.Plan:
    """Of 1.2 million elements in tables."""
    given = torch.randint(50_000, (ROWS, 3, 4)), torch.rand(ROWS).round()
    spec = replace(ClusterSpec.parse(cluster), memory_bytes=memory)
    system = Parallelism(tensor_system="table-parallel", tp=4, **pinned)
    return autoplan.parallelize(Large(), spec, given, parallelism=system, training=how)


def test_tables_that_have_no_room_on_the_devices_lie_with_the_host() -> None:
    how = Training(optimizer="adagrad", learning_rate=0.1, compile=False)
    on_device = large(how, None)
    assert on_device.record.chosen.parallelism.tables is None
    (whole,) = on_device.predicted.peak_bytes
    few = round(0.6 * whole.total)
    plan = large(how, few)
    (memory,), pinned = plan.predicted.peak_bytes, plan.record.chosen.parallelism
    assert pinned.tables == "host" and pinned.table_cache is not None
    assert memory.total <= few and memory.optimizer >= 0 and memory.gradients < 10_000
    assert memory.host == 2 * max(h.local_shape[0] for h in plan.lowered.parameters if h.members) * 4, "with states"
    assert plan.predicted.step_time_s > on_device.predicted.step_time_s
    again = large(how, few, tables=pinned.tables, table_cache=pinned.table_cache)
    assert again.predicted == plan.predicted, "pinned it is the same plan"
    missed = [large(how, few, tables="host", table_misses=share).predicted.step_time_s for share in (0.0, 0.5, 1.0)]
    assert missed == sorted(set(missed))
    with pytest.raises(DoesNotFitError):
        large(how, few, tables="device")
    with pytest.raises(DoesNotFitError, match=r"tables='host'\): now compiled segments give whole ones"):
        large(replace(how, compile=True), few)


def test_a_rehearsal_has_the_cache_that_the_account_has(tmp_path: Path) -> None:
    """On a device of its own memory: what is read and written there, and what the host waits for."""
    plan = large(Training(optimizer="adagrad", compile=False), None, tables="host")
    plan.export(tmp_path / "out")
    found = rehearse(tmp_path / "out")
    fullest = max(each.peak_bytes for each in found.classes)
    assert fullest == pytest.approx(plan.predicted.peak_bytes[0].total, rel=0.03)
    assert "runtime/row_cache.py" in str(found)


@pytest.mark.parametrize("where", ["host", "nvme"])
def test_a_pinned_place_gets_a_cache_that_fits(where: str) -> None:
    """TorchRec's share where that fits, else less; a share that is pinned stays as it is."""
    how = Training(optimizer="adagrad", learning_rate=0.1, compile=False)
    totals = [large(how, None, tables=where, table_cache=share).predicted.peak_bytes[0].total for share in (0.2, 0.0)]
    few = sum(totals) // 2
    found = [large(how, memory, tables=where).record.chosen.parallelism for memory in (None, few)]
    assert [(each.tables, each.table_cache) for each in found] == [(where, 0.2), (where, 0.1)]
    with pytest.raises(DoesNotFitError):
        large(how, few, tables=where, table_cache=0.2)
    with pytest.raises(DoesNotFitError, match=r"of whose rows a cache has 20%\. .*or a smaller table_cache"):
        large(how, 60_000, tables=where, table_cache=0.2)


class Twice(nn.Module):
    """A table that is looked up twice, beside one that isn't."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.one = (nn.EmbeddingBag(200, 8, mode="sum") for _ in range(2))
        self.top = nn.Linear(16, 1)

    def forward(self, left: Tensor, right: Tensor, clicks: Tensor) -> Tensor:
        x = torch.cat([self.both(left) + self.both(right), self.one(left)], 1)
        return nn.functional.binary_cross_entropy_with_logits(self.top(x).squeeze(1), clicks)


def test_tables_that_stay_on_the_devices_are_told() -> None:
    given = torch.randint(200, (ROWS, 3)), torch.randint(200, (ROWS, 3)), torch.rand(ROWS).round()
    system = Parallelism(tensor_system="table-parallel", tables="host")
    report = parallelize_alone(Twice(), "1x2 cpu", given, parallelism=system, training=ROWWISE).report(verbose=True)
    assert "On the devices with the other parameters lie both.weight: only" in report
    assert "On the devices with" not in planned(MIXED, ROWWISE, **SMALL, tables="host").report(verbose=True)


def test_the_sums_of_zipf_s_law_are_right_to_a_hundredth() -> None:
    for count in (*range(1, 40), 1000):
        assert harmonic(count) == pytest.approx(sum(1 / k for k in range(1, count + 1)), abs=0.01)
