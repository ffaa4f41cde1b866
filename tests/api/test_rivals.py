"""The other engines' rules: they arrive, they move what is known of them, and DTensor's is the installed torch's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.redistribution.exchange.boxes import Dims
from tests.bench import bench_redistribution as bench
from tests.bench.rivals import dtensor, gather_slice, mindspore, shortest
from tests.bench.rivals.engines import DIRECT, DTENSOR, OURS, STANDARD, Setting, engines, priced
from tests.bench.rivals.steps import (
    OPERATORS,
    Step,
    end,
    gather,
    held,
    pairs,
    peak,
    receive_bound,
    received,
    slice_,
    swap,
    total,
    walk,
)

SIZES = {"x": 2, "y": 2, "z": 2}
EVERY, ONE_AXIS_A_DIM, IN_MESH_ORDER = bench.EVERY, bench.ONE_AXIS_A_DIM, bench.IN_MESH_ORDER
KINDS = {operator: kind for kind, operator in OPERATORS.items()}


def test_the_sets_of_layouts_are_those_that_are_spoken_of():
    assert bench.SIZES == SIZES
    assert (len(EVERY), len(ONE_AXIS_A_DIM), len(IN_MESH_ORDER)) == (106, 34, 64)
    assert (len(pairs(EVERY)), len(pairs(ONE_AXIS_A_DIM)), len(pairs(IN_MESH_ORDER))) == (11130, 1122, 4032)


def test_bytes_of_each_step():
    sizes = {"x": 4, "y": 2}
    assert received((("x",), ("y",)), gather(0, "x"), sizes) == Fraction(3, 8)
    assert received((("x",), ("y",)), swap(0, 1, "x"), sizes) == Fraction(3, 32)
    assert received((("x",), ()), slice_(1, "y"), sizes) == 0
    assert peak((("x",), ("y",)), [gather(0, "x")], sizes) == Fraction(1, 2)
    with pytest.raises(ValueError, match="does not start from"):
        end((("x", "y"), ()), [gather(0, "x")])
    with pytest.raises(ValueError, match="in use"):
        end((("x",), ()), [slice_(1, "x")])


def test_the_receive_bound_is_that_of_the_device_that_lacks_most():
    sizes = {"x": 4, "y": 2}
    assert receive_bound((("x",), ()), ((), ()), sizes) == Fraction(3, 4)
    assert receive_bound(((), ()), (("x",), ()), sizes) == 0
    # eight parts of the one dim for four of it and two of the other: a device keeps a quarter of its eighth, or nothing
    assert receive_bound((("y",), ("x",)), (("x",), ("y",)), sizes) == Fraction(1, 8)


def test_rules_on_mindspores_pairs():
    chosen, totals = pairs(ONE_AXIS_A_DIM), dict.fromkeys(["greedy", "default", "shortest", "bound"], Fraction(0))
    trees = {source: shortest.tree(source, SIZES) for source in ONE_AXIS_A_DIM}
    for source, target in chosen:
        found = {
            "greedy": mindspore.plan(source, target),
            "default": mindspore.plan(source, target, all_to_all=False),
            "shortest": trees[source][target],
        }
        bound = receive_bound(source, target, SIZES)
        totals["bound"] += bound
        for name, steps in found.items():
            assert end(source, steps) == target
            assert total(source, steps, SIZES) >= bound
            totals[name] += total(source, steps, SIZES)
    assert totals == {"greedy": 327, "default": Fraction(903, 2), "shortest": 297, "bound": Fraction(1089, 4)}


def test_rules_arrive_on_every_pair():
    chosen = random.Random(0).sample(pairs(EVERY), 1500)
    for source, target in chosen:
        before, after = mindspore.refined(source, target, SIZES)
        for all_to_all in (True, False):
            assert end(before, mindspore.plan(before, after, all_to_all)) == after
        assert receive_bound(before, after, SIZES) == receive_bound(source, target, SIZES)
        assert end(source, gather_slice.plan(source, target)) == target


def test_no_plain_path_is_longer_than_gathering_and_slicing():
    for source in EVERY[::9]:
        found = shortest.tree(source, SIZES)
        assert set(found) == set(EVERY)
        for target, steps in found.items():
            assert end(source, steps) == target
            assert total(source, steps, SIZES) <= total(source, gather_slice.plan(source, target), SIZES)


def test_mindspores_cycle_gathers_a_dim():
    source, target = (("x",), ("y",), ()), (("y",), ("x",), ())
    assert mindspore.plan(source, target) == (gather(0, "x"), swap(1, 0, "y"), slice_(1, "x"))
    assert mindspore.plan(source, target, all_to_all=False) == (
        gather(0, "x"),
        gather(1, "y"),
        slice_(0, "y"),
        slice_(1, "x"),
    )


def test_mindspores_price_keeps_to_the_first_slice():
    source = (("x",), ("y",), ())
    steps = mindspore.plan(source, ((), (), ()))
    assert mindspore.true_price(source, steps, SIZES) == Fraction(3, 4)
    assert mindspore.first_slice_price(source, steps, SIZES) == Fraction(1, 2)


def test_mindspore_writes_several_axes_on_a_dim_as_several_dims():
    assert mindspore.refined((("x", "y"), ()), (("y",), ("x",)), SIZES) == (
        (("x",), ("y",), ()),
        (("y",), (), ("x",)),
    )
    with pytest.raises(ValueError, match="several axes"):
        mindspore.plan((("x", "y"),), ((),))
    with pytest.raises(ValueError, match="other sizes"):
        mindspore.refined((("x",),), (("y",),), {"x": 2, "y": 3})


def test_dtensor_takes_the_shortest_path_only_where_an_order_is_not_the_meshs():
    source = (("y", "x"), (), ())
    target = (("x", "y"), (), ())
    found = shortest.tree(source, SIZES)
    assert dtensor.plan(source, target, SIZES, found) == found[target]
    assert dtensor.plan(target, ((), ("x",), ()), SIZES, {}) == (gather(0, "y"), swap(0, 1, "x"))
    with pytest.raises(ValueError, match="order"):
        dtensor.greedy(source, target, SIZES)


@pytest.fixture(scope="module")
def device_mesh() -> Iterator[DeviceMesh]:
    """Eight ranks of which this is the first, by torch's "fake" backend: what the others would send is left out."""
    if dist.is_initialized():  # by a test of another file in this process that ran a program on one rank
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=8, store=dist.HashStore())
    yield init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=tuple(SIZES))
    dist.destroy_process_group()


class Gathered(TorchDispatchMode):
    """The group and the operand's elements of each collective. On CPUs DTensor's all-to-all is an all-gather of the
    same operand and a chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "all_gather_into_tensor" in str(func):
            self.seen.append((args[2], args[0].numel()))
        return func(*args, **(kwargs or {}))


def placements(dims: Dims) -> list[Placement]:
    split = {axis: dim for dim, axes in enumerate(dims) for axis in axes}
    return [Shard(split[axis]) if axis in split else Replicate() for axis in SIZES]


def test_dtensors_greedy_is_what_torch_does(device_mesh: DeviceMesh):
    names = {device_mesh.get_group(axis).group_name: axis for axis in SIZES}
    for source, target in random.Random(0).sample(pairs(IN_MESH_ORDER), 500):
        local = torch.zeros([8 // 2 ** len(axes) for axes in source])
        tensor = DTensor.from_local(local, device_mesh, placements(source), run_check=False)
        with Gathered() as mode:
            tensor.redistribute(device_mesh, placements(target))
        steps = dtensor.greedy(source, target, SIZES)
        assert end(source, steps) == target
        assert [(names[group], size) for group, size in mode.seen] == operands(source, steps, 512)


def operands(source: Dims, steps: tuple[Step, ...], elements: int) -> list[tuple[str, int]]:
    """The axis and the operand's elements of each step that communicates."""
    return [
        (step.axes[0], int(held(dims, SIZES) * elements)) for dims, step in walk(source, steps) if step.op != "slice"
    ]


def test_the_simulator_counts_what_the_closed_forms_say():
    """Every engine but ours and the direct exchange, whose steps have no closed form here."""
    chosen = pairs(random.Random(1).sample(EVERY, 7))
    for name, engine in engines(Setting(bench.SMALL, bench.MESH)).items():
        found = bench.results(engine, chosen)
        if name in (OURS, DIRECT):
            continue
        for pair, result in found.items():
            run = engine(*pair)
            steps = [Step(KINDS[step.op], step.dims, step.axes) for step in run.collectives]
            assert result.received == total(run.source, steps, SIZES) * bench.SMALL.elements
            most = max(held(dims, SIZES) for dims in (run.source, run.target))
            assert result.over == (peak(run.source, steps, SIZES) > most) == (not bench.within_ends(run))


def test_ours_is_at_the_bound_and_no_slower_on_a_cluster_than_what_holds_as_little():
    chosen = pairs(random.Random(2).sample(EVERY, 9))
    for pair, result in bench.results(engines(Setting(bench.SMALL, bench.MESH))[OURS], chosen).items():
        assert result.received == receive_bound(*pair, SIZES) * bench.SMALL.elements
    setting = Setting(bench.LARGE["256 MiB"], bench.MESH, bench.cluster_links())
    found = engines(setting)
    for pair in chosen:
        ours = sum(priced(found[OURS](*pair).collectives, setting))
        for rival in (DIRECT, STANDARD, DTENSOR):
            run = found[rival](*pair)
            assert ours <= sum(priced(run.collectives, setting)) * (1 + 1e-9) or not bench.within_ends(run), (
                rival,
                pair,
            )


def test_mindspores_first_slice_misorders():
    assert bench.misordered(all_to_all=False) == (14898, 7326, 2430)
