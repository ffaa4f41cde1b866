"""Alpa's GPT on one machine of V100s, compiled by XLA."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from tests.bench.closed_form.case import Case, Unusable, share
from tests.bench.closed_form.rows import Row, Table, made
from tests.bench.closed_form.transformer.model import Recipe, Transformer

SHAPE = re.compile(r"B(\d+) S(\d+) H(\d+) L(\d+) heads(\d+) V(\d+)$")


def _alpa(row: Row) -> tuple[Case, ...]:
    """GPT in float16 on up to 8 V100-SXM2-32GB of one machine, no recomputation, no accumulation of gradients, no
    dropout, unfused attention, tied embedding; XLA fuses elementwise chains (priced as compiled) and reduces gradients
    after the backward. Data parallelism and ZeRO-2 are priced; what the automatic search chose on several devices isn't
    stated, on one device there is nothing to choose. Its mixtures and convolutions are other models."""
    case = asked(row)
    if out_of_memory(row):
        raise Unusable("ran out of memory")
    return (replace(case, measured_s=row.positive("latency_s")),)


def out_of_memory(row: Row) -> bool:
    return row["latency_s"] == "OOM"


def asked(row: Row) -> Case:
    """A row's case, whether or not it ran: no time is measured of it yet. ``Unusable`` where the row isn't priced."""
    model, recipe = run_of(row)
    recipe = replace(recipe, skips_masked=False, overlaps_gradients=False)
    return made(f"hidden {model.hidden}", model, recipe, row.machine("v100-sxm2-32gb", recipe.data), math.nan)


def run_of(row: Row) -> tuple[Transformer, Recipe]:
    """The model of a row, and how it is trained; ``Unusable`` where that isn't stated."""
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
    return Transformer(hidden, layers, heads, sequence, vocabulary), recipe


def _label(row: Row) -> str:
    return "{model} {method} on {n_gpus}: {config}".format(**row.text)


ALPA = Table("alpa_gpt", "alpa_intraop_weak_scaling_v100.csv", _alpa, _label)
