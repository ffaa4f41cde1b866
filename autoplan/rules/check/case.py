"""One call of an operator with real tensors, as the planner sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from autoplan.ir.graph import Argument, Node, Ref, TensorType
from autoplan.ir.mesh import Mesh
from autoplan.rules.faults import check_users_rule
from autoplan.rules.operator_names import OWN, known_overload
from autoplan.rules.registry import Rule, rule_of
from autoplan.rules.strategies import Strategy, strategies
from autoplan.runtime import ops
from autoplan.runtime.ops.global_random import dropout, step_keys, uniform
from autoplan.trace.builder import torch_argument, type_of

KEY = step_keys(1, 2, 1)[0]
DRAWN = {"dropout": dropout, "uniform": uniform}  # what is drawn for the places of a whole tensor


@dataclass(frozen=True)
class Sample:
    """One call: tensors that require a gradient carry one, the others are constants."""

    op: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()

    def __str__(self) -> str:
        shapes = "x".join("_".join(map(str, a.shape)) for a in self.args if isinstance(a, Tensor))
        return f"{self.op}-{shapes}"


@dataclass(frozen=True)
class Case:
    """A sample as the planner sees it, with its tensors and its result."""

    sample: Sample
    node: Node
    tensors: tuple[Tensor, ...]
    types: tuple[TensorType, ...]
    carries: tuple[bool, ...]
    rule: Rule
    result: Tensor

    @staticmethod
    def of(sample: Sample, rule: Rule | None = None) -> Case:
        """Runs the sample. ``rule``: another one than the operator's own."""
        tensors: list[Tensor] = []

        def named(argument: Argument) -> Argument:
            if isinstance(argument, Tensor):
                tensors.append(argument)
                return Ref(f"t{len(tensors) - 1}")
            return tuple(map(named, argument)) if isinstance(argument, tuple) else argument

        args = tuple(map(named, sample.args))
        kwargs = tuple((key, named(value)) for key, value in sample.kwargs)
        result = call_whole(Node("y", sample.op, args, kwargs, TensorType((), "")), copies(tensors))
        node = Node("y", sample.op, args, kwargs, type_of(result))
        types = tuple(map(type_of, tensors))
        if rule is None:
            by_name = dict(zip(node.operands, types, strict=True))
            check_users_rule(node, by_name)
            rule = rule_of(node, by_name)
        return Case(sample, node, tuple(tensors), types, tuple(t.requires_grad for t in tensors), rule, result)

    def strategies(self, mesh: Mesh) -> tuple[Strategy, ...]:
        return strategies(self.rule, self.types, self.node.type, self.carries, mesh)

    def without_gradients(self) -> Case:
        """The same of constants alone."""
        constants = tuple(t.detach() for t in self.tensors)
        return replace(self, tensors=constants, carries=tuple(False for _ in constants), result=self.result.detach())


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]


def arguments(node: Node, tensors: Sequence[Tensor]) -> tuple[list[object], dict[str, object]]:
    """The node's arguments as torch takes them, ``tensors`` in the order of its operands."""
    remaining = iter(tensors)

    def value(argument: Argument) -> object:
        return torch_argument(argument, lambda _: next(remaining))

    return [value(a) for a in node.args], {key: value(a) for key, a in node.kwargs}


def call_whole(node: Node, tensors: Sequence[Tensor]) -> Tensor:
    """Runs a node's operator on these tensors, as it is."""
    args, kwargs = arguments(node, tensors)
    namespace, name = node.op.split(".")[:2]
    if namespace == OWN and name in DRAWN:
        return DRAWN[name](*args, key=KEY, call=1, dims=())  # type: ignore[arg-type]
    if namespace == OWN:
        return getattr(ops, name)(*args, **kwargs)
    found = known_overload(node.op)
    assert found is not None, f"{node.op} is no operator of torch"
    return found(*args, **kwargs)
