"""Weights into a rank's parts: from a recipe, a state dict, or safetensors files of which only slices are read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from autoplan.errors import WeightsError
from autoplan.initialise import InitRecipe, replay
from autoplan.runtime.held import HeldParameter
from autoplan.runtime.parts import Part
from autoplan.runtime.spec import ProgramSpec
from autoplan.typed import StoredParameter, TypedValue

REMEDY = "give a state dict or safetensors files of this very model"


class Weights(Protocol):
    """Whole tensors by the user's names, of which boxes can be read."""

    where: str

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The tensor's shape; None where there is none of this name."""

    def read(self, name: str, part: Part) -> Tensor:
        """A box of it."""


class StateDict:
    """A state dict in memory."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors, self.where = tensors, "the state dict"

    def shape(self, name: str) -> tuple[int, ...] | None:
        return tuple(self.tensors[name].shape) if name in self.tensors else None

    def read(self, name: str, part: Part) -> Tensor:
        return self.tensors[name].detach()[part.slices]


class Safetensors:
    """One safetensors file, or a directory of them with or without an index; open within a with statement."""

    def __init__(self, path: Path) -> None:
        self.where, self.files = str(path), weight_files(path)
        self.stack = ExitStack()
        self.handles: dict[str, safe_open] = {}

    def __enter__(self) -> Safetensors:
        for file in self.files:
            handle = self.stack.enter_context(safe_open(file, framework="pt"))
            self.handles |= dict.fromkeys(handle.keys(), handle)
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()

    def shape(self, name: str) -> tuple[int, ...] | None:
        return tuple(self.handles[name].get_slice(name).get_shape()) if name in self.handles else None

    def read(self, name: str, part: Part) -> Tensor:
        if not part.shape:
            return self.handles[name].get_tensor(name)
        return self.handles[name].get_slice(name)[part.slices]


def weight_files(path: Path) -> tuple[Path, ...]:
    """The safetensors files that a path stands for; WeightsError where there are none."""
    if path.is_file():
        return (path,)
    index = path / "model.safetensors.index.json"
    if index.is_file():
        files = tuple(path / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values())))
    else:
        files = tuple(sorted(path.glob("*.safetensors")))
    missing = [file for file in files if not file.is_file()]
    if missing or not files:
        what = f"{missing[0].name} is missing" if missing else "there is no safetensors file"
        raise WeightsError(path, what, "give a safetensors file, or a directory of them")
    return files


def load(
    spec: ProgramSpec,
    held: Sequence[HeldParameter],
    buffers: Mapping[str, Tensor],
    source: str | os.PathLike | Mapping[str, Tensor],
) -> None:
    """Fills a rank's parameters and buffers; WeightsError, before anything is changed, where one is missing."""
    if isinstance(source, Mapping):
        return fill(spec, held, buffers, StateDict(source))
    with Safetensors(Path(source)) as weights:
        return fill(spec, held, buffers, weights)


def fill(
    spec: ProgramSpec, held: Sequence[HeldParameter], buffers: Mapping[str, Tensor], weights: Weights
) -> None:
    names = {stored.name: found_name(spec, stored, weights) for stored in spec.lowered.parameters}
    present = {b.name for b in spec.lowered.buffers if found_buffer(spec, b, weights)}
    with torch.no_grad():
        for parameter in held:
            part = in_source(parameter)
            if parameter.values.numel():
                parameter.values.copy_(weights.read(names[parameter.name], part))
        for name in present & buffers.keys():
            shape = tuple(buffers[name].shape)
            buffers[name].copy_(weights.read(name, Part((0,) * len(shape), shape)))
    if absent := buffers.keys() - present:
        assert spec.init is not None
        draw(spec.init, 0, (), {name: buffers[name] for name in absent})


def in_source(held: HeldParameter) -> Part:
    """The rank's box in the user's own parameter, of which this one may be a piece."""
    stored = held.stored
    return held.part if stored.dim < 0 else held.part.shifted(stored.dim, stored.start)


def found_name(spec: ProgramSpec, stored: StoredParameter, weights: Weights) -> str:
    """The first of a parameter's names that the weights have; WeightsError where none, or where its shape differs.

    Every rank asks for every parameter, its own or not, so that all raise or none.
    """
    wanted = source_shape(spec, stored)
    for name in (stored.source, *stored.aliases):
        shape = weights.shape(name)
        if shape == wanted:
            return name
        if shape is not None:
            raise WeightsError(weights.where, f"{name} has shape {shape} there, the plan's model has {wanted}", REMEDY)
    raise WeightsError(weights.where, f"it lacks the parameter {stored.source} of shape {wanted}", REMEDY)


def source_shape(spec: ProgramSpec, stored: StoredParameter) -> tuple[int, ...]:
    """The shape of the user's own parameter: pieces of a fused projection lie side by side along their dim."""
    if stored.dim < 0:
        return stored.type.shape
    whole = max(p.stop for p in spec.lowered.parameters if p.source == stored.source)
    return tuple(whole if d == stored.dim else size for d, size in enumerate(stored.type.shape))


def found_buffer(spec: ProgramSpec, buffer: TypedValue, weights: Weights) -> bool:
    """Whether the weights have a buffer. Those that a state dict leaves out are made by the model's own recipe.

    As found_name: asked on every rank for every buffer.
    """
    name, wanted = buffer.name, buffer.type.shape
    shape = weights.shape(name)
    if shape is None and name not in makes(spec.init):
        raise WeightsError(weights.where, f"it lacks the buffer {name} of shape {wanted}", REMEDY)
    if shape is not None and shape != wanted:
        raise WeightsError(weights.where, f"{name} has shape {shape} there, the plan's model has {wanted}", REMEDY)
    return shape is not None


def initialise(
    spec: ProgramSpec, seed: int, held: Sequence[HeldParameter], buffers: Mapping[str, Tensor]
) -> None:
    """Fills a rank's parameters and buffers with what the user's model is made with under this seed.

    WeightsError, before anything is changed and on every rank, where the plan doesn't know how one is made.
    """
    remedy = "use load_weights with a state dict or safetensors files"
    if spec.init is None:
        raise WeightsError("init_weights", "the plan doesn't know how its model is initialised", remedy)
    made = makes(spec.init)
    wanted = [(p.source, *p.aliases) for p in spec.lowered.parameters] + [(b.name,) for b in spec.lowered.buffers]
    unknown = [names[0] for names in wanted if made.isdisjoint(names)]
    if unknown:
        raise WeightsError(unknown[0], "neither the constructor nor a reset_parameters fills it", remedy)
    draw(spec.init, seed, held, buffers)


def makes(recipe: InitRecipe | None) -> frozenset[str]:
    """Names of the parameters and buffers that a recipe fills."""
    return frozenset(name for name, _ in recipe.tensors) if recipe is not None else frozenset()


def draw(recipe: InitRecipe, seed: int, held: Sequence[HeldParameter], buffers: Mapping[str, Tensor]) -> None:
    """Of each whole tensor that the recipe makes, one by one and under the user's names, a rank keeps its boxes."""
    wanted: dict[str, list[HeldParameter]] = {}
    for parameter in held:
        for name in (parameter.stored.source, *parameter.stored.aliases):
            wanted.setdefault(name, []).append(parameter)
    with torch.no_grad():
        for name, tensor in replay(recipe, seed, names=(*wanted, *buffers)):
            for parameter in wanted.get(name, ()):
                parameter.values.copy_(tensor[in_source(parameter).slices])
            if name in buffers:
                buffers[name].copy_(tensor)
