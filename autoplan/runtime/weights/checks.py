"""What is asked of weights before and while they are taken: files as they were saved, values that are finite."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.errors import WeightsError
from autoplan.runtime.collectives.objects import from_all, together
from autoplan.runtime.parallel.own_box import Part
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.weights.experts import StackedExperts
from autoplan.runtime.weights.manifest import Manifest, check_chosen, identity, manifest_of, verify
from autoplan.runtime.weights.safetensors_files import Safetensors

REMEDY = "give a state dict or safetensors files of this very model"
NOT_FINITE = "holds NaN or infinity"

Found = tuple[str, ...]
"""Under which names weights have a tensor of the model's: several where it is tied, the first of which is read."""


class StateDict:
    """A state dict in memory."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors, self.where = tensors, "the state dict"
        for name, value in tensors.items():
            if not isinstance(name, str) or not isinstance(value, Tensor):
                said = f"under {name!r} it has a {type(value).__name__}, where a tensor belongs"
                remedy = "give tensors by name; of a training's own file, the state dict in it"
                raise WeightsError(self.where, said, remedy)
            if value.is_meta:
                raise WeightsError(self.where, f"{name} is on the meta device, without values", REMEDY)

    def names(self) -> Iterable[str]:
        return self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def read(self, name: str, part: Part, out: Tensor) -> None:
        out.copy_(self.tensors[name].detach()[part.slices])


def in_source(held: ShardedParameter) -> Part:
    """The rank's box in the user's own parameter, of which this one may be a piece."""
    stored = held.stored
    return held.part if stored.dim < 0 else held.part.shifted(stored.dim, stored.start)


def check_saved(source: str | os.PathLike | Mapping[str, Tensor], weights: StackedExperts) -> None:
    """WeightsError, on every rank, where files that ``save_weights`` wrote aren't what it wrote.

    Ranks that see the same files share the work; one that sees others, a copy on its node's own disk, reads those.
    """

    def known() -> tuple[Path, Manifest, tuple[object, ...]] | None:
        if isinstance(source, Mapping) or (found := manifest_of(Path(source))) is None:
            return None
        if isinstance(weights.weights, Safetensors):
            check_chosen(*found, weights.weights.files)
        return *found, identity(*found)

    found = together(known)
    told = from_all(found and found[2])
    if found is not None:
        same = [rank for rank, each in enumerate(told) if each == found[2]]
        together(lambda: verify(found[0], found[1], same.index(dist.get_rank()), len(same)))
    else:
        together(lambda: None)


def check_values(held: Sequence[ShardedParameter], weights: StackedExperts, names: Mapping[str, Found]) -> None:
    """WeightsError where a tied parameter has two values, and where values in memory aren't finite."""
    for parameter in held:
        if parameter.stored.members:
            continue
        first, *others = names[parameter.name]
        values = parameter.values
        if others:
            part, one, other = in_source(parameter), torch.empty_like(values), torch.empty_like(values)
            weights.read(first, part, one)
            for name in others:
                weights.read(name, part, other)
                if not torch.equal(one, other):
                    said = f"{first} and {name} differ there, and are one parameter of the plan's model"
                    raise WeightsError(weights.where, said, "tie them, or plan a model in which they aren't tied")
        if isinstance(weights.weights, StateDict) and first in weights.own:
            own = weights.weights.tensors[weights.own[first]].detach()[in_source(parameter).slices]
            if not finite(own.to(values.dtype)):
                raise WeightsError(weights.where, f"{first} {NOT_FINITE} as {values.dtype}", REMEDY)


def check_finite(held: Sequence[ShardedParameter], weights: StackedExperts, restored: bool) -> None:
    """WeightsError where a parameter isn't finite, after it was read."""
    wrong = [h for h in held if not finite(h.values)]
    if wrong:
        rest = "" if restored else ". The program holds these values now: load others before a step"
        said = f"{wrong[0].stored.source} {NOT_FINITE} as {wrong[0].values.dtype}{rest}"
        raise WeightsError(weights.where, said, REMEDY)


def finite(values: Tensor) -> bool:
    """Whether every value is; found without memory of the values' size. True of what can hold no infinity."""
    values = torch.view_as_real(values) if values.is_complex() else values
    if not values.numel() or not values.is_floating_point() or values.dtype.itemsize == 1:
        return True
    least, most = torch.aminmax(values.detach())
    return bool(torch.isfinite(least) & torch.isfinite(most))


def put_back(tensors: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, kept, strict=False):
            tensor.copy_(value)
