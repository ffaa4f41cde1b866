"""DeepSpeed's JSON (deepspeed.ai/docs/config-json): ZeRO over all devices."""

import json

from autoplan.option_values import ON_DISK
from autoplan.targets.config import ExportedConfig
from autoplan.targets.plan_figures import INEXACT, Translation, Values, mixed_recompute

OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "lamb": "Lamb"}


def deepspeed(values: Values) -> ExportedConfig:
    training, translation, devices = values.training, Translation(values.parallelism), values.record.cluster.devices
    translation.all_data(devices, "of a model as it is the configuration alone splits the data")
    translation.without(*INEXACT)
    translation.instead("it shards over all of dp", dp_replicate=1)
    if translation.parallelism.recompute == "selective":
        translation.instead("a model's gradient_checkpointing_enable() recomputes whole layers", recompute="full")
    mixed_recompute(values.record, translation)
    p = translation.parallelism
    zero: dict[str, object] = {"stage": p.zero or 0}
    if p.offload == ON_DISK:
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True}
    if p.offload in ("optimizer", "parameters"):
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if p.offload == "parameters":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    if p.offload == "activations":
        translation.lost.append("offload=activations: set in the model's own checkpointing")
    config: dict[str, object] = {
        "train_batch_size": values.rows,
        **microbatches(values, devices),
        "zero_optimization": zero,
        "bf16": {"enabled": training.precision.startswith("bf16")},
        "fp16": {"enabled": training.precision.startswith("fp16")},
        "gradient_clipping": training.clip_grad_norm or 0.0,
        "optimizer": optimizer(values, translation),
    }
    if p.recompute not in (None, "none"):
        said = "not in this file, call model.gradient_checkpointing_enable()"
        translation.lost.append(f"recompute={p.recompute}: {said}")
    text = json.dumps(config, indent=2) + "\n"
    return ExportedConfig("deepspeed", "deepspeed.json", text, p, tuple(translation.lost))


def microbatches(values: Values, devices: int) -> dict[str, object]:
    """The plan's, where it splits the data over all devices; DeepSpeed's own choice of them elsewhere."""
    if values.micro_batch * values.accumulated * devices != values.rows:
        return {}
    return {"train_micro_batch_size_per_gpu": values.micro_batch, "gradient_accumulation_steps": values.accumulated}


def optimizer(values: Values, translation: Translation) -> dict[str, object]:
    training = values.training
    name = OPTIMIZERS.get(training.optimizer)
    if name is None:
        translation.lost.append(f"optimizer {training.optimizer}: AdamW")
    options = {"weight_decay": training.weight_decay, "betas": training.betas, "eps": training.eps}
    told = {key: value for key, value in options.items() if value is not None}
    return {"type": name or "AdamW", "params": {"lr": training.learning_rate, **told}}
