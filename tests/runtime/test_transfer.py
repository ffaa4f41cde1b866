"""Transfers on real processes, six gloo ranks on two meshes, against the same transfers in NumPy: bitwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, distributed

from autoplan.ir.graph import TensorType
from autoplan.ir.layout import PAVG, PMAX, I, Layout, P
from autoplan.ir.mesh import Mesh
from autoplan.redistribution.meshes.legs import STRATEGIES, Leg, Transfer, transfer
from autoplan.redistribution.simulate.parts import deal, dual
from autoplan.runtime.collectives.transfer import Crossing, Groups
from autoplan.verify.local_ranks import RankPool
from tests.support.mesh_to_mesh import devices_of, execute

TWO, THREE, FOUR = Mesh.of(x=2), Mesh.of(x=3), Mesh.of(x=4)
SQUARE = Mesh.of(x=2, y=2)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(6, timeout_s=240) as pool:
        yield pool


@dataclass(frozen=True)
class Case:
    """A transfer with the parts that go in: of the value on the source, of the gradient on the target."""

    transfer: Transfer
    values: tuple[np.ndarray, ...]
    gradients: tuple[np.ndarray, ...]
    dtype: torch.dtype = torch.float64


def make(found: Transfer, dtype: torch.dtype = torch.float64) -> Case:
    source, target = found.forward.source, found.forward.target
    whole = np.random.default_rng(7).integers(0, 2 if dtype == torch.bool else 100, found.forward.shape).astype(float)
    values = deal(whole, source.layout, devices_of(source.mesh))
    gradients = deal(np.flip(whole), dual(target.layout), devices_of(target.mesh)) if found.backward else ()
    return Case(found, tuple(values), tuple(gradients), dtype)


def move_all(rank: int, size: int, cases: Sequence[Case]) -> list[tuple[Tensor | None, Tensor | None]]:
    groups, found = Groups(), []
    for case in cases:
        crossing = Crossing(case.transfer, groups, case.dtype, torch.device("cpu"))
        legs = ((crossing.forward, case.values), (crossing.backward, case.gradients))
        results = [leg.move(given(leg.leg, parts, rank, case.dtype)) if leg else None for leg, parts in legs]
        found.append((results[0], results[1]))
    return found


def given(leg: Leg, parts: Sequence[np.ndarray], rank: int, dtype: torch.dtype) -> Tensor | None:
    if rank not in leg.source.devices:
        return None
    return torch.tensor(parts[leg.source.devices.index(rank)]).to(dtype)


def check(pool: RankPool, cases: Sequence[Case]) -> None:
    results = pool.run(move_all, list(cases))
    for number, case in enumerate(cases):
        for way, (leg, parts) in enumerate(
            ((case.transfer.forward, case.values), (case.transfer.backward, case.gradients))
        ):
            if leg is None:
                continue
            for rank, expected in zip(leg.target.devices, execute(leg, parts), strict=True):
                found = results[rank][number][way]
                assert found.dtype == case.dtype
                assert torch.equal(found, torch.tensor(np.asarray(expected)).to(case.dtype)), (number, way, rank)
            for rank in set(range(6)) - set(leg.target.devices):
                assert results[rank][number][way] is None


def planned(
    source: Layout, source_mesh: Mesh, target: Layout, target_mesh: Mesh, shape: tuple[int, ...], strategy: str = "",
    carries: bool = True, dtype: str = "float64",
) -> Transfer:  # fmt: skip
    """The source on the first ranks, the target on the last ones in descending order."""
    here, there = tuple(range(source_mesh.devices)), tuple(range(5, 5 - target_mesh.devices, -1))
    type = TensorType(shape, dtype)
    return transfer(
        source, source_mesh, here, target, target_mesh, there, type, carries_gradient=carries, strategy=strategy
    )


PAIRS = (
    (Layout.ordered([["x"], []], TWO), TWO, Layout.ordered([[], ["x"]], FOUR), FOUR),
    (Layout.ordered([["x"], []], FOUR), FOUR, Layout.ordered([["x"], []], TWO), TWO),
    (Layout.ordered([[], []], TWO), TWO, Layout.ordered([[], []], FOUR), FOUR),
    (Layout.ordered([[], []], TWO, {"x": I}), TWO, Layout.ordered([[], []], FOUR, {"x": I}), FOUR),
    (Layout.ordered([[], ["y"]], SQUARE, {"x": P}), SQUARE, Layout.ordered([["x"], []], TWO), TWO),
    (Layout.ordered([[], ["x"]], THREE), THREE, Layout.ordered([[], []], THREE, {"x": P}), THREE),
    (Layout.ordered([["x"], []], TWO), TWO, Layout.ordered([["y"], []], SQUARE, {"x": I}), SQUARE),
    (Layout.ordered([["x.1"], ["x.0"]], FOUR), FOUR, Layout.ordered([[], []], TWO, {"x": I}), TWO),
    (Layout.ordered([[], []], TWO, {"x": PAVG}), TWO, Layout.ordered([[], []], SQUARE, {"x": I}), SQUARE),
    (Layout.ordered([[], []], SQUARE, {"x": P, "y": P}), SQUARE, Layout.ordered([[], []], TWO), TWO),
)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_stages_of_unequal_size_forward_and_backward(pool: RankPool, strategy: str) -> None:
    # prime factors stand only where sizes divide
    shapes = [(4, 6) if "x.0" in source.axes else (7, 5) for source, *_ in PAIRS]
    check(pool, [make(planned(*ends, shape, strategy)) for ends, shape in zip(PAIRS, shapes, strict=True)])


def test_whatever_is_chosen_of_sizes_that_divide_and_of_none(pool: RankPool) -> None:
    check(pool, [make(planned(*ends, shape)) for ends in PAIRS for shape in ((8, 4), (0, 4))])


def test_scalars_maxima_and_other_dtypes(pool: RankPool) -> None:
    scalar = planned(Layout.ordered([], TWO, {"x": P}), TWO, Layout.ordered([], FOUR), FOUR, ())
    ends = Layout.ordered([["x"]], TWO), TWO, Layout.ordered([[]], FOUR), FOUR
    maxima = planned(Layout.ordered([[]], TWO, {"x": PMAX}), *ends[1:], (6,), carries=False)
    cases = [make(scalar), make(maxima)]
    for dtype in (torch.bfloat16, torch.bool, torch.int64):
        found = planned(*ends, (6,), carries=dtype == torch.bfloat16, dtype=str(dtype).removeprefix("torch."))
        cases.append(make(found, dtype))
    check(pool, cases)


def test_ranks_on_both_meshes(pool: RankPool) -> None:
    layouts = Layout.ordered([["x"]], TWO), Layout.ordered([["x"]], FOUR), Layout.ordered([[]], FOUR, {"x": I})
    type = TensorType((9,), "float64")
    check(
        pool,
        [
            make(transfer(layouts[0], TWO, (1, 3), target, FOUR, (3, 1, 0, 4), type, carries_gradient=True, strategy=s))
            for target in layouts[1:]
            for s in STRATEGIES
        ],
    )


def one_after_another(rank: int, size: int, found: Transfer, count: int) -> list[Tensor]:
    """A pipeline of two stages: the first sends all its microbatches before it takes a gradient, the second answers
    each value with that value times ten."""
    crossing = Crossing(found, Groups(), torch.float32, torch.device("cpu"))
    assert crossing.backward is not None
    if rank in found.forward.source.devices:
        parts = [torch.full((2,), float(100 * number + rank)) for number in range(count)]
        sent = [crossing.forward.send(part) for part in parts]
        gradients = [crossing.backward.receive() for _ in range(count)]
        for each in sent:
            each.wait()
        return gradients
    answers = []
    for _ in range(count):
        value = crossing.forward.receive()
        answers.append(crossing.backward.send(10 * value))
    for each in answers:
        each.wait()
    return []


def test_values_and_gradients_of_several_microbatches_are_under_way_at_once(pool: RankPool) -> None:
    ends = Layout.ordered([["x"]], TWO), TWO, Layout.ordered([[]], FOUR, {"x": I}), FOUR
    for strategy in STRATEGIES:
        results = pool.run(one_after_another, planned(*ends, (4,), strategy), 3)
        for rank in (0, 1):
            expected = [torch.full((2,), float(1000 * number + 10 * rank)) for number in range(3)]
            assert all(torch.equal(*pair) for pair in zip(results[rank], expected, strict=True))


def count_groups(rank: int, size: int, found: Sequence[Transfer]) -> int:
    groups = Groups()
    for each in found:
        Crossing(each, groups, torch.float64, torch.device("cpu"))
    distributed.barrier()
    return len(groups.made)


def test_a_group_is_made_once(pool: RankPool) -> None:
    found = planned(*PAIRS[3], (8, 4), "gather")
    assert set(pool.run(count_groups, [found, found, found])) == {4}  # one on each mesh, one for each way between them
