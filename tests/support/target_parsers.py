"""What other trainers' own parsers make of an exported configuration; None where the trainer isn't installed."""

from __future__ import annotations

import importlib
import json
import shlex
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from unittest.mock import patch

from autoplan.options import Parallelism
from autoplan.targets import ExportedConfig

Parsed = Mapping[str, object]
SCHEDULES = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved", "InterleavedZeroBubble": "zero-bubble"}
RECOMPUTED = {"FullAC.Config": "full", "SelectiveAC.Config": "selective", "NoneType": "none"}


def deepspeed(config: ExportedConfig, devices: int) -> Parsed:
    read = importlib.import_module("deepspeed.runtime.config")
    world = {"get_rank": lambda *_: 0, "get_world_size": lambda *_: devices}
    with patch.multiple(read.dist, **world):
        found = read.DeepSpeedConfig(json.loads(config.text))
    zero = found.zero_config
    offload = "parameters" if zero.offload_param else "optimizer" if zero.offload_optimizer else "none"
    return {"rows": found.train_batch_size, "micro_batch": found.train_micro_batch_size_per_gpu,
            "zero": int(zero.stage), "devices": devices, "dp": devices, "offload": offload}  # fmt: skip


def accelerate(config: ExportedConfig, devices: int) -> Parsed:
    """Its file is read, and each key under ``fsdp_config`` is an option of its launcher."""
    read = importlib.import_module("accelerate.commands.config.config_args")
    launch = importlib.import_module("accelerate.commands.launch")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / config.file
        file.write_text(config.text, encoding="utf-8")
        found = read.load_config_from_file(str(file))
    options = {action.dest for action in launch.launch_command_parser()._actions}
    own = found.fsdp_config or {}
    assert own.keys() <= options, own.keys() - options
    zero = (3 if own["fsdp_reshard_after_forward"] else 2) if own else 0
    said = {"zero": zero, "devices": found.num_processes, "dp": found.num_processes}
    if own:
        offload, recompute = own["fsdp_offload_params"], own["fsdp_activation_checkpointing"]
        said |= {"offload": "parameters" if offload else "none", "recompute": "full" if recompute else "none"}
    return said


def torchtitan(config: ExportedConfig, devices: int) -> Parsed:
    manager = importlib.import_module("torchtitan.config").ConfigManager()
    importlib.import_module("torchtitan.models.llama3.config_registry")
    given = ["--module", "llama3", "--config", "llama3_debugmodel", *shlex.split(config.text.replace("\\\n", " "))]
    found = manager.parse_args(given)
    ways, training = found.parallelism, found.training
    dims = importlib.import_module("torchtitan.distributed.parallel_dims").ParallelDims(
        dp_replicate=ways.data_parallel_replicate_degree, dp_shard=ways.data_parallel_shard_degree,
        cp=ways.context_parallel_degree, tp=ways.tensor_parallel_degree, pp=ways.pipeline_parallel_degree,
        ep=ways.expert_parallel_degree, world_size=devices,
    )  # fmt: skip
    sharded, pipelined = ways.data_parallel_shard_degree > 1, ways.pipeline_parallel_degree > 1
    return {
        "rows": training.global_batch_size,
        "zero": {"always": 3, "never": 2}[ways.fsdp_reshard_after_forward] if sharded else 0,
        "recompute": RECOMPUTED[type(found.activation_checkpoint).__qualname__],
        "sequence_parallel": ways.enable_sequence_parallel,
        "devices": dims.world_size,
        "dp": ways.data_parallel_replicate_degree * ways.data_parallel_shard_degree,
        "dp_replicate": ways.data_parallel_replicate_degree if sharded else 1,
        "cp": ways.context_parallel_degree,
        "tp": ways.tensor_parallel_degree,
        "pp": ways.pipeline_parallel_degree,
        "ep": ways.expert_parallel_degree,
        "offload": "parameters" if training.enable_cpu_offload else "none",
        "micro_batch": ways.pipeline_parallel_microbatch_size if pipelined else training.local_batch_size,
        **({"pipeline_schedule": SCHEDULES[ways.pipeline_parallel_schedule]} if pipelined else {}),
    }


PARSERS: Mapping[str, Callable[[ExportedConfig, int], Parsed]] = {
    "accelerate": accelerate, "deepspeed": deepspeed, "torchtitan": torchtitan,
}  # fmt: skip


def pins_of(found: Parsed, config: ExportedConfig) -> Parallelism:
    """What the trainer has read, as pins; what its file has no words for stays as exported, and is told."""
    said = {field.name: found[field.name] for field in fields(Parallelism) if field.name in found}
    if (config.parallelism.dp or 1) * (config.parallelism.ep or 1) == 1:
        said.pop("zero", None)  # of one replica nothing is sharded, and the file says so
    if (config.parallelism.tp or 1) == 1:
        said.pop("sequence_parallel", None)
    return replace(config.parallelism, **said)  # type: ignore[arg-type]


def parsed(config: ExportedConfig, devices: int) -> Parsed | None:
    """What the trainer reads: whatever its parser refuses raises."""
    try:
        return PARSERS[config.kind](config, devices)
    except ImportError:
        return None
