"""What other libraries call the options, with what to write here: an unknown keyword's error names it.

A value that is an option's name takes the value that was given; any other is written as it stands.
"""

from collections.abc import Mapping

OF_TRAINING = (
    "optimizer", "precision", "learning_rate", "weight_decay", "betas", "eps", "momentum", "clip_grad_norm", "compile",
    "seed", "optimizer_options", "lr_schedule", "reduce_dtype", "groups", "statistics", "outer_learning_rate",
    "outer_momentum", "randomness", "compression_start", "expert_capacity", "expert_dropping",
    "delay_compensation",
)  # fmt: skip
OF_PARALLELISM = (
    "dp", "tp", "pp", "zero", "micro_batch", "pipeline_schedule", "virtual_stages", "recompute", "sequence_parallel",
    "offload", "tensor", "tensor_system", "local_steps", "cp", "ep", "cp_attention", "dp_replicate", "etp",
    "outer_optimizer", "compression", "compression_rank", "gossip", "compression_rate", "servers", "staleness",
    "tp_overlap", "compression_within", "backups", "ep_overlap", "ahead", "all_reduce",
    "tables", "table_cache", "table_misses",
)  # fmt: skip
Z_LOSS = "model code for it: the loss has coefficient * logits.logsumexp(-1).square().mean() of each router added"
EXPERT_CHOICE = "model code for it: a router's topk over the tokens of a row, for each expert"
"""Of what autoplan traces, and has no option of: which tensors are a router's is the model's to say."""
TRAINING_NAMES: Mapping[str, str] = {
    **{name: f"Parallelism({name}=…)" for name in OF_PARALLELISM},
    "lr": "learning_rate", "wd": "weight_decay", "optim": "optimizer", "dtype": "precision",
    "amp": "precision='bf16-mixed'",
    "mixed_precision": "precision='bf16-mixed'", "bf16": "precision='bf16-mixed'", "fp16": "precision='fp16-mixed'",
    "max_grad_norm": "clip_grad_norm", "gradient_clip_val": "clip_grad_norm", "grad_clip": "clip_grad_norm",
    "schedule": "lr_schedule", "scheduler": "lr_schedule", "lr_scheduler": "lr_schedule", "torch_compile": "compile",
    "warmup": "lr_schedule=autoplan.LRSchedule('linear', steps=…, warmup=…)",
    "warmup_steps": "lr_schedule=autoplan.LRSchedule('linear', steps=…, warmup=…)",
    "beta1": "betas=(0.9, 0.999)", "beta2": "betas=(0.9, 0.999)",
    "batch_size": "example_inputs of that batch, or --batch on the command line",
    "micro_batch_size": "Parallelism(micro_batch=…)",
    "gradient_accumulation_steps": "Parallelism(micro_batch=…): the rows of one microbatch on one rank",
    "capacity_factor": "expert_capacity", "moe_expert_capacity_factor": "expert_capacity",
    **dict.fromkeys(("z_loss", "router_z_loss", "moe_z_loss_coeff"), Z_LOSS),
    **dict.fromkeys(("expert_choice", "expert_choice_routing"), EXPERT_CHOICE),
}  # fmt: skip
PARALLELISM_NAMES: Mapping[str, str] = {
    **{name: f"Training({name}=…)" for name in OF_TRAINING},
    "fsdp": "zero=3", "ddp": "dp=N, or the system ddp", "data_parallel": "dp",
    "data_parallel_size": "dp", "dp_size": "dp", "tp_size": "tp",
    "tensor_parallel": "tp", "tensor_parallel_size": "tp", "tensor_model_parallel_size": "tp", "mp": "tp",
    "model_parallel": "tp", "pp_size": "pp", "pipeline": "pp", "pipeline_parallel": "pp",
    "pipeline_parallel_size": "pp", "pipeline_model_parallel_size": "pp", "zero1": "zero=1", "zero2": "zero=2",
    **dict.fromkeys(("tp_comm_overlap", "async_tp", "enable_async_tensor_parallel"), "tp_overlap: chunks, 4 say"),
    "zero3": "zero=3", "zero_stage": "zero", "stage": "zero", "sp": "sequence_parallel",
    "hsdp": "zero=3 with dp_replicate=N", "replicas": "dp_replicate", "data_parallel_replicate_degree": "dp_replicate",
    "context_parallel": "cp", "context_parallel_size": "cp", "cp_size": "cp", "cp_comm_type": "cp_attention",
    "expert_parallel": "ep", "expert_model_parallel_size": "ep", "expert_parallel_size": "ep", "ep_size": "ep",
    "expert_tensor_parallel_size": "etp",
    "moe_shared_expert_overlap": "ep_overlap='shared'", "overlap_moe_expert_parallel_comm": "ep_overlap: chunks, 2 say",
    "micro_batch_size": "micro_batch", "mbs": "micro_batch", "schedule": "pipeline_schedule",
    "activation_checkpointing": "recompute='full'", "gradient_checkpointing": "recompute='full'",
    **dict.fromkeys(("hierarchical_allreduce", "hierarchical_all_reduce"), "all_reduce='hierarchical'"),
    **dict.fromkeys(("fused_uvm_caching", "uvm_caching"), "tables='host'"), "compute_kernel": "tables",
    "cache_load_factor": "table_cache", "load_factor": "table_cache",
    "allreduce": "all_reduce", "checkpointing": "recompute='full'", "cpu_offload": "offload='parameters'",
}  # fmt: skip
SCHEDULE_NAMES: Mapping[str, str] = {
    "kind": "name", "type": "name", "total_steps": "steps", "num_training_steps": "steps", "max_steps": "steps",
    "warmup_steps": "warmup", "num_warmup_steps": "warmup", "min_lr": "end: the share of the rate that is left",
}  # fmt: skip
CLUSTER_NAMES: Mapping[str, str] = {
    "gpus": "devices_per_node", "gpus_per_node": "devices_per_node", "num_gpus": "devices_per_node",
    "num_nodes": "nodes", "gpu": "device", "device_type": "device", "interconnect": "network",
    "memory_gb": "memory_bytes, in bytes: 60_000_000_000 of 60 GB",
    "memory": "memory_bytes, in bytes: 60_000_000_000 of 60 GB",
}  # fmt: skip
ARGUMENT_NAMES: Mapping[str, str] = {
    "cluster": "cluster_spec", "spec": "cluster_spec", "inputs": "example_inputs", "batch": "example_inputs",
    "example_batch": "example_inputs", "args": "example_inputs", "loss": "loss_fn", "criterion": "loss_fn",
    "strategy": "parallelism", "system": "parallelism", "constraint": "constraints",
    **{name: f"training=autoplan.Training({name}=…)" for name in OF_TRAINING},
    "lr": "training=autoplan.Training(learning_rate=…)", "nodes": "cluster_spec, such as '4x8 h100-sxm'",
    **{name: f"parallelism=autoplan.Parallelism({name}=…)" for name in OF_PARALLELISM},
    "schedule": "parallelism=autoplan.Parallelism(pipeline_schedule=…)",
    "fsdp": "parallelism='fsdp'", "batch_size": "example_inputs of that batch",
}  # fmt: skip
OPTION_NAMES: Mapping[str, str] = {
    "batch-size": "--batch", "global-batch-size": "--batch", "b": "--batch", "sequence-length": "--seq",
    "seq-len": "--seq", "seq-length": "--seq", "max-length": "--seq", "lr": "--training learning_rate=…",
    "learning-rate": "--lr", "precision": "--training precision=…", "optimizer": "--training optimizer=…",
    "dtype": "--training precision=…", "bf16": "--training precision=bf16-mixed", "m": "--model", "o": "--export",
    "out": "--export", "output": "--export", "output-dir": "--export", "gpus": '--cluster-spec "1x8 h100-sxm"',
    "devices": '--cluster-spec "1x8 h100-sxm"', "nodes": '--cluster-spec "4x8 h100-sxm"', "strategy": "--parallelism",
    "system": "--parallelism", "dp": "--parallelism dp=…", "tp": "--parallelism tp=…", "pp": "--parallelism pp=…",
    "zero": "--parallelism zero=…", "num-steps": "--steps", "max-steps": "--steps", "iterations": "--steps",
    "dataset": "--data", "checkpoint": "--checkpoint-dir", "resume": "--checkpoint-dir", "load": "--weights",
}  # fmt: skip
