"""Weights into a rank's parts: from a recipe, a state dict, or safetensors files of which only slices are read."""

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.errors import WeightsError
from autoplan.ir.start import InitRecipe
from autoplan.ir.typed_program import StoredParameter
from autoplan.runtime.checkpoint.plain_values import path_of
from autoplan.runtime.collectives.objects import together
from autoplan.runtime.parallel import flat_param_views
from autoplan.runtime.parallel.own_box import whole
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.program_spec import ProgramSpec
from autoplan.runtime.weights.checks import (
    REMEDY,
    Found,
    StateDict,
    check_finite,
    check_saved,
    check_values,
    in_source,
    put_back,
)
from autoplan.runtime.weights.experts import StackedExperts, Weights
from autoplan.runtime.weights.safetensors_files import Safetensors, told_names
from autoplan.runtime.weights.weight_names import WeightNames
from autoplan.trace.initialise import is_random, replay


def load(
    spec: ProgramSpec, held: Sequence[ShardedParameter], buffers: Mapping[str, Tensor],
    source: str | os.PathLike | Mapping[str, Tensor], unread: Mapping[str, Tensor], strict: bool = False,
    restore: bool = False, tell: bool = True,
) -> None:  # fmt: skip
    """Fills a rank's parameters and buffers; every rank calls it.

    unread   likewise filled, where the weights have it: what the program never reads, on the rank that keeps it
    strict   refuse tensors that the model doesn't have; otherwise the first rank warns of them
    tell     whether the first rank warns at all: values that came with the plan hold what its program never has
    restore  keep what is there until all is read, in the host's memory, for the case that a value isn't finite
    WeightsError, on every rank and before anything is changed, where a parameter is missing or has another shape, or
    files aren't what ``save_weights`` wrote.
    """
    targets = {**buffers, **unread}
    with ExitStack() as stack:
        weights, names = together(lambda: opened(spec, source, stack, strict))
        check_saved(source, weights)
        together(lambda: check_values(held, weights, names))
        kept = [t.to("cpu", copy=True) for t in (*(h.values for h in held), *targets.values())] if restore else []
        try:
            together(lambda: fill(spec, held, targets, weights, names))
            together(lambda: check_finite(held, weights, restore))
        except Exception:
            put_back((*(h.values for h in held), *targets.values()), kept)
            raise
    if tell and (left := left_out(weights, names)) and dist.get_rank() == 0:
        said = f"{weights.where}: {len(left)} tensors there are none of the model's and were left out"
        warnings.warn(f"{said}: {told_names(left)}", stacklevel=3)


def opened(
    spec: ProgramSpec, source: str | os.PathLike | Mapping[str, Tensor], stack: ExitStack, strict: bool
) -> tuple[StackedExperts, Mapping[str, Found]]:
    """The weights, and under which names they have each parameter and buffer of the program that they have."""
    given: StateDict | Safetensors
    if isinstance(source, Mapping):
        given = StateDict(source)
    else:
        given = stack.enter_context(Safetensors(path_of(source, "safetensors")))
    weights = StackedExperts(given)
    names = found_names(spec, weights)
    if strict and (left := left_out(weights, names)):
        said = f"it holds {len(left)} tensors that the plan's model doesn't have: {told_names(left)}"
        raise WeightsError(weights.where, said, f"{REMEDY}, or leave strict out")
    return weights, names


def left_out(weights: StackedExperts, names: Mapping[str, Found]) -> list[str]:
    """The weights' tensors that are nothing of the model's."""
    used = {own for found in names.values() for name in found for own in weights.sources(name)}
    return sorted(set(weights.weights.names()) - used)


def fill(
    spec: ProgramSpec, held: Sequence[ShardedParameter], buffers: Mapping[str, Tensor], weights: Weights,
    names: Mapping[str, Found],
) -> None:  # fmt: skip
    with torch.no_grad():
        for parameter in held:
            if parameter.stored.members:
                flat_param_views.fill(
                    parameter.stored, parameter.part, parameter.values,
                    lambda member, part, out: weights.read(names[member.source][0], part, out),
                )  # fmt: skip
            else:
                weights.read(names[parameter.name][0], in_source(parameter), parameter.values)
        for name in buffers.keys() & names.keys():
            weights.read(names[name][0], whole(tuple(buffers[name].shape)), buffers[name])
    absent = {name: buffers[name] for name in buffers.keys() - names.keys()}
    kept = absent.keys() & stored_names(spec)
    if kept:
        assert spec.values is not None
        with Safetensors(spec.values) as stored, torch.no_grad():
            for name in kept:
                stored.read(name, whole(tuple(absent[name].shape)), absent[name])
    if drawn := absent.keys() & redrawn(spec) - kept:
        assert spec.init is not None
        draw(spec.init, 0, (), {name: absent[name] for name in drawn})


def redrawn(spec: ProgramSpec) -> frozenset[str]:
    """Buffers that needn't be in any weights, for the recipe makes them: those that state dicts leave out, and those
    that no random number enters. None that only reset_parameters knows of."""
    made = makes(spec.init) - set(spec.start.unknown)
    buffers = made & {buffer.name for buffer in spec.lowered.buffers}
    return frozenset(
        name for name in buffers if name in spec.transient_buffers or (spec.init and not is_random(spec.init, name))
    )


def stored_names(spec: ProgramSpec) -> frozenset[str]:
    """Names of the parameters and buffers of which the plan's folder holds values."""
    if not spec.start.files or spec.values is None or not spec.values.is_dir():
        return frozenset()
    return frozenset(Safetensors(spec.values).names())


def found_names(spec: ProgramSpec, weights: Weights) -> dict[str, Found]:
    """The weights' names of each parameter, of each buffer and of what is never read, where they have it.

    Every rank asks for everything, its own or not. WeightsError where a parameter is missing, a buffer too that neither
    the model's recipe makes nor the plan's folder holds, or where a shape differs.
    """
    lowered = spec.lowered
    own = own_parameters(spec)
    wanted = {key: (source, *aliases) for key, (source, aliases, _) in own.items()}
    wanted |= {b.name: (b.name,) for b in lowered.buffers} | {u.name: (u.name, *u.aliases) for u in spec.unread}
    shapes = {key: shape for key, (_, _, shape) in own.items()}
    shapes |= {b.name: b.type.shape for b in lowered.buffers} | {u.name: u.type.shape for u in spec.unread}
    names = WeightNames(weights.names(), [name for each in wanted.values() for name in each])
    needed = dict.fromkeys(own, "parameter")
    made = redrawn(spec) | stored_names(spec)
    needed |= {b.name: "buffer" for b in lowered.buffers if b.name not in made}
    found = {}
    for key, candidates in wanted.items():
        each = tuple(dict.fromkeys(n for n in map(names.find, candidates) if n is not None))
        if not each and key in needed:
            said = f"it lacks the {needed[key]} {candidates[0]} of shape {shapes[key]}"
            raise WeightsError(weights.where, said, REMEDY)
        for name in each:
            if weights.shape(name) != shapes[key]:
                said = f"{name} has shape {weights.shape(name)} there, the plan's model has {shapes[key]}"
                raise WeightsError(weights.where, said, REMEDY)
        if each:
            found[key] = each
    return found


def own_parameters(spec: ProgramSpec) -> dict[str, tuple[str, tuple[str, ...], tuple[int, ...]]]:
    """(name, aliases, shape) of the user's own parameter for each of the program's, by the program's name; of a flat
    one for each matrix in it, by that one's."""
    found: dict[str, tuple[str, tuple[str, ...], tuple[int, ...]]] = {}
    for stored in spec.lowered.parameters:
        if not stored.members:
            found[stored.name] = (stored.source, stored.aliases, source_shape(spec, stored))
        found |= {name: (name, m.aliases, m.shape) for name, m in flat_param_views.sources_of(stored).items()}
    return found


def source_shape(spec: ProgramSpec, stored: StoredParameter) -> tuple[int, ...]:
    """The shape of the user's own parameter: pieces of a fused projection lie side by side along their dim."""
    if stored.dim < 0:
        return stored.type.shape
    whole = max(p.stop for p in spec.lowered.parameters if p.source == stored.source)
    return tuple(whole if d == stored.dim else size for d, size in enumerate(stored.type.shape))


def makes(recipe: InitRecipe | None) -> frozenset[str]:
    """Names of the parameters and buffers that a recipe fills."""
    return frozenset(name for name, _ in recipe.tensors) if recipe is not None else frozenset()


def draw(recipe: InitRecipe, seed: int, held: Sequence[ShardedParameter], buffers: Mapping[str, Tensor]) -> None:
    """Of each whole tensor that the recipe makes, one by one and under the user's names, a rank keeps its boxes."""
    wanted: dict[str, list[ShardedParameter]] = {}
    for parameter in held:
        for name in names_of(parameter.stored):
            wanted.setdefault(name, []).append(parameter)
        if parameter.stored.members:
            parameter.values.zero_()
    with torch.no_grad():
        for name, tensor in replay(recipe, seed, names=(*wanted, *buffers)):
            for parameter in wanted.get(name, ()):
                take(parameter, name, tensor)
            if name in buffers:
                buffers[name].copy_(tensor)
            del tensor  # before the next one is made


def names_of(stored: StoredParameter) -> tuple[str, ...]:
    """Every name that the user has for what a parameter holds."""
    inside = [(name, *member.aliases) for name, member in flat_param_views.sources_of(stored).items()]
    return tuple(name for names in (inside or [(stored.source, *stored.aliases)]) for name in names)


def take(held: ShardedParameter, name: str, tensor: Tensor) -> None:
    """Of one of the user's whole parameters what a rank keeps in one of the program's."""
    if not held.stored.members:
        held.values.copy_(tensor[in_source(held).slices])
        return
    for piece in flat_param_views.pieces(held.stored, held.part):
        if name in (piece.member.source, *piece.member.aliases):
            into = held.values[piece.values]
            values = tensor[piece.rows.slices].reshape(-1)[piece.skip : piece.skip + into.numel()]
            into.copy_(values.view(into.shape))
