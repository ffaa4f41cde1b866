"""Megatron-LM's continuous integration: what its last rank holds between steps, and its allocated peak."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cost_models.hardware import load_device
from tests.bench.closed_form.case import Unusable, share
from tests.bench.closed_form.metrics import Point
from tests.bench.closed_form.rows import Row, rows_of
from tests.bench.closed_form.tables.megatron import padded
from tests.bench.closed_form.tables.megatron_core import DEVICES
from tests.bench.closed_form.transformer.memory import StageBytes, stages_bytes
from tests.bench.closed_form.transformer.model import Recipe, Transformer
from tests.bench.closed_form.transformer.step import model_flops

CONFIGS = Path(__file__).parents[1] / "data" / "megatron_ci_configs.csv"
"""What the file of measurements leaves out of the cases' public configurations, each with its source."""

GIB = 2.0**30
SPREAD = 0.06
"""A row whose devices aren't stated is left out where what they may be moves its peak by more than this share."""


def megatron_peak(row: Row) -> Point:
    """The last rank, which writes the log (Megatron-LM megatron/training/global_vars.py), hence the last stage. BF16
    parameters, float32 gradients in a buffer that stays, master and Adam's state shared out by the distributed
    optimizer; Transformer Engine's fused kernels and attention; query, key and value from one product; one float32 copy
    of the logits. Vocabularies padded to 128 times the tensor axis; positions, norms, biases, dropout, and
    vocabulary and batch where the table leaves them out, are the public configurations'. Where the devices aren't
    stated, the data axis is a divisor of the first global batch over the micro batch, not so small that the model's
    FLOPs take longer than the step at the device's peak; the one nearest the bounds' geometric mean is taken, and the
    row left out where the bounds move the peak by more than 6%. Models with latent attention, several kinds of layers,
    encoders or frozen parts have no closed form here."""
    return _point(row, row.positive("mem_max_allocated_GiB"), float(_last_rank(row).peak_bytes))


def megatron_steady(row: Row) -> Point:
    """As the peak: parameters, the buffer of gradients, master and optimizer state. What else is alive after a step
    (masks, workspaces, buffers of the tensor axis) isn't priced."""
    return _point(row, row.positive("mem_allocated_GiB"), float(_last_rank(row).steady))


def _point(row: Row, measured: float, predicted_bytes: float) -> Point:
    return Point(row.number, f"{row['case']} on {row['hw']}", row["case"], "any", predicted_bytes / GIB, measured)


def setup(row: Row) -> tuple[Transformer, Recipe]:
    """A row's model and recipe; ``Unusable`` where it has none here."""
    model, recipe = _model(row), _recipe(row)
    return model, recipe if row.get("n_gpus_recipe") else _with_likely_data(row, model, recipe)


def _last_rank(row: Row) -> StageBytes:
    return _last(*setup(row))


def _last(model: Transformer, recipe: Recipe) -> StageBytes:
    return stages_bytes(model, recipe)[-1]


def _config(row: Row) -> Row:
    configs: Mapping[str, Row] = {config["case"]: config for config in rows_of(CONFIGS)}
    if row.true("multi-latent-attention"):
        raise Unusable("multi-head latent attention has no closed form here")
    if row["case"] not in configs:
        raise Unusable("layers of several kinds, an encoder, or frozen parts have no closed form here")
    return configs[row["case"]]


def _model(row: Row) -> Transformer:
    config, tensor = _config(row), row.whole("tensor-model-parallel-size")
    return Transformer(
        row.whole("hidden-size"), row.whole("num-layers"), row.whole("num-attention-heads"), row.whole("seq-length"),
        padded(config.whole("vocabulary"), tensor), kv_heads=_optional(row, "num-query-groups"),
        ffn=_optional(row, "ffn-hidden-size"), gated=row.true("swiglu"), bias=config.true("bias"), norm=config["norm"],
        tied=not row.true("untie-embeddings-and-output-weights"), positions=config["positions"],
        dropout=config.true("dropout"), experts=_optional(row, "num-experts") or 0,
        top_k=_optional(row, "moe-router-topk") or 0, expert_ffn=_optional(row, "moe-ffn-hidden-size"),
        fused_projections=True,
    )  # fmt: skip


def _optional(row: Row, column: str) -> int | None:
    return row.whole(column) if row.get(column) else None


def _recipe(row: Row) -> Recipe:
    """The data axis 1 where the devices aren't stated."""
    tensor, pipeline = row.whole("tensor-model-parallel-size"), row.whole("pipeline-model-parallel-size")
    micro_batch = row.whole("micro-batch-size")
    data = share(row.whole("n_gpus_recipe"), tensor, pipeline) if row.get("n_gpus_recipe") else 1
    chunk = _optional(row, "num-layers-per-virtual-pipeline-stage")
    chunks = share(row.whole("num-layers"), pipeline, chunk) if chunk else 1
    return Recipe(
        tensor=tensor, data=data, pipeline=pipeline, zero=1 if row.true("use-distributed-optimizer") else 0,
        expert=_optional(row, "expert-model-parallel-size") or 1,
        expert_tensor=(_optional(row, "expert-tensor-parallel-size") or tensor) if row.get("num-experts") else 1,
        micro_batch=micro_batch, microbatches=share(_global_batch(row), data, micro_batch), virtual_stages=chunks,
        schedule="interleaved" if chunks > 1 else "1f1b", sequence_parallel=row.true("sequence-parallel"),
        recompute=row.get("recompute-granularity", "none"), compiled=True, overlaps_tensor=row.true("tp-comm-overlap"),
        gradient_bytes=4, account="float32-gradients", loss="in place",
    )  # fmt: skip


def _global_batch(row: Row) -> int:
    return row.whole("global-batch-size") if row.get("global-batch-size") else _config(row).whole("global_batch")


def _with_likely_data(row: Row, model: Transformer, recipe: Recipe) -> Recipe:
    """The recipe on the data axis that is most likely; ``Unusable`` where others would hold much more or less."""
    if row["hw"] not in DEVICES:
        raise Unusable(f"the number of devices isn't stated, and {row['hw']} isn't a known device")
    choices = [on for on in _divided(recipe) if _fits(on) and _busy(row, model, on) <= 1]
    if not choices:
        raise Unusable("the number of devices isn't stated, and none fits the batch")
    middle = math.sqrt(choices[0].data * choices[-1].data)
    likely = min(choices, key=lambda on: abs(math.log(on.data / middle)))
    bounds = [float(_last(model, on).peak_bytes) for on in (choices[0], choices[-1])]
    spread = (max(bounds) - min(bounds)) / 2 / float(_last(model, likely).peak_bytes)
    if spread > SPREAD:
        raise Unusable(f"the number of devices isn't stated, and moves the peak by ±{spread:.0%}")
    return likely


def _divided(recipe: Recipe) -> list[Recipe]:
    """The same global batch on every number of data ranks that divides it."""
    ranks = [n for n in range(1, recipe.microbatches + 1) if recipe.microbatches % n == 0]
    return [replace(recipe, data=data, microbatches=recipe.microbatches // data) for data in ranks]


def _fits(recipe: Recipe) -> bool:
    """Whether whole groups of the expert axes lie within the ranks of a stage, and microbatches fill whole rounds of an
    interleaved pipeline."""
    rounds = recipe.pipeline if recipe.virtual_stages > 1 else 1
    experts = recipe.expert * recipe.expert_tensor
    return recipe.tensor * recipe.data % experts == 0 and recipe.microbatches % rounds == 0


def _busy(row: Row, model: Transformer, recipe: Recipe) -> float:
    """The model's FLOPs of the measured time, as a share of the devices' peak."""
    device, _ = load_device(DEVICES[row["hw"]])
    peak = device.peak_flops_per_s["bfloat16"] * recipe.devices * row.positive("iter_time_s_median")
    return float(model_flops(model, recipe)) / peak
