"""What TrainingArguments may ask of a plan's program: refused, told, or turned into what the loop runs."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

from transformers import TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length

from autoplan.errors import CheckpointError, ParallelismError, WeightsError
from autoplan.ir.randomness import random_operators
from autoplan.options import Training
from autoplan.runtime.checkpoint.state_json import STATE, read_header
from autoplan.runtime.collectives.objects import together
from autoplan.runtime.inference.agreed_batch import planned_rows
from autoplan.runtime.program import Program
from autoplan.runtime.program_spec import DATA

SYSTEM, LOSS = "the plan says how the model is split", "the plan's loss is the one it was traced with"
GIVEN = "leave it out"
REFUSED = {
    "deepspeed": (SYSTEM, GIVEN),
    "fsdp": (SYSTEM, GIVEN),
    "parallelism_config": (SYSTEM, GIVEN),
    "label_smoothing_factor": (LOSS, "plan a model, or a loss_fn, that smooths"),
    "neftune_noise_alpha": ("the program's forward has no noise on its embeddings", GIVEN),
    "auto_find_batch_size": ("the batch is the plan's, which fits", GIVEN),
    "use_liger_kernel": ("the program runs what the plan was traced with", GIVEN),
    "fp16_full_eval": ("the program evaluates in the plan's precision", GIVEN),
    "bf16_full_eval": ("the program evaluates in the plan's precision", GIVEN),
    "debug": ("no step calls the module that it would watch, and a loss that isn't finite stops training", GIVEN),
    "optim_target_modules": ("the plan's optimizer is over all parameters", GIVEN),
}
TOLD = {
    "gradient_checkpointing": "the plan says what is recomputed",
    "activation_checkpointing": "the plan says what is recomputed",
    "torch_compile": "the plan says what is compiled",
    "ddp_bucket_cap_mb": "the plan's buckets are its own",
    "ddp_static_graph": "no DistributedDataParallel is made",
    "ddp_find_unused_parameters": "no DistributedDataParallel is made",
    "ddp_broadcast_buffers": "no DistributedDataParallel is made",
    "torch_empty_cache_steps": "a program keeps its memory between steps",
    "eval_accumulation_steps": "an evaluation gives the loss alone, and there are no predictions to move",
}
OPTIMIZERS = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "sgd": "sgd", "adagrad": "adagrad", "rmsprop": "rmsprop",
}  # fmt: skip
"""The Trainer's names of torch.optim's classes."""
OVERRIDES = (
    "compute_loss", "compute_loss_context_manager", "autocast_smart_context_manager", "training_step",
    "prediction_step", "_save",
)  # fmt: skip
"""Methods of a Trainer that a program takes the place of."""


def training_of(args: TrainingArguments, **further: object) -> Training:
    """What to plan with, so that the program trains as these arguments say: optimizer, precision and decay.

        plan = autoplan.parallelize(model, cluster, batch, training=training_of(args))

    further  other fields of Training

    The learning rate's schedule and the clipping stay the Trainer's. ``seed`` is that of the arguments, also their
    default. ParallelismError for an optimizer of which torch.optim has no class.
    """
    name = str(args.optim.value if hasattr(args.optim, "value") else args.optim)
    if name not in OPTIMIZERS or args.optim_args:
        value = f"optim={name!r}" + (f" with optim_args={args.optim_args!r}" if args.optim_args else "")
        raise ParallelismError(value, "a plan knows torch.optim's classes", f"use one of {', '.join(OPTIMIZERS)}")
    fields: dict = {
        "optimizer": OPTIMIZERS[name],
        "precision": "bf16-mixed" if args.bf16 else "fp16-mixed" if args.fp16 else "fp32",
        "learning_rate": args.learning_rate,
        "weight_decay": args.weight_decay,
        "seed": args.seed,
    }
    if OPTIMIZERS[name] == "adamw":
        fields |= {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
    if args.weight_decay:
        fields["groups"] = [{"match": no_decay, "weight_decay": 0.0}]
    return Training(**(fields | further))


def no_decay(name: str, _: object) -> bool:
    """Whether Trainer exempts a parameter from weight decay: biases, and the weights of norms."""
    lower = name.lower()
    parts = lower.split(".")
    layer = parts[-2] if len(parts) > 1 else ""
    normal = "layernorm" in lower or "rmsnorm" in lower or "norm" in parts or any(p.endswith("_norm") for p in parts)
    return "bias" in lower or normal or layer.startswith("ln_")


def settled(args: TrainingArguments, program: Program) -> TrainingArguments:
    """The arguments that the loop runs with: one batch a step, whose microbatches are the plan's.

    ParallelismError, which names the argument, where the program can't do as they say.
    """
    default = TrainingArguments(args.output_dir, use_cpu=args.use_cpu)
    for name, (cause, remedy) in REFUSED.items():
        value = getattr(args, name, None)
        if value and value != getattr(default, name, None):
            raise ParallelismError(f"{name}={value!r}", cause, remedy)
    check_sampling(args)
    check_clipping(args, program)
    told = [f"{name}: {why}" for name, why in TOLD.items() if getattr(args, name, None)]
    if not args.logging_nan_inf_filter:
        told.append("logging_nan_inf_filter: a loss that isn't finite stops training before it is logged")
    if args.dataloader_drop_last and args.gradient_accumulation_steps > 1:
        told.append("dataloader_drop_last: all rows that don't fill the plan's batch are dropped, not a part of them")
    if not args.average_tokens_across_devices and program.spec.size(DATA) > 1:
        told.append("average_tokens_across_devices: the plan's loss is the mean over the whole batch, as on one device")
    loading = args.accelerator_config
    if getattr(loading, "split_batches", False):
        cause = "per_device_train_batch_size is the part of one data rank"
        raise ParallelismError("accelerator_config: split_batches=True", cause, "leave it out, and give that part")
    if args.seed != program.spec.training.seed and any(map(random_operators, program.spec.lowered.blocks)):
        planned = program.spec.training.seed
        told.append(f"seed: what the model draws, as in dropout, follows the plan's seed={planned}, not {args.seed}")
    most, rows = evaluated_at_once(program), args.per_device_eval_batch_size
    if rows > most and rows == default.per_device_eval_batch_size:
        told.append(f"per_device_eval_batch_size: {most}, as the plan's batch has for a rank, not the default's {rows}")
        rows = most
    elif args.eval_strategy != "no":
        check_evaluation(args, program)
    if told and program.rank == 0:
        print("\n".join(f"autoplan: {line}" for line in told), file=sys.stderr, flush=True)
    check_batch(args, program)
    found = copy.copy(args)
    found.per_device_train_batch_size = args.per_device_train_batch_size * args.gradient_accumulation_steps
    found.gradient_accumulation_steps = 1
    found.per_device_eval_batch_size = rows
    for name in ("gradient_checkpointing", "activation_checkpointing", "torch_compile"):
        if getattr(found, name, None):
            setattr(found, name, False)
    found.torch_compile_backend = found.torch_compile_mode = None  # True sets them, and Accelerate would compile
    return found


def check_output(args: TrainingArguments, program: Program, folder: str) -> None:
    """CheckpointError, on every rank, where the Trainer's folder holds checkpoints that another run left, or one that
    can't be read.

    Such a one is never replaced, and a save would find it only in the midst of training.
    folder  of a checkpoint, the one that holds all of the program's
    """
    root = program.saver.known().root

    def other() -> None:
        saved = sorted(Path(args.output_dir or ".").glob(f"{PREFIX_CHECKPOINT_DIR}-*/{folder}/{STATE}"))
        foreign = [path.parent for path in saved if root_of(path.parent, args) != root]
        if foreign:
            cause = f"it holds {len(foreign)} checkpoints of another run, {foreign[0].parent.name} among them"
            remedy = "give resume_from_checkpoint=True to go on from the last, or another output_dir"
            raise CheckpointError(f"output_dir={args.output_dir!r}", cause, remedy)

    if args.save_strategy != "no":
        together(other)


def root_of(checkpoint: Path, args: TrainingArguments) -> str:
    """Of the run whose weights it goes back to. CheckpointError where it can't be read."""
    try:
        return read_header(checkpoint).root
    except WeightsError as error:
        value, cause = f"output_dir={args.output_dir!r}", f"it holds {checkpoint.parent.name}: {error.cause}"
        remedy = f"move {checkpoint.parent.name} away, or give another output_dir"
        raise CheckpointError(value, cause, remedy) from None


def check_sampling(args: TrainingArguments) -> None:
    """ParallelismError for a sampler that deals rows to processes."""
    said = getattr(args, "train_sampling_strategy", None)
    if said == "batch_rebalance":
        cause = "it deals rows to processes by their length, and the plan says which rows a rank takes"
        raise ParallelismError(f"train_sampling_strategy={said!r}", cause, "use 'group_by_length'")


def tell_of_stream(args: TrainingArguments, data: object, program: Program) -> None:
    """On stderr: transformers knows by the data's length alone where a pass ends. Where there is none it carries
    gradients of the last rows into the next pass, and a plan's step is its whole batch."""
    carries = args.gradient_accumulation_steps > 1 and not args.dataloader_drop_last and not has_length(data)
    if carries and program.rank == 0:
        rows = "the last rows of a stream are a step of their own where they don't fill the plan's batch"
        print(f"autoplan: gradient_accumulation_steps: {rows}, no part of the next pass", file=sys.stderr, flush=True)


def check_clipping(args: TrainingArguments, program: Program) -> None:
    """ParallelismError where the plan clips to another norm than the arguments say, 0 for none."""
    planned = program.spec.training.clip_grad_norm
    if planned is not None and planned != args.max_grad_norm:
        cause = f"the plan clips to {planned:g} before each step"
        remedy = f"give max_grad_norm={planned:g}, or plan without clip_grad_norm"
        raise ParallelismError(f"max_grad_norm={args.max_grad_norm:g}", cause, remedy)


def check_batch(args: TrainingArguments, program: Program) -> None:
    rows, ranks, planned = args.per_device_train_batch_size, program.spec.size(DATA), planned_rows(program.spec)
    steps = args.gradient_accumulation_steps
    if rows * steps * ranks != planned:
        said = f"per_device_train_batch_size={rows} x gradient_accumulation_steps={steps} x {ranks} data ranks"
        remedy = f"plan a batch of {rows * steps * ranks} rows"
        if planned % ranks == 0:
            remedy += f", or give {planned // ranks} rows with 1 step"
        raise ParallelismError(f"{said} = {rows * steps * ranks} rows", f"the plan's batch has {planned}", remedy)


def evaluated_at_once(program: Program) -> int:
    """Rows of one data rank in an evaluation, at most."""
    return max(1, planned_rows(program.spec) // program.spec.size(DATA))


def check_evaluation(args: TrainingArguments, program: Program) -> None:
    rows, ranks, most = args.per_device_eval_batch_size, program.spec.size(DATA), evaluated_at_once(program)
    if rows > most:
        said = f"per_device_eval_batch_size={rows} on {ranks} data ranks"
        cause = f"the plan's batch has {planned_rows(program.spec)} rows, and an evaluation as many at most"
        raise ParallelismError(said, cause, f"give {most}")


def check_trainer(kind: type, base: type, given: dict[str, object]) -> None:
    """ParallelismError for what a program doesn't call: a loss, a metric or a step of one's own."""
    for name in ("compute_loss_func", "compute_metrics", "preprocess_logits_for_metrics", "model_init"):
        if given.get(name) is not None:
            cause = "a plan's program gives the loss that it was traced with, and no logits"
            raise ParallelismError(f"{name}=…", cause, "plan with loss_fn=, and evaluate what save_model wrote")
    for name in OVERRIDES:
        if getattr(kind, name, None) is not getattr(base, name, None):
            cause = "the plan's program takes its place, so it would not be called"
            raise ParallelismError(f"{kind.__name__}.{name}", cause, "put it into the model or loss that is planned")
