"""Runs the evaluation program's code on the training program's parameters and buffers, without a copy.

The forward alone is a program of its own (``autoplan.evaluation``), whose classes stand beside those of program.py,
segment by segment. Its code borrows: it is called with an object that has its own axes, and the parameters, buffers
and children of the module that lends them. So nothing is held twice, and the hooks by which parameters are gathered
stay where they are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import nn

from autoplan.ir.typed_program import Lowered
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.parallel.parameters import Made, Parameters
from autoplan.runtime.parallel.stages import StageModule
from autoplan.runtime.program_spec import ProgramSpec

META = torch.device("meta")


class Borrower:
    """What a borrowed forward takes for ``self``.

    own     the module as the forward's program makes it, without memory
    lender  the module that holds parameters, buffers and children
    names   the attribute that each parameter and buffer of ``own`` has there
    """

    def __init__(self, own: nn.Module, lender: nn.Module, names: Mapping[str, str]) -> None:
        self._own, self._lender, self._names = own, lender, names

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            return getattr(self._lender, self._names[name])
        if name in self._own._modules:
            return getattr(self._lender, name)
        return getattr(self._own, name)

    def parameters(self) -> Iterator[nn.Parameter]:
        return self._lender.parameters()


class Skeleton:
    """One stage of a program on the meta device, and the program's name of what each attribute holds."""

    def __init__(self, spec: ProgramSpec, module: ModuleType, number: int, axes: Mapping[str, MeshAxis]) -> None:
        made = Made(spec, META, META)
        self.stage = module.STAGES[number](Parameters(made), axes)
        self.of = {id(x): name for name, x in (*made.parameters.items(), *made.buffers.items())}

    def held(self, module: nn.Module) -> dict[str, str]:
        """Attribute -> the program's name, of a module's own parameters and buffers."""
        own = (*module._parameters.items(), *module._buffers.items())
        return {attribute: self.of[id(x)] for attribute, x in own if x is not None}


Loan = tuple[nn.Module, Callable[..., Any]]
"""A module, and the forward that it is to run."""


def loans(
    spec: ProgramSpec, module: ModuleType, lowered: Lowered, other: ModuleType, axes: Mapping[str, MeshAxis],
    stages: Sequence[StageModule], lending_axes: Mapping[str, MeshAxis],
) -> tuple[Loan, ...]:  # fmt: skip
    """For each module of the rank's stages the forward that the other program has in its place.

    spec, module, lending_axes  the program that holds the parameters
    lowered, other, axes        the one that borrows them
    """
    found: list[Loan] = []
    for stage in stages:
        borrowing = Skeleton(replace(spec, lowered=lowered), other, stage.number, axes)
        lending = Skeleton(spec, module, stage.number, lending_axes)
        lenders, plain = dict(stage.stage.named_modules()), dict(lending.stage.named_modules())
        for path, own in borrowing.stage.named_modules():
            assert path in lenders, f"the forward alone has a module {path!r} that program.py lacks"
            if isinstance(own, nn.ModuleList):
                continue
            attributes = {name: attribute for attribute, name in lending.held(plain[path]).items()}
            names = {attribute: attributes[name] for attribute, name in borrowing.held(own).items()}
            found.append((lenders[path], bound(own, Borrower(own, lenders[path], names))))
    return tuple(found)


def bound(own: nn.Module, borrower: Borrower) -> Callable[..., Any]:
    """The class's own forward, with the borrower for ``self``."""
    code = type(own).forward

    def forward(*given: Any, **keywords: Any) -> Any:
        return code(borrower, *given, **keywords)

    return forward


@contextmanager
def lent(loaned: Sequence[Loan]) -> Iterator[None]:
    """Within it these modules run the other forwards."""
    before = [(module, module.__dict__.get("forward")) for module, _ in loaned]
    try:
        for module, forward in loaned:
            module.forward = forward
        yield
    finally:
        for module, own in before:
            if own is None:
                module.__dict__.pop("forward", None)
            else:
                module.forward = own
