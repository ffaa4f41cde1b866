"""Operators that have neither a form nor a rule, decomposed into those of which torch composes them.

torch knows for most operators how they follow from simpler ones (``torch.export.default_decompositions``); here one is
traced by itself on meta tensors, so that the program around it stays as it was exported: a pass over all of it would
lose where gradients stop, and would decompose what is known, too.
"""

from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from autoplan.ir.graph import Argument, Ref, walk_refs
from autoplan.trace.builder import Builder, torch_argument
from autoplan.trace.passes.compositions import COMPOSITIONS

Operator = torch._ops.OpOverload
Decompositions = dict[Operator, Callable[..., object]]


class Decomposer:
    """What torch can decompose; its table is made when it is first asked for."""

    @cached_property
    def table(self) -> Decompositions:
        return dict(torch.export.default_decompositions().items())

    def decomposes(self, op: Operator) -> bool:
        return not op._schema.is_mutable and (op in COMPOSITIONS or composite(op) or op in self.table)

    def decompose(
        self, builder: Builder, op: Operator, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]
    ) -> tuple[fx.GraphModule, tuple[Ref, ...]]:
        """The graph of an operator, and the values of its placeholders."""
        given = (args, tuple(kwargs.values()))
        refs = tuple(dict.fromkeys(walk_refs(given)))

        plain = COMPOSITIONS.get(op) or (op if composite(op) else self.table[op])

        def run(*tensors: Tensor) -> object:
            values = dict(zip(refs, tensors, strict=True))
            real = [torch_argument(argument, values.__getitem__) for argument in args]
            return plain(*real, **{key: torch_argument(value, values.__getitem__) for key, value in kwargs.items()})

        example = [builder.meta(ref) for ref in refs]
        once = make_fx(run)(*example)  # what an operator is made of may change its own values in place (a GRU's)
        return make_fx(torch.func.functionalize(once))(*example), refs


def composite(op: Operator) -> bool:
    """Whether an operator is made of others; there is no public way to ask."""
    return op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
