"""Every public cost function of cost_models as a row: what it is called with, and what is known of its price.

``PRICES`` is read by tests/cost/test_cost_functions.py, which holds that no function is missing. A function that isn't
a price of sizes stands in ``NOT_PRICES`` with the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from cost_models import collective, compute, offload, optimizers
from cost_models.arithmetic import Number
from cost_models.hardware import Disk, Host, Link, Topology, load_device
from cost_models.pipeline.bottleneck import bottleneck_of
from cost_models.pipeline.times import pipeline_times
from cost_models.sensitivity import with_bandwidth
from tests.bench.closed_form.transformer import losses
from tests.bench.closed_form.transformer import states as states_of
from tests.bench.closed_form.transformer.elementwise import chain_seconds
from tests.oracles import pipeline_formulas as pipeline

H100, LINKS = load_device("h100-sxm")
A100, _ = load_device("a100-sxm-80gb")
CLUSTER = Topology(H100, LINKS.levels(nodes=8, devices_per_node=8))
CACHED = dataclasses.replace(H100, cache_bytes=50e6, cache_bandwidth_bytes_per_s=8e12)
DTYPE = "bfloat16"


@dataclass(frozen=True)
class Price:
    """A call of a cost function.

    name       of the function, and what is special of the call
    function   the function itself
    sizes      (name, least, greatest) of every argument that may be a number, an array or a symbol
    call       of those sizes, in this order: the price, or the prices where there are several
    unit       of the prices: "seconds", "bytes", "FLOPs", "elements", or "share"
    falls      sizes with which the price falls; with all others it rises, or stays
    nothing    sizes of which 0 makes the price 0
    alone      the same call for one rank, free
    """

    name: str
    function: Callable[..., object]
    sizes: tuple[tuple[str, float, float], ...]
    call: Callable[..., Number | tuple[Number, ...]]
    unit: str
    falls: tuple[str, ...] = ()
    nothing: tuple[str, ...] = ()
    alone: Callable[..., Number] | None = None

    def of(self, *values: Number) -> tuple[Number, ...]:
        prices = self.call(*values)
        return prices if isinstance(prices, tuple) else (prices,)


def sized(*names: str, low: float = 1, high: float = 1e5) -> tuple[tuple[str, float, float], ...]:
    return tuple((name, low, high) for name in names)


BYTES = (("bytes", 1, 1e11),)
MKN = ("m", "n", "k", "batch")
ATTENTION = (("batch", 1, 64), ("heads", 1, 128), ("q_len", 1, 1e5), ("k_len", 1, 1e5), ("head_dim", 16, 256))


# -- operators --------------------------------------------------------------------------------------------------------


def operators() -> tuple[Price, ...]:
    shapes = (*sized("m", "n", "k"), ("batch", 1, 64))
    streamed = compute.memory_bound_seconds
    return (
        Price("matmul_flops", compute.matmul_flops, shapes, compute.matmul_flops, "FLOPs", nothing=MKN),
        Price("matmul_bytes", compute.matmul_bytes, shapes, lambda *s: compute.matmul_bytes(*s, DTYPE), "bytes",
              nothing=("batch",)),
        Price("matmul_seconds", compute.matmul_seconds, shapes,
              lambda *s: compute.matmul_seconds(*s, DTYPE, H100), "seconds", nothing=MKN),
        Price("matmul_seconds, 8 bit", compute.matmul_seconds, shapes,
              lambda *s: compute.matmul_seconds(*s, "float8", H100), "seconds", nothing=MKN),
        Price("streaming_seconds", compute.streaming_seconds, BYTES,
              lambda b: compute.streaming_seconds(b, A100), "seconds", nothing=("bytes",)),
        Price("streaming_seconds, a cache", compute.streaming_seconds, BYTES,
              lambda b: compute.streaming_seconds(b, CACHED), "seconds", nothing=("bytes",)),
        Price("memory_bound_seconds", streamed, BYTES, lambda b: streamed(b, A100), "seconds", nothing=("bytes",)),
        Price("memory_bound_seconds, a cache", streamed, BYTES, lambda b: streamed(b, CACHED), "seconds",
              nothing=("bytes",)),
        Price("many_kernels_seconds", compute.many_kernels_seconds, BYTES,
              lambda b: compute.many_kernels_seconds(b, CACHED), "seconds", nothing=("bytes",)),
        Price("eager_seconds", compute.eager_seconds, (("seconds", 1e-7, 1),),
              lambda s: compute.eager_seconds(s, H100), "seconds"),
        Price("eager_seconds, blocking", compute.eager_seconds, (("seconds", 1e-7, 1),),
              lambda s: compute.eager_seconds(s, dataclasses.replace(H100, blocking=True)), "seconds"),
        Price("update_seconds", compute.update_seconds, BYTES, lambda b: compute.update_seconds(b, H100), "seconds",
              nothing=("bytes",)),
        Price("chain_seconds", chain_seconds, (("passes", 1, 20), ("elements", 1, 1e10)),
              lambda p, e: chain_seconds(p, 3, e, DTYPE, CACHED), "seconds", nothing=("passes", "elements")),
        *attentions(),
    )  # fmt: skip


def attentions() -> tuple[Price, ...]:
    """With and without a mask, fused and not."""
    every = tuple(name for name, *_ in ATTENTION)
    rows = [
        Price("scores_seconds", compute.scores_seconds, ATTENTION,
              lambda *s: compute.scores_seconds(*s, True, DTYPE, A100), "seconds", nothing=every[:4]),
        Price("scores_seconds, masked pairs unread", compute.scores_seconds, ATTENTION,
              lambda *s: compute.scores_seconds(*s, True, DTYPE, A100, True), "seconds", nothing=every[:4]),
    ]  # fmt: skip
    for causal in (False, True):
        kind = ", causal" if causal else ""
        rows += [
            Price("attention_flops" + kind, compute.attention_flops, ATTENTION,
                  lambda *s, causal=causal: compute.attention_flops(*s, causal), "FLOPs", nothing=every),
            Price("attention_seconds" + kind, compute.attention_seconds, ATTENTION,
                  lambda *s, causal=causal: compute.attention_seconds(*s, causal, DTYPE, H100), "seconds",
                  nothing=every),
            Price("attention_backward_seconds" + kind, compute.attention_backward_seconds, ATTENTION,
                  lambda *s, causal=causal: compute.attention_backward_seconds(*s, causal, DTYPE, H100), "seconds",
                  nothing=every),
        ]  # fmt: skip
    return tuple(rows)


# -- collectives ------------------------------------------------------------------------------------------------------


def collectives() -> tuple[Price, ...]:
    """Inside a node whose switch adds, over nodes, and in a network of trees; with the network's speed as a size."""
    paths = {"in a node": (1, 8), "over nodes": (8, 8), "everywhere": (1, 64)}
    rows = []
    for kind, function in collective.COLLECTIVES.items():
        for where, (stride, size) in paths.items():
            def call(bytes: Number, speed: Number, function=function, stride=stride, size=size) -> Number:
                topology = with_bandwidth(with_bandwidth(CLUSTER, 0, speed), 1, speed)
                return function(bytes, topology.axis(stride, size))

            rows.append(
                Price(f"{kind} {where}", function, (*BYTES, ("speed", 0.1, 10)), call, "seconds", ("speed",),
                      ("bytes",), lambda bytes, speed, function=function: function(bytes, ()))
            )  # fmt: skip
    link = CLUSTER.levels[1].link
    both = (("compute_s", 1e-6, 1), ("comm_s", 1e-6, 1), ("slowdown", 1e-3, 1))
    return (
        *rows,
        Price("send_seconds", collective.send_seconds, (*BYTES, ("latency", 1e-9, 1e-3), ("bandwidth", 1e6, 1e12)),
              lambda b, latency, rate: collective.send_seconds(b, Link(latency, rate, link.startup_s)), "seconds",
              ("bandwidth",), ("bytes",)),
        Price("overlapped", collective.overlapped, both, lambda *s: collective.overlapped(*s).seconds, "seconds"),
        Price("hidden_seconds", collective.hidden_seconds, both, collective.hidden_seconds, "seconds", ("slowdown",),
              ("compute_s", "comm_s")),
    )  # fmt: skip


# -- bytes ------------------------------------------------------------------------------------------------------------


def held_bytes() -> tuple[Price, ...]:
    states = (("elements", 1, 1e12), ("dp", 1, 1e4))
    return (
        *(
            Price(f"state_bytes, ZeRO-{zero}, {account}", states_of.state_bytes, states,
                  lambda e, n, zero=zero, account=account: states_of.state_bytes(
                      e, "bf16-mixed", "adamw", zero, n, states_of.ACCOUNTS[account]).total_bytes,
                  "bytes", ("dp",) if zero else (), ("elements",))
            for zero in (0, 1, 2, 3) for account in states_of.ACCOUNTS
        ),
        *(
            Price(f"optimizer_state_bytes, {name}", states_of.optimizer_state_bytes,
                  (("elements", 1, 1e12), ("factored", 1, 1e8)),
                  lambda e, f, name=name: states_of.optimizer_state_bytes(name, e, 4, f), "bytes")
            for name in optimizers.OPTIMIZERS if name != "sgd"
        ),
        *(
            Price(f"loss_bytes, {loss}", losses.loss_bytes, sized("tokens", "columns"),
                  lambda t, c, loss=loss: losses.loss_bytes(t, c, 2, loss, split=True), "bytes",
                  nothing=("tokens", "columns"))
            for loss in losses.LOSSES
        ),
        *(
            Price(f"update_bytes, {way}", optimizers.update_bytes, sized("total", "largest"),
                  lambda t, n, way=way: optimizers.update_bytes(t, n, way == "together"), "bytes",
                  nothing=(what,))
            for way, what in (("together", "total"), ("one by one", "largest"))
        ),
    )  # fmt: skip


# -- the host's memory -------------------------------------------------------------------------------------------------


def offloaded() -> tuple[Price, ...]:
    return (
        Price("link_seconds", offload.link_seconds, (*BYTES, ("rate", 1e9, 1e12)),
              lambda b, rate: offload.link_seconds(b, Host(1, rate, 1e9)), "seconds", ("rate",), ("bytes",)),
        Price("disk_update_seconds", offload.disk_update_seconds, (*BYTES, ("rate", 1e9, 1e12)),
              lambda b, rate: offload.disk_update_seconds(b, Disk(1, rate, rate)), "seconds", ("rate",), ("bytes",)),
        Price("host_update_seconds", offload.host_update_seconds, (*BYTES, ("rate", 1e9, 1e12)),
              lambda b, rate: offload.host_update_seconds(b, Host(1, 1e9, rate)), "seconds", ("rate",), ("bytes",)),
    )  # fmt: skip


# -- pipelines --------------------------------------------------------------------------------------------------------

STAGED = (("f", 1e-4, 1), ("input", 1e-4, 1), ("w", 1e-4, 1), ("message", 1e-7, 1e-2), ("microbatches", 8, 512))


def pipelines() -> tuple[Price, ...]:
    """Four ranks whose first stage is the longest; the last rank alone is a pipeline of one."""
    rows = []
    for schedule, held in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1), ("zbv", 2),
                           ("pipedream", 1), ("pipedream-2bw", 1)):  # fmt: skip
        def times(f, i, w, message, stages, schedule=schedule, held=held):
            longer = [1.25, *[1.0] * (stages - 1)]
            both = ([x * f for x in longer], [x * (i + w) for x in longer], [message] * (stages - 1))
            return both, {"weight_s": [x * w for x in longer], "virtual_stages": held, "schedule": schedule}

        def whole(f, i, w, message, m, times=times, held=held):
            both, named = times(f, i, w, message, 4 * held)
            return pipeline.step_seconds(*both, m, **named)

        def most(f, i, w, message, times=times, held=held):
            both, named = times(f, i, w, message, 4 * held)
            return bottleneck_of(pipeline_times(named["schedule"], *both, named["weight_s"], None, held))

        def waits(m, schedule=schedule, held=held):
            return pipeline.bubble_fraction(4, m, schedule, held)

        rows += [
            Price(f"step_seconds, {schedule}", pipeline.step_seconds, STAGED, whole, "seconds"),
            Price(f"bottleneck_of, {schedule}", bottleneck_of, STAGED[:-1], most, "seconds"),
            Price(f"bubble_fraction, {schedule}", pipeline.bubble_fraction, STAGED[-1:], waits, "share",
                  ("microbatches",),
                  alone=lambda m, schedule=schedule, held=held: pipeline.bubble_fraction(1, m, schedule, held)),
        ]  # fmt: skip
    return tuple(rows)


PRICES: tuple[Price, ...] = (*operators(), *collectives(), *held_bytes(), *offloaded(), *pipelines())
"""Of the parts; those of a transformer's step are in tests/support/cost_functions_transformer.py."""

NOT_PRICES: dict[str, str] = {
    "compute.peak_flops_per_s": "a figure, looked up by dtype",
    "compute.achieved_bytes_per_s": "a rate of the device",
    "collective.spans.group_size": "a count",
    "collective.spans.spans": "the levels of a path",
    "collective.spans.protocols": "names",
    "tests.bench.closed_form.transformer.layer.gathered_bytes": "a width, by dtype",
    "tests.bench.closed_form.transformer.saved.element_bytes": "a width, by dtype",
    "tests.bench.closed_form.transformer.elements.used_element_bytes": "a width, by dtype",
    "tests.bench.closed_form.transformer.elements.is_sharded": "a question",
    "tests.bench.closed_form.transformer.step.recipe_check": "an error, or nothing",
    "tests.bench.closed_form.transformer.step.axis_path": "the links of an axis",
    "tests.bench.closed_form.transformer.parts.replicas": "the links between ranks that hold the same",
}
