"""The passes in order."""

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from autoplan.errors import TraceError
from autoplan.ir.graph import Buffer, Model, Node, Parameter
from autoplan.trace import huggingface
from autoplan.trace.batch_binding import Inputs, LossFn, bind
from autoplan.trace.blocks import Flat, constant_nodes, expand, fold, renamed
from autoplan.trace.builder import type_of
from autoplan.trace.caches import forgetting
from autoplan.trace.capture import capture
from autoplan.trace.checks.autograd_functions import forms_of, watched
from autoplan.trace.checks.changed_state import check_names
from autoplan.trace.checks.hooks import check_hooks, hook_notes
from autoplan.trace.checks.modes import mode_notes, set_modes, wholly_evaluated
from autoplan.trace.checks.observed import Observed, Seen
from autoplan.trace.checks.side_effects import refusals
from autoplan.trace.checks.steady_state import check_settled
from autoplan.trace.checks.straight_through import Form
from autoplan.trace.checks.tensors import check_tensors, storage_names, storage_of
from autoplan.trace.checks.trained import check_strange, check_trained, sparse_notes, without_gradient_frozen
from autoplan.trace.convert import Converted, Names, convert
from autoplan.trace.expert_loops.without_tokens import check_without_tokens
from autoplan.trace.modules import aliases_of, tree_of
from autoplan.trace.passes.assigned_parts import joined_once
from autoplan.trace.passes.clean import split_projections, split_weights, used, without_detaching, without_duplicates
from autoplan.trace.passes.dense_experts import routed
from autoplan.trace.passes.forward_substitution import triangular_solves
from autoplan.trace.passes.recurrence import rolled
from autoplan.trace.passes.views import short_views
from autoplan.trace.repeats.copying import KeptChildren, fake_copy, fake_like, fake_mode, original_name
from autoplan.trace.repeats.finding import find_runs, kept_children


def trace(
    model: nn.Module, inputs: Inputs, *, loss_fn: LossFn | None = None, training: bool, dtype: str = "float32",
    evaluated: bool = False,
) -> Model:  # fmt: skip
    """The model as a chain of segments, from the meta device or from real weights; the model is left untouched.

    inputs    the whole batch of one optimizer step: a mapping, or a sequence in the order of forward's parameters;
              what forward doesn't take goes to loss_fn
    loss_fn   (model_output, *targets) -> scalar; not needed where the model returns its loss
    training  whether the loss is traced, with dropout and batch statistics, or the model's result
    dtype     "float32", "bfloat16", …: that of parameters and floating inputs
    evaluated  the loss as ``model.eval()`` computes it

    Raises InputsError where inputs and model don't fit, TraceError, naming the line, where the model can't be traced.
    """
    check_hooks(model, training)
    check_tensors(model)
    full = from_repeats(model, inputs, loss_fn, training, dtype, evaluated)
    if full is None:  # nothing repeats, or the repeats look alike but trace differently: trace every one
        full = fold(flat_of(model, inputs, loss_fn, training, dtype, (), evaluated))
    return in_order(full, model, training)


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
    model: nn.Module, inputs: Inputs, loss_fn: LossFn | None, training: bool, dtype: str, kept: Sequence[KeptChildren],
    evaluated: bool = False,
) -> Flat:  # fmt: skip
    """The canonical nodes of the model, with these children of its lists alone."""
    with surroundings(training):
        return flat_within(model, inputs, loss_fn, training, dtype, kept, evaluated)


def flat_within(
    model: nn.Module, inputs: Inputs, loss_fn: LossFn | None, training: bool, dtype: str, kept: Sequence[KeptChildren],
    evaluated: bool, forms: Sequence[Form] = (),
) -> Flat:  # fmt: skip
    """forms  of calls of the user's own functions, in the place of these"""
    binding, mode, trains = bind(model, inputs, loss_fn), fake_mode(), training and not evaluated

    def anew(tokens: bool | None = None) -> Observed:
        """What is exported, of a fresh copy of the model."""
        twin = fake_copy(model, mode, dtype, kept)
        set_modes(twin, trains, wholly_evaluated(model))
        huggingface.prepare(twin, padded=bool({"attention_mask", "position_ids"} & set(binding.forward)))
        return Observed(twin, binding, loss_fn, training, Seen(), tokens)

    def without_sums(tokens: bool) -> tuple[Sequence[Node], Mapping]:
        made = anew(tokens)
        program = capture(made, batch)
        return in_sequence(convert(program, names, lines=lambda: program)), made.seen.followed

    tensors = inputs.values() if isinstance(inputs, Mapping) else inputs
    batch = [fake_like(tensor, mode, dtype) for tensor in tensors]
    module = anew()
    seen, names = module.seen, naming(model, module.model, binding.names, kept)
    with watched(forms) as calls, refusals(training, seen.noted), forgetting(model):
        program = capture(module, batch)
        check_strange(seen.strange, model)
        trained = {names.state(f"model.{name}") for name in seen.trained}
        if seen.changed:
            check_settled(program, module, batch, mode, anew)
        check_without_tokens(seen.followed, without_sums)
        converted = convert(program, names, lines=lambda: capture(anew(), batch, lines=True))
    flat = flatten(model, converted)
    flat = replace(flat, notes=(*seen.noted, *unread_inputs(flat)))
    check_names(model, flat.nodes)
    if trains:
        if found := forms_of(calls):
            return flat_within(model, inputs, loss_fn, training, dtype, kept, evaluated, [*forms, *found])
        check_trained(flat, trained)
        flat = replace(flat, parameters=without_gradient_frozen(flat))
        return replace(flat, notes=(*flat.notes, *sparse_notes(flat.parameters, converted.builder.sparse)))
    return flat


@contextmanager
def surroundings(training: bool) -> Iterator[None]:
    """The trace of a training has gradients, whatever planning is called under. TraceError under autocast."""
    here = torch.accelerator.current_accelerator() or torch.device("cpu")
    if any(torch.is_autocast_enabled(kind) for kind in {"cpu", here.type}):
        cause = "the model is planned within it, and the program would run without"
        raise TraceError("torch.autocast", cause, "plan outside of it, with Training(precision='bf16-mixed')")
    with torch.inference_mode(False), torch.set_grad_enabled(training or torch.is_grad_enabled()):
        yield


def naming(model: nn.Module, twin: nn.Module, batch: Sequence[str], kept: Sequence[KeptChildren]) -> Names:
    """Names of the user's model for those of the exported wrapper, which holds its copy as ``model``."""
    lists = {k.path: k for k in kept}
    canonical = {alias: name for name, aliases in aliases_of(model).items() for alias in aliases}

    def state(target: str) -> str:
        name = original_name(target.removeprefix("model."), lists)
        return canonical.get(name, name)

    def module(path: str) -> str:
        return original_name(path.removeprefix("model").removeprefix("."), lists)

    held = storage_names(model) | {key: state(f"model.{name}") for key, name in storage_names(twin).items()}

    def holder(value: torch.Tensor) -> str | None:
        return held.get(storage_of(value))

    taken = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return Names(state, [f"{name}_input" if name in taken else name for name in batch], module, holder)


def in_sequence(converted: Converted) -> list[Node]:
    """What the result and buffers are computed by; nodes are named by their order."""
    nodes = used(converted.builder.nodes.values(), converted.output)
    order = {node.name: f"node_{i}" for i, node in enumerate(nodes)}
    return [replace(renamed(node, order), module="") for node in nodes]


def flatten(model: nn.Module, converted: Converted) -> Flat:
    """Runs the clean-up passes."""
    builder, parameters = converted.builder, parameters_of(model, converted)
    nodes = joined_once(builder, builder.nodes.values(), converted.output)
    nodes = triangular_solves(builder, nodes)
    nodes, output = rolled(builder, nodes, converted.output)
    nodes, output = short_views(builder, nodes, output)
    nodes = used(nodes, output)
    nodes, parameters = split_projections(builder, nodes, parameters)
    nodes, parameters = split_weights(builder, nodes, parameters)
    nodes, output = routed(builder, nodes, output, parameters)
    nodes = used(nodes, output)
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


def unread_inputs(flat: Flat) -> Iterator[str]:
    """A note of each input of the batch that nothing is computed of."""
    read = {name for node in flat.nodes for name in node.operands}
    yield from (f"batch input {value.name} is never read" for value in flat.batch if value.name not in read)


def in_order(traced: Model, model: nn.Module, training: bool) -> Model:
    """Parameters and buffers in the order of the user's model; notes of its modes and hooks, and of each parameter
    that is never read."""
    held = (*model.named_parameters(), *model.named_buffers(remove_duplicate=False))
    order = {name: index for index, (name, _) in enumerate(held)}
    read = {parameter.source for parameter in traced.parameters}
    changed = {name for segment in traced.segments for name in segment.buffers}
    unread = unread_of(model, read | {buffer.name for buffer in traced.buffers}, changed)
    unused = [f"parameter {name} is never used" for name, _ in model.named_parameters() if name not in read]
    return replace(
        traced,
        parameters=tuple(sorted(traced.parameters, key=lambda p: (order[p.source], p.start))),
        buffers=tuple(sorted(traced.buffers, key=lambda b: order[b.name])),
        notes=(*(mode_notes(model) if training else ()), *hook_notes(model), *traced.notes, *unused),
        unread=unread,
    )


def unread_of(model: nn.Module, read: Container[str], changed: Container[str]) -> tuple[Parameter, ...]:
    """What the model's state dict holds beside what is read, a tied parameter once, a buffer under each name that it
    has; but for those of a buffer that forward changes."""
    persistent, aliases = model.state_dict(keep_vars=True), aliases_of(model)
    named = list(model.named_buffers(remove_duplicate=False))
    moving = {id(tensor) for name, tensor in named if name in changed}
    return tuple(
        Parameter(name, type_of(value), source=name, aliases=aliases.get(name, ()), trainable=False)
        for name, value in (*model.named_parameters(), *named)
        if name in persistent and name not in read and id(value) not in moving
    )
