"""Mixes of full, selective and no recomputation: the cheapest under a wall, against trying every one."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.cluster import ClusterSpec
from autoplan.cost import DataAxis, Prices
from autoplan.cost.operators.lookups import CachedTables
from autoplan.ir.choice import Hop, tensor_mesh
from autoplan.ir.layout import Layout, R, S
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective
from autoplan.search.block_cost.live_forward import Step
from autoplan.search.block_cost.selective import compiled_again
from autoplan.search.inter_op.chain import Chain
from autoplan.search.inter_op.rank_memory import HeldParameters
from autoplan.search.inter_op.recomputation import savings
from autoplan.search.inter_op.stage_model import StageModel
from autoplan.search.space.candidates import Candidate
from tests.support.pipelines import memory_of_stage
from tests.support.sampling import examples

CPU = ClusterSpec.parse("1x4 cpu").topology()
COLUMNS = (
    "forward_s", "backward_s", "kept", "inputs", "outputs", "constants", "working", "parameters", "selective",
    "rebuilt", "again_s",
)  # fmt: skip


def stage_model(random: np.random.Generator, segments: int, classes: int, recompute: str, pp: int = 2) -> StageModel:
    """A chain between two segments that stand there once, its others of so many classes, in no order; some that are of
    one class read one parameter."""
    tables = {name: random.integers(5, 100, classes + 1).astype(float) for name in COLUMNS}
    tables["selective"] = tables["inputs"] + random.integers(1, 60, classes + 1)
    tables["kept"] = tables["selective"] + random.integers(1, 60, classes + 1)
    tables["rebuilt"] = tables["kept"] - tables["inputs"] * random.random(classes + 1)
    tables["again_s"] = tables["forward_s"] * random.uniform(0.02, 1.0, classes + 1)
    order = np.concatenate([[0], 1 + random.integers(0, classes, segments), [0]])
    columns = {name: table[order] for name, table in tables.items()}
    names = [f"c{order[i]}" if random.random() < 0.2 else f"p{i}" for i in range(len(order))]
    stored = tuple(((name, int(size)),) for name, size in zip(names, columns["parameters"], strict=True))
    frozen = HeldParameters(((),) * len(order))
    other = {"repeated": order > 0, "held": HeldParameters(stored), "held_frozen": frozen, "alone": pp == 1}
    other["cached"] = (CachedTables(),) * len(order)
    rest = {f.name: np.zeros(len(order)) for f in fields(Chain) if f.name not in {*COLUMNS, *other}}
    chain = Chain(**columns, **rest, **other)  # type: ignore[arg-type]
    candidate = Candidate(pp, 1, 1, 1, 4, 0, "1f1b", recompute)
    mesh = tensor_mesh(candidate.mesh)
    return StageModel(chain, candidate, DataAxis(0, 1, Prices(mesh, CPU, False, True, 4), pp > 1), 2, 4.0)


def held(found: StageModel, stage: int, first: int, last: int, full: int, selective: int) -> float:
    """Bytes of a stage as ``StageModel.memory_of`` counts them, not rounded."""
    chain, run = found.chain, slice(first, last)
    whole, part = found.recomputed((first, last), full, selective)
    kept = np.where(whole, chain.inputs[run], np.where(part, chain.selective[run], chain.kept[run]))
    entered = chain.inputs[first] * (first > 0)  # no segment of this chain keeps its input
    flying = found.in_flight[stage] * (kept.sum() + chain.constants[run].max() + entered)
    borders = [max(chain.inputs[at], chain.outputs[at - 1]) for at in (first, last) if 0 < at < len(chain)]
    buffers = 4 * max(borders, default=0.0)  # a message that is read, one that comes, two that go
    activations = flying + buffers
    again = max(chain.kept[run][whole].max(initial=0.0), chain.rebuilt[run][part].max(initial=0.0))
    updating = 2 * chain.parameters[run].max()  # a root and a quotient, where parameters are updated one by one
    transients = max(chain.working[run].max() + again, updating - activations)
    memory = memory_of_stage(found, stage, (first, last), full, selective)
    assert activations == pytest.approx(memory.activations, abs=1)
    assert transients == pytest.approx(memory.transients, abs=1)
    return memory.total - memory.transients - memory.activations + activations + transients


def by_trial(found: StageModel, stage: int, first: int, last: int, wall: float) -> float:
    """The fewest seconds over every number of full and selective segments."""
    repeated = int(found.chain.repeated[first:last].sum())
    best = math.inf
    for full in range(repeated + 1):
        for selective in range(repeated - full + 1):
            if held(found, stage, first, last, full, selective) <= wall * (1 + 1e-12):
                at = (first, last)
                best = min(best, found.forward_s(at) + found.backward_s(at, full, selective))
    return best


@examples(40)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 3), st.floats(0.05, 1.1), st.sampled_from([0, 1]))
def test_no_mix_is_cheaper(seed: int, segments: int, classes: int, share: float, stage: int) -> None:
    found = stage_model(np.random.default_rng(seed), segments, classes, "auto")
    size = len(found.chain)
    wall = share * held(found, stage, 0, size, 0, 0)
    mix, waits_s = found.options(stage, wall), np.broadcast_to(found.messages_s(stage), (size + 1, size + 1))
    for first in range(size):
        for last in range(first + 1, size + 1):
            best = by_trial(found, stage, first, last, wall)
            seconds = mix.seconds[first, last] - waits_s[first, last]
            assert seconds == pytest.approx(best, rel=1e-12), (first, last)
            if math.isfinite(seconds):
                full, selective = int(mix.full[first, last]), int(mix.selective[first, last])
                needed = memory_of_stage(found, stage, (first, last), full, selective).total
                assert needed <= wall + 3  # three parts are rounded
                again_s = found.forward_s((first, last)) + found.backward_s((first, last), full, selective)
                assert again_s == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_what_is_pinned_is_what_all_do(recompute: str) -> None:
    found = stage_model(np.random.default_rng(5), 6, 2, recompute)
    mix = found.options(0, math.inf)
    runs = np.triu(np.ones_like(mix.full, dtype=bool), 1)
    index = np.concatenate([[0], np.cumsum(found.chain.repeated)])
    everything = np.where(runs, index[None, :] - index[:, None], 0)
    assert (mix.full == (everything if recompute == "full" else 0)).all()
    assert (mix.selective == (everything if recompute == "selective" else 0)).all()
    assert np.isfinite(mix.seconds[runs]).all() and np.isinf(mix.seconds[~runs]).all()


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_what_is_pinned_fits_or_is_impossible(recompute: str) -> None:
    found = stage_model(np.random.default_rng(6), 6, 1, recompute)
    repeated = {"none": (0, 0), "selective": (0, 1), "full": (1, 0)}[recompute]
    for share in (0.3, 0.5, 0.7, 0.9):
        wall = share * held(found, 1, 0, len(found.chain), 0, 0)
        mix = found.options(1, wall)
        for first in range(len(found.chain)):
            for last in range(first + 1, len(found.chain) + 1):
                count = int(found.chain.repeated[first:last].sum())
                fits = held(found, 1, first, last, *(count * n for n in repeated)) <= wall
                assert math.isfinite(mix.seconds[first, last]) == fits


def test_what_saves_nothing_has_no_place_in_a_mix() -> None:
    """Selective segments that keep more than autograd does are left out, however little they take."""
    ten = np.full(4, 10.0)
    found = savings(ten, ten / 10, ten + 1, 0 * ten, ten, ten / 100)
    assert not found.mixes
    mix = found.cheapest(np.array([0]), np.array([4]), np.array([7.0]), 1)
    assert (int(mix.full[0]), int(mix.selective[0]), float(mix.seconds[0])) == (2, 0, 20.0)


def test_a_full_segment_spares_several_selective_ones() -> None:
    """100 bytes: eleven selective ones of 9 take 11 s, and two in full of 50 take 10."""
    columns = (np.full(12, 51.0), np.ones(12), np.full(12, 42.0), np.full(12, 51.0), np.full(12, 5.0), np.ones(12))
    mix = savings(*columns).cheapest(np.array([0]), np.array([12]), np.array([49.0]), 1)
    assert (int(mix.full[0]), int(mix.selective[0]), float(mix.seconds[0])) == (2, 0, 10.0)


def test_a_compiled_segment_gathers_again_and_exchanges_nothing_again() -> None:
    """It keeps what other collectives give (``runtime.memory.selective``), in whatever step of a redistribution."""
    mesh = Mesh.of(tp=2)
    whole, part = Layout.of(2, {"tp": R}, mesh), Layout.of(2, {"tp": S(0)}, mesh)
    gather = Collective("all_gather", ("tp",), (0,), "all-gather", "reduce-scatter", 8, 8)
    exchange = Collective("all_to_all", ("tp",), (0, 1), "all-to-all", "all-to-all", 8, 8)
    cut = Collective("shard", ("tp",), (0,), "", "", 0, 0)
    for steps, again in (((gather,), True), ((cut, gather), True), ((exchange,), False), ((exchange, gather), False)):
        step = Step((("x", part),), ("x", whole), hop=Hop("x", part, whole, steps))
        assert compiled_again(step, {}, mesh) == again, steps
