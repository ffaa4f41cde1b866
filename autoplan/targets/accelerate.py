"""Accelerate's YAML (`accelerate launch --config_file`): FSDP2, or plain data parallelism."""

from autoplan.option_values import ON_DISK
from autoplan.targets.config import ExportedConfig
from autoplan.targets.config_text import yaml
from autoplan.targets.plan_figures import INEXACT, Translation, Values, mixed_recompute

PRECISIONS = {"bf16-mixed": "bf16", "bf16": "bf16", "fp16-mixed": "fp16"}


def accelerate(values: Values) -> ExportedConfig:
    cluster, training, translation = values.record.cluster, values.training, Translation(values.parallelism)
    translation.all_data(cluster.devices, "FSDP shards a model as it is over all devices")
    if translation.parallelism.zero == 1:
        translation.instead("FSDP2 shards gradients, too", zero=2)
    translation.without(*INEXACT)
    translation.instead("it shards over all of dp", dp_replicate=1)
    mixed_recompute(values.record, translation)
    p = translation.parallelism
    if p.recompute == "selective":
        translation.instead("it recomputes whole layers", recompute="full")
        p = translation.parallelism
    if p.offload in ("activations", ON_DISK):
        translation.without("offload")
        p = translation.parallelism
    if p.offload == "optimizer":
        translation.instead("it offloads parameters and the optimizer together", offload="parameters")
        p = translation.parallelism
    on_devices = cluster.profile()[0].compiles  # a CPU's profile alone runs eagerly
    config: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if p.zero else "MULTI_GPU" if on_devices else "MULTI_CPU",
        "use_cpu": not on_devices,
        "mixed_precision": PRECISIONS.get(training.precision, "no"),
        "num_machines": cluster.nodes,
        "num_processes": cluster.devices,
        "machine_rank": 0,
    }
    if values.accumulated > 1:
        said = f"Accelerator(gradient_accumulation_steps={values.accumulated})"
        translation.lost.append(f"{values.accumulated} microbatches of a step: not in this file, {said}")
    if p.zero:
        config["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": p.zero == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": values.layer_class,
            "fsdp_activation_checkpointing": p.recompute == "full",
            "fsdp_offload_params": p.offload == "parameters",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    elif p.recompute not in (None, "none"):
        said = "not in this file, call model.gradient_checkpointing_enable()"
        translation.lost.append(f"recompute={p.recompute}: {said}")
    return ExportedConfig("accelerate", "accelerate.yaml", yaml(config), p, tuple(translation.lost))
