"""torchtitan's options of the command line, a section and a name each (torchtitan/config/configs.py, as of 0.3).

The model, its data and its optimizer are a configuration function's; the options take the place of what it says.
"""

from autoplan.option_values import ON_DISK
from autoplan.targets.config import ExportedConfig
from autoplan.targets.config_text import flags
from autoplan.targets.plan_figures import INEXACT, TORCH_DTYPES, UNPRICED, Translation, Values, mixed_recompute

SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "zero-bubble": "InterleavedZeroBubble"}
OPTIMIZERS = ("adamw", "adam", "muon")


def torchtitan(values: Values) -> ExportedConfig:
    translation = Translation(values.parallelism)
    if values.parallelism.zero == 1:
        translation.instead("FSDP2 shards gradients, too", zero=2)
    if values.parallelism.continuous:
        translation.instead("its schedules are synchronous", pipeline_schedule="1f1b")
    if values.parallelism.offload == "optimizer":
        translation.instead("it offloads parameters and the optimizer together", offload="parameters")
    if values.parallelism.offload in ("activations", ON_DISK):
        translation.without("offload")
    if (values.parallelism.ep or 1) > 1:
        translation.instead("it doesn't split an expert", etp=1)
    translation.without("tensor", "tensor_system", *INEXACT)
    mixed_recompute(values.record, translation)
    p = translation.parallelism
    options = {
        **{f"training.{name}": value for name, value in training(values, translation).items()},
        **{f"parallelism.{name}": value for name, value in parallelism(values, translation).items()},
        "compile.enable": values.training.compile,
    }
    translation.lost.append(UNPRICED)
    text = f"{flags(options).rstrip()} \\\nactivation_checkpoint:{p.recompute or 'none'}\n"  # a choice stands last
    return ExportedConfig("torchtitan", "torchtitan.args", text, p, tuple(translation.lost))


def training(values: Values, translation: Translation) -> dict[str, object]:
    """The training's section; says what of it has another place, or none."""
    asked, p = values.training, translation.parallelism
    param = "bfloat16" if asked.precision.startswith("bf16") else "float32"
    if asked.precision not in ("fp32", "bf16", "bf16-mixed"):
        translation.lost.append(f"precision {asked.precision}: {param}")
    sharded = (p.zero and values.replicas > 1) or (p.cp or 1) > 1
    if asked.precision == "bf16-mixed" and not sharded and (p.tp or 1) * (p.pp or 1) > 1:
        translation.lost.append("precision bf16-mixed without FSDP, beside tp or pp: float32")
    if asked.reduce_dtype == "bf16":
        translation.lost.append("reduce_dtype=bf16: float32")
    name = asked.optimizer if asked.optimizer in OPTIMIZERS else "adamw"
    given = f"{name} with lr={asked.learning_rate}"
    translation.lost.append(f"optimizer {asked.optimizer}: the configuration function's, to be given {given}")
    pipelined = (p.pp or 1) > 1
    return {
        "local_batch_size": values.micro_batch * (values.accumulated if pipelined else 1),  # a pipeline cuts it
        "global_batch_size": values.rows,
        "seq_len": values.sequence,
        "max_norm": asked.clip_grad_norm or float(10**9),
        "dtype": TORCH_DTYPES["bf16"] if asked.precision == "bf16" else "float32",
        "mixed_precision_param": param,
        "enable_cpu_offload": p.offload == "parameters",
        "disable_cuda_graphs": pipelined or (p.ep or 1) > 1,  # it has none with these
    }


def parallelism(values: Values, translation: Translation) -> dict[str, object]:
    """The parallelism's section. Stages are of as many layers each, where that goes."""
    p = translation.parallelism
    replicates = (p.dp_replicate or 1) if p.zero else values.replicas
    options: dict[str, object] = {
        "data_parallel_replicate_degree": replicates,
        "data_parallel_shard_degree": values.replicas // replicates,
        "fsdp_reshard_after_forward": "always" if p.zero == 3 else "never",
        "tensor_parallel_degree": p.tp or 1,
        "context_parallel_degree": p.cp or 1,
        "expert_parallel_degree": p.ep or 1,
        "no-enable_sequence_parallel": (p.tp or 1) > 1 and not p.sequence_parallel,
        "pipeline_parallel_degree": p.pp or 1,
    }
    stages = (p.pp or 1) * (p.virtual_stages or 1)
    if stages > 1:
        options["pipeline_parallel_schedule"] = SCHEDULES[p.pipeline_schedule or "1f1b"]
        options["pipeline_parallel_microbatch_size"] = values.micro_batch
    if stages > 1 and values.layers % stages == 0:
        options["pipeline_parallel_layers_per_stage"] = values.layers // stages
        options["pipeline_parallel_first_stage_less_layers"] = 0
        options["pipeline_parallel_last_stage_less_layers"] = 0
    return options
