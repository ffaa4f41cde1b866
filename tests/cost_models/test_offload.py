"""What lies in the host's memory: its figures, what it costs, which plans use it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.errors import DoesNotFitError, ParallelismError
from autoplan.ir.choice import Chosen, StageMemory
from autoplan.ir.graph import Model
from autoplan.options import Inference, Parallelism, Training
from autoplan.report.price_tables import memory_section
from autoplan.search.entry import search
from autoplan.search.space.systems import resolve
from autoplan.verify import verify
from cost_models.compute import update_seconds
from cost_models.errors import ProfileError
from cost_models.hardware import PROFILES, Disk, Host, device_names, load_device, slowest_of
from cost_models.offload import disk_update_seconds, host_update_seconds, link_seconds
from tests.support.hand_made import llama
from tests.support.planning import alone
from tests.support.records import record_of
from tests.support.sampling import slow

H100, _ = load_device("h100-sxm")
A100, _ = load_device("a100-sxm-80gb")
CPU, _ = load_device("cpu")
CLUSTER = ClusterSpec.parse("1x4 h100-sxm")
GIB = 2**30
TRAINING = Training()
MODEL = llama(batch=16, seq=128, hidden=512, ffn=2048, vocab=8192, layers=4)


def test_every_accelerator_knows_its_host_and_a_cpu_is_its_own() -> None:
    for name in device_names():
        device, host = load_device(name)[0], load_device(name)[0].host
        assert host is not None and host.own == (name == "cpu")
        assert host.disk is None or host.disk.read_bytes_per_s > host.disk.write_bytes_per_s
        if host.own:
            assert host.memory_bytes == device.usable_bytes
            assert host.bandwidth_bytes_per_s == 2 * host.link_bytes_per_s < device.memory_bandwidth_bytes_per_s
        else:
            assert host.memory_bytes >= device.memory_bytes / 2
            assert host.link_bytes_per_s < device.memory_bandwidth_bytes_per_s / 10
            assert host.bandwidth_bytes_per_s < device.memory_bandwidth_bytes_per_s / 10


def test_several_kinds_have_the_least_host_and_none_where_one_has_none() -> None:
    assert H100.host is not None and A100.host is not None
    assert slowest_of([H100, A100]).host == Host(
        min(H100.host.memory_bytes, A100.host.memory_bytes), A100.host.link_bytes_per_s,
        A100.host.bandwidth_bytes_per_s, disk=A100.host.disk,
    )  # fmt: skip
    assert slowest_of([replace(A100, host=replace(A100.host, disk=None)), H100]).host == replace(
        A100.host, memory_bytes=min(H100.host.memory_bytes, A100.host.memory_bytes), disk=None
    )
    assert slowest_of([replace(CPU, host=None), H100]).host is None


def test_half_a_host_is_an_error_that_names_the_figure(tmp_path: Path) -> None:
    text = (PROFILES / "h100-sxm.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("link = ")]
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(lines))
    with pytest.raises(ProfileError, match=r"host\.link is missing"):
        load_device(path)


def test_seconds_are_bytes_over_the_hosts_rates() -> None:
    host = Host(1, 50e9, 100e9)
    assert link_seconds(100e9, host) == 2 and host_update_seconds(100e9, host) == 1
    assert disk_update_seconds(100e9, Disk(1, 50e9, 25e9)) == 2 + 4


def plan(model: Model, parallelism: str | Parallelism, cluster: ClusterSpec = CLUSTER) -> Chosen:
    with alone():
        return search(model, cluster, TRAINING, resolve(parallelism, cluster))[0]


def held(chosen: Chosen) -> StageMemory:
    return chosen.predicted.peak_bytes[0]


def test_the_device_lacks_what_the_host_holds() -> None:
    here, there = (plan(MODEL, p).predicted for p in ("zero2", "zero-offload"))
    with_states, without = here.peak_bytes[0], there.peak_bytes[0]
    assert with_states.host == 0 and without.optimizer == 0
    assert without.total == with_states.total - with_states.optimizer
    assert without.host == pytest.approx(2 * with_states.optimizer, abs=4)  # master, gradient and Adam's two moments


def test_a_step_pays_the_link_both_ways_and_the_update_at_the_hosts_pace() -> None:
    here, there = (plan(MODEL, p).predicted for p in ("zero2", "zero-offload"))
    host = H100.host
    assert host is not None
    shard = there.peak_bytes[0].host / 4
    more_s = 2 * shard / host.link_bytes_per_s + 7 * shard / host.bandwidth_bytes_per_s
    on_device_s = float(update_seconds(7 * shard, H100))
    assert there.step_time_s - here.step_time_s == pytest.approx(more_s - on_device_s, rel=1e-3)


@pytest.mark.parametrize("parallelism", [Parallelism(dp=4), Parallelism(dp=2, pp=2), Parallelism(tp=4)], ids=str)
def test_offloaded_parameters_leave_the_device_between_uses(parallelism: Parallelism) -> None:
    chosen = plan(MODEL, replace(parallelism, offload="parameters"))
    assert chosen.parallelism.zero == 3 and held(chosen).parameters == held(chosen).optimizer == 0
    assert held(chosen).transients > 0 and held(chosen).host > 0
    if chosen.parallelism.pp == 1:
        assert held(chosen).gradients == 0
    optimizer = plan(MODEL, replace(parallelism, offload="optimizer", zero=3))
    assert held(chosen).total < held(optimizer).total
    assert held(chosen).host == held(optimizer).host


def test_a_host_that_is_too_small_is_a_wall(tmp_path: Path) -> None:
    needed = held(plan(MODEL, "zero-offload")).host
    for share, fits in ((1.01, True), (0.99, False)):
        text = (PROFILES / "h100-sxm.toml").read_text()
        size = f'memory = {{ value = {needed * share / 1e6}, unit = "MB"'
        path = tmp_path / "small.toml"
        path.write_text(text.replace('memory = { value = 250, unit = "GB"', size))
        small = ClusterSpec(1, 4, str(path))
        if fits:
            assert held(plan(MODEL, "zero-offload", small)).host == needed
        else:
            with pytest.raises(DoesNotFitError, match="host"):
                plan(MODEL, "zero-offload", small)


@pytest.mark.parametrize(
    ("cluster", "training", "pinned", "words"),
    [
        ("1x4 h100-sxm", TRAINING, Parallelism(offload="activations", recompute="full"), "give one of the two"),
        ("1x4 h100-sxm", TRAINING, Parallelism(offload="activations", pipeline_schedule="zero-bubble"), "would fetch"),
        ("1x4 h100-sxm", Inference(), Parallelism(offload="optimizer"), "no optimizer state"),
        ("1x4 h100-sxm", TRAINING, Parallelism(offload="parameters", zero=1), "give zero=3, or offload='optimizer'"),
    ],
)
def test_what_can_not_be_offloaded(
    cluster: str, training: Training | Inference, pinned: Parallelism, words: str
) -> None:
    with pytest.raises(ParallelismError, match=words):
        search(MODEL, ClusterSpec.parse(cluster), training, pinned)


@pytest.mark.parametrize(
    "pinned",
    [
        dict(dp=2, zero=2, offload="optimizer"),
        slow(dict(tp=2, offload="optimizer")),
        slow(dict(tp=2, offload="parameters")),
        dict(dp=2, zero=3, offload="activations"),
        slow(dict(pp=2, offload="activations")),
    ],
    ids=str,
)
def test_an_offloaded_plan_equals_one_device_and_its_report_tells_of_the_host(pinned: dict[str, object]) -> None:
    record = record_of(llama(batch=8, seq=32, hidden=64, ffn=128, vocab=256, layers=4), "1x2 h100-sxm", **pinned)
    assert verify(record, None, None, seed=0, raises=True).passed
    assert "on the host" in memory_section(record)


def test_what_a_cpu_keeps_with_its_host_is_in_its_own_memory() -> None:
    cluster = ClusterSpec.parse("1x4 cpu")
    here, there = (held(plan(MODEL, p, cluster)) for p in ("zero2", "zero-offload"))
    shard = here.optimizer / 2  # Adam's two moments
    assert there.host == 0 and there.optimizer == pytest.approx(here.optimizer + 2 * shard, abs=4)


def test_a_device_without_figures_of_a_host_offloads_nothing(tmp_path: Path) -> None:
    text = (PROFILES / "cpu.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text[: text.index("[host]")] + text[text.index("[machine]") :])
    with pytest.raises(ParallelismError, match=r"no figures of a host.*add a table \[host\]"):
        search(MODEL, ClusterSpec(1, 4, str(path)), TRAINING, Parallelism(offload="optimizer"))


def test_activations_on_the_host_leave_the_device_and_take_their_time() -> None:
    pins = Parallelism(dp=4, zero=0, micro_batch=4, recompute="none")
    here, there = plan(MODEL, pins), plan(MODEL, replace(pins, recompute=None, offload="activations"))
    assert sum(stage.selective for stage in there.stages) == 4 and there.parallelism.recompute == "none"
    assert held(there).total < held(here).total and held(there).host > 0
    assert there.predicted.step_time_s >= here.predicted.step_time_s
    own = ClusterSpec.parse("1x4 cpu")
    slower = plan(MODEL, replace(pins, recompute=None, offload="activations"), own)
    assert slower.predicted.step_time_s > plan(MODEL, pins, own).predicted.step_time_s
    assert held(slower).host == 0


def on_disk(cluster: ClusterSpec, zero: int = 0, training: Training = TRAINING) -> Chosen:
    pinned = Parallelism(dp=4, tp=1, pp=1, zero=zero, offload="nvme")
    with alone():
        return search(MODEL, cluster, training, pinned, ())[0]


def test_a_disk_holds_masters_and_states_and_no_gradients() -> None:
    """Two moments and the master beside the parameter; of ZeRO-2 a quarter of each. The update waits for the disk."""
    parameters = sum(p.type.bytes for p in MODEL.parameters)
    for zero, share in ((0, 1.0), (2, 0.25)):
        memory = on_disk(CLUSTER, zero).predicted.peak_bytes[0]
        assert memory.optimizer == 0 and memory.host == pytest.approx(3 * share * parameters, rel=1e-3)
    assert H100.host is not None and H100.host.disk is not None
    kept_s = chosen_with("optimizer").predicted.step_time_s
    more_s = on_disk(CLUSTER).predicted.step_time_s - kept_s
    waits_s = disk_update_seconds(3 * parameters, H100.host.disk)
    assert 0.5 * waits_s < more_s < waits_s  # what the host takes meanwhile is in both


def chosen_with(offload: str) -> Chosen:
    with alone():
        return search(MODEL, CLUSTER, TRAINING, Parallelism(dp=4, tp=1, pp=1, zero=0, offload=offload), ())[0]


def test_where_the_host_is_too_small_a_disk_is_the_remedy(tmp_path: Path) -> None:
    text = (PROFILES / "h100-sxm.toml").read_text()
    parameters = sum(p.type.bytes for p in MODEL.parameters)
    capacity, memory = (3 * GIB + 2.9 * parameters) / GIB, 2 * parameters / 1e9  # states take four times the parameters
    assert "capacity = { value = 79.1," in text and "memory = { value = 250," in text
    small = text.replace("capacity = { value = 79.1,", f"capacity = {{ value = {capacity:.4f},")
    small = small.replace("memory = { value = 250,", f"memory = {{ value = {memory:.4f},")
    profile = tmp_path / "small.toml"
    profile.write_text(small)
    cluster = ClusterSpec(1, 1, str(profile))
    with pytest.raises(DoesNotFitError, match="offload='nvme'") as error, alone():
        search(MODEL, cluster, TRAINING, Parallelism(), ())
    with alone():
        chosen = search(MODEL, cluster, TRAINING, Parallelism(offload="nvme"), ())[0]
    assert f"{chosen.predicted.step_time_s:.3g} s a step" in str(error.value)
    profile.write_text(small[: small.index("[host.disk]")] + small[small.index("[machine]") :])
    with pytest.raises(ParallelismError, match=r"host\.disk"):
        resolve(Parallelism(offload="nvme"), ClusterSpec(1, 1, str(profile)))


@pytest.mark.parametrize("optimizer", ["lamb", "muon"])
def test_what_looks_at_whole_parameters_is_not_updated_from_a_disk(optimizer: str) -> None:
    with pytest.raises(ParallelismError, match=f"optimizer='{optimizer}'"):
        on_disk(CLUSTER, training=Training(optimizer))
