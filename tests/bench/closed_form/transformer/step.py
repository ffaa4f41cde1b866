"""The time of a training step of a transformer, from the operators of a layer up.

A layer's time, forward and backward, with the tensor axis's collectives and what it recomputes; a stage's, with the
embedding or the head; the pipeline's, over all microbatches; then what happens once a step on the data axis, the
optimizer, and what many nodes wait for the slowest of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cost_models.arithmetic import Number, maximum
from cost_models.collective import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    group_size,
    overlapped,
    reduce_scatter_seconds,
    send_seconds,
)
from cost_models.compute import DTYPE_BYTES, update_seconds
from cost_models.hardware import LinkPath, Topology
from cost_models.pipeline import SPLIT, simulate
from tests.bench.closed_form.transformer.layer import (
    HALF,
    Operator,
    activation_message_bytes,
    embedding_operator,
    gathered_bytes,
    head_operators,
    layer_operators,
    rows,
)
from tests.bench.closed_form.transformer.model import CHOICES, Recipe, Transformer
from tests.bench.closed_form.transformer.parts import Part, layer_parts, replicas, stage_parts
from tests.bench.closed_form.transformer.states import PRECISIONS, STATES_PER_ELEMENT
from tests.oracles.pipeline_formulas import step_seconds as closed_form_seconds


@dataclass(frozen=True)
class Passes:
    """Seconds of one microbatch, forward and backward."""

    forward_s: Number
    backward_s: Number

    def __add__(self, other: Passes) -> Passes:
        return Passes(self.forward_s + other.forward_s, self.backward_s + other.backward_s)

    def times(self, count: Number) -> Passes:
        return Passes(count * self.forward_s, count * self.backward_s)


@dataclass(frozen=True)
class Step:
    """A step's time and what it is made of, in seconds.

    seconds      of the step
    layer        one layer, one microbatch, with its collectives and what it recomputes
    pipeline_s   from the first forward to the last backward, over all microbatches
    gradients_s  of the data axis's collectives once a step, what nothing hides
    optimizer_s  the update
    model_flops  of the step over all ranks, nothing recomputed (Narayanan et al. 2021, appendix, without the factor of
                 4/3; a causal mask counted as if it left nothing out, as published figures do)
    devices      ranks
    """

    seconds: Number
    layer: Passes
    pipeline_s: Number
    gradients_s: Number
    optimizer_s: Number
    model_flops: Number
    devices: int

    @property
    def flops_per_s_per_device(self) -> Number:
        """The model's FLOPs per second and device."""
        return self.model_flops / self.seconds / self.devices


def step_seconds(model: Transformer, recipe: Recipe, topology: Topology, closed_form: bool = False) -> Step:
    """The step of ``model`` under ``recipe`` on the devices of ``topology``: its seconds, and what they are made of.

    closed_form  the pipeline's time by formula instead of by simulating it: for arrays and symbols; exact where stages
                 are equal and messages free
    """
    recipe_check(model, recipe, topology)
    layer = layer_passes(model, recipe, topology)
    stages = stage_passes(model, recipe, topology, layer)
    message_s = _message_s(model, recipe, topology)
    inside = model.layers / recipe.pipeline
    operators = layer_operators(model, recipe, topology.device)
    weights_s = inside / recipe.virtual_stages * sum(operator.weights_s for operator in operators)
    pipeline_s = _pipeline_s(recipe, stages, message_s, weights_s, closed_form)
    last = stages[0] if recipe.pipeline == 1 else layer.times(inside)
    gradients_s = exposed_gradients_s(model, recipe, topology, last)
    optimizer_s = update_s(model, recipe, topology)
    seconds = (pipeline_s + gradients_s + optimizer_s) * waiting(recipe, topology)
    return Step(seconds, layer, pipeline_s, gradients_s, optimizer_s, model_flops(model, recipe), recipe.devices)


def recipe_check(model: Transformer, recipe: Recipe, topology: Topology) -> None:
    """A ``ValueError`` for a choice that isn't known, and where the recipe asks for more devices than there are."""
    for name, known in CHOICES.items():
        given = getattr(recipe if hasattr(recipe, name) else model, name)
        if given not in known:
            raise ValueError(f"{name}={given!r} isn't known: give one of {', '.join(map(str, known))}")
    if recipe.expert > 1 and (not model.experts or model.experts % recipe.expert):
        raise ValueError(f"{recipe.expert} expert ranks for {model.experts} experts: give a divisor of them")
    if model.experts and not 1 <= model.top_k <= model.experts:
        raise ValueError(f"top_k={model.top_k} of {model.experts} experts: give 1 to {model.experts}")
    if recipe.tensor * recipe.context * recipe.data % recipe.expert:
        raise ValueError(f"{recipe.expert} expert ranks don't divide tensor · context · data: give a divisor of them")
    if recipe.devices > topology.devices:
        raise ValueError(
            f"{recipe.devices} ranks (tensor {recipe.tensor} · context {recipe.context} · data {recipe.data} · "
            f"pipeline {recipe.pipeline}) on {topology.devices} devices: give a topology that holds them"
        )


def axis_path(recipe: Recipe, topology: Topology, axis: str) -> LinkPath:
    """The links that an axis of the recipe spans: tensor innermost, then context, data, pipeline."""
    sizes = {"tensor": recipe.tensor, "context": recipe.context, "data": recipe.data, "pipeline": recipe.pipeline}
    names = list(sizes)
    stride = math.prod(sizes[name] for name in names[: names.index(axis)])
    return topology.axis(stride, sizes[axis], recipe.relays)


# -- a layer ----------------------------------------------------------------------------------------------------------


def layer_passes(model: Transformer, recipe: Recipe, topology: Topology) -> Passes:
    """One layer and one microbatch, in seconds: operators, the tensor axis's collectives, what is computed again, and
    under ZeRO-3 the gathers and reductions that the layer doesn't hide."""
    operators = layer_operators(model, recipe, topology.device)
    weights_s = sum(operator.weights_s for operator in operators)
    plain = _with_tensor(model, recipe, topology, _compute(operators, recipe, topology), weights_s)
    again_s = recompute_s(model, recipe, topology, operators, plain)
    return _with_parameters(model, recipe, topology, Passes(plain.forward_s, plain.backward_s + again_s))


def _compute(operators: Sequence[Operator], recipe: Recipe, topology: Topology) -> Passes:
    """The operators' time on the device, and no less than the framework takes to start their kernels."""
    dispatch_s = topology.device.dispatch_s
    forward_s = sum(operator.forward_s for operator in operators)
    backward_s = sum(operator.backward_s for operator in operators)
    return Passes(
        maximum(forward_s, dispatch_s * sum(operator.forward_kernels for operator in operators)),
        maximum(backward_s, dispatch_s * sum(operator.backward_kernels for operator in operators)),
    )


def recompute_s(
    model: Transformer, recipe: Recipe, topology: Topology, operators: Sequence[Operator], plain: Passes
) -> Number:
    """What a layer computes again in its backward, in seconds: nothing, attention's core, or the whole forward with the
    tensor axis's collectives (Korthikanti et al. 2022, section 5)."""
    if recipe.recompute == "none":
        return 0.0
    if recipe.recompute == "full":
        return recipe.recomputed_layers * plain.forward_s
    if recipe.recompute == "selective":
        return recipe.recomputed_layers * sum(operator.forward_s for operator in operators if operator.core)
    products = [operator for operator in operators if operator.name in PRODUCTS]
    others = [operator for operator in operators if operator.name not in PRODUCTS and not operator.core]
    again_s = sum(operator.forward_s for operator in others) + sum(operator.forward_s for operator in products) / 2
    return recipe.recomputed_layers * again_s


PRODUCTS = ("query, key, value", "projection", "up", "down", "router", "experts up", "experts down")
"""The operators of a layer whose results "operators" keeps every second of."""


def _with_tensor(
    model: Transformer, recipe: Recipe, topology: Topology, compute: Passes, weights_s: Number
) -> Passes:
    """With the collectives of the tensor, context and expert axes; ``weights_s`` of the backward are the weights'
    gradients, under which others may hide.

    Tensor: an all-reduce after attention and after the feed-forward, and backward one before each (Shoeybi et al.
    2019); under sequence parallelism an all-gather and a reduce-scatter instead of each, and backward the inputs are
    gathered once more, under the product that needs them last (Korthikanti et al. 2022, section 4.2.2).
    """
    path, slowdown = axis_path(recipe, topology, "tensor"), topology.device.overlap_slowdown
    bytes = activation_message_bytes(model, recipe)
    if recipe.sequence_parallel:
        narrow = gathered_bytes(recipe) / DTYPE_BYTES[HALF[recipe.precision]]
        gather_s, reduce_s = 2 * all_gather_seconds(narrow * bytes, path), 2 * reduce_scatter_seconds(bytes, path)
        hidden_s = gather_s
    else:
        gather_s, reduce_s, hidden_s = 0.0, 2 * all_reduce_seconds(bytes, path), 0.0
    shown_s = gather_s + reduce_s
    if recipe.hides_input_gradients:
        hidden_s, shown_s = hidden_s + reduce_s, gather_s
    forward_s = compute.forward_s
    backward_s = compute.backward_s - weights_s + overlapped_s(weights_s, hidden_s, slowdown)
    if recipe.overlaps_tensor:
        forward_s = overlapped_s(forward_s, gather_s + reduce_s, slowdown)
        backward_s = overlapped_s(backward_s, shown_s, slowdown)
    else:
        forward_s, backward_s = forward_s + gather_s + reduce_s, backward_s + shown_s
    gathered_s, scattered_s = _context_s(model, recipe, topology)
    tokens_s = exchange_s(model, recipe, topology)
    return Passes(forward_s + gathered_s + tokens_s, backward_s + gathered_s + scattered_s + tokens_s)


def _context_s(model: Transformer, recipe: Recipe, topology: Topology) -> tuple[Number, Number]:
    """Gathering keys and values over the context axis, and scattering their gradients."""
    path = axis_path(recipe, topology, "context")
    whole = recipe.micro_batch * model.sequence * 2 * model.key_width / recipe.tensor
    bytes = whole * DTYPE_BYTES[HALF[recipe.precision]]
    return all_gather_seconds(bytes, path), reduce_scatter_seconds(bytes, path)


def exchange_s(model: Transformer, recipe: Recipe, topology: Topology) -> Number:
    """Seconds of one microbatch's tokens to a layer's experts and back, forward or backward: two all-to-alls."""
    if not model.experts or recipe.expert == 1:
        return 0.0
    tokens = rows(model, recipe) / (recipe.tensor if recipe.sequence_parallel else 1)
    bytes = tokens * model.top_k * model.hidden * DTYPE_BYTES[HALF[recipe.precision]]
    return 2 * all_to_all_seconds(bytes, topology.axis(1, recipe.expert))


def overlapped_s(compute_s: Number, comm_s: Number, slowdown: Number) -> Number:
    """Compute with a collective beside it, both together, in seconds."""
    return overlapped(compute_s, comm_s, slowdown).seconds


def _with_parameters(model: Transformer, recipe: Recipe, topology: Topology, busy: Passes) -> Passes:
    """Under ZeRO-3 a layer's parameters are gathered while the layer before computes, forward and backward, and its
    gradients reduced while the one before that goes back; ZeRO-2 reduces them in each microbatch."""
    if recipe.zero < 2 or recipe.data == 1 or not recipe.gathers_each_microbatch:
        return busy
    gather_s, scatter_s = _parameter_s(layer_parts(model, recipe, topology), recipe)
    slowdown = topology.device.overlap_slowdown
    if recipe.zero == 2:
        return Passes(busy.forward_s, overlapped_s(busy.backward_s, scatter_s, slowdown))
    ahead_s, behind_s = (gather_s, 0.0) if recipe.prefetches_backward else (0.0, gather_s)
    return Passes(
        overlapped_s(busy.forward_s, gather_s, slowdown),
        behind_s + overlapped_s(busy.backward_s, ahead_s + scatter_s, slowdown),
    )


def _parameter_s(parts: Sequence[Part], recipe: Recipe) -> tuple[Number, Number]:
    """Gathering parameters from their replicas, and scattering their gradients, each in so many pieces."""
    pieces = recipe.gathers_a_layer
    gathered, scattered = (width / pieces for width in (gathered_bytes(recipe), recipe.gradient_bytes))
    gather_s = pieces * sum(all_gather_seconds(part.elements * gathered, part.replicas) for part in parts)
    scatter_s = pieces * sum(reduce_scatter_seconds(part.elements * scattered, part.replicas) for part in parts)
    return gather_s, scatter_s


# -- a stage, the pipeline --------------------------------------------------------------------------------------------


def stage_passes(model: Transformer, recipe: Recipe, topology: Topology, layer: Passes) -> tuple[Passes, ...]:
    """Each stage and one microbatch, in seconds, those of several on a rank singly: its layers, the embedding on the
    first, the head on the last. Where there is no pipeline, one rank runs all in one."""
    count = recipe.pipeline * recipe.virtual_stages if recipe.pipeline > 1 else 1
    stages = [layer.times(model.layers / count)] * count
    embedding = embedding_operator(model, recipe, topology.device)
    stages[0] = stages[0] + Passes(embedding.forward_s, embedding.backward_s)
    stages[-1] = stages[-1] + _head(model, recipe, topology)
    return tuple(stages)


def _head(model: Transformer, recipe: Recipe, topology: Topology) -> Passes:
    """The head's operators, with the tensor axis's collectives: the input's gradient is reduced, and for each row the
    greatest logit, the sum of exponentials and the target's logit, in float32. Under ZeRO-3 its parameters too."""
    head = _compute(head_operators(model, recipe, topology.device), recipe, topology)
    path = axis_path(recipe, topology, "tensor")
    row_s = 3 * all_reduce_seconds(4 * rows(model, recipe), path)
    bytes = activation_message_bytes(model, recipe)
    head = Passes(head.forward_s + row_s, head.backward_s + all_reduce_seconds(bytes, path))
    if recipe.zero < 2 or recipe.data == 1 or not recipe.gathers_each_microbatch:
        return head
    table = Part(model.embedding_parameters / recipe.tensor, replicas(recipe, topology))
    gather_s, scatter_s = _parameter_s((table,), recipe)
    slowdown, gathers = topology.device.overlap_slowdown, recipe.zero == 3
    return Passes(
        overlapped_s(head.forward_s, gather_s if gathers else 0.0, slowdown),
        overlapped_s(head.backward_s, scatter_s, slowdown),
    )


def _message_s(model: Transformer, recipe: Recipe, topology: Topology) -> Number:
    """From a stage to the next: the layer's result, of which each tensor rank sends its part (Narayanan et al. 2021,
    section 4.1)."""
    if recipe.pipeline == 1:
        return 0.0
    link = topology.slowest(recipe.tensor * recipe.context * recipe.data, recipe.pipeline)
    return send_seconds(activation_message_bytes(model, recipe) / recipe.tensor, link)


def _pipeline_s(
    recipe: Recipe, stages: Sequence[Passes], message_s: Number, weights_s: Number, closed_form: bool
) -> Number:
    """All microbatches through all stages.

    weights_s  of a stage's backward, what only the weights' gradients take: split off by the schedules that do
    """
    count = recipe.microbatches
    if recipe.pipeline == 1:
        return count * (stages[0].forward_s + stages[0].backward_s)
    if not recipe.overlaps_messages:
        stages, message_s = _with_messages(stages, message_s), 0.0
    forward_s, backward_s = ([getattr(stage, name) for stage in stages] for name in ("forward_s", "backward_s"))
    weight_s = [weights_s] * len(stages) if recipe.schedule in SPLIT else None
    times = (forward_s, backward_s, [message_s] * (len(stages) - 1), count)
    if closed_form:
        return closed_form_seconds(
            *times, recipe.schedule, weight_s=weight_s, virtual_stages=recipe.virtual_stages
        )
    return simulate(recipe.schedule, *times, weight_s=weight_s, virtual_stages=recipe.virtual_stages).step_s


def _with_messages(stages: Sequence[Passes], message_s: Number) -> list[Passes]:
    """Stages that wait for their messages: a forward hands its result on while the next stage's gradient comes, a
    backward its gradient while the stage before sends the next result (Megatron-LM's send_forward_recv_backward and
    send_backward_recv_forward). The last stage hands on no result, the first no gradient."""
    last = len(stages) - 1
    return [
        stage + Passes(message_s if place < last else 0.0, message_s if place else 0.0)
        for place, stage in enumerate(stages)
    ]


# -- once a step ------------------------------------------------------------------------------------------------------


def exposed_gradients_s(model: Transformer, recipe: Recipe, topology: Topology, last: Passes) -> Number:
    """Seconds of the data axis's collectives once a step that nothing hides: gradients under the last microbatch's
    backward, ZeRO-1's and 2's gather of parameters under the next step's first forward."""
    if recipe.zero == 3 and recipe.gathers_each_microbatch:
        return 0.0
    parts, width = stage_parts(model, recipe, topology), DTYPE_BYTES[HALF[recipe.precision]]
    reduction = reduce_scatter_seconds if recipe.zero else all_reduce_seconds
    reduce_s = sum(reduction(part.elements * recipe.gradient_bytes, part.replicas) for part in parts)
    gather_s = sum(all_gather_seconds(part.elements * width, part.replicas) for part in parts) if recipe.zero else 0.0
    if recipe.zero == 2 and recipe.gathers_each_microbatch:
        reduce_s = 0.0
    if not recipe.overlaps_gradients:
        return reduce_s + gather_s
    slowdown = topology.device.overlap_slowdown
    hidden = [(reduce_s, last.backward_s), (gather_s, last.forward_s)]
    return sum(overlapped_s(busy_s, comm_s, slowdown) - busy_s for comm_s, busy_s in hidden)


def update_s(model: Transformer, recipe: Recipe, topology: Topology) -> Number:
    """Seconds of the optimizer over what one device updates: gradient, master and states read, they and the parameter
    written; before it one read of the gradient for its norm."""
    kept = PRECISIONS[recipe.precision]
    states = STATES_PER_ELEMENT[recipe.optimizer]
    each = 2 * recipe.gradient_bytes + 2 * kept.state * (1 + states) + (kept.parameter if kept.master else 0)
    elements = sum(
        part.elements / (group_size(part.replicas) if recipe.zero else 1)
        for part in stage_parts(model, recipe, topology)
    )
    return update_seconds(each * elements, topology.device)


def waiting(recipe: Recipe, topology: Topology) -> Number:
    """The factor by which the slowest of many nodes holds up a step."""
    per_node = topology.levels[0].size if topology.levels else 1
    nodes = max(1.0, recipe.devices / per_node)
    return 1 + topology.device.straggler_per_doubling * math.log2(nodes)


def model_flops(model: Transformer, recipe: Recipe) -> Number:
    """FLOPs of a step's forward and backward over all ranks: 6 for each parameter of a matrix and token, and
    attention's 12·sequence·width a token and layer (Narayanan et al. 2021, appendix)."""
    tokens = recipe.sequences * model.sequence
    attention = model.hidden * (2 * model.query_width + 2 * model.key_width)
    if model.experts:
        feed_forward = model.top_k * model.feed_forward_matrices * model.hidden * model.expert_inner
    else:
        feed_forward = model.feed_forward_matrices * model.hidden * model.inner
    matrices = model.layers * (attention + feed_forward) + model.embedding_parameters
    return tokens * (6.0 * matrices + 12.0 * model.layers * model.query_width * model.sequence)
