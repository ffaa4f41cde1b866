"""The passes in order."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from torch import nn

from autoplan.blocks import Flat, constant_nodes, expand, fold
from autoplan.errors import TraceError
from autoplan.graph import Buffer, Model, Parameter
from autoplan.trace import huggingface
from autoplan.trace.builder import type_of
from autoplan.trace.capture import capture
from autoplan.trace.clean import split_projections, split_weights, used, without_detaching, without_duplicates
from autoplan.trace.convert import Converted, Names, convert
from autoplan.trace.copying import Kept, fake_copy, fake_like, fake_mode, original_name
from autoplan.trace.functions import check_backwards, watched
from autoplan.trace.modules import aliases_of, tree_of
from autoplan.trace.recurrence import rolled
from autoplan.trace.repeats import find_runs, kept_children
from autoplan.trace.views import short_views
from autoplan.trace.wrapping import Inputs, LossFn, WithLoss, bind


def trace(
    model: nn.Module,
    inputs: Inputs,
    *,
    loss_fn: LossFn | None = None,
    training: bool,
    dtype: str = "float32",
    evaluated: bool = False,
) -> Model:
    """The model as a chain of segments, from the meta device or from real weights; the model is left untouched.

    inputs    the whole batch of one optimizer step: a mapping, or a sequence in the order of forward's parameters;
              what forward doesn't take goes to loss_fn
    loss_fn   (model_output, *targets) -> scalar; not needed where the model returns its loss
    training  whether the loss is traced, with dropout and batch statistics, or the model's result
    dtype     "float32", "bfloat16", …: that of parameters and floating inputs
    evaluated  the loss as ``model.eval()`` computes it

    Raises InputsError where inputs and model don't fit, TraceError, naming the line, where the model can't be traced.
    """
    full = from_repeats(model, inputs, loss_fn, training, dtype, evaluated)
    if full is None:  # nothing repeats, or the repeats look alike but trace differently: trace every one
        full = fold(flat_of(model, inputs, loss_fn, training, dtype, (), evaluated))
    return in_order(full, model)


def from_repeats(
    model: nn.Module, inputs: Inputs, loss_fn: LossFn | None, training: bool, dtype: str, evaluated: bool
) -> Model | None:
    """The chain from a trace of two repeats of each run; None where that doesn't give it."""
    runs = find_runs(model)
    kept = kept_children(model, runs)
    if not kept:
        return None
    try:
        return expand(fold(flat_of(model, inputs, loss_fn, training, dtype, kept, evaluated)), runs)
    except TraceError:  # a forward that counts its layers (self.layers[7]) misses those that were left out
        return None


def flat_of(
    model: nn.Module,
    inputs: Inputs,
    loss_fn: LossFn | None,
    training: bool,
    dtype: str,
    kept: Sequence[Kept],
    evaluated: bool = False,
) -> Flat:
    """The canonical nodes of the model, with these children of its lists alone."""
    binding = bind(model, inputs, loss_fn)
    mode = fake_mode()
    trains = training and not evaluated
    twin = fake_copy(model, mode, dtype, kept).train(trains)
    huggingface.prepare(twin, padded=bool({"attention_mask", "position_ids"} & set(binding.forward)))
    tensors = inputs.values() if isinstance(inputs, Mapping) else inputs
    batch = [fake_like(tensor, mode, dtype) for tensor in tensors]
    with watched() as calls:
        program = capture(WithLoss(twin, binding, loss_fn, training).train(trains), batch)
    if trains:
        check_backwards(calls)
    return flatten(model, convert(program, naming(model, binding.names, kept)))


def naming(model: nn.Module, batch: Sequence[str], kept: Sequence[Kept]) -> Names:
    """Names of the user's model for those of the exported wrapper, which holds it as ``model``."""
    lists = {k.path: k for k in kept}
    canonical = {alias: name for name, aliases in aliases_of(model).items() for alias in aliases}

    def state(target: str) -> str:
        name = original_name(target.removeprefix("model."), lists)
        return canonical.get(name, name)

    def module(path: str) -> str:
        return original_name(path.removeprefix("model").removeprefix("."), lists)

    taken = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return Names(state, [f"{name}_input" if name in taken else name for name in batch], module)


def flatten(model: nn.Module, converted: Converted) -> Flat:
    """Runs the clean-up passes."""
    builder, parameters = converted.builder, parameters_of(model, converted)
    nodes, output = rolled(builder, builder.nodes.values(), converted.output)
    nodes, output = short_views(builder, nodes, output)
    nodes = used(nodes, output)
    nodes, parameters = split_projections(builder, nodes, parameters)
    nodes, parameters = split_weights(builder, nodes, parameters)
    constants = constant_nodes(nodes, [p.name for p in parameters])
    nodes = without_duplicates(without_detaching(nodes, constants), constants)
    nodes = used(nodes, output)
    if output not in {node.name for node in nodes}:
        raise TraceError(type(model).__name__, "its result is one of its inputs", "return what the model computes")
    read = {name for node in nodes for name in node.operands}
    persistent = model.state_dict(keep_vars=True)
    return Flat(
        name=type(model).__name__,
        batch=converted.batch,
        parameters=tuple(p for p in parameters if p.name in read),
        buffers=tuple(Buffer(b.name, b.type, b.name in persistent) for b in converted.buffers if b.name in read),
        nodes=nodes,
        output=output,
        tree=tree_of(model),
    )


def parameters_of(model: nn.Module, converted: Converted) -> tuple[Parameter, ...]:
    """Every parameter of the user's model that was traced, in its order, in the dtype of the trace."""
    aliases = aliases_of(model)
    return tuple(
        Parameter(
            name,
            converted.builder.types[name],
            source=name,
            aliases=aliases.get(name, ()),
            trainable=parameter.requires_grad,
        )
        for name, parameter in model.named_parameters()
        if name in converted.builder.types
    )


def in_order(traced: Model, model: nn.Module) -> Model:
    """Parameters and buffers in the order of the user's model; a note of each parameter that is never read."""
    order = {name: index for index, (name, _) in enumerate((*model.named_parameters(), *model.named_buffers()))}
    read = {parameter.source for parameter in traced.parameters}
    unread = unread_of(model, read | {buffer.name for buffer in traced.buffers})
    return replace(
        traced,
        parameters=tuple(sorted(traced.parameters, key=lambda p: (order[p.source], p.start))),
        buffers=tuple(sorted(traced.buffers, key=lambda b: order[b.name])),
        notes=tuple(f"parameter {name} is never used" for name, _ in model.named_parameters() if name not in read),
        unread=unread,
    )


def unread_of(model: nn.Module, read: Container[str]) -> tuple[Parameter, ...]:
    """What the model's state dict holds beside what is read, a tied tensor once."""
    persistent, aliases = model.state_dict(keep_vars=True), aliases_of(model)
    return tuple(
        Parameter(name, type_of(value), source=name, aliases=aliases.get(name, ()), trainable=False)
        for name, value in (*model.named_parameters(), *model.named_buffers())
        if name in persistent and name not in read
    )
