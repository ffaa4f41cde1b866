"""torchtitan's TOML (torchtitan/config/job_config.py)."""

from autoplan.targets.config import ExportedConfig
from autoplan.targets.text import toml
from autoplan.targets.values import TORCH_DTYPES, UNPRICED, Losses, Values, mixed_recompute

SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "zero-bubble": "InterleavedZeroBubble"}
OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam"}


def torchtitan(values: Values) -> ExportedConfig:
    training, losses = values.training, Losses(values.parallelism)
    if values.parallelism.zero == 1:
        losses.instead("FSDP2 shards gradients, too", zero=2)
    if (values.parallelism.tp or 1) > 1 and not values.parallelism.sequence_parallel:
        losses.instead("its tensor parallelism splits the sequence", sequence_parallel=True)
    if values.parallelism.pipeline_schedule == "pipedream-2bw":
        losses.instead("its schedules are synchronous", pipeline_schedule="1f1b")
    losses.without("offload", "tensor", "tensor_system", "local_steps")
    mixed_recompute(values.record, losses)
    p = losses.parallelism
    shards, replicates = (values.replicas, 1) if p.zero else (1, values.replicas)
    parallelism: dict[str, object] = {
        "data_parallel_replicate_degree": replicates,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": "always" if p.zero == 3 else "never",
        "tensor_parallel_degree": p.tp or 1,
        "pipeline_parallel_degree": p.pp or 1,
        "context_parallel_degree": p.cp or 1,
        "expert_parallel_degree": p.ep or 1,
    }
    if (p.pp or 1) > 1:
        parallelism["pipeline_parallel_schedule"] = SCHEDULES[p.pipeline_schedule or "1f1b"]
        parallelism["pipeline_parallel_microbatch_size"] = values.micro_batch
    local = values.micro_batch * (values.accumulated if (p.pp or 1) > 1 else 1)  # a pipeline's microbatches are of it
    name = OPTIMIZERS.get(training.optimizer)
    if name is None:
        losses.lost.append(f"optimizer {training.optimizer}: AdamW")
    steps: dict[str, object] = {
        "local_batch_size": local,
        "global_batch_size": values.rows,
        **({"seq_len": values.sequence} if values.sequence else {}),
        "max_norm": training.clip_grad_norm or float(10**9),
        "mixed_precision_param": TORCH_DTYPES.get(training.precision, "float32"),
        "mixed_precision_reduce": "bfloat16" if training.reduce_dtype == "bf16" else "float32",
    }
    tables: dict[str, dict[str, object]] = {
        "optimizer": {"name": name or "AdamW", "lr": training.learning_rate},
        "training": steps,
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": p.recompute or "none"},
        "compile": {"enable": training.compile},
    }
    losses.lost.append(UNPRICED)
    return ExportedConfig("torchtitan", "torchtitan.toml", toml(tables), p, tuple(losses.lost))
