"""One operator on the ranks of a mesh, without processes: tensors are cut as their layouts say, each rank's part is
computed, and the parts are put together as the layouts say."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autoplan.ir.graph import Node
from autoplan.ir.layout import PMAX, P, State
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import groups_of
from autoplan.rules.check.case import DRAWN, KEY, Case, arguments, call_whole, copies
from autoplan.rules.operator_names import OWN
from autoplan.rules.strategies import Strategy, local_arguments
from autoplan.runtime import ops
from autoplan.runtime.collectives.mesh_axes import MeshAxis

Coordinates = tuple[int, ...]
Parts = dict[Coordinates, Tensor]


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


def call_local(local: Local, tensors: Sequence[Tensor], axes: Mapping[str, MeshAxis]) -> Tensor:
    """Runs a node's operator, or its strategy's body, on one rank's parts."""
    namespace, name = local.node.op.split(".")[:2]
    body, groups = body_of(local.strategy)
    drawn = namespace == OWN and name in DRAWN
    if not body and not drawn:
        return call_whole(local.node, tensors)
    args, kwargs = arguments(local.node, tensors)
    if body:
        return getattr(ops, body)(*args, **kwargs, axes=tuple(axes[group] for group in groups))
    dims = tuple(tuple(axes[a] for a in names) for names in local.dims)
    return DRAWN[name](*args, key=KEY, call=1, dims=dims)  # type: ignore[arg-type]


def body_of(strategy: Strategy) -> tuple[str, tuple[str, ...]]:
    """The body that runs in the operator's place, "" for none, and the groups of axes that it is told of."""
    axes = tuple(axis for axis, s in strategy.axes if s.body)
    body = next((s.body for _, s in strategy.axes if s.body), "")
    return body, groups_of(body, axes)


def joint_groups(strategies: Iterable[Strategy]) -> list[tuple[str, ...]]:
    """Groups over several axes that bodies of these strategies need, in the order of first use."""
    return list(dict.fromkeys(tuple(g.split(",")) for s in strategies for g in body_of(s)[1] if "," in g))


def run_local(local: Local, axes: Mapping[str, MeshAxis]) -> Outcome:
    """One rank's forward and backward."""
    tensors = copies(local.tensors)
    y = call_local(local, tensors, axes)
    y = y / local.divisor if local.divisor > 1 else y
    return Outcome(y.detach(), backward(y, tensors, local.gradient), tuple(t.detach() for t in tensors))


def backward(y: Tensor, tensors: Sequence[Tensor], gradient: Tensor | None) -> tuple[Tensor | None, ...]:
    if gradient is not None and y.requires_grad:
        y.backward(gradient)
    return tuple((torch.zeros_like(t) if t.grad is None else t.grad) if t.requires_grad else None for t in tensors)


def run_whole(case: Case, gradient: Tensor | None) -> Outcome:
    """The operator on one device."""
    tensors = copies(case.tensors)
    y = call_whole(case.node, tensors)
    return Outcome(y.detach(), backward(y, tensors, gradient), tuple(t.detach() for t in tensors))


def gradient_of(case: Case) -> Tensor | None:
    """A gradient of the result, None where none can come; the same for one case every time."""
    if not case.result.requires_grad:
        return None
    drawn = torch.randn(case.result.shape, dtype=case.result.dtype, generator=torch.Generator().manual_seed(3))
    return drawn.to(case.result.device)


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


def simulated(case: Case, strategy: Strategy, mesh: Mesh, gradient: Tensor | None) -> dict[Coordinates, Outcome]:
    """Every rank's outcome of a strategy whose ranks don't communicate."""
    locals_ = localise(case, strategy, mesh, gradient)
    return {at: run_local(local, rank_axes_at(mesh, at)) for at, local in locals_.items()}


def communicates(strategy: Strategy) -> bool:
    return any(s.communicates for _, s in strategy.axes)


def rank_axes_at(mesh: Mesh, at: Coordinates) -> dict[str, MeshAxis]:
    """The axes of a rank that communicates with none."""
    return {axis.name: MeshAxis(axis.name, axis.size, at[i]) for i, axis in enumerate(mesh.axes)}


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
    return torch.randn_like(x) if x.is_floating_point() or x.is_complex() else torch.randint_like(x, 5)


def join(parts: Mapping[Coordinates, Tensor], states: Sequence[State], mesh: Mesh) -> tuple[Tensor, float]:
    """The tensor whose parts these are, and by how much replicas differ (``relative_error``)."""
    order = sorted(range(len(states)), key=lambda i: states[i].kind not in "RI")  # replicas first, rank by rank
    current = {tuple(at[i] for i in order): x for at, x in parts.items()}
    apart = 0.0
    for _ in (state for state in states if state.kind in "RI"):
        groups: dict[Coordinates, list[Tensor]] = {}
        for at in sorted(current):
            groups.setdefault(at[1:], []).append(current[at])
        apart = max([apart, *(relative_error(other, first) for first, *rest in groups.values() for other in rest)])
        current = {at: replicas[0] for at, replicas in groups.items()}
    split = [i for i in order if states[i].kind not in "RI"]
    return gather(current, [states[i] for i in split], mesh), apart


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


def relative_error(got: Tensor, want: Tensor) -> float:
    """The largest |got - want| / (1 + |want|); infinite where shapes differ or one alone is no number."""
    if got.shape != want.shape:
        return float("inf")
    if got.numel() == 0:
        return 0.0
    wide = torch.complex128 if got.is_complex() or want.is_complex() else torch.float64
    a, b = got.detach().to(wide), want.detach().to(wide)
    error = torch.where(a == b, torch.zeros((), dtype=torch.float64, device=a.device), (a - b).abs() / (1 + b.abs()))
    worst = float(error.max())
    return worst if worst == worst else float("inf")
