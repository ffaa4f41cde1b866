"""Whether a second step would be the first again, where forward changes attributes.

A cache that is filled once, or a tensor that is put aside in every forward, changes nothing that is computed. Whether
that is so shows when the model is traced again after a forward: the graph has to be the same, and read nothing that
the first forward left. Or else a forward has to give the same number whether or not one of other parameters and of
another batch ran before it.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from autoplan.errors import AutoplanError, TraceError
from autoplan.trace.capture import capture, in_place_of_torch
from autoplan.trace.checks.observed import Observed, is_fake
from autoplan.trace.initialise.recipe_check import with_values

MOST, MOST_WORK = 1 << 28, 1 << 38  # elements that forwards are tried on, and times those of the batch


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
        with mode, torch.compiler.set_stance("force_eager"), in_place_of_torch():
            module(*batch)
        module.seen.changed.clear()
        second = capture(module, batch)
    except AutoplanError as error:
        raise unsettled(left[0]) from error
    going_on = [name for name in module.seen.changed if not only_tensors(attribute(module.model, name))]
    if module.seen.mutated or going_on:
        raise unsettled((*module.seen.mutated, *going_on)[0])
    same = texts(first) == texts(second) and not reads_left(first, second)
    if not same and not same_number(anew, batch):
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


def same_number(anew: Callable[[], Observed], batch: Sequence[Tensor]) -> bool:
    """Whether a forward gives the same loss after another one as it gives by itself, on random numbers."""
    alone, after = anew(), anew()
    held = (*alone.parameters(), *alone.buffers())
    elements = sum(tensor.numel() for tensor in held)
    if elements > MOST or elements * max(tensor.numel() for tensor in batch) > MOST_WORK:
        return False
    alone, after = (with_values(m, lambda t: torch.full(t.shape, 0.1).to(t.dtype)) for m in (alone, after))
    try:
        with torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
            loss_of(after, batch, 0)
            losses = [loss_of(module, batch, 1) for module in (alone, after)]
    except Exception:  # whatever the user's code says of numbers that aren't its own
        return False
    return bool(losses[0].isfinite().all()) and torch.equal(*losses)


def loss_of(module: Observed, batch: Sequence[Tensor], seed: int) -> Tensor:
    """The loss on parameters and a batch that are drawn; integers, which may be indices, are the seed."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.1)
    floating = [tensor.is_floating_point() for tensor in batch]
    values = [torch.randn(t.shape).to(t.dtype) if f else torch.full(t.shape, seed, dtype=t.dtype)
              for t, f in zip(batch, floating, strict=True)]  # fmt: skip
    return module(*values).detach()


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
    elif isinstance(value, weakref.ref):
        yield from leaves_of(value())
    else:
        yield value
