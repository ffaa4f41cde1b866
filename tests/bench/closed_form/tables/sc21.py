"""Narayanan et al., SC21, on Selene: nodes of 8 A100-SXM-80GB with eight 200 Gb/s cards."""

from __future__ import annotations

from dataclasses import replace

from tests.bench.closed_form.case import Case, Unusable, share
from tests.bench.closed_form.rows import Row, Table, made
from tests.bench.closed_form.tables.megatron import MEGATRON, gpt
from tests.bench.closed_form.transformer.model import Recipe


def step_flops(batch: float, sequence: float, layers: float, hidden: float, vocabulary: float) -> float:
    """FLOPs of a step with full recomputation: SC21, eq. 3, 96·B·s·l·h²·(1 + s/6h + V/16lh)."""
    work = 1 + sequence / (6 * hidden) + vocabulary / (16 * layers * hidden)
    return 96 * batch * sequence * layers * hidden**2 * work


def _weak_scaling(row: Row) -> tuple[Case, ...]:
    """Float16, full recomputation, unfused attention, dropout; interleaved where a rank has several chunks. The time
    is eq. 3's FLOPs over the TFLOP/s a device, which count recomputation. Where there is no pipeline, the authors'
    script asks for PyTorch's DistributedDataParallel, whose reduction runs under the backward; with one, it follows.
    NCCL before 2.12: others' cards are reached through the host."""
    pipeline, chunks = row.whole("PP"), row.whole("virtual_stages_per_rank")
    data, micro_batch = row.whole("DP"), row.whole("micro_batch")
    recipe = replace(
        MEGATRON, tensor=row.whole("TP"), data=data, pipeline=pipeline, micro_batch=micro_batch,
        microbatches=share(row.whole("global_batch_seqs"), data, micro_batch), virtual_stages=chunks,
        schedule="interleaved" if chunks > 1 else "1f1b", overlaps_gradients=pipeline == 1,
    )  # fmt: skip
    hidden, layers, heads = row.whole("hidden"), row.whole("layers"), row.whole("heads")
    model = gpt(hidden, layers, heads, row.whole("seq_len"), row.whole("vocab"))
    measured_s = row.positive("derived_iter_time_s(from per-GPU)")
    topology = row.machine("a100-sxm-80gb", row.whole("n_gpus"))
    return (made(row["model"], model, recipe, topology, measured_s),)


SC21_WEAK_SCALING = Table(
    "sc21_weak_scaling", "sc21_table1_weak_scaling.csv", _weak_scaling, lambda row: row.get("model")
)

SIZES = {"174.6": (12288, 96, 96), "529.6": (20480, 105, 128)}
"""Billions of parameters: hidden, layers, heads."""


def _ptdp(row: Row) -> tuple[Case, ...]:
    """PTD-P: a tensor axis of 8 and a pipeline over the rest of the model-parallel size; the table says nothing of
    interleaving: none. Float16, full recomputation, unfused attention, dropout, 51200 rows of vocabulary. TFLOP/s count
    recomputation: the time is eq. 3's FLOPs over them."""
    if row["scheme"] != "PTD-P":
        raise Unusable("another table's scheme")
    parallel = row.whole("model_parallel_size")
    return _against(row, replace(MEGATRON, tensor=8, pipeline=share(parallel, 8)), parallel)


def _zero(row: Row) -> tuple[Case, ...]:
    """ZeRO-3 is DeepSpeed's over all devices, as of early 2021: each of a layer's 12 parameters is gathered by itself
    in each microbatch's forward and backward (they are coalesced since version 0.6), gradients reduced under the
    backward; the rest as PTD-P's rows. Reported, never fitted: what Python takes for each parameter isn't priced."""
    if row["scheme"] != "ZeRO-3":
        raise Unusable("another table's scheme")
    recipe = replace(MEGATRON, zero=3, gathers_each_microbatch=True, overlaps_gradients=True, gathers_a_layer=12)
    return _against(row, recipe, 1)


def _against(row: Row, recipe: Recipe, parallel: int) -> tuple[Case, ...]:
    """A row under a recipe whose data axis is what ``parallel`` model ranks leave."""
    if row["params_B"] not in SIZES:
        raise Unusable("a size whose shape isn't known")
    hidden, layers, heads = SIZES[row["params_B"]]
    devices, batch, micro_batch = row.whole("n_gpus"), row.whole("global_batch"), row.whole("micro_batch")
    data = share(devices, parallel)
    recipe = replace(recipe, data=data, micro_batch=micro_batch, microbatches=share(batch, data, micro_batch))
    flops = step_flops(batch, row.whole("seq_len"), layers, hidden, 51200)
    measured_s = flops / (devices * row.positive("tflops_per_gpu") * 1e12)
    model = gpt(hidden, layers, heads, row.whole("seq_len"), 51200)
    return (made(f"{row['params_B']}B", model, recipe, row.machine("a100-sxm-80gb", devices), measured_s),)


def _label(row: Row) -> str:
    return "{scheme} {params_B}B on {n_gpus}".format(**row.text)


SC21_PTDP = Table("sc21_ptdp", "sc21_table2_zero3_vs_ptdp.csv", _ptdp, _label)
SC21_ZERO = Table("sc21_zero3", "sc21_table2_zero3_vs_ptdp.csv", _zero, _label, fitted=False)
