"""Megatron-LM's own continuous integration since 2024, on Transformer Engine: steps of GPT, a mixture's layer."""

from __future__ import annotations

from tests.bench.closed_form.case import EXPERTS_BACKWARD, EXPERTS_FORWARD, Case, Unusable, share
from tests.bench.closed_form.rows import Row, Table, made
from tests.bench.closed_form.tables.megatron import padded
from tests.bench.closed_form.transformer.model import Recipe, Transformer

DEVICES = {"h100": "h100-sxm", "a100": "a100-sxm-80gb", "gb200": "gb200"}


def _steps(row: Row) -> tuple[Case, ...]:
    """GPT on one node (GB200: one of four devices) with Transformer Engine: fused attention, norms and activations
    fused (priced as compiled), biases, learned positions, dropout, untied only where said, the vocabulary padded;
    A100 is priced as A100-SXM-80GB. Rows without the number of devices, encoders with decoders, and models with
    images are left out. All run in deterministic mode, whose slower kernels no profile knows: priced as the usual
    ones, for a bound from below, and not fitted on. A layer in each chunk of a virtual pipeline as the row says; no
    recomputation unless said."""
    if row["family"] != "gpt":
        raise Unusable("not a GPT")
    devices = row.whole("n_gpus_recipe")
    if row["hw"] not in DEVICES:
        raise Unusable(f"{row['hw']} isn't a known device")
    tensor, pipeline = row.whole("tensor-model-parallel-size"), row.whole("pipeline-model-parallel-size")
    layers, micro_batch = row.whole("num-layers"), row.whole("micro-batch-size")
    data = share(devices, tensor, pipeline)
    chunk = int(row.get("num-layers-per-virtual-pipeline-stage", "0"))
    chunks = share(layers, pipeline, chunk) if chunk else 1
    recipe = Recipe(
        tensor=tensor, data=data, pipeline=pipeline, zero=1 if row.true("use-distributed-optimizer") else 0,
        micro_batch=micro_batch, microbatches=share(row.whole("global-batch-size"), data, micro_batch),
        sequence_parallel=row.true("sequence-parallel"), virtual_stages=chunks,
        schedule="interleaved" if chunks > 1 else "1f1b", recompute=row.get("recompute-granularity", "none"),
        compiled=True, overlaps_gradients=row.true("overlap-grad-reduce"), gradient_bytes=4,
        hides_input_gradients=True,
    )  # fmt: skip
    topology = row.machine(DEVICES[row["hw"]], devices, 4 if row["hw"] == "gb200" else 8)
    return (made(row["case"], _gpt(row, tensor), recipe, topology, row.positive("iter_time_s_median")),)


def _gpt(row: Row, tensor: int) -> Transformer:
    groups = row.get("num-query-groups")
    return Transformer(
        row.whole("hidden-size"), row.whole("num-layers"), row.whole("num-attention-heads"), row.whole("seq-length"),
        padded(row.whole("vocab-size"), tensor), kv_heads=int(groups) if groups else None,
        ffn=int(row.get("ffn-hidden-size", "0")) or None, gated=row.true("swiglu"),
        tied=not row.true("untie-embeddings-and-output-weights"), dropout=True,
    )  # fmt: skip


def _steps_label(row: Row) -> str:
    return "{case} on {hw}".format(**row.text)


MEGATRON_CORE = Table("megatron_core", "megatron_ci_curated_large.csv", _steps, _steps_label, fitted=False)


def _mixture(row: Row) -> tuple[Case, ...]:
    """The mixture's layer alone (router, exchange, experts) over 8 H100-SXM, its experts shared out by the expert axis,
    tokens exchanged all-to-all by NCCL ("a2a"). Other dispatchers are libraries of their own; shared experts aren't
    priced; 8 bit is scaled in blocks, priced as by rows. Experts are gated, without biases. Reported, never fitted: two
    rows of a part of a layer don't tell what a device sustains."""
    if row["dispatcher"] != "a2a":
        raise Unusable("a dispatcher of its own, not NCCL's all-to-all")
    if row.get("shared_expert_ffn"):
        raise Unusable("has a shared expert, which the closed form doesn't hold")
    low = row["dtype"].startswith("fp8")
    recipe = Recipe(
        tensor=row.whole("TP"), data=share(8, row.whole("TP")), expert=row.whole("EP"),
        micro_batch=row.whole("micro_batch"), compiled=True, matmul="float8" if low else "bfloat16",
        float8_scaling="rowwise" if low else "tensorwise",
    )  # fmt: skip
    hidden, inner = row.whole("hidden"), row.whole("moe_ffn")
    model = Transformer(
        hidden, 1, share(hidden, 128), row.whole("seq_len"), 32000, gated=True, bias=False, norm="rms",
        positions="rotary", ffn=inner,
        experts=row.whole("num_experts"), top_k=row.whole("topk"), expert_ffn=inner,
    )  # fmt: skip
    topology = row.machine("h100-sxm", 8)
    times = ((EXPERTS_FORWARD, "forward_ms"), (EXPERTS_BACKWARD, "backward_ms"))
    return tuple(
        made(row["case"], model, recipe, topology, row.positive(column) / 1e3, what) for what, column in times
    )


MIXTURES = Table(
    "megatron_mixture", "megatron_moe_layer_h100.csv", _mixture, lambda row: row.get("case"), fitted=False
)
