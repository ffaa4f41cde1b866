"""Whether a second step would be the first again, where forward changes attributes.

A cache that is filled once, or a tensor that is put aside in every forward, changes nothing that is computed. Whether
that is so shows when the model is traced again after a forward: the graph has to be the same, and read nothing that
the first forward left; or else, where only tensors are left, two forwards have to give the same numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from autoplan.errors import AutoplanError, TraceError
from autoplan.trace.capture import capture
from autoplan.trace.observed import Observed, is_fake

MOST = 1 << 28  # elements of parameters and buffers that are made to try two forwards on numbers


def check_settled(
    first: ExportedProgram, module: Observed, batch: Sequence[Tensor], mode: Any, anew: Callable[[], Observed]
) -> None:
    """TraceError, naming an attribute, where what forward leaves has a consequence for the next, or goes on changing.

    module  is left in the state after its first forward
    anew    makes the module as it was before
    """
    left, mutated = list(module.seen.changed), module.seen.mutated
    if mutated:
        raise unsettled(mutated[0])
    try:
        with mode, torch.compiler.set_stance("force_eager"):
            module(*batch)
        module.seen.changed.clear()
        second = capture(module, batch)
    except AutoplanError as error:
        raise unsettled(left[0]) from error
    still = list(module.seen.changed)
    going_on = [name for name in still if not only_tensors(attribute(module.model, name))]
    if module.seen.mutated or going_on:
        raise unsettled((*module.seen.mutated, *going_on)[0])
    same = texts(first) == texts(second) and not reads_left(first, second)
    if not same and not (still and same_numbers(anew(), batch)):
        raise unsettled(left[0])


def unsettled(name: str) -> TraceError:
    return TraceError(
        name,
        "forward changes this attribute, and the program would go on with what it is in the first step",
        "hand in with the batch what differs by step, or change it outside of forward",
    )


def texts(program: ExportedProgram) -> list[str]:
    """The code of a program's graph and of its regions."""
    return [part.code for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]


def reads_left(first: ExportedProgram, second: ExportedProgram) -> bool:
    """Whether a constant of the second program is a tensor that the forward before it computed."""

    def computed(program: ExportedProgram, name: str) -> bool:
        held = program.constants.get(name)
        return isinstance(held, Tensor) and is_fake(held)

    return any(computed(second, name) and not computed(first, name) for name in second.constants)


def same_numbers(module: Observed, batch: Sequence[Tensor]) -> bool:
    """Whether two forwards in a row give one loss, on random parameters and the same random numbers."""
    tensors = (*module.parameters(), *module.buffers(), *batch)
    if sum(tensor.numel() for tensor in tensors) > MOST:
        return False
    generator = torch.Generator().manual_seed(0)
    memo: dict[int, object] = {id(tensor): numbers_like(tensor, generator) for tensor in tensors}
    real, values = copy.deepcopy(module, memo), [memo[id(tensor)] for tensor in batch]
    losses = []
    with torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
        for _ in range(2):
            torch.manual_seed(0)
            losses.append(real(*values).detach())
    return bool(losses[0].isfinite().all()) and torch.equal(*losses)


def numbers_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Small numbers in place of a fake tensor; zeros where they may be indices."""
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    values = torch.randn(tensor.shape, generator=generator).to(tensor.dtype) * 0.1
    return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values


def attribute(module: nn.Module, path: str) -> object:
    """An attribute that is no buffer, parameter or submodule; None for one of those."""
    owner, _, name = path.rpartition(".")
    return vars(module.get_submodule(owner)).get(name)


def only_tensors(value: object) -> bool:
    """Whether this is a tensor, or holds tensors alone: what was put aside, and is put aside anew each time."""
    leaves = list(leaves_of(value))
    return bool(leaves) and all(isinstance(leaf, Tensor) for leaf in leaves)


def leaves_of(value: object) -> Iterator[object]:
    if isinstance(value, (list, tuple)):
        for held in value:
            yield from leaves_of(held)
    elif isinstance(value, dict):
        yield from leaves_of(list(value.values()))
    else:
        yield value
