"""Optimizers that look at whole matrices, over parameters of which each rank holds parts.

Around its update a parameter is put together on every rank that holds some of it, its gradient and its state likewise;
each rank then keeps its own part again. So between steps nothing takes more memory than an optimizer that looks at
single elements would, and while one is updated no more than that one stands whole.

Of tables whose gradients are of looked-up rows alone (``runtime.looked_up``) an optimizer that looks at single elements
updates these: they, and what it keeps of their elements, are gathered into a parameter of their own, which the planned
class of torch.optim updates; then they go back. No other row is read. That is the whole update where an element without
a gradient keeps its value and its state (``cost.operators.sparse_rows`` says of which optimizers).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from autoplan.errors import InputsError
from autoplan.option_values import MOVING
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter, local
from autoplan.runtime.parallel.whole_tensors import Storage, whole_of
from autoplan.runtime.row_cache import WEIGHTS, updatable

Kind = Callable[..., Optimizer]
"""A class of torch.optim."""
GUARD = "found_inf"  # where torch's GradScaler, and ``runtime.optim.updates``, say that a step is to change nothing


@dataclass(frozen=True)
class GatheredParameter:
    """One of the user's parameters: the pieces that a fused one was split into, or itself alone.

    pieces  this rank's parts of them, in order
    dim     along which they are joined
    """

    pieces: tuple[ShardedParameter, ...]
    dim: int
    storage: Storage

    @property
    def updated(self) -> tuple[nn.Parameter, ...]:
        return tuple(piece.updated for piece in self.pieces)

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.pieces[0].stored.type.shape)
        if len(self.pieces) > 1:
            shape[self.dim] = sum(piece.stored.type.shape[self.dim] for piece in self.pieces)
        return tuple(shape)

    def gathered(self, parts: Sequence[Tensor]) -> Tensor:
        """The whole of something of which each rank holds such parts; a collective of its ranks."""
        pieces = zip(self.pieces, parts, strict=True)
        found = [whole_of(self.storage.dtensor(piece, local(part))) for piece, part in pieces]
        return found[0] if len(found) == 1 else torch.cat(found, self.dim)

    def parts(self, whole: Tensor) -> list[Tensor]:
        """This rank's part of each piece."""
        sizes = [piece.stored.type.shape[self.dim] for piece in self.pieces] if len(self.pieces) > 1 else None
        pieces = (whole,) if sizes is None else whole.split(sizes, self.dim)
        return [each[piece.part.slices] for piece, each in zip(self.pieces, pieces, strict=True)]


@dataclass(frozen=True)
class LocalParameter:
    """What is updated as it lies here: a parameter that is whole, or a part where elements don't see each other."""

    parameter: nn.Parameter

    @property
    def updated(self) -> tuple[nn.Parameter, ...]:
        return (self.parameter,)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(local(self.parameter).shape)

    def gathered(self, parts: Sequence[Tensor]) -> Tensor:
        return local(parts[0])

    def parts(self, whole: Tensor) -> list[Tensor]:
        return [whole]


def gathered_parameters(held: Sequence[ShardedParameter], storage: Storage) -> tuple[GatheredParameter, ...]:
    """The user's trainable parameters of which this rank holds something, in the program's order."""
    by_source: dict[str, list[ShardedParameter]] = {}
    for each in held:
        if each.stored.trainable:
            by_source.setdefault(each.stored.source, []).append(each)
    ordered = (sorted(pieces, key=lambda h: h.stored.start) for pieces in by_source.values())
    return tuple(GatheredParameter(tuple(pieces), pieces[0].stored.dim, storage) for pieces in ordered)


@dataclass(frozen=True)
class Group:
    """One group: what is updated by one class with the same options. ``title`` is the group's name."""

    kind: Kind
    title: str
    options: Mapping[str, Any]
    parameters: tuple[GatheredParameter | LocalParameter, ...]

    @property
    def group(self) -> dict[str, Any]:
        """As torch has it."""
        parameters = [p for each in self.parameters for p in each.updated]
        return {**defaults_of(self.kind, self.options), "name": self.title, "params": parameters}


class GatheredOptimizer(Optimizer):
    """Parameters that a class of torch.optim updates when gathered, and those that one updates element by element.

    groups    of those that are gathered
    others    of the other parameters

    State that has an element for each of the parameter's lies in parts, as the parameter does. What else a class keeps
    of a parameter (rows, columns) every rank has whole, under the first piece and with a leading dim of one, by which
    the two are told apart.
    """

    def __init__(
        self, groups: Sequence[Group], others: Sequence[Group] = ()
    ) -> None:
        self.gathered_groups, self.other_groups = tuple(groups), tuple(others)
        super().__init__([members.group for members in (*groups, *others)], {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update; every rank that holds parts of the same parameters takes part."""
        first, others = self.param_groups[: len(self.gathered_groups)], self.param_groups[len(self.gathered_groups) :]
        for members, group in zip(self.gathered_groups, first, strict=True):
            options = {name: value for name, value in group.items() if name != "params"}
            for whole in members.parameters:
                if any(p.grad is not None for p in whole.updated):
                    self.update(members.kind, whole, options)
        for members, group in zip(self.other_groups, others, strict=True):
            inner = members.kind(split_dtensors(group))
            inner.state.update({p: self.state[p] for p in group["params"] if p in self.state})
            inner.step()
            self.state.update(inner.state)

    def updating(self, parameter: Tensor) -> Optimizer:
        """The optimizer that updates a parameter, with its state; itself where it is gathered for that."""
        for members, group in zip(self.other_groups, self.param_groups[len(self.gathered_groups) :], strict=True):
            if any(each is parameter for each in group["params"]):
                found = members.kind([{**group, "params": [parameter]}])
                found.state[parameter] = self.state[parameter]
                return found
        return self

    def update(self, kind: Kind, whole: GatheredParameter | LocalParameter, options: Mapping[str, Any]) -> None:
        """One parameter's update, by an optimizer of its own that is there for it alone."""
        parameter = nn.Parameter(whole.gathered([p.detach() for p in whole.updated]))
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in whole.updated]
        parameter.grad = whole.gathered(gradients)
        inner = kind([{**options, "params": [parameter]}])
        inner.state[parameter] = self.gathered_state(whole, parameter)
        inner.step()
        self.keep(whole, inner.state[parameter])  # before the values: it tells that the update began
        for updated, part in zip(whole.updated, whole.parts(parameter.detach()), strict=True):
            local(updated.detach()).copy_(part)

    def gathered_state(self, whole: GatheredParameter | LocalParameter, like: Tensor) -> dict[str, Any]:
        """What a class keeps of a parameter, whole, as it keeps it."""
        first = self.state.get(whole.updated[0], {})
        found: dict[str, Any] = {}
        for name, value in first.items():
            if isinstance(value, Tensor) and value.ndim == len(whole.shape) and value.ndim:
                found[name] = whole.gathered([self.state[p][name] for p in whole.updated])
            elif isinstance(value, Tensor) and value.ndim:
                found[name] = value.squeeze(0).to(like.device)
            else:
                found[name] = value
        return found

    def keep(self, whole: GatheredParameter | LocalParameter, state: Mapping[str, Any]) -> None:
        """Keeps this rank's part of it."""
        first = self.state[whole.updated[0]]
        for name, value in state.items():
            if isinstance(value, Tensor) and tuple(value.shape) == whole.shape and value.ndim:
                for updated, part in zip(whole.updated, whole.parts(value), strict=True):
                    kept = self.state[updated]
                    if name not in kept:
                        kept[name] = torch.zeros_like(updated, dtype=value.dtype)
                    local(kept[name]).copy_(part)
            else:
                first[name] = value.unsqueeze(0) if isinstance(value, Tensor) and value.ndim else value


def defaults_of(kind: Kind, options: Mapping[str, Any]) -> dict[str, Any]:
    """Every option of a class, those that aren't given at their defaults."""
    return kind([nn.Parameter(torch.empty(2, 2))], **options).defaults


def split_dtensors(group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A group as two: torch's foreach kernels take no mixture of plain tensors and DTensors."""
    sorts = [[p for p in group["params"] if isinstance(p, DTensor) == sharded] for sharded in (False, True)]
    return [{**group, "params": sort} for sort in sorts if sort] or [{**group, "params": []}]


def follow_rows(optimizer: Optimizer, held: Sequence[ShardedParameter]) -> None:
    """Has each step of an optimizer update the looked-up rows of these parameters, too; of others nothing."""
    tables = [each for each in held if each.rows is not None]
    if tables:
        optimizer.register_step_pre_hook(lambda *_: check_rows(optimizer, tables))
        optimizer.register_step_post_hook(lambda *_: update_rows(optimizer, tables))


def check_rows(optimizer: Optimizer, tables: Sequence[ShardedParameter]) -> None:
    """InputsError where a group's options, set since it was planned, move rows without a gradient."""
    for each in tables:
        _, group = group_of(optimizer, each.updated)
        for name in MOVING:
            if group.get(name):
                raise InputsError(
                    f"{name}={group[name]!r} in program.optimizer.param_groups",
                    "it moves all rows of tables, of which this plan updates those that were looked up",
                    f"plan with Training({name}=...), or leave it 0 (OneCycleLR and CyclicLR: cycle_momentum=False)",
                )


@torch.no_grad()
def update_rows(optimizer: Optimizer, tables: Sequence[ShardedParameter]) -> None:
    for each in tables:
        if each.rows is not None and each.rows.boxes:
            update_elements(*group_of(optimizer, each.updated), each, optimizer)


def group_of(optimizer: Optimizer, parameter: Tensor) -> tuple[Kind, Mapping[str, Any]]:
    """The class that updates a parameter, and its group."""
    groups = optimizer.param_groups
    number = next(n for n, group in enumerate(groups) if any(each is parameter for each in group["params"]))
    if isinstance(optimizer, GatheredOptimizer):
        return (*optimizer.gathered_groups, *optimizer.other_groups)[number].kind, groups[number]
    return type(optimizer), groups[number]


def update_elements(kind: Kind, group: Mapping[str, Any], held: ShardedParameter, optimizer: Optimizer) -> None:
    """One update of a table's looked-up rows, box by box, by optimizers that are there for it alone."""
    assert held.rows is not None
    flat, state = held.values, optimizer.state.get(held.updated, {})
    wide = [name for name, value in state.items() if isinstance(value, Tensor) and value.shape == flat.shape]
    once = {name: value for name, value in state.items() if name not in wide}  # for all elements: the count of steps
    after: Mapping[str, Any] = {}
    boxes = ((start, each, some) for start, each in held.rows.boxes.items()
             for some in updatable(held.parameter, start, each))  # fmt: skip
    for start, each, some in boxes:
        box, shape = slice(start, start + each.count * each.values.shape[1]), (each.count, -1)
        weights = some.matrix(WEIGHTS, flat[box].view(shape))
        kept = {name: some.matrix(name, state[name][box].view(shape)) for name in wide}
        rows = nn.Parameter(weights[some.places])
        rows.grad = each.values[some.which]
        inner = kind([{**group, "params": [rows]}])
        begun = {name: value.clone() if isinstance(value, Tensor) else value for name, value in once.items()}
        inner.state[rows] = begun | {name: values[some.places] for name, values in kept.items()}
        if hasattr(optimizer, GUARD):
            setattr(inner, GUARD, getattr(optimizer, GUARD))
        inner.step()
        after = inner.state[rows]
        for name, values in kept.items():
            values.index_copy_(0, some.places, after[name])
        weights.index_copy_(0, some.places, rows.detach())
    for name in after.keys() - set(wide):
        state[name] = after[name]
