"""The cost functions' own formulas, part by part: what each answers when every size and every figure is a symbol."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import sympy

from cost_models import collective, compute
from cost_models.arithmetic import Number
from cost_models.hardware import Device, Level, Link, Switch, Topology, load_device
from cost_models.sensitivity.expression import folded, rebuilt_as, symbol
from tests.bench.closed_form.transformer.elementwise import chain_seconds
from tests.bench.closed_form.transformer.losses import loss_bytes
from tests.bench.closed_form.transformer.model import Recipe
from tests.bench.closed_form.transformer.states import state_bytes
from tests.bench.closed_form.transformer.step import waiting
from tests.oracles import pipeline_formulas
from tests.oracles.korthikanti import transformer_layer_activation_bytes

Formulas = tuple[tuple[str, sympy.Expr], ...]
"""(what, formula) for each line of a part."""

DTYPE = "bfloat16"
STAGES = 4
NODES, DEVICES = (sympy.Symbol(f"{name} - 1", integer=True, positive=True) for name in ("M", "N"))


def symbolic_device() -> Device:
    """A device whose figures are symbols; those that a formula doesn't need are an H100's."""
    device, _ = load_device("h100-sxm")
    return dataclasses.replace(
        device,
        peaks=((DTYPE, symbol("F")),),
        matmul_efficiency=symbol("e"),
        matmul_sustained=1,
        matmul_shares=(),
        matmul_tiles=((symbol("R"), symbol("C"), 1),),
        matmul_ramp_k=symbol("k0"),
        multiprocessors=symbol("P"),
        attention_efficiency=symbol("e"),
        attention_backward_efficiency=symbol("e"),
        attention_ramp_k=symbol("k0"),
        attention_ramp_head_dim=symbol("d0"),
        memory_bandwidth_bytes_per_s=symbol("B"),
        memory_efficiency=1,
        update_efficiency=symbol("u"),
        kernel_launch_s=symbol("launch"),
        dispatch_s=symbol("dispatch"),
        straggler_per_doubling=symbol("g"),
    )


def operators() -> Formulas:
    device = symbolic_device()
    m, n, k, b, h, d, bytes = (symbol(name) for name in ("m", "n", "k", "b", "h", "d", "bytes"))
    both = b, h, n, n, d
    return (
        ("matmul [m, k] @ [k, n]", compute.matmul_seconds(m, n, k, 1, DTYPE, device)),
        ("attention, fused", compute.attention_seconds(*both, False, DTYPE, device)),
        ("attention, fused, causal", compute.attention_seconds(*both, True, DTYPE, device)),
        ("its backward", compute.attention_backward_seconds(*both, True, DTYPE, device)),
        ("streaming kernel", compute.memory_bound_seconds(bytes, device)),
        ("optimizer's update", compute.update_seconds(bytes, device)),
        ("operator in eager", compute.eager_seconds(symbol("kernels"), device)),
    )


def fusion() -> Formulas:
    """A chain of c operators, each of which reads and writes the same elements."""
    device, count, elements = symbolic_device(), symbol("c"), symbol("elements")
    return (
        ("eager, c kernels", chain_seconds(2 * count, count, elements, DTYPE, device)),
        ("compiled, one kernel", chain_seconds(2, 1, elements, DTYPE, device)),
    )


def collectives() -> Formulas:
    """In one node of N devices, on a link of latency t, startup s and bandwidth β; then over M such nodes."""
    bytes, link = symbol("bytes"), Link(symbol("t"), symbol("β"), symbol("s"))
    node, network = (DEVICES + 1, link), (NODES + 1, Link(symbol("t2"), symbol("β2"), symbol("s2")))
    tree = dataclasses.replace(link, tree_latency_s=symbol("hop"))
    adds = dataclasses.replace(link, switch=Switch(symbol("s3"), symbol("β3")))
    rows = [(kind, function(bytes, (node,))) for kind, function in collective.COLLECTIVES.items()]
    return (
        *rows,
        ("all-reduce, trees too", collective.all_reduce_seconds(bytes, ((DEVICES + 1, tree),))),
        ("all-reduce, a switch that adds", collective.all_reduce_seconds(bytes, ((DEVICES + 1, adds),))),
        ("all-gather over M nodes", collective.all_gather_seconds(bytes, (node, network))),
        ("all-to-all over M nodes", collective.all_to_all_seconds(bytes, (node, network))),
        ("send", collective.send_seconds(bytes, link)),
    )


def overlap() -> Formulas:
    busy, message, slowdown = symbol("compute"), symbol("message"), symbol("σ")
    return (
        ("both together", collective.overlapped(busy, message, slowdown).seconds),
        ("of it in sight", collective.overlapped(busy, message, slowdown).exposed_s),
        ("saved", collective.hidden_seconds(busy, message, slowdown)),
    )


def held() -> Formulas:
    elements, ranks = symbol("Ψ"), symbol("D")
    s, b, h, a, t, v = (symbol(name) for name in "sbhatv")
    layer = transformer_layer_activation_bytes
    return (
        *(
            (f"states, ZeRO-{zero}", state_bytes(elements, "bf16-mixed", "adamw", zero, ranks).total_bytes)
            for zero in (0, 1, 2, 3)
        ),
        ("GPT layer saves", layer(s, b, h, a, t, True)),
        ("… recomputing attention", layer(s, b, h, a, t, True, "selective")),
        ("… recomputing all", layer(s, b, h, a, t, True, "full")),
        ("logits and eager loss", loss_bytes(b * s, v / t, 2, split=True)),
    )


def pipelines() -> Formulas:
    """A step of m microbatches on four equal ranks, f and b seconds each (w of b the weights' gradients), by schedule;
    and the share of it in which d ranks wait."""
    f, b, w, m, d = (symbol(name) for name in "fbwmd")
    rows = []
    for schedule, held in (("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1), ("pipedream-2bw", 1)):
        stages = STAGES * held
        times = [f] * stages, [b] * stages, [0.0] * (stages - 1)
        step_s = pipeline_formulas.step_seconds(*times, m, schedule, weight_s=[w] * stages, virtual_stages=held)
        rows.append((f"{schedule}, 4 ranks", step_s))
    return (
        *rows,
        ("bubble, 1f1b", pipeline_formulas.bubble_fraction(d, m)),
        ("bubble, interleaved, v = 2", pipeline_formulas.bubble_fraction(d, m, "interleaved", 2)),
    )


def data_axis() -> Formulas:
    """Gradients of Ψ elements over D ranks, what a backward of b seconds leaves in sight; ZeRO-1's gather likewise."""
    elements, backward, slowdown = symbol("Ψ"), symbol("b"), symbol("σ")
    path = ((DEVICES + 1, Link(symbol("t"), symbol("β"), symbol("s"))),)
    reduce_s = collective.all_reduce_seconds(2 * elements, path)
    gather_s = collective.all_gather_seconds(2 * elements, path)
    return (
        ("all-reduce of gradients", reduce_s),
        ("of it in sight", collective.overlapped(backward, symbol("reduce"), slowdown).seconds - backward),
        ("ZeRO-3, a layer's gather", gather_s),
    )


def stragglers() -> Formulas:
    """The factor on a step of eight nodes."""
    link = Link(0.0, 1.0)
    levels = Level("node", 8, link), Level("cluster", 8, link)
    return (("factor, 8 nodes", sympy.sympify(waiting(Recipe(data=64), Topology(symbolic_device(), levels)))),)


def tidy(formula: Number) -> sympy.Expr:
    """Whole numbers for floats that are whole, sums of powers as products, log2 for log, N for N - 1 and 1."""
    def visit(node: sympy.Basic, arguments: tuple[sympy.Basic, ...]) -> sympy.Basic:
        if isinstance(node, sympy.Float):
            return sympy.nsimplify(node, rational=True) if float(node).is_integer() else node
        if not arguments:
            return node
        if isinstance(node, sympy.Max | sympy.Min):
            return node.func(*arguments)               # drops what can't be the extreme; too slow for a whole step
        if isinstance(node, sympy.log):
            return sympy.Function("log2")(arguments[0]) * sympy.Float(math.log(2))
        return rebuilt_as(node, arguments)

    whole = [(count, symbol(str(count)[0]) - 1) for count in (NODES, DEVICES)]
    return folded(folded(formula, visit).subs(whole), lambda node, args: _factored(rebuilt_as(node, args), args))


def _factored(node: sympy.Basic, arguments: Sequence[sympy.Basic]) -> sympy.Basic:
    """A polynomial as a product, unless it reads as a sum."""
    if not arguments or node.has(sympy.Max, sympy.Min, sympy.ceiling) or not isinstance(node, sympy.Expr):
        return node
    short = sympy.factor_terms(sympy.cancel(node))
    return short if short.count_ops() < node.count_ops() else node
