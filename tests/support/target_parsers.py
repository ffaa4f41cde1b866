"""What other trainers' own parsers make of an exported configuration; None where the trainer isn't installed."""

from __future__ import annotations

import importlib
import json
import shlex
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest.mock import patch

from autoplan.targets import ExportedConfig

Parsed = Mapping[str, object]
RECOMPUTED = {"FullAC.Config": "full", "SelectiveAC.Config": "selective", "NoneType": "none"}


def deepspeed(config: ExportedConfig, devices: int) -> Parsed:
    read = importlib.import_module("deepspeed.runtime.config")
    world = {"get_rank": lambda *_: 0, "get_world_size": lambda *_: devices}
    with patch.multiple(read.dist, **world):
        found = read.DeepSpeedConfig(json.loads(config.text))
    return {"rows": found.train_batch_size, "micro_batch": found.train_micro_batch_size_per_gpu,
            "zero": int(found.zero_config.stage), "devices": devices}  # fmt: skip


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
    return {"zero": zero, "devices": found.num_processes}


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
    sharded = ways.data_parallel_shard_degree > 1
    return {
        "rows": training.global_batch_size,
        "zero": {"always": 3, "never": 2}[ways.fsdp_reshard_after_forward] if sharded else 0,
        "recompute": RECOMPUTED[type(found.activation_checkpoint).__qualname__],
        "sequence_parallel": ways.enable_sequence_parallel,
        "devices": dims.world_size,
    }


PARSERS: Mapping[str, Callable[[ExportedConfig, int], Parsed]] = {
    "accelerate": accelerate, "deepspeed": deepspeed, "torchtitan": torchtitan,
}  # fmt: skip


def parsed(config: ExportedConfig, devices: int) -> Parsed | None:
    """What the trainer reads: whatever its parser refuses raises."""
    try:
        return PARSERS[config.kind](config, devices)
    except ImportError:
        return None
