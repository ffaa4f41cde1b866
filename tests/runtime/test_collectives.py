"""Every collective on four gloo ranks: it keeps the value, ends in its state, and its backward is its adjoint."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from autoplan.ir.layout import I, P, R, S, State
from autoplan.ir.mesh import Mesh
from autoplan.redistribution.steps import STEPS, letter
from autoplan.runtime.collectives import typed
from autoplan.runtime.collectives.mesh_axes import MeshAxis, mesh_axes
from autoplan.verify.local_ranks import RankPool

SHAPE = (4, 8, 12)
STATES = (S(0), S(1), S(2), R, I, P)
GROUPS = [(Mesh.of(tp=4), ("tp",)), (Mesh.of(dp=2, tp=2), ("dp", "tp")), (Mesh.of(dp=2, tp=2), ("tp", "dp"))]
GROUPS += [(Mesh.of(tp=4), ("tp.1", "tp.0"))]


@pytest.fixture(scope="module")
def pool(compiler: None) -> Iterator[RankPool]:
    with RankPool(4, timeout_s=240) as pool:
        yield pool


def world_axis(rank: int, size: int) -> MeshAxis:
    return MeshAxis("tp", size, rank, distributed.group.WORLD)


def members_of(mesh: Mesh, axes: tuple[str, ...]) -> list[int]:
    """The ranks in the order of the members of a group that holds them all: row-major over the axes as they stand."""
    return sorted(range(mesh.devices), key=lambda rank: tuple(mesh.coordinate(rank, axis) for axis in axes))


def random_in(state: State, size: int, generator: torch.Generator) -> list[torch.Tensor]:
    """A random tensor of SHAPE in a state: what each member holds."""
    whole = torch.randn(SHAPE, dtype=torch.float64, generator=generator)
    if state.kind == "S":
        return [part.clone() for part in whole.chunk(size, state.dim)]
    if state.kind == "P":
        return [torch.randn(SHAPE, dtype=torch.float64, generator=generator) for _ in range(size)]
    return [whole] * size


def whole_of(parts: list[torch.Tensor], state: State) -> torch.Tensor:
    if state.kind == "S":
        return torch.cat(parts, state.dim)
    if state.kind == "P":
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


def run_cases(
    rank: int, size: int, mesh: Mesh, names: tuple[str, ...], cases: list[Case]
) -> list[tuple[torch.Tensor, torch.Tensor, bool]]:
    """For each case: the result, the gradient, and whether the result is contiguous and waited for."""
    device_mesh = init_device_mesh("cpu", [a.size for a in mesh.axes], mesh_dim_names=mesh.names)
    axis = mesh_axes(mesh, device_mesh, [names])[",".join(names)]
    assert (axis.size, axis.rank) == (size, members_of(mesh, names).index(rank))
    results = []
    for op, dims, inputs, gradients in cases:
        x = inputs[axis.rank].clone().requires_grad_()
        y = getattr(typed, op)(x, *dims, axis)
        (gradient,) = torch.autograd.grad(y, x, gradients[axis.rank])
        plain = all(type(t) is torch.Tensor for t in (y.detach(), gradient))
        results.append((y.detach(), gradient, plain and y.is_contiguous()))
    return results


@pytest.mark.parametrize(("mesh", "axes"), GROUPS, ids=lambda x: str(x))
def test_every_step_keeps_the_value_and_its_backward_is_the_adjoint(pool, mesh, axes):
    """On one axis, on two that act as one in either order, and on prime factors of one."""
    generator = torch.Generator().manual_seed(0)
    pairs = [(a, b) for a in STATES for b in STATES if a != b and (letter(a), letter(b)) in STEPS]
    assert {(letter(a), letter(b)) for a, b in pairs} == set(STEPS)
    inputs = [[random_in(a, 4, generator) for _ in range(2)] for a, _ in pairs]
    gradients = [random_in(b.gradient, 4, generator) for _, b in pairs]
    cases: list[Case] = [
        (STEPS[letter(a), letter(b)].op, dims_of(a, b), values, gradient)
        for (a, b), probes, gradient in zip(pairs, inputs, gradients, strict=True)
        for values in probes
    ]
    by_rank = pool.run(run_cases, mesh, axes, cases)
    by_member = [by_rank[rank] for rank in members_of(mesh, axes)]
    for i, ((a, b), case) in enumerate(zip([p for p in pairs for _ in range(2)], cases, strict=True)):
        results = [member[i] for member in by_member]
        outputs, grads = [r[0] for r in results], [r[1] for r in results]
        assert all(r[2] for r in results), (a, b)
        torch.testing.assert_close(whole_of(outputs, b), whole_of(case[2], a), rtol=1e-13, atol=1e-13)
        whole_of(grads, a.gradient)  # the gradient is in the dual state: equal on all ranks where that is R or I
        forward, backward = pairing(outputs, case[3], b), pairing(case[2], grads, a)
        assert forward == pytest.approx(backward, rel=1e-12, abs=1e-12), (a, b)
        other = cases[i ^ 1]  # the same gradients meet the other input through linearity
        assert pairing([m[i ^ 1][0] for m in by_member], case[3], b) == pytest.approx(
            pairing(other[2], grads, a), rel=1e-12, abs=1e-12
        )


def neutral_values(rank: int, size: int) -> list[torch.Tensor]:
    axis = world_axis(rank, size)
    ids = torch.arange(8).view(2, 4) + 8 * rank
    scores = torch.tensor([float(rank), -float(rank)], requires_grad=True)
    return [
        typed.all_gather(ids, 1, axis),
        typed.all_gather(ids % 2 == 0, 0, axis),
        typed.all_reduce(torch.tensor(rank), axis),
        typed.all_reduce(torch.full((2,), rank, dtype=torch.bfloat16), axis),
        typed.reduce_scatter(torch.ones(4, 2, dtype=torch.bfloat16), 0, axis),
        typed.all_to_all(ids, 0, 1, axis),
        typed.all_reduce_max(scores, axis),
        typed.all_reduce_max(scores.detach().clone(), axis, in_place=True),
        typed.reduce_scatter_max(torch.tensor([1.0, -1.0, 0.0, 3.0]) * rank, 0, axis),
        typed.reduce_scatter(torch.ones(4, 0), 0, axis),
        typed.all_gather(torch.ones(0, 2), 1, axis),
    ]


def test_integers_booleans_bfloat16_and_the_maximum(pool):
    results = pool.run(neutral_values)
    ids = [torch.arange(8).view(2, 4) + 8 * rank for rank in range(4)]
    for rank, (gathered, even, count, total, part, exchanged, greatest, in_place, *rest) in enumerate(results):
        assert torch.equal(gathered, torch.cat(ids, 1))
        assert torch.equal(even, torch.cat(ids) % 2 == 0)
        assert count == 6
        assert total.dtype == torch.bfloat16 and total.tolist() == [6, 6]
        assert part.tolist() == [[4, 4]]
        assert torch.equal(exchanged, torch.cat(ids)[:, rank : rank + 1])
        assert greatest.tolist() == in_place.tolist() == [3, 0] and not greatest.requires_grad
        assert rest[0].tolist() == [[3.0, 0.0, 0.0, 9.0][rank]]
        assert [tuple(x.shape) for x in rest[1:]] == [(1, 0), (0, 8)]


class Pipeline(torch.nn.Module):
    """One collective after another, as an emitted forward has them."""

    def __init__(self, axis: MeshAxis):
        super().__init__()
        self.axis = axis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = typed.all_gather(x, 0, self.axis)
        h = typed.reduce_scatter(h * x.sum(), 1, self.axis)
        h = typed.all_to_all(h, 1, 0, self.axis).sin()
        h = typed.all_gather_invariant(h, 0, self.axis)
        h = typed.to_replicate(h, self.axis)
        h = typed.shard(h, 2, self.axis)
        return typed.all_reduce(h.sum(), self.axis)


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
    with RankPool(2, timeout_s=240) as pool:
        results = pool.run(compiled_and_eager, "aot_eager")
    for y, gradient, compiled_y, compiled_gradient in results:
        torch.testing.assert_close(compiled_y, y)
        torch.testing.assert_close(compiled_gradient, gradient)


def test_an_axis_of_one_member_is_the_identity():
    alone = MeshAxis("tp", 1, 0, None)
    x = torch.randn(2, 2, requires_grad=True)
    for name, dims in [("all_reduce", ()), ("all_gather", (0,)), ("all_to_all", (0, 1)), ("to_replicate", ())]:
        assert getattr(typed, name)(x, *dims, alone) is x


def axes_in(rank: int, size: int, groups: list[tuple[str, ...]]) -> dict[str, tuple]:
    """Of each axis what pickles, the processes of its group among it, and the number of groups that were made."""
    mesh = Mesh.of(pp=2, dp=1, tp=4, mb=3)
    device_mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("pp", "tp"))
    axes = mesh_axes(mesh, device_mesh, groups)
    ranks = {n: a.group and distributed.get_process_group_ranks(a.group) for n, a in axes.items()}
    distinct = {id(axis.group) for axis in axes.values() if axis.group}
    found = {n: (a.size, a.rank, ranks[n], a.places, a.names, a.sizes) for n, a in axes.items()}
    return found | {"groups": (len(distinct), axes["pp,tp"].group is distributed.group.WORLD)}


def test_groups_over_several_axes_and_over_prime_factors():
    groups = [("tp",), ("tp.0",), ("tp.1", "tp.0"), ("dp",), ("dp", "tp"), ("tp.1", "pp"), ("tp", "pp"), ("pp", "tp")]
    groups += [("pp", "tp.1"), ("tp.1", "pp")]
    with RankPool(8, timeout_s=240) as pool:
        results = pool.run(axes_in, groups)
    assert results[6] == {  # pp=1, tp=2, that is tp.0=1, tp.1=0
        "pp": (2, 1, [2, 6], (), ("pp",), (2,)),
        "dp": (1, 0, None, (), ("dp",), (1,)),
        "tp": (4, 2, [4, 5, 6, 7], (), ("tp",), (4,)),
        "tp.0": (2, 1, [4, 6], (), ("tp.0",), (2,)),
        "tp.1,tp.0": (4, 1, [4, 5, 6, 7], (0, 2, 1, 3), ("tp.1", "tp.0"), (2, 2)),
        "dp,tp": (4, 2, [4, 5, 6, 7], (), ("dp", "tp"), (1, 4)),
        "tp.1,pp": (4, 1, [2, 3, 6, 7], (0, 2, 1, 3), ("tp.1", "pp"), (2, 2)),
        "tp,pp": (8, 5, list(range(8)), (0, 4, 1, 5, 2, 6, 3, 7), ("tp", "pp"), (4, 2)),
        "pp,tp": (8, 6, list(range(8)), (), ("pp", "tp"), (2, 4)),
        "pp,tp.1": (4, 2, [2, 3, 6, 7], (), ("pp", "tp.1"), (2, 2)),
        "groups": (5, True),
    }


def test_an_uneven_split_is_refused_before_anything_is_sent():
    axis = MeshAxis("tp", 2, 0, None)
    with pytest.raises(AssertionError, match=r"dim 1 of \(2, 3\) doesn't divide over tp=2"):
        typed.shard(torch.ones(2, 3), 1, axis)
