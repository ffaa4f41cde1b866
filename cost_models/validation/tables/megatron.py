"""Tables of Megatron-LM as it was until 2022, and of Megatron-DeepSpeed: float16, unfused attention, dropout.

What they share: nodes of 8 devices, ranks with the tensor axis innermost, then data, then pipeline; a tied embedding
whose rows are padded to a multiple of 128 for each tensor rank; linears with biases; gradients of 2 bytes.
"""

from __future__ import annotations

from dataclasses import replace

from cost_models.transformer.model import Recipe, Transformer
from cost_models.validation.case import (
    LAYER,
    LAYER_BACKWARD,
    LAYER_FORWARD,
    Case,
    Row,
    Table,
    Unusable,
    made,
    share,
)

GPT2_VOCABULARY = 50257

MEGATRON = Recipe(
    precision="fp16-mixed", recompute="full", fused_attention=False, overlaps_gradients=False, gradient_bytes=2,
    compiled=True, overlaps_messages=False,
)  # fmt: skip
"""Elementwise chains are Megatron's fused kernels (softmax, bias and GELU, bias and dropout and residual). Full
recomputation; the gradients' reduction follows the last backward; a stage waits for its messages."""


def padded(vocabulary: int, tensor: int) -> int:
    """Rows of the embedding as Megatron stores it: a multiple of 128 on each tensor rank."""
    each = 128 * tensor
    return -(-vocabulary // each) * each


def gpt(hidden: int, layers: int, heads: int, sequence: int, vocabulary: int) -> Transformer:
    """A GPT with biases, learned positions and dropout, its embedding tied."""
    return Transformer(hidden, layers, heads, sequence, vocabulary, dropout=True)


def _vtrain(row: Row) -> tuple[Case, ...]:
    """Megatron-DeepSpeed on nodes of 8 A100 with four 200 Gb/s cards (the table: 800 Gb/s a node). The memory size
    isn't stated: priced as A100-SXM-80GB. GPT-2's vocabulary of 50257, padded. 1F1B, not interleaved; full
    recomputation; unfused attention; float16; gradients reduced after the backward, no ZeRO. Outliers are kept."""
    tensor, data, pipeline = row.whole("TP"), row.whole("DP"), row.whole("PP")
    micro_batch = row.whole("micro_batch")
    hidden, layers, heads = row.whole("hidden"), row.whole("layers"), row.whole("heads")
    recipe = replace(
        MEGATRON, tensor=tensor, data=data, pipeline=pipeline, micro_batch=micro_batch,
        microbatches=share(row.whole("global_batch"), data, micro_batch),
    )  # fmt: skip
    topology = row.machine("a100-sxm-80gb", row.whole("n_gpus"), cards=4)
    model = gpt(hidden, layers, heads, row.whole("seq_len"), padded(GPT2_VOCABULARY, tensor))
    return (made(f"{row['params_B']}B", model, recipe, topology, row.positive("iter_ms") / 1e3),)


def _vtrain_label(row: Row) -> str:
    return "{params_B}B TP{TP} DP{DP} PP{PP} micro {micro_batch}".format(**row.text)


VTRAIN = Table("vtrain_multi", "vtrain_ground_truth_multi.csv", _vtrain, _vtrain_label)


def _megatron_2020(row: Row) -> tuple[Case, ...]:
    """Megatron-LM of September 2020 on a DGX-2 (V100 32 GB; its first NVSwitch has no published figures, so that only
    what uses one device is priced, as V100-SXM2-32GB) and on DGX A100 40 GB. Sequences of 1024, 51200 rows of
    vocabulary. The data ranks' share of the batch is one microbatch; full recomputation (the table's TFLOP/s are
    96·B·s·l·h² only with it); PyTorch's DistributedDataParallel, whose reduction runs under the backward."""
    tensor, data = row.whole("TP"), row.whole("DP")
    volta = "V100" in row["hw"]
    if volta and tensor * data > 1:
        raise Unusable("between DGX-2's devices, whose links have no published figures")
    recipe = replace(
        MEGATRON, tensor=tensor, data=data, micro_batch=share(row.whole("global_batch"), data), overlaps_gradients=True
    )
    model = gpt(row.whole("hidden"), row.whole("layers"), row.whole("heads"), 1024, 51200)
    topology = row.machine("v100-sxm2-32gb" if volta else "a100-sxm-40gb", row.whole("n_gpus"))
    return (made(row["model"], model, recipe, topology, row.positive("iter_ms") / 1e3),)


def _megatron_2020_label(row: Row) -> str:
    return "{model} TP{TP} DP{DP} {hw}".format(**row.text)


MEGATRON_2020 = Table("megatron_2020", "megatron_2020_tp_scaling.csv", _megatron_2020, _megatron_2020_label)

KORTHIKANTI_KINDS = {
    "Baseline no recompute": ("none", False),
    "Sequence parallelism": ("none", True),
    "Baseline with full recompute": ("full", False),
    "Selective recompute": ("selective", False),
    "Selective + sequence": ("selective", True),
}
"""Experiment: what is recomputed, whether the sequence is split too."""


def _korthikanti_layer(row: Row) -> tuple[Case, ...]:
    """One layer of the 22B model (hidden 6144, 64 heads, 2048 tokens, microbatch 4) on 8 A100-SXM-80GB, tensor axis 8;
    float16, unfused attention, dropout. Recomputation is counted to the backward."""
    if row["experiment"] not in KORTHIKANTI_KINDS:
        raise Unusable("an experiment whose recipe isn't known")
    recompute, split = KORTHIKANTI_KINDS[row["experiment"]]
    recipe = replace(
        MEGATRON, tensor=row.whole("TP"), micro_batch=row.whole("micro_batch"), recompute=recompute,
        sequence_parallel=split, hides_input_gradients=True,
    )  # fmt: skip
    model, topology = gpt(6144, 1, 64, 2048, 51200), row.machine("a100-sxm-80gb", 8)
    times = ((LAYER_FORWARD, "forward_ms"), (LAYER_BACKWARD, "backward_ms"), (LAYER, "combined_ms"))
    return tuple(
        made("22B layer", model, recipe, topology, row.positive(column) / 1e3, what) for what, column in times
    )


KORTHIKANTI = Table(
    "korthikanti_layer", "korthikanti_table4_layer_ms.csv", _korthikanti_layer, lambda row: row.get("experiment")
)

KORTHIKANTI_SIZES = (
    ("22B", 6144, 48, 64, 1, 4, 4, 1),
    ("175B", 12288, 96, 96, 8, 64, 1, 3),
    ("530B", 20480, 105, 128, 35, 280, 1, 3),
    ("1T", 25600, 128, 160, 64, 512, 1, 1),
)
"""Size, hidden, layers, heads, pipeline ranks, global batch, microbatch, chunks a rank: Korthikanti et al., Table 3."""


def _korthikanti_steps(row: Row) -> tuple[Case, ...]:
    """Of the anchors only Korthikanti's Table 5 has a recipe that is published with it (its Table 3, recalled): tensor
    axis 8, no data axis, 2048 tokens, 51200 rows, sequence parallel with selective recomputation; 175B and 530B
    interleaved with 3 chunks a rank. The time is the model's FLOPs, 72·B·s·l·h²·(1 + s/6h + V/12lh), over MFU and
    312 TFLOP/s a device."""
    if "Korthikanti Table 5" not in row["source"]:
        raise Unusable("an MFU without the recipe that it was measured with")
    shares = [float(part.strip(" %")) for part in row["MFU"].split("/")]
    cases = []
    for number, (mfu, size) in enumerate(zip(shares, KORTHIKANTI_SIZES, strict=True), start=1):
        group, hidden, layers, heads, pipeline, batch, micro_batch, chunks = size
        recipe = replace(
            MEGATRON, tensor=8, pipeline=pipeline, micro_batch=micro_batch, microbatches=share(batch, micro_batch),
            recompute="selective", sequence_parallel=True, virtual_stages=chunks, hides_input_gradients=True,
            schedule="interleaved" if chunks > 1 else "1f1b",
        )  # fmt: skip
        work = 1 + 2048 / (6 * hidden) + 51200 / (12 * layers * hidden)
        flops = 72 * batch * 2048 * layers * hidden**2 * work
        measured_s = flops / (mfu / 100 * 312e12 * 8 * pipeline)
        topology = row.machine("a100-sxm-80gb", 8 * pipeline)
        case = made(group, gpt(hidden, layers, heads, 2048, 51200), recipe, topology, measured_s)
        cases.append(replace(case, row=number, label=f"{group} TP8 PP{pipeline}"))
    return tuple(cases)


KORTHIKANTI_STEPS = Table(
    "korthikanti_steps", "mfu_anchors.csv", _korthikanti_steps, lambda row: f"{row.get('model')} {row.get('gpu')}"
)
