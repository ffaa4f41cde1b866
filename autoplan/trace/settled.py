"""Whether a second step would be the first again, where forward changes attributes.

A cache that is filled once, or a tensor that is put aside in every forward, changes nothing that is computed. Whether
that is so shows when the model is traced again after a forward: the graph has to be the same, and read nothing that
the first forward left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from autoplan.errors import AutoplanError, TraceError
from autoplan.trace.capture import capture
from autoplan.trace.observed import Observed, is_fake


def check_settled(first: ExportedProgram, module: Observed, batch: Sequence[Tensor], mode: Any) -> None:
    """TraceError, naming an attribute, where the state that forward leaves is read by the next one, or goes on
    changing. The module is left in the state after its first forward."""
    names = list(module.seen.changed)
    mutated = module.seen.mutated
    if mutated:
        raise unsettled(mutated[0])
    try:
        print('CHANGED', names)
        with mode, torch.compiler.set_stance("force_eager"):
            module(*batch)
        module.seen.changed.clear()
        second = capture(module, batch)
    except AutoplanError as error:
        raise unsettled(names[0]) from error
    if texts(first) != texts(second) or any(map(is_stale, second.constants.values())):
        raise unsettled(names[0])
    for name in module.seen.changed:
        if module.seen.mutated or not only_tensors(attribute(module.model, name)):
            raise unsettled(name)


def unsettled(name: str) -> TraceError:
    return TraceError(
        name,
        "forward changes this attribute, and the program would go on with what it is in the first step",
        "hand in with the batch what differs by step, or change it outside of forward",
    )


def texts(program: ExportedProgram) -> list[str]:
    """The code of a program's graph and of its regions."""
    return [part.code for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]


def is_stale(constant: object) -> bool:
    return isinstance(constant, Tensor) and is_fake(constant)


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
