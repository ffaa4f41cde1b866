"""Permutes and direct exchanges on four gloo ranks: what arrives, the adjoint, what crosses, and a compiler's view."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

from autoplan.ir.mesh import Mesh
from autoplan.redistribution.exchange.boxes import Dims
from autoplan.redistribution.exchange.messages import parse_spec, senders
from autoplan.runtime.collectives import typed
from autoplan.runtime.collectives.mesh_axes import MeshAxis, mesh_axes
from autoplan.runtime.collectives.point_to_point import find_route
from autoplan.verify.local_ranks import RankPool
from tests.oracles.redistribution.messages import messages

TWO = Mesh.of(x=2, y=2)


@pytest.fixture(scope="module")
def pool(compiler: None) -> Iterator[RankPool]:
    with RankPool(4, timeout_s=240) as pool:
        yield pool


@dataclass(frozen=True)
class Case:
    """One call on all ranks; tensors in the order of the members of the group over ``axes``."""

    op: str
    axes: tuple[str, ...]
    spec: str
    shape: tuple[int, ...]
    inputs: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Result:
    value: torch.Tensor
    gradient: torch.Tensor
    plain: bool
    forward: int
    backward: int


def member_of(mesh: Mesh, axes: tuple[str, ...], rank: int) -> int:
    index = 0
    for axis in axes:
        index = index * mesh.size(axis) + mesh.coordinate(rank, axis)
    return index


def run_cases(rank: int, size: int, mesh: Mesh, cases: Sequence[Case]) -> list[Result]:
    device_mesh = init_device_mesh("cpu", [a.size for a in mesh.axes], mesh_dim_names=mesh.names)
    axes = mesh_axes(mesh, device_mesh, [case.axes for case in cases])
    return [run_case(case, axes[",".join(case.axes)]) for case in cases]


def run_case(case: Case, axis: MeshAxis) -> Result:
    x = case.inputs[axis.rank].clone().requires_grad_()
    shape = () if case.op == "permute" else (case.shape,)
    with CommDebugMode() as forward:
        y = getattr(typed, case.op)(x, *shape, case.spec, axis)
    with CommDebugMode() as backward:
        (gradient,) = torch.autograd.grad(y, x, case.gradients[axis.rank])
    plain = all(type(t) is torch.Tensor and t.is_contiguous() for t in (y.detach(), gradient))
    return Result(y.detach(), gradient, plain, forward.get_total_counts(), backward.get_total_counts())


def by_member(results: Sequence[Sequence[Result]], number: int, mesh: Mesh, axes: tuple[str, ...]) -> list[Result]:
    ranks = sorted(range(mesh.devices), key=lambda rank: member_of(mesh, axes, rank))
    return [results[rank][number] for rank in ranks]


def part_of(whole: torch.Tensor, dims: Dims, mesh: Mesh, axes: tuple[str, ...], member: int) -> torch.Tensor:
    """A member's part, by chunk after chunk; empty where there are fewer chunks than members."""
    rank = next(r for r in range(mesh.devices) if member_of(mesh, axes, r) == member)
    for dim, split in enumerate(dims):
        for axis in split:
            chunks, at = whole.chunk(mesh.size(axis), dim), mesh.coordinate(rank, axis)
            whole = chunks[at] if at < len(chunks) and whole.shape[dim] else whole.narrow(dim, 0, 0)
    return whole


def parts_of(whole: torch.Tensor, dims: Dims, mesh: Mesh, axes: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(part_of(whole, dims, mesh, axes, member).clone() for member in range(mesh.devices))


def placed(parts: Sequence[torch.Tensor], dims: Dims, mesh: Mesh, axes: tuple[str, ...], shape: tuple[int, ...]):
    """The members' parts in their places, added up."""
    whole, numbers = torch.zeros(shape, dtype=torch.float64), torch.arange(torch.Size(shape).numel()).view(shape)
    for member, part in enumerate(parts):
        where = part_of(numbers, dims, mesh, axes, member)
        whole.view(-1).index_add_(0, where.reshape(-1), part.reshape(-1))
    return whole


def random_like(parts: Sequence[torch.Tensor], generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Whole numbers, so that sums are exact in any order."""
    return tuple(torch.randint(-99, 99, x.shape, generator=generator).to(torch.float64) for x in parts)


def dot(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> float:
    return sum(float((a * b).sum()) for a, b in zip(left, right, strict=True))


def exchange_case(op: str, spec: str, shape: tuple[int, ...], mesh: Mesh, axes: tuple[str, ...], seed: int) -> Case:
    """Replicas hold different numbers: as a linear map, an exchange doesn't know that they should agree."""
    generator = torch.Generator().manual_seed(seed)
    blank = torch.zeros(shape)
    ends = [random_like(parts_of(blank, dims, mesh, axes), generator) for dims in parse_spec(spec)]
    return Case(op, axes, spec, shape, *ends)


SPECS = [
    "x, y -> y, x",
    "x y, - -> y x, -",
    "x y, - -> -, y x",
    "y, - -> -, x",
    "x, - -> x, y",
    "-, y x -> y, -",
    "x, y -> -, -",
    "-, - -> y x, -",
    "x, - -> y, -",
]
SHAPES = [(17, 5), (3, 1), (2, 0), (8, 4)]


@pytest.mark.parametrize(
    "mesh_and_axes",
    [(TWO, ("x", "y")), pytest.param((TWO, ("y", "x")), marks=pytest.mark.slow), (Mesh.of(t=4), ("t.1", "t.0"))],
    ids=str,
)
def test_exchanges_are_what_the_messages_say_and_exact_adjoints(pool, mesh_and_axes):
    """On two axes in both orders and on prime factors; sizes that don't divide, empty parts, empty tensors."""
    mesh, axes = mesh_and_axes
    renamed = {"x": axes[0], "y": axes[1]} if mesh is not TWO else {}
    specs = ["".join(renamed.get(c, c) for c in spec) for spec in SPECS]
    cases = [
        exchange_case(op, spec, shape, mesh, axes, seed)
        for seed, (op, spec, shape) in enumerate(itertools.product(["exchange", "exchange_sum"], specs, SHAPES))
    ]
    results = pool.run(run_cases, mesh, cases)
    for number, case in enumerate(cases):
        found = by_member(results, number, mesh, axes)
        values, gradients = [r.value for r in found], [r.gradient for r in found]
        before, after = parse_spec(case.spec)
        assert all(r.plain for r in found), case
        assert dot(values, case.gradients) == dot(case.inputs, gradients), case
        if case.op == "exchange":  # gradients of parts add up to the gradient of the tensor, whoever held them
            left, right, fetched = placed(gradients, before, mesh, axes, case.shape), case.gradients, after
        else:
            left, right, fetched = placed(values, after, mesh, axes, case.shape), case.inputs, before
        assert torch.equal(left, placed(right, fetched, mesh, axes, case.shape)), case


def test_an_exchange_brings_every_member_its_part(pool):
    whole = torch.randn(17, 5, dtype=torch.float64)
    axes = ("y", "x")
    cases = []
    for op, spec in itertools.product(["exchange", "exchange_invariant"], SPECS):
        before, after = (parts_of(whole, dims, TWO, axes) for dims in parse_spec(spec))
        cases.append(Case(op, axes, spec, (17, 5), before, tuple(part.cos() for part in after)))
    results = pool.run(run_cases, TWO, cases)
    for number, case in enumerate(cases):
        before, after = parse_spec(case.spec)
        found = by_member(results, number, TWO, axes)
        for member, result in enumerate(found):
            assert torch.equal(result.value, part_of(whole, after, TWO, axes, member)), case
            if case.op == "exchange_invariant":  # the gradient of S is S and of I whole: fetched back
                assert torch.equal(result.gradient, part_of(whole, before, TWO, axes, member).cos()), case


@pytest.mark.parametrize("spec", ["-, - -> y x, -", "x, - -> x, y", "x, y -> x, y"])
def test_what_every_member_has_crosses_no_link(pool, spec):
    case = exchange_case("exchange", spec, (17, 5), TWO, ("x", "y"), 0)
    fetching = exchange_case("exchange_invariant", spec, (17, 5), TWO, ("x", "y"), 0)
    for first, second in pool.run(run_cases, TWO, [case, fetching]):
        assert (first.forward, first.backward, second.forward) == (0, 0, 0)
        assert second.backward == (0 if spec == "x, y -> x, y" else 1)


def test_a_member_finds_its_own_messages():
    """The route of each member, computed for it alone, against the messages of all."""
    sizes = {"x": 2, "y": 3}
    for spec, shape in itertools.product(SPECS, SHAPES):
        routes = [find_route(spec, shape, member, ("y", "x"), (3, 2)) for member in range(6)]
        found = messages(spec, shape, ("y", "x"), sizes)
        counted = {(s, r) for s, route in enumerate(routes) for r, box in enumerate(route.sent) if box is not None}
        assert counted == {(m.sender, m.receiver) for m in found}
        for message in found:
            lengths = [stop - start for start, stop in message.box]
            for box in (
                routes[message.sender].sent[message.receiver],
                routes[message.receiver].received[message.sender],
            ):
                assert box is not None and [stop - start for start, stop in box] == lengths
        assert {route.silent for route in routes} == {all(m.sender == m.receiver for m in found)}


PERMUTES = ["x, y -> y, x", "x y, - -> y x, -", "x, - -> y, -", "-, y -> -, x", "x, y -> x, y"]


@pytest.mark.parametrize("axes", [("x", "y"), ("y", "x")])
def test_a_permute_hands_parts_on_and_its_backward_hands_gradients_back(pool, axes):
    shape = (4, 8)
    generator = torch.Generator().manual_seed(1)
    cases, order = [], []
    for spec in PERMUTES:
        inputs, gradients = (
            random_like(parts_of(torch.zeros(shape), dims, TWO, axes), generator) for dims in parse_spec(spec)
        )
        cases.append(Case("permute", axes, spec, (), inputs, gradients))
        order.append(senders(spec, axes, {"x": 2, "y": 2}))
    results = pool.run(run_cases, TWO, cases)
    for number, (case, sources) in enumerate(zip(cases, order, strict=True)):
        for member, result in enumerate(by_member(results, number, TWO, axes)):
            assert torch.equal(result.value, case.inputs[sources[member]]), case
            assert torch.equal(result.gradient, case.gradients[sources.index(member)]), case
            assert result.plain and (result.forward, result.backward) == (1, 1)


def test_a_permute_leads_to_the_layout_of_its_spec(pool):
    whole = torch.arange(32.0, dtype=torch.float64).view(4, 8)
    cases = [
        Case("permute", ("x", "y"), spec, (), *(parts_of(whole, dims, TWO, ("x", "y")) for dims in parse_spec(spec)))
        for spec in PERMUTES
    ]
    results = pool.run(run_cases, TWO, cases)
    for number, case in enumerate(cases):
        for member, result in enumerate(by_member(results, number, TWO, ("x", "y"))):
            assert torch.equal(result.value, case.gradients[member]) and torch.equal(
                result.gradient, case.inputs[member]
            )


class Moves(torch.nn.Module):
    """Permutes and exchanges among others, as an emitted forward has them."""

    def __init__(self, axis: MeshAxis):
        super().__init__()
        self.axis = axis

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [4, 6], x y of dim 0
        h = typed.permute(x, "x y, - -> y x, -", self.axis).sin()  # [4, 6]
        h = typed.exchange(h, (16, 6), "y x, - -> -, x y", self.axis)  # [16, 2] or, uneven, [16, 1]
        h = typed.exchange_sum(h * h, (16, 6), "-, x y -> x, -", self.axis)  # [8, 6]
        return h.sum()


COMPILED = (0, 3)  # compiled ranks and others send the same messages, so not all need the time


def compiled_and_eager(rank: int, size: int) -> list[torch.Tensor]:
    device_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y"))
    module = Moves(mesh_axes(TWO, device_mesh, [("y", "x")])["y,x"])
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    results = []
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True) if rank in COMPILED else module
    for function in (module, compiled):
        leaf = x.clone().requires_grad_()
        y = function(leaf)
        (gradient,) = torch.autograd.grad(y, leaf)
        results += [y.detach(), gradient]
    distributed.barrier()
    return results


@pytest.mark.slow
def test_a_compiler_takes_permutes_and_exchanges_whole():
    torch.compile(torch.sin, backend="aot_eager")(torch.ones(1))  # loads the compiler once, before the ranks are forked
    with RankPool(4, timeout_s=240) as pool:
        results = pool.run(compiled_and_eager)
    for y, gradient, compiled_y, compiled_gradient in results:
        assert torch.equal(compiled_y, y) and torch.equal(compiled_gradient, gradient)
        assert gradient.abs().sum() > 0
