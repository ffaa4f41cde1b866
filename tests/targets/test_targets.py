"""Plans in other trainers' words: the figures are the plan's, and nothing is dropped without being told."""

from __future__ import annotations

import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from autoplan.cluster import ClusterSpec
from autoplan.errors import InputsError, ParallelismError
from autoplan.options import Inference, Parallelism, Training
from autoplan.plan import Plan, load
from autoplan.targets import KINDS, config_of, launchers
from tests.support.planning import alone
from tests.support.target_plans import CLUSTER, WAYS, record


def flags(text: str) -> dict[str, str]:
    lines = [line.strip().rstrip("\\").strip().removeprefix("--") for line in text.splitlines()]
    return {name: value or "true" for name, _, value in (line.partition(" ") for line in lines)}


@pytest.mark.parametrize("pinned", WAYS, ids=str)
def test_ranks_and_rows_multiply_to_the_plan_s(pinned: Parallelism) -> None:
    plan = record(pinned)
    rows = plan.model.batch[0].type.shape[0]
    found = {kind: config_of(plan, kind) for kind in KINDS}
    one = flags(found["megatron"].text)
    sizes = [int(one[name]) for name in ("tensor-model-parallel-size", "pipeline-model-parallel-size")]
    assert 4 % (sizes[0] * sizes[1]) == 0 and int(one["global-batch-size"]) == rows
    assert rows % (int(one["micro-batch-size"]) * 4 // (sizes[0] * sizes[1])) == 0
    titan = flags(found["torchtitan"].text)
    degrees = [int(value) for name, value in titan.items() if name.startswith("parallelism.") and "_degree" in name]
    assert math.prod(degrees) == 4 and int(titan["training.global_batch_size"]) == rows
    nano = yaml.safe_load(found["nanotron"].text)
    assert nano["parallelism"]["dp"] * nano["parallelism"]["tp"] * nano["parallelism"]["pp"] == 4
    tokens = nano["tokens"]
    assert tokens["micro_batch_size"] * tokens["batch_accumulation_per_replica"] * nano["parallelism"]["dp"] == rows
    launched = yaml.safe_load(found["accelerate"].text)
    assert launched["num_processes"] == 4 and launched["use_cpu"] and launched["distributed_type"] != "MULTI_GPU"


def test_the_optimizer_s_figures_are_the_training_s() -> None:
    plan = record(WAYS[2])
    speed = json.loads(config_of(plan, "deepspeed").text)
    assert speed["optimizer"]["params"] == {"lr": 3e-4, "weight_decay": 0.1, "betas": [0.9, 0.95]}
    assert speed["zero_optimization"]["stage"] == 3 and speed["bf16"]["enabled"] and speed["gradient_clipping"] == 1.0
    titan = flags(config_of(plan, "torchtitan").text)
    assert (titan["training.mixed_precision_param"], titan["training.max_norm"]) == ("bfloat16", "1.0")
    one = flags(config_of(plan, "megatron").text)
    assert (one["lr"], one["adam-beta2"], one["clip-grad"]) == ("0.0003", "0.95", "1.0") and "bf16" in one


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pinned", WAYS, ids=str)
def test_what_is_not_said_is_told(kind: str, pinned: Parallelism) -> None:
    """Every field that differs from the plan's stands among what is lost."""
    plan = record(pinned)
    config, own = config_of(plan, kind), plan.chosen.parallelism
    told = " ".join(config.lost)
    for name in ("dp", "tp", "pp", "zero", "pipeline_schedule", "sequence_parallel", "offload"):
        before, after = getattr(own, name), getattr(config.parallelism, name)
        anew = "found anew" in told and after is None
        assert before == after or f"{name}={before}" in told or anew or before in (None, "none", 1), (name, told)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_file_cannot_say_of_a_training_is_told(kind: str) -> None:
    plan = record(WAYS[2])
    assert isinstance(plan.training, Training)
    groups = [{"match": "*norm*", "weight_decay": 0.0}, {"match": "embed*", "optimizer": "rowwise-adagrad"}]
    further = {"groups": groups, "lr_schedule": {"name": "cosine", "steps": 9}, "optimizer_options": {"amsgrad": True}}
    how = replace(plan.training, **further)  # type: ignore[arg-type]
    lost = " ".join(config_of(replace(plan, training=how), kind).lost)
    groups_told = "'*norm*' with weight_decay=0.0:", "'embed*' with rowwise-adagrad:"
    assert all(said in lost for said in ("lr_schedule cosine:", "amsgrad=True:", *groups_told))


def test_replicas_are_said_or_told() -> None:
    """HSDP where the trainer has it; elsewhere that it shards over all of dp."""
    plan = record(Parallelism(dp=4, tp=1, pp=1, zero=2, dp_replicate=2, micro_batch=1))
    titan, one = flags(config_of(plan, "torchtitan").text), flags(config_of(plan, "megatron").text)
    degrees = [titan[f"parallelism.data_parallel_{name}_degree"] for name in ("replicate", "shard")]
    assert degrees == ["2", "2"] and one["num-distributed-optimizer-instances"] == "2"
    for kind in ("nanotron", "deepspeed", "accelerate"):
        config = config_of(plan, kind)
        assert config.parallelism.dp_replicate == 1 and "dp_replicate=2" in " ".join(config.lost)


@pytest.mark.parametrize("kind", ["deepspeed", "accelerate", "nanotron"])
def test_what_recomputes_whole_layers_does_so_in_full(kind: str) -> None:
    """DeepSpeed's is the model's own gradient_checkpointing_enable(), which knows no selective one."""
    config = config_of(record(Parallelism(dp=4, tp=1, pp=1, zero=2, micro_batch=1, recompute="selective")), kind)
    assert config.parallelism.recompute == "full" and any("whole layers" in line for line in config.lost)


def test_torchtitan_splits_no_expert() -> None:
    plan = record(WAYS[0])
    chosen = replace(plan.chosen, parallelism=replace(plan.chosen.parallelism, ep=2, etp=2))
    config = config_of(replace(plan, chosen=chosen), "torchtitan")
    assert config.parallelism.etp == 1 and any(line.startswith("etp=2") for line in config.lost)


def test_a_gpipe_plan_is_one_f_one_b_in_megatron() -> None:
    config = config_of(record(WAYS[1]), "megatron")
    assert config.parallelism.pipeline_schedule == "1f1b"
    assert any(line.startswith("pipeline_schedule=gpipe") for line in config.lost)


@pytest.mark.parametrize("kind", KINDS)
def test_one_server_and_a_staleness_of_one_are_lost_too(kind: str) -> None:
    plan = record(WAYS[2])
    served = replace(plan.chosen.parallelism, zero=0, servers=1, staleness=1)
    config = config_of(replace(plan, chosen=replace(plan.chosen, parallelism=served)), kind)
    assert config.parallelism.servers is None and config.parallelism.staleness is None
    assert {"servers=1: no such option", "staleness=1: no such option"} <= set(config.lost)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_lost_has_a_price(kind: str) -> None:
    """That of the plan which the configuration says: planned with its fields pinned it takes as long."""
    plan = Plan(record(WAYS[1]))
    with alone():
        config = plan.export_config(kind)
        assert config.replanned_s is not None and config.costs is not None
        again = plan.what_if(parallelism=config.parallelism, effort="fast")
    assert again.predicted.step_time_s == pytest.approx(config.replanned_s, rel=1e-9)
    assert config.costs == pytest.approx(config.replanned_s / plan.predicted.step_time_s - 1)
    assert f"{100 * config.costs:+.1f}%" in str(config)
    assert config_of(again.record, kind).text == config.text


def test_what_does_not_fit_has_none() -> None:
    small = replace(record(WAYS[1]), cluster=ClusterSpec(1, 4, "cpu", memory_bytes=2**18))
    with alone():
        config = Plan(small).export_config("deepspeed")
    assert config.costs is None and config.why and "not priced" in str(config)


def test_an_unknown_trainer_and_a_plan_that_does_not_train() -> None:
    with pytest.raises(InputsError, match="megatron, torchtitan"):
        config_of(record(WAYS[0]), "megatorn")
    with pytest.raises(ParallelismError, match="doesn't train"):
        config_of(replace(record(WAYS[0]), training=Inference()), "megatron")


def test_launchers_name_the_plan_s_nodes(tmp_path: Path) -> None:
    assert launchers(CLUSTER, "train.py") == {}
    made = launchers(ClusterSpec(3, 8, "h100-sxm"), "train.py")
    assert len(made) == 3
    for name, text in made.items():
        assert "train.py" in text and "29500" in text
        if name.endswith("yaml"):
            service, job = yaml.safe_load_all(text)
            spec = job["spec"]
            command = spec["template"]["spec"]["containers"][0]["command"]
            assert (spec["completions"], command[command.index("--nnodes") + 1]) == (3, "3")
            assert service["metadata"]["name"] == spec["template"]["spec"]["subdomain"]
            assert command[command.index("--nproc-per-node") + 1] == "8"
        else:
            assert "--nnodes 3 --nproc-per-node 8" in text
            (tmp_path / "script").write_text(text)
            assert subprocess.run(["sh", "-n", tmp_path / "script"], check=False).returncode == 0


def test_an_export_for_several_nodes_has_launchers_that_may_be_edited(tmp_path: Path) -> None:
    plan = Plan(record(WAYS[2], ClusterSpec(2, 2, "cpu")))
    folder = plan.export(tmp_path / "out")
    script = folder / "launch" / "slurm.sbatch"
    script.write_text(script.read_text() + "# edited\n")
    assert load(folder).record.cluster.nodes == 2
