"""A worked example: Llama-3-8B on 64 H100 in eight nodes, under tensor parallelism and under ZeRO-3, from symbols."""

from __future__ import annotations

import dataclasses

import sympy

from cost_models.arithmetic import Number, maximum
from cost_models.hardware import Topology, load_device
from cost_models.sensitivity.crossing import Comparison, compare
from cost_models.sensitivity.expression import symbol
from cost_models.sensitivity.slope import Sensitivity, sensitivities, with_bandwidth
from tests.bench.closed_form.transformer.memory import peak_bytes
from tests.bench.closed_form.transformer.model import Recipe, Transformer
from tests.bench.closed_form.transformer.step import step_seconds

LLAMA_8B = Transformer(
    4096, 32, 32, 8192, 128256, kv_heads=8, ffn=14336, gated=True, tied=False, bias=False, norm="rms",
    positions="rotary",
)  # fmt: skip
"""Grattafiori et al. 2024, "The Llama 3 herd of models", table 3."""
TENSOR, ZERO3 = "tensor parallel over 8", "ZeRO-3"
RECIPES = {
    TENSOR: Recipe(tensor=8, data=8, zero=1, sequence_parallel=True, compiled=True, loss="fused"),
    ZERO3: Recipe(data=64, zero=3, account="float32-stored", gradient_bytes=4, compiled=True, loss="fused"),
}
"""Each microbatch one sequence of 8192 tokens; tensor parallelism stays in a node, and shards its optimizer."""
MICROBATCH_TOKENS = 8192
STEP_TOKENS = 2**20
BATCH, SEQUENCE, NODE, NETWORK = (symbol(name) for name in ("batch", "sequence", "node", "network"))
POINT = {"batch": 128.0, "sequence": 8192.0}


def cluster() -> Topology:
    """8x8 h100-sxm."""
    device, links = load_device("h100-sxm")
    return Topology(device, links.levels(nodes=8, devices_per_node=8))


def bandwidths_gb_per_s() -> tuple[float, float]:
    """A device's on the node's own link and on the network."""
    node, network = cluster().levels
    return node.link.bandwidth_bytes_per_s / 1e9, network.link.bandwidth_bytes_per_s / 1e9


def step_s(
    name: str, batch: Number, sequence: Number, node: Number, network: Number, sequences_at_once: Number = 1
) -> Number:
    """Seconds of a step.

    batch              sequences of a step, over all devices
    sequence           tokens of each
    node, network      GB/s of a device on each level
    sequences_at_once  of a microbatch
    """
    usual = bandwidths_gb_per_s()
    topology = with_bandwidth(with_bandwidth(cluster(), 0, node / usual[0]), 1, network / usual[1])
    recipe = RECIPES[name]
    count: Number = batch / (recipe.data * sequences_at_once)
    recipe = dataclasses.replace(recipe, micro_batch=sequences_at_once, microbatches=count)
    return step_seconds(dataclasses.replace(LLAMA_8B, sequence=sequence), recipe, topology, closed_form=True).seconds


def point() -> dict[sympy.Symbol, float]:
    """128 sequences of 8192 tokens a step, links as the profile has them."""
    node, network = bandwidths_gb_per_s()
    return {BATCH: POINT["batch"], SEQUENCE: POINT["sequence"], NODE: node, NETWORK: network}


def formula(name: str) -> sympy.Expr:
    """The step of a recipe in all four symbols."""
    return sympy.sympify(step_s(name, BATCH, SEQUENCE, NODE, NETWORK))


def slopes(name: str) -> dict[str, Sensitivity]:
    """d(step)/d(batch, sequence, node's bandwidth, network's bandwidth), by symbol."""
    return {each.symbol: each for each in sensitivities(formula(name), point())}


def held_bytes(name: str, sequence: Number) -> Number:
    """The most that a device holds, with two microbatches or more a step."""
    model = dataclasses.replace(LLAMA_8B, sequence=sequence)
    return peak_bytes(model, dataclasses.replace(RECIPES[name], microbatches=2))


def by_network() -> Comparison:
    """What the network has to give."""
    node, _ = bandwidths_gb_per_s()
    times = {name: step_s(name, POINT["batch"], POINT["sequence"], node, NETWORK) for name in RECIPES}
    return compare(times, NETWORK, 1, 100, unit="GB/s between nodes")


def by_batch() -> Comparison:
    """Few sequences leave ranks of ZeRO-3 without work, since each has one at least."""
    times = {name: at_least_one(name, BATCH, POINT["sequence"]) for name in RECIPES}
    return compare(times, BATCH, 8, 1024, unit="sequences of 8k tokens a step")


def by_sequence() -> Comparison:
    """The same tokens a step in fewer, longer sequences."""
    times = {name: at_least_one(name, STEP_TOKENS / SEQUENCE, SEQUENCE) for name in RECIPES}
    return compare(times, SEQUENCE, 1024, 131072, unit="tokens a sequence, a million tokens a step")


def at_least_one(name: str, batch: Number, sequence: Number) -> Number:
    """Seconds of a step whose microbatches have 8192 tokens, or one longer sequence; a rank has one of them at least,
    though the batch were too small to give it one."""
    node, network = bandwidths_gb_per_s()
    at_once = maximum(1.0, MICROBATCH_TOKENS / sequence)
    whole = maximum(batch, RECIPES[name].data * at_once)
    return step_s(name, whole, sequence, node, network, at_once)
