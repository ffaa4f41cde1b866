"""Megatron-LM's flags (megatron/training/arguments.py); Megatron Bridge takes the same names with underscores."""

from autoplan.targets.config import ExportedConfig
from autoplan.targets.config_text import flags
from autoplan.targets.plan_figures import INEXACT, UNPRICED, Translation, Values, mixed_recompute


def megatron(values: Values) -> ExportedConfig:
    training, translation = values.training, Translation(values.parallelism)
    if values.parallelism.pipeline_schedule not in ("1f1b", "interleaved", None) and (values.parallelism.pp or 1) > 1:
        translation.instead("Megatron runs 1F1B, interleaved or not", pipeline_schedule="1f1b", virtual_stages=1)
    if (values.parallelism.zero or 0) > 1:
        translation.instead("its distributed optimizer is ZeRO-1", zero=1)
    translation.without("offload", "tensor", "tensor_system", *INEXACT)
    mixed_recompute(values.record, translation)
    p = translation.parallelism
    virtual, pp = p.virtual_stages or 1, p.pp or 1
    each = values.layers // (pp * virtual)
    if values.layers % (pp * virtual):
        translation.lost.append(f"{values.layers} layers on {pp * virtual} stages: Megatron wants as many on each")
    full = p.recompute == "full"
    options: dict[str, object] = {
        "tensor-model-parallel-size": p.tp or 1,
        "pipeline-model-parallel-size": pp,
        "num-layers-per-virtual-pipeline-stage": each if virtual > 1 and each else None,
        "context-parallel-size": p.cp if (p.cp or 1) > 1 else None,
        "expert-model-parallel-size": p.ep if (p.ep or 1) > 1 else None,
        "expert-tensor-parallel-size": p.etp if (p.ep or 1) > 1 else None,
        "sequence-parallel": bool(p.sequence_parallel),
        "use-distributed-optimizer": p.zero == 1,
        "num-distributed-optimizer-instances": p.dp_replicate if p.zero == 1 and (p.dp_replicate or 1) > 1 else None,
        "overlap-grad-reduce": (p.dp or 1) > 1,
        "overlap-param-gather": p.zero == 1 and (p.dp or 1) > 1,  # it wants the other overlap beside it
        "recompute-granularity": p.recompute if p.recompute in ("full", "selective") else None,
        "recompute-method": "uniform" if full else None,
        "recompute-num-layers": 1 if full else None,
        "micro-batch-size": values.micro_batch,
        "global-batch-size": values.rows,
        "seq-length": values.sequence,
        "bf16": training.precision.startswith("bf16"),
        "fp16": training.precision.startswith("fp16"),
        "optimizer": optimizer(values, translation),
        "lr": training.learning_rate,
        "weight-decay": training.weight_decay,
        "adam-beta1": training.betas[0] if training.betas else None,
        "adam-beta2": training.betas[1] if training.betas else None,
        "clip-grad": training.clip_grad_norm or 0.0,
    }
    translation.lost.append(UNPRICED)
    return ExportedConfig("megatron", "megatron.args", flags(options), p, tuple(translation.lost))


def optimizer(values: Values, translation: Translation) -> str:
    name = values.training.optimizer
    if name in ("adam", "adamw", "sgd", "muon"):
        return "adam" if name == "adamw" else name
    translation.lost.append(f"optimizer {name}: adam")
    return "adam"
