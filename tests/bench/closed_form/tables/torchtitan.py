"""torchtitan's tables of Llama 3 on the 500 W H100 with 96 GB."""

from __future__ import annotations

from dataclasses import replace

from tests.bench.closed_form.case import Case, Unusable, share
from tests.bench.closed_form.rows import Row, Table, made
from tests.bench.closed_form.transformer.model import Recipe, Transformer

SIZES = {"8B": (4096, 32, 32, 14336), "70B": (8192, 80, 64, 28672), "405B": (16384, 126, 128, 53248)}
"""Hidden, layers, query heads, feed-forward."""
RECOMPUTE = {"full": "full", "selective": "operators", "per-op SAC": "operators"}


def llama(size: str, sequence: int) -> Transformer:
    """Llama 3.1 of a size ("8B"): 8 key–value heads, gated, untied, rotary positions, 128256 rows."""
    hidden, layers, heads, inner = SIZES[size]
    return Transformer(
        hidden, layers, heads, sequence, 128256, kv_heads=8, ffn=inner, gated=True, tied=False, bias=False,
        norm="rms", positions="rotary",
    )  # fmt: skip


def _torchtitan(row: Row) -> tuple[Case, ...]:
    """The time of a step is local batch · data ranks · tokens over (tokens/s a device · devices). FSDP2 (float32
    shards, parameters gathered in 16 bit in each forward and backward, gradients reduced in 32) over nodes of 8 with a
    400 Gb/s card a device; the tensor axis splits the sequence too. Under a pipeline parameters stay gathered through a
    step. Selective checkpointing is torchtitan's per operator. A local batch is one microbatch; under a pipeline, which
    splits it into as many microbatches as there are ranks (torchtitan's default), 2 chunks a rank where interleaved.
    Float8 is tensorwise unless said."""
    technique, size = row["technique"].lower(), row["model"].rsplit("-", 1)[-1]
    if size not in SIZES or row["activation_ckpt"] not in RECOMPUTE:
        raise Unusable("a model or a way of recomputation that isn't known")
    tensor, pipeline, data = row.whole("TP"), row.whole("PP"), row.whole("FSDP")
    local, devices, sequence = row.whole("local_batch"), row.whole("n_gpus"), row.whole("seq_len")
    chunks = 2 if "interleaved" in technique else 1
    recipe = Recipe(
        tensor=tensor, context=row.whole("CP"), data=data, pipeline=pipeline, zero=3,
        gathers_each_microbatch=pipeline == 1, micro_batch=share(local, pipeline), microbatches=pipeline,
        sequence_parallel=tensor > 1, virtual_stages=chunks, schedule="interleaved" if chunks > 1 else "1f1b",
        recompute=RECOMPUTE[row["activation_ckpt"]], compiled="compile" in technique,
        overlaps_tensor="asynctp" in technique, gradient_bytes=4,
    )  # fmt: skip
    if "float8" in technique:
        scaling = "rowwise" if "rowwise" in technique else "tensorwise"
        recipe = replace(recipe, matmul="float8", float8_scaling=scaling)
    measured_s = local * data * sequence / (row.positive("tokens_per_s_per_gpu") * devices)
    topology = row.machine("h100-sxm-96gb-500w", devices)
    return (made(size, llama(size, sequence), recipe, topology, measured_s),)


def _label(row: Row) -> str:
    return "{table} {model} on {n_gpus} FSDP{FSDP} TP{TP} PP{PP} CP{CP} {technique}".format(**row.text)


TORCHTITAN = Table("torchtitan", "torchtitan_llama3.csv", _torchtitan, _label)
TORCHTITAN_FURTHER = Table(
    "torchtitan_further", "torchtitan_llama3_further.csv", _torchtitan, _label, fitted=False, shipped=True
)
"""Rows of the same document's tables 2 and 6 that the other file doesn't hold: long sequences, four axes."""
