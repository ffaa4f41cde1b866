"""One operator on the ranks of a mesh, without processes: tensors are cut as their layouts say, each rank's part is
computed, and the parts are put together as the layouts say."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autoplan.graph import Argument, DType, Node, Ref, TensorType
from autoplan.layout import PMAX, P, State
from autoplan.mesh import Mesh
from autoplan.rule import Rule, rule_of
from autoplan.runtime import bodies
from autoplan.runtime.axes import RankAxis
from autoplan.runtime.random import dropout, step_keys, uniform
from autoplan.strategies import Strategy, local_arguments, strategies
from tests.rule_samples import Sample

Coordinates = tuple[int, ...]
Parts = dict[Coordinates, Tensor]
KEY = step_keys(1, 2, 1)[0]


@dataclass(frozen=True)
class Case:
    """A sample as the planner sees it, with its tensors."""

    sample: Sample
    node: Node
    tensors: tuple[Tensor, ...]
    types: tuple[TensorType, ...]
    carries: tuple[bool, ...]
    rule: Rule
    result: Tensor

    @staticmethod
    def of(sample: Sample) -> Case:
        tensors: list[Tensor] = []

        def named(argument: Argument) -> Argument:
            if isinstance(argument, Tensor):
                tensors.append(argument)
                return Ref(f"t{len(tensors) - 1}")
            return tuple(map(named, argument)) if isinstance(argument, tuple) else argument

        args = tuple(map(named, sample.args))
        result = call(Node("y", sample.op, args, sample.kwargs, TensorType((), "")), tuple(copies(tensors)))
        node = Node("y", sample.op, args, sample.kwargs, type_of(result))
        types = tuple(map(type_of, tensors))
        rule = rule_of(node, {f"t{i}": t for i, t in enumerate(types)})
        carries = tuple(t.requires_grad for t in tensors)
        return Case(sample, node, tuple(tensors), types, carries, rule, result)

    def strategies(self, mesh: Mesh) -> tuple[Strategy, ...]:
        return strategies(self.rule, self.types, self.node.type, self.carries, mesh)


@dataclass(frozen=True)
class Local:
    """What one rank computes: its node, its operands, its result's gradient (None where none comes back)."""

    node: Node
    tensors: tuple[Tensor, ...]
    gradient: Tensor | None
    strategy: Strategy
    divisor: int
    dims: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Outcome:
    """A result, the gradients of the operands (None for a constant), and the operands after an update in place."""

    value: Tensor
    gradients: tuple[Tensor | None, ...]
    after: tuple[Tensor, ...]


def type_of(x: Tensor) -> TensorType:
    return TensorType(tuple(x.shape), str(x.dtype).removeprefix("torch."))


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]


def call(
    node: Node, tensors: Sequence[Tensor], axes: Mapping[str, RankAxis] | None = None, local: Local | None = None
) -> Tensor:
    """Runs a node's operator, or its strategy's body."""
    remaining = iter(tensors)

    def value(argument: Argument) -> object:
        if isinstance(argument, Ref):
            return next(remaining)
        if isinstance(argument, DType):
            return getattr(torch, argument.name)
        return [value(item) for item in argument] if isinstance(argument, tuple) else argument

    args = [value(a) for a in node.args]
    kwargs = {key: value(a) for key, a in node.kwargs}
    namespace, name, overload = (*node.op.split(".", 2), "")[:3]
    if local is not None and axes is not None:
        used = [(axes[a], s.body) for a, s in local.strategy.axes if s.body]
        if used:
            return getattr(bodies, used[0][1])(*args, **kwargs, axes=tuple(axis for axis, _ in used))
    if name in ("dropout", "uniform"):
        dims = tuple(tuple(axes[a] for a in names) for names in local.dims) if local is not None and axes else ()
        return {"dropout": dropout, "uniform": uniform}[name](*args, key=KEY, call=1, dims=dims)
    if namespace == "autoplan":
        return getattr(bodies, name)(*args, **kwargs)
    return getattr(getattr(torch.ops.aten, name), overload)(*args, **kwargs)


def run_local(local: Local, axes: Mapping[str, RankAxis]) -> Outcome:
    """One rank's forward and backward."""
    tensors = copies(local.tensors)
    y = call(local.node, tensors, axes, local)
    y = y / local.divisor if local.divisor > 1 else y
    return Outcome(y.detach(), backward(y, tensors, local.gradient), tuple(t.detach() for t in tensors))


def backward(y: Tensor, tensors: Sequence[Tensor], gradient: Tensor | None) -> tuple[Tensor | None, ...]:
    if gradient is not None and y.requires_grad:
        y.backward(gradient)
    return tuple((torch.zeros_like(t) if t.grad is None else t.grad) if t.requires_grad else None for t in tensors)


def run_whole(case: Case, gradient: Tensor | None) -> Outcome:
    """The operator on one device."""
    tensors = copies(case.tensors)
    y = call(case.node, tensors)
    return Outcome(y.detach(), backward(y, tensors, gradient), tuple(t.detach() for t in tensors))


def localise(case: Case, strategy: Strategy, mesh: Mesh, gradient: Tensor | None) -> dict[Coordinates, Local]:
    """What every rank of a mesh computes under a strategy."""
    operands = [cut(t.detach(), [s.inputs[i] for _, s in strategy.axes], mesh) for i, t in enumerate(case.tensors)]
    output = strategy.output(len(case.node.type.shape), mesh)
    args, kwargs = local_arguments(case.rule, case.node, output.local_shape(case.node.type.shape, mesh))
    node = Node("y", case.node.op, args, kwargs, case.node.type)
    gradients: Mapping[Coordinates, Tensor | None] = dict.fromkeys(everywhere(mesh))
    if gradient is not None:
        gradients = cut(gradient, [s.output.gradient for _, s in strategy.axes], mesh)
    divisor = 1
    for axis, s in strategy.axes:
        divisor *= mesh.size(axis) if s.scaled else 1
    return {
        at: Local(
            node,
            tuple(o[at].requires_grad_(c) for o, c in zip(operands, case.carries, strict=True)),
            gradients[at],
            strategy,
            divisor,
            output.dims,
        )
        for at in everywhere(mesh)
    }


def rank_axes_at(mesh: Mesh, at: Coordinates) -> dict[str, RankAxis]:
    """The axes of a rank that communicates with none."""
    return {axis.name: RankAxis(axis.name, axis.size, at[i]) for i, axis in enumerate(mesh.axes)}


def everywhere(mesh: Mesh) -> list[Coordinates]:
    return list(itertools.product(*(range(axis.size) for axis in mesh.axes)))


def cut(x: Tensor, states: Sequence[State], mesh: Mesh) -> Parts:
    """Each rank's part of a tensor; summands are random."""
    if not states:
        return {(): x.clone()}
    size, rest = mesh.axes[0].size, Mesh(mesh.axes[1:])
    state = states[0]
    if state.kind == "S":
        pieces = [cut(piece, states[1:], rest) for piece in x.chunk(size, state.dim)]
    elif state == P:
        first = [random_like(x) for _ in range(size - 1)]
        pieces = [cut(piece, states[1:], rest) for piece in (*first, x - sum(first))]
    else:
        assert state.kind in "RI", f"nothing is cut into {state}"
        pieces = [cut(x, states[1:], rest)] * size
    return {(i, *at): piece[at].clone() for i, piece in enumerate(pieces) for at in piece}


def random_like(x: Tensor) -> Tensor:
    return torch.randn_like(x) if x.is_floating_point() else torch.randint_like(x, 5)


def join(parts: Mapping[Coordinates, Tensor], states: Sequence[State], mesh: Mesh, tolerance: float) -> Tensor:
    """The tensor whose parts these are; an assertion fails where replicas differ."""
    order = sorted(range(len(states)), key=lambda i: states[i].kind not in "RI")  # replicas first, rank by rank
    current = {tuple(at[i] for i in order): x for at, x in parts.items()}
    for _ in (state for state in states if state.kind in "RI"):
        groups: dict[Coordinates, list[Tensor]] = {}
        for at in sorted(current):
            groups.setdefault(at[1:], []).append(current[at])
        for first, *others in groups.values():
            for other in others:
                torch.testing.assert_close(other, first, rtol=tolerance, atol=tolerance)
        current = {at: replicas[0] for at, replicas in groups.items()}
    rest = [i for i in order if states[i].kind not in "RI"]
    return gather(current, [states[i] for i in rest], mesh)


def gather(parts: Mapping[Coordinates, Tensor], states: Sequence[State], mesh: Mesh) -> Tensor:
    """Shards concatenated and summands added, the outermost axis last."""
    if not states:
        return parts[()]
    firsts = sorted({at[0] for at in parts})
    pieces = [gather({at[1:]: x for at, x in parts.items() if at[0] == i}, states[1:], mesh) for i in firsts]
    if states[0].kind == "S":
        return torch.cat(pieces, states[0].dim)
    stacked = torch.stack(pieces)
    return stacked.amax(0) if states[0] == PMAX else stacked.sum(0)


def check(case: Case, strategy: Strategy, mesh: Mesh, outcomes: Mapping[Coordinates, Outcome], whole: Outcome) -> None:
    """Every rank's outcome together equals the operator on one device: value, gradients, and buffers."""
    tolerance = 1e-4 if torch.float32 in {t.dtype for t in (*case.tensors, case.result)} else 1e-9
    says = f"{case.sample} {case.rule.spec} {strategy}"

    def same(got: Tensor, want: Tensor, what: str) -> None:
        torch.testing.assert_close(
            got, want, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what} of {says}: {text}", check_dtype=False
        )

    output = [s.output for _, s in strategy.axes]
    assert all(o.value.dtype == whole.value.dtype for o in outcomes.values()) or whole.value.dtype == torch.bool
    same(join({at: o.value for at, o in outcomes.items()}, output, mesh, tolerance), whole.value, "value")
    for i, want in enumerate(whole.gradients):
        states = [s.inputs[i] for _, s in strategy.axes]
        if want is not None:
            duals = [state.gradient for state in states]
            got = {at: o.gradients[i] for at, o in outcomes.items()}
            same(join({at: g for at, g in got.items() if g is not None}, duals, mesh, tolerance), want, f"gradient {i}")
        after = {at: o.after[i] for at, o in outcomes.items()}
        if not torch.equal(whole.after[i], case.tensors[i].detach()):
            same(join(after, states, mesh, tolerance), whole.after[i], f"operand {i} afterwards")
