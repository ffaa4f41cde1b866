"""Tables of decoders trained by data parallelism alone, with fused attention: MPT on FSDP, FlashAttention's GPT."""

from __future__ import annotations

from tests.bench.closed_form.case import Case, Unusable, share
from tests.bench.closed_form.rows import Row, Table, made
from tests.bench.closed_form.transformer.model import Recipe, Transformer

MPT_DEVICES = {
    "h100_80gb": ("h100-sxm", "roce-400"),
    "a100_80gb": ("a100-sxm-80gb", "roce-200"),
    "a100_40gb": ("a100-sxm-40gb", "roce-200"),
}
"""Device and network."""
ZERO_OF = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}
PRECISIONS = {"amp_bf16": "bf16-mixed", "bf16": "bf16-mixed", "amp_fp8": "bf16-mixed"}
"""FSDP keeps float32 shards and gathers 16-bit parameters under each of them."""


def _mpt(row: Row) -> tuple[Case, ...]:
    """llm-foundry's MPT on PyTorch FSDP, nodes of 8 devices with 8 RoCE cards of 200 Gb/s for A100, 400 for H100.
    Learned positions, a tied embedding of 50368 rows, FlashAttention, no dropout. FULL_SHARD gathers parameters in
    each microbatch, SHARD_GRAD_OP keeps them through a step. Activation checkpointing runs whole layers again.
    Gradients are reduced in 16 bit (llm-foundry's PURE mixed precision). Not compiled. The backward's gathers don't
    run ahead (BACKWARD_POST, Composer's default). Attention is the Triton kernel of that time, priced as one that
    leaves no masked pair out: that is the rate of the rows of long sequences, which are nearly all attention. The
    loss is FlashAttention's fused cross-entropy on 16-bit logits (llmfoundry/models/mpt/modeling_mpt.py's default).
    Shapes are recalled from MPT's configurations; with biases in linears and norms they make exactly the stated
    parameters."""
    if row["gpu"] not in MPT_DEVICES or row["sharding"] not in ZERO_OF or row["precision"] not in PRECISIONS:
        raise Unusable(f"{row['gpu']}, {row['sharding']}, {row['precision']}: not all of them known")
    if row.true("act_cpu_offload"):
        raise Unusable("activations offloaded to the host")
    devices = row.whole("n_gpus")
    recipe = Recipe(
        data=devices, zero=ZERO_OF[row["sharding"]], micro_batch=row.whole("micro_batch"),
        microbatches=row.whole("grad_accum"), recompute="full" if row.true("activation_ckpt") else "none",
        precision=PRECISIONS[row["precision"]], matmul="float8" if row["precision"] == "amp_fp8" else "bfloat16",
        prefetches_backward=False, skips_masked=False, loss="fused",
    )  # fmt: skip
    hidden, layers, heads = (row.whole(f"{name}_recalled") for name in ("hidden", "layers", "heads"))
    model = Transformer(hidden, layers, heads, row.whole("seq_len"), 50368)
    device, network = MPT_DEVICES[row["gpu"]]
    topology = row.machine(device, devices, network=network)
    return (made(row["model"], model, recipe, topology, row.positive("derived_iter_s")),)


def _mpt_label(row: Row) -> str:
    return "{model} {gpu}×{n_gpus} sequence {seq_len} micro {micro_batch} {precision}".format(**row.text)


MPT = Table("mpt_fsdp", "llmfoundry_mpt_fsdp.csv", _mpt, _mpt_label)

FLASH_SIZES = {
    "GPT3-125M": (768, 12, 12, 32, 0),
    "GPT3-355M": (1024, 24, 16, 16, 0),
    "GPT3-760M": (1536, 24, 16, 16, 1),
    "GPT3-1.3B": (2048, 24, 16, 8, 1),
    "GPT3-2.7B": (2560, 32, 32, 4, 1),
}
"""Hidden, layers, heads, microbatch, ZeRO stage: the authors' training/configs/experiment/pile/gpt3*-flash.yaml."""
SEQUENCES = {"0.5M": 256, "1M": 512}
"""Sequences of a global batch, of 2048 tokens each: base.yaml and gpt3xl-flash.yaml of the same folder."""


def _flash(row: Row) -> tuple[Case, ...]:
    """GPT on one node of 8 A100-SXM-80GB with the authors' fused kernels (dropout with norm, feed-forward, loss: priced
    as compiled), FlashAttention, no recomputation. 2048 tokens, vocabulary padded to 50264, tied; microbatch and ZeRO
    stage from the authors' configurations for 80 GB; dropout as GPT-2's 0.1. Reported, never
    fitted: their README says 189 TFLOP/s a device of these runs and 225 of later ones on the same devices."""
    if row["model"] not in FLASH_SIZES:
        raise Unusable("a size whose configuration isn't known")
    hidden, layers, heads, micro_batch, zero = FLASH_SIZES[row["model"]]
    batch = SEQUENCES[row["batch_tokens"]]
    recipe = Recipe(
        data=8, zero=zero, micro_batch=micro_batch, microbatches=share(batch, 8, micro_batch), compiled=True
    )
    model = Transformer(hidden, layers, heads, 2048, 50264, dropout=True)
    measured_s = batch * 2048 / row.positive("tokens_per_s_8gpu")
    return (made(row["model"], model, recipe, row.machine("a100-sxm-80gb", 8), measured_s),)


FLASH_ATTENTION = Table(
    "flash_attention_gpt", "flashattn_gpt_training_a100.csv", _flash, lambda row: row.get("model"), fitted=False
)
