"""A published row as what ``parallelize`` is asked: a model by name, a training, a cluster and pinned axes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autoplan.cluster import ClusterSpec
from autoplan.cluster.known import Known, KnownDevice
from autoplan.options import Parallelism, Training
from cost_models.hardware import Topology, load_device
from tests.bench.closed_form.case import STEP, Case
from tests.bench.closed_form.tables.fsdp import MPT
from tests.bench.closed_form.tables.megatron import KORTHIKANTI_STEPS
from tests.bench.closed_form.transformer.model import Recipe, Transformer

CLIPPED = 1.0  # the norm that every one of these trainers clips to unless it is told otherwise
DROPOUT = 0.1  # of GPT-2 and Megatron-LM
ON_FSDP1 = (MPT.name,)
ADDING = (KORTHIKANTI_STEPS.name,)  # Megatron-LM since early 2022, recalled: no paper says so; the goldens turn it off


class NotPlannable(ValueError):
    """A row that can't be asked of ``parallelize``; the text says why."""


@dataclass(frozen=True)
class Traced:
    """What a trace depends on: rows that agree on it share one.

    Traits of rows alone, which no program of ours has:

    whole  attention's kernel computes the pairs that the mask leaves out, too
    apart  dropout over attention's scores is a kernel of its own, however much else is fused
    lean   the loss is one kernel that reads 16-bit logits as they are (FlashAttention's cross-entropy)
    """

    model: str
    settings: tuple[str, ...]
    batch: int
    seq: int
    precision: str
    whole: bool = False
    apart: bool = False
    lean: bool = False


@dataclass(frozen=True)
class Job:
    """A row's question.

    Traits of rows alone, as of ``Traced``:

    flat     parameters are views of one flat buffer that they are gathered into (FSDP1)
    adds     products of weights' gradients add to float32 sums (Megatron-LM's gradient accumulation fusion)
    halves   gradients of whole replicas are added up in the 16 bit in which they come
    singly   each parameter is gathered by itself, and its gradient scattered in 16 bit (DeepSpeed's ZeRO-3)
    posts    the backward's gathers don't run ahead (FSDP1's BACKWARD_POST)
    behind   gradients are summed after the last backward
    bare     the sum of an input's gradient runs under no product (Megatron-LM until 2022)
    parts    of a message between stages each tensor rank sends a part (Megatron-LM since 2021)
    waits    a stage waits for its messages (Megatron-LM until 2023)
    gathers  nothing but what was gathered is made again in the backward (Korthikanti et al. 2022, section 4.2.2)
    seconds  every second product runs again in the backward, and all that is no product (torchtitan's "op")
    copied   what the tensor axis sends under products is copied by engines of their own (PyTorch's async TP)
    """

    traced: Traced
    training: Training
    cluster: ClusterSpec
    pins: Parallelism
    flat: bool = False
    adds: bool = False
    halves: bool = False
    singly: bool = False
    posts: bool = False
    behind: bool = False
    bare: bool = False
    parts: bool = False
    waits: bool = False
    gathers: bool = False
    seconds: bool = False
    copied: bool = False


def job_of(case: Case) -> Job:
    """The question of a case; ``NotPlannable`` where our program can't be what it ran."""
    if case.what != STEP:
        raise NotPlannable("a layer alone was measured, no step")
    job = job_on(case.model, case.recipe, cluster_of(case.topology, case.recipe.relays))
    return replace(job, flat=case.table in ON_FSDP1, adds=case.table in ADDING)


def job_on(model: Transformer, recipe: Recipe, cluster: ClusterSpec) -> Job:
    """The question of a recipe on a cluster; ``NotPlannable`` as above."""
    if recipe.matmul != "bfloat16":
        raise NotPlannable("products in 8 bit, which no Training has")
    name, settings = named(model)
    batch = int(recipe.sequences)
    training = Training(
        optimizer="adamw", precision=recipe.precision, clip_grad_norm=CLIPPED, compile=recipe.compiled,
        reduce_dtype="bf16" if recipe.gradient_bytes == 2 else None, randomness="per-rank",
    )  # fmt: skip
    if not recipe.fused_attention:
        settings = (*settings, "attn_implementation=eager")
    whole = recipe.fused_attention and not recipe.skips_masked
    apart = recipe.compiled and not recipe.fused_attention and model.dropout
    traced = Traced(name, settings, batch, int(model.sequence), recipe.precision, whole, apart, recipe.loss == "fused")
    whole_rows, piped = recipe.tensor > 1 and not recipe.sequence_parallel, recipe.pipeline > 1
    return Job(
        traced, training, cluster, pins_of(recipe), halves=recipe.gradient_bytes == 2,
        singly=recipe.gathers_a_layer > 1,
        posts=not recipe.prefetches_backward, behind=not recipe.overlaps_gradients,
        bare=whole_rows and not recipe.hides_input_gradients, parts=whole_rows and piped,
        waits=piped and not recipe.overlaps_messages, gathers=gathers_again(recipe),
        seconds=recipe.recompute == "operators", copied=recipe.overlaps_tensor,
    )  # fmt: skip


def pins_of(recipe: Recipe) -> Parallelism:
    """The axes, the schedule and what is sharded or run again, as the row says them."""
    piped = recipe.pipeline > 1
    return Parallelism(
        dp=recipe.data, tp=recipe.tensor, pp=recipe.pipeline,
        cp=recipe.context, ep=recipe.expert, zero=recipe.zero, micro_batch=int(recipe.micro_batch),
        pipeline_schedule=recipe.schedule if piped else None,
        virtual_stages=recipe.virtual_stages if piped and recipe.virtual_stages > 1 else None,
        recompute="selective" if recipe.recompute == "operators" or gathers_again(recipe) else recipe.recompute,
        sequence_parallel=recipe.sequence_parallel if recipe.tensor > 1 else None, offload="none",
        tp_overlap=recipe.tensor if recipe.overlaps_tensor and recipe.tensor > 1 else None,  # a chunk of each rank
    )  # fmt: skip


def gathers_again(recipe: Recipe) -> bool:
    """Whether a program that recomputes nothing gathers its products' inputs again all the same."""
    return recipe.recompute == "none" and recipe.sequence_parallel and recipe.tensor > 1 and recipe.regathers


def named(model: Transformer) -> tuple[str, tuple[str, ...]]:
    """The name and settings of a model of transformers that has a closed form's shape: Llama's or Mixtral's, GPT-2's,
    or StarCoder 2's for a GPT whose key heads are fewer or whose positions are rotary."""
    parts = (model.gated, model.norm)
    if parts == (True, "rms") and model.positions == "rotary" and not model.bias:
        kind, told = "hf:mixtral" if model.experts else "hf:llama", llama(model)
    elif parts == (False, "layer") and not model.experts:
        grouped = model.kv_heads not in (None, model.heads)
        plain = model.bias and model.positions == "learned" and not grouped
        kind, told = ("hf:gpt2", gpt(model)) if plain else ("hf:starcoder2", starcoder(model))
    else:
        raise NotPlannable(f"no named model has {model.norm} norms, gated={model.gated}, biases={model.bias}, "
                           f"{model.positions} positions and {model.experts} experts")  # fmt: skip
    return kind, tuple(f"{key}={value}" for key, value in told.items())


def gpt(model: Transformer) -> dict[str, object]:
    drop = DROPOUT if model.dropout else 0.0
    return {
        "n_embd": model.hidden, "n_layer": model.layers, "n_head": model.heads, "n_positions": model.sequence,
        "n_inner": model.inner, "vocab_size": model.vocabulary, "tie_word_embeddings": model.tied,
        "resid_pdrop": drop, "embd_pdrop": drop, "attn_pdrop": drop,
    }  # fmt: skip


def shape(model: Transformer) -> dict[str, object]:
    """Settings under the names that most configurations have."""
    return {
        "hidden_size": model.hidden, "num_hidden_layers": model.layers, "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads or model.heads, "intermediate_size": model.inner,
        "vocab_size": model.vocabulary, "tie_word_embeddings": model.tied, "max_position_embeddings": model.sequence,
    }  # fmt: skip


def starcoder(model: Transformer) -> dict[str, object]:
    drop = DROPOUT if model.dropout else 0.0
    drops = {"residual_dropout": drop, "embedding_dropout": drop, "attention_dropout": drop}
    return shape(model) | drops | {"use_bias": model.bias}


def llama(model: Transformer) -> dict[str, object]:
    if not model.experts:
        return shape(model)
    experts = {"num_local_experts": model.experts, "num_experts_per_tok": model.top_k}
    return shape(model) | experts | {"intermediate_size": model.expert_inner}


def cluster_of(topology: Topology, relays: bool) -> ClusterSpec:
    """The cluster that has a topology: its device under its name, with the links of the row's machine."""
    device, (node, *outer) = topology.device, topology.levels
    links = replace(load_device(device.name)[1], node=node.link, relays=relays)
    if outer and outer[0].link != node.link:
        links = replace(links, nic=outer[0].link.scaled(outer[0].lone), nics_per_node=node.size / outer[0].lone)
    known = Known((KnownDevice(device.name, device, links),))
    return ClusterSpec(math.prod(level.size for level in outer), node.size, device.name, known=known)
