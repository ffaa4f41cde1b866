"""Every collective on four gloo ranks: it keeps the value, ends in its state, and its backward is its adjoint."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from autoplan.graph import TensorType
from autoplan.layout import I, Layout, P, R, S, State
from autoplan.mesh import Mesh
from autoplan.redistribute import redistribute, transition
from autoplan.runtime import collectives
from autoplan.runtime.axes import RankAxis, rank_axes
from autoplan.runtime.ranks import RankPool
from autoplan.typed import Collective

SHAPE = (4, 8, 12)
STATES = (S(0), S(1), S(2), R, I, P)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as pool:
        yield pool


def world_axis(rank: int, size: int) -> RankAxis:
    return RankAxis("tp", size, rank, distributed.group.WORLD)


def random_in(state: State, size: int, generator: torch.Generator) -> list[torch.Tensor]:
    """A random tensor of SHAPE in a state: what each rank holds."""
    whole = torch.randn(SHAPE, dtype=torch.float64, generator=generator)
    if state.kind == "S":
        return [part.clone() for part in whole.chunk(size, state.dim)]
    if state == P:
        return [torch.randn(SHAPE, dtype=torch.float64, generator=generator) for _ in range(size)]
    return [whole] * size


def whole_of(parts: list[torch.Tensor], state: State) -> torch.Tensor:
    if state.kind == "S":
        return torch.cat(parts, state.dim)
    if state == P:
        return torch.stack(parts).sum(0)
    for part in parts[1:]:
        torch.testing.assert_close(part, parts[0], rtol=1e-14, atol=1e-14)
    return parts[0]


def pairing(x: list[torch.Tensor], gradient: list[torch.Tensor], state: State) -> float:
    """⟨x, g⟩ of a value in a state with a gradient in its dual: an invariant pair is there once, not n times."""
    total = sum((a * b).sum().item() for a, b in zip(x, gradient, strict=True))
    return total / len(x) if state == I else total


def dims_of(source: State, target: State) -> tuple[int, ...]:
    return tuple(state.dim for state in (source, target) if state.kind == "S")


Case = tuple[str, tuple[int, ...], list[torch.Tensor], list[torch.Tensor]]


def run_cases(rank: int, size: int, cases: list[Case]) -> list[tuple[torch.Tensor, torch.Tensor, bool]]:
    """For each case: the result, the gradient, and whether the result is contiguous and waited for."""
    results = []
    for op, dims, inputs, gradients in cases:
        x = inputs[rank].clone().requires_grad_()
        y = getattr(collectives, op)(x, *dims, world_axis(rank, size))
        y.backward(gradients[rank])
        plain = all(type(t) is torch.Tensor for t in (y.detach(), x.grad))
        results.append((y.detach(), x.grad, plain and y.is_contiguous()))
    return results


def test_every_transition_keeps_the_value_and_its_backward_is_the_adjoint(pool):
    generator = torch.Generator().manual_seed(0)
    pairs = [(a, b) for a, b in itertools.permutations(STATES, 2)]
    assert all(transition(a, b, True) for a, b in pairs)
    probes = [random_in(a, 4, generator) for a, _ in pairs]
    inputs = [random_in(a, 4, generator) for a, _ in pairs]
    gradients = [random_in(b.gradient, 4, generator) for _, b in pairs]
    cases = [
        (transition(a, b, True), dims_of(a, b), values, gradient)
        for (a, b), pair, gradient in zip(pairs, zip(inputs, probes, strict=True), gradients, strict=True)
        for values in pair
    ]
    by_rank = pool.run(run_cases, cases)
    for i, ((a, b), case) in enumerate(zip([p for p in pairs for _ in range(2)], cases, strict=True)):
        results = [rank[i] for rank in by_rank]
        outputs, grads = [r[0] for r in results], [r[1] for r in results]
        assert all(r[2] for r in results), (a, b)
        torch.testing.assert_close(whole_of(outputs, b), whole_of(case[2], a), rtol=1e-13, atol=1e-13)
        whole_of(grads, a.gradient)  # the gradient is in the dual state: equal on all ranks where that is R or I
        forward, backward = pairing(outputs, case[3], b), pairing(case[2], grads, a)
        assert forward == pytest.approx(backward, rel=1e-12, abs=1e-12), (a, b)
        other = cases[i ^ 1]  # the same gradients meet the other input through linearity
        assert pairing([r[i ^ 1][0] for r in by_rank], case[3], b) == pytest.approx(
            pairing(other[2], grads, a), rel=1e-12, abs=1e-12
        )


def run_steps(x: torch.Tensor, steps: tuple[Collective, ...], axes: dict[str, RankAxis]) -> torch.Tensor:
    for step in steps:
        x = getattr(collectives, step.op)(x, *step.dims, axes[step.axis])
    return x


def local_part(whole: torch.Tensor, layout: Layout, mesh: Mesh, rank: int) -> torch.Tensor:
    """What a rank holds, by slicing (a summand is the whole on the axis' first member, zeros on the others)."""
    for dim, names in enumerate(layout.dims):
        for name in names:
            whole = whole.chunk(mesh.size(name), dim)[mesh.coordinate(rank, name)]
    if any(state == P and mesh.coordinate(rank, name) for name, state in layout.rest):
        return torch.zeros_like(whole)
    return whole


def run_plans(
    rank: int, size: int, mesh: Mesh, plans: list[tuple[Layout, Layout, tuple[Collective, ...]]], whole: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    sizes = tuple(axis.size for axis in mesh.device_axes)
    device_mesh = init_device_mesh("cpu", sizes, mesh_dim_names=tuple(a.name for a in mesh.device_axes))
    axes = rank_axes(mesh, device_mesh)
    results = []
    for source, target, steps in plans:
        x = local_part(whole, source, mesh, rank).clone().requires_grad_()
        y = run_steps(x, steps, axes)
        dual = Layout(target.dims, tuple((name, state.gradient) for name, state in target.rest))
        (gradient,) = torch.autograd.grad(y, x, local_part(whole.cos(), dual, mesh, rank))
        results.append((y.detach(), gradient))
    return results


def assemble(parts: list[torch.Tensor], layout: Layout, mesh: Mesh) -> torch.Tensor:
    """The whole tensor from every rank's part, with R and I checked to agree and P summed."""
    whole = torch.zeros(SHAPE, dtype=torch.float64)
    replicas = 1
    for rank, part in enumerate(parts):
        index = local_part(torch.arange(whole.numel()).view(SHAPE), Layout(layout.dims, ()), mesh, rank)
        whole.view(-1).index_add_(0, index.reshape(-1), part.reshape(-1))
    for name, state in layout.rest:
        replicas *= mesh.size(name) if state in (R, I) else 1
        if state in (R, I):
            for rank, part in enumerate(parts):
                first = rank - mesh.coordinate(rank, name) * mesh.axis(name).stride
                torch.testing.assert_close(part, parts[first], rtol=1e-13, atol=1e-13)
    return whole / replicas


def test_plans_over_two_axes_run_to_the_target_forward_and_backward(pool):
    mesh = Mesh.of(dp=2, tp=2)
    kind = TensorType(SHAPE, "float64")
    layouts = [Layout.of(3, {"dp": a, "tp": b}, mesh) for a, b in itertools.product(STATES, repeat=2)]
    pairs = random.Random(0).sample(list(itertools.permutations(layouts, 2)), 150)
    plans = [(a, b, redistribute(a, b, kind, mesh, carries_gradient=True)) for a, b in pairs]
    whole = torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    by_rank = pool.run(run_plans, mesh, plans, whole)
    for i, (source, target, steps) in enumerate(plans):
        message = f"{source} => {target} by {steps}"
        value = assemble([r[i][0] for r in by_rank], target, mesh)
        assert torch.allclose(value, whole, rtol=1e-12, atol=1e-12), message
        dual = Layout(source.dims, tuple((name, state.gradient) for name, state in source.rest))
        gradient = assemble([r[i][1] for r in by_rank], dual, mesh)
        assert torch.allclose(gradient, whole.cos(), rtol=1e-12, atol=1e-12), message


def neutral_values(rank: int, size: int) -> list[torch.Tensor]:
    axis = world_axis(rank, size)
    ids = torch.arange(8).view(2, 4) + 8 * rank
    scores = torch.tensor([float(rank), -float(rank)], requires_grad=True)
    return [
        collectives.all_gather(ids, 1, axis),
        collectives.all_gather(ids % 2 == 0, 0, axis),
        collectives.all_reduce(torch.tensor(rank), axis),
        collectives.all_reduce(torch.full((2,), rank, dtype=torch.bfloat16), axis),
        collectives.reduce_scatter(torch.ones(4, 2, dtype=torch.bfloat16), 0, axis),
        collectives.all_to_all(ids, 0, 1, axis),
        collectives.all_reduce_max(scores, axis),
    ]


def test_integers_booleans_bfloat16_and_the_maximum(pool):
    results = pool.run(neutral_values)
    ids = [torch.arange(8).view(2, 4) + 8 * rank for rank in range(4)]
    for rank, (gathered, even, count, total, part, exchanged, greatest) in enumerate(results):
        assert torch.equal(gathered, torch.cat(ids, 1))
        assert torch.equal(even, torch.cat(ids) % 2 == 0)
        assert count == 6
        assert total.dtype == torch.bfloat16 and total.tolist() == [6, 6]
        assert part.tolist() == [[4, 4]]
        assert torch.equal(exchanged, torch.cat(ids)[:, rank : rank + 1])
        assert greatest.tolist() == [3, 0] and not greatest.requires_grad


class Pipeline(torch.nn.Module):
    """One collective after another, as an emitted forward has them."""

    def __init__(self, axis: RankAxis):
        super().__init__()
        self.axis = axis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = collectives.all_gather(x, 0, self.axis)
        h = collectives.reduce_scatter(h * x.sum(), 1, self.axis)
        h = collectives.all_to_all(h, 1, 0, self.axis).sin()
        h = collectives.all_gather_invariant(h, 0, self.axis)
        h = collectives.to_replicate(h, self.axis)
        h = collectives.shard(h, 2, self.axis)
        return collectives.all_reduce(h.sum(), self.axis)


def compiled_and_eager(rank: int, size: int, backend: str) -> list[torch.Tensor]:
    module = Pipeline(world_axis(rank, size))
    compiled = torch.compile(module, backend=backend, fullgraph=True)
    x = torch.randn(2, 8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    results = []
    for function in (module, compiled):
        leaf = x.clone().requires_grad_()
        y = function(leaf)
        y.backward()
        results += [y.detach(), leaf.grad]
    return results


def test_a_compiler_takes_them_whole():
    torch.compile(torch.sin, backend="aot_eager")(torch.ones(1))  # loads the compiler once, before the ranks are forked
    with RankPool(2) as pool:
        results = pool.run(compiled_and_eager, "aot_eager")
    for y, gradient, compiled_y, compiled_gradient in results:
        torch.testing.assert_close(compiled_y, y)
        torch.testing.assert_close(compiled_gradient, gradient)


def test_an_axis_of_one_member_is_the_identity():
    alone = RankAxis("tp", 1, 0, None)
    x = torch.randn(2, 2, requires_grad=True)
    for name, dims in [("all_reduce", ()), ("all_gather", (0,)), ("all_to_all", (0, 1)), ("to_replicate", ())]:
        assert getattr(collectives, name)(x, *dims, alone) is x


def test_an_uneven_split_is_refused_before_anything_is_sent():
    axis = RankAxis("tp", 2, 0, None)
    with pytest.raises(AssertionError, match=r"dim 1 of \(2, 3\) doesn't divide over tp=2"):
        collectives.shard(torch.ones(2, 3), 1, axis)
