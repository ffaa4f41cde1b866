"""Tables of Megatron-LM as it was until 2022, and of Megatron-DeepSpeed: float16, unfused attention, dropout.

What they share: nodes of 8 devices, ranks with the tensor axis innermost, then data, then pipeline; a tied embedding
whose rows are padded to a multiple of 128 for each tensor rank; linears with biases; gradients of 2 bytes.
"""

from __future__ import annotations

from dataclasses import replace

from tests.bench.closed_form.case import LAYER, LAYER_BACKWARD, LAYER_FORWARD, Case, Unusable, share
from tests.bench.closed_form.rows import Row, Table, made
from tests.bench.closed_form.transformer.model import Recipe, Transformer

GPT2_VOCABULARY = 50257

MEGATRON = Recipe(
    precision="fp16-mixed", recompute="full", fused_attention=False, overlaps_gradients=False, gradient_bytes=2,
    compiled=True, overlaps_messages=False, relays=False,
)  # fmt: skip
"""Elementwise chains are Megatron's fused kernels (softmax, bias and GELU, bias and dropout and residual). Full
recomputation; the gradients' reduction follows the last backward; a stage waits for its messages; the network cards of
other devices are reached through the host (NCCL before 2.12)."""


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
    recomputation; unfused attention; float16; gradients reduced after the backward, no ZeRO; the tensor axis's
    reductions of the backward under the weights' gradients, as Megatron-LM has it since 2022 (the table is of 2023).
    NCCL's version isn't stated: priced as before 2.12, so that rings of data ranks which are in a node, but not
    neighbours (2 and 4 tensor ranks), reach a card through the host. Outliers are kept."""
    tensor, data, pipeline = row.whole("TP"), row.whole("DP"), row.whole("PP")
    micro_batch = row.whole("micro_batch")
    hidden, layers, heads = row.whole("hidden"), row.whole("layers"), row.whole("heads")
    recipe = replace(
        MEGATRON, tensor=tensor, data=data, pipeline=pipeline, micro_batch=micro_batch,
        microbatches=share(row.whole("global_batch"), data, micro_batch), hides_input_gradients=True,
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
    96·B·s·l·h² only with it); PyTorch's DistributedDataParallel, whose reduction runs under the backward; NCCL before
    2.12."""
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
    float16, unfused attention, dropout. As the paper says, the reductions of the backward run under the weights'
    gradients. Recomputation is counted to the backward."""
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


def _korthikanti_steps(row: Row) -> tuple[Case, ...]:
    """Steps on Selene (nodes of 8 A100-SXM-80GB, eight 200 Gb/s cards): tensor axis 8, 2048 tokens, 51200 rows of
    vocabulary, float16, unfused attention, dropout. As the paper says, the tensor axis's reductions of the backward run
    under the weights' gradients, and the data axis's follow the backward."""
    data, micro_batch, chunks = row.whole("data"), row.whole("micro_batch"), row.whole("chunks")
    recipe = replace(
        MEGATRON, tensor=8, data=data, pipeline=row.whole("pipeline"), micro_batch=micro_batch,
        microbatches=share(row.whole("global_batch"), data, micro_batch), recompute=row["recompute"],
        sequence_parallel=row.true("sequence_parallel"), virtual_stages=chunks,
        schedule="interleaved" if chunks > 1 else "1f1b", hides_input_gradients=True,
    )  # fmt: skip
    model = gpt(row.whole("hidden"), row.whole("layers"), row.whole("heads"), 2048, 51200)
    topology = row.machine("a100-sxm-80gb", recipe.devices)
    return (made(row["size"], model, recipe, topology, row.positive("iter_s")),)


def _korthikanti_label(row: Row) -> str:
    return "{size} on {data} times PP{pipeline} TP8, {recompute} recomputation".format(**row.text)


KORTHIKANTI_STEPS = Table(
    "korthikanti_steps", "korthikanti_table5_steps.csv", _korthikanti_steps, _korthikanti_label, fitted=False,
    shipped=True,
)  # fmt: skip
