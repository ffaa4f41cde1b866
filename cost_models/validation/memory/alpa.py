"""Alpa's GPT on V100s: what XLA's compiled program takes."""

from __future__ import annotations

from cost_models.transformer.memory import peak_bytes
from cost_models.transformer.model import Recipe, Transformer
from cost_models.validation.case import Row, Unusable, share
from cost_models.validation.metrics import Point
from cost_models.validation.tables.alpa import SHAPE

GIB = 2.0**30


def alpa_point(row: Row) -> Point:
    """GPT in float16 without recomputation or dropout, attention unfused, elementwise chains fused, Adam, the embedding
    tied (as params_B counts). Data parallelism, ZeRO-2, and any method on one device. Rows that ran out of memory state
    what the compiler asked for. GB is 2^30 bytes. Mixtures and convolutions aren't priced."""
    shape = SHAPE.match(row["config"])
    if row["model"] != "GPT" or shape is None:
        raise Unusable("not a dense transformer")
    batch, sequence, hidden, layers, heads, vocabulary = map(int, shape.groups())
    devices, method = row.whole("n_gpus"), row["method"]
    if method not in ("data_parallel", "zero_2") and devices > 1:
        raise Unusable("the strategy that was chosen isn't stated")
    recipe = Recipe(
        data=devices, zero=2 if method == "zero_2" else 0, micro_batch=share(batch, devices), precision="fp16-mixed",
        fused_attention=False, compiled=True,
    )  # fmt: skip
    model = Transformer(hidden, layers, heads, sequence, vocabulary, positions="none")
    predicted = float(peak_bytes(model, recipe)) / GIB
    label = f"{method} on {devices}: {row['config']}"
    return Point(row.number, label, method, "any", predicted, row.positive("alloc_mem_GB"))
