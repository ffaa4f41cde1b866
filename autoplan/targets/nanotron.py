"""nanotron's YAML (src/nanotron/config): the sections that a plan decides."""

from autoplan.targets.config import ExportedConfig
from autoplan.targets.config_text import yaml
from autoplan.targets.plan_figures import INEXACT, TORCH_DTYPES, UNPRICED, Translation, Values, mixed_recompute


def nanotron(values: Values) -> ExportedConfig:
    training, translation = values.training, Translation(values.parallelism)
    if (values.parallelism.zero or 0) > 1:
        translation.instead("it shards the optimizer alone", zero=1)
    if values.parallelism.pipeline_schedule not in ("1f1b", "gpipe", None) and (values.parallelism.pp or 1) > 1:
        translation.instead("its engines are 1f1b and afab", pipeline_schedule="1f1b", virtual_stages=1)
    if values.parallelism.recompute == "selective":
        translation.instead("it recomputes whole layers", recompute="full")
    translation.without("offload", "tensor", "tensor_system", *INEXACT)
    translation.instead("it shards over all of dp", dp_replicate=1)
    mixed_recompute(values.record, translation)
    p = translation.parallelism
    config = {
        "parallelism": {
            "dp": values.replicas,
            "pp": p.pp or 1,
            "tp": p.tp or 1,
            "context_parallel_size": p.cp or 1,
            "expert_parallel_size": p.ep or 1,
            "pp_engine": "afab" if p.pipeline_schedule == "gpipe" else "1f1b",
            "tp_mode": "REDUCE_SCATTER" if p.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": bool(p.sequence_parallel),
            "recompute_layer": p.recompute == "full",
        },
        "tokens": {
            "micro_batch_size": values.micro_batch,
            "batch_accumulation_per_replica": values.accumulated,
            "sequence_length": values.sequence,
        },
        "optimizer": {
            "zero_stage": p.zero or 0,
            "weight_decay": training.weight_decay or 0.0,
            "clip_grad": training.clip_grad_norm,
            "accumulate_grad_in_fp32": training.precision.endswith("mixed"),
            "learning_rate_scheduler": {"learning_rate": training.learning_rate},
        },
        "model": {"dtype": TORCH_DTYPES.get(training.precision, "float32")},
    }
    if training.optimizer not in ("adam", "adamw"):
        translation.lost.append(f"optimizer {training.optimizer}: adamW")
    translation.lost.append(UNPRICED)
    return ExportedConfig("nanotron", "nanotron.yaml", yaml(config), p, tuple(translation.lost))
