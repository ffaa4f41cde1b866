"""The operator problem against trying everything: random arrays and real operators, prices on bytes and walls."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.cost import Prices
from autoplan.ir.graph import Block, Model, Node, TensorType, Typed
from autoplan.ir.layout import I, Layout, R
from autoplan.ir.mesh import Mesh
from autoplan.search.intra_op.operator_options import formulate
from autoplan.search.intra_op.problem import Group, Problem, Tensor, build
from autoplan.search.intra_op.problem_inputs import prepare
from autoplan.search.intra_op.solve import Infeasible, Solver, Weights, solve
from tests.support.everything import Everything, everything, trees_by_branches, trees_by_subsets
from tests.support.hand_made import chain, f32, node
from tests.support.sampling import sampled, slow

SAME = 1e-9
ARRAYS, REAL = 140, 65  # problems of each kind that have a solution
MOST = 60_000  # assignments of a problem that are tried
MESHES = (Mesh.of(dp=1, tp=2, mb=1), Mesh.of(dp=1, tp=4, mb=2), Mesh.of(dp=1, tp=2, tp2=2, mb=1))


def random_problem(seed: int) -> Problem:
    """Three to seven groups of two to four options; each but the first takes what another gives, some give several
    tensors; arcs between most layouts, some prices alike; some tensors and options keep bytes."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 5, random.integers(3, 8))
    groups = tuple(random_group(random, index, int(size)) for index, size in enumerate(sizes))
    sources = {int(random.integers(0, end)) for end in range(1, len(sizes))} | {0}
    tensors = [random_tensor(random, sizes, source) for source in sorted(sources)]
    tensors += [random_tensor(random, sizes, int(random.integers(0, len(sizes)))) for _ in range(random.integers(0, 3))]
    return Problem(groups, tuple(tensors))


def random_group(random: np.random.Generator, index: int, size: int) -> Group:
    """A fifth of them cost nothing, as a boundary; a third hold bytes of a parameter."""
    options = tuple(Layout.of(1, {"tp": I}, MESHES[0]) for _ in range(size))
    time_s = random.uniform(0, 1e-3, size) * (random.random() > 0.2)
    state = random.integers(1, 9, size) * 1e6 * (random.random() < 0.3)
    kept = random.integers(0, 4, size) * 1e5 * (random.random() < 0.3)
    return Group(("node", 0, str(index)), options, time_s, state, kept)


def random_tensor(random: np.random.Generator, sizes: np.ndarray, source: int) -> Tensor:
    """One to three other groups take it, any of which may keep it."""
    count = int(random.integers(2, 5))
    others = [g for g in range(len(sizes)) if g != source]
    sinks = [int(g) for g in random.permutation(others)[: random.integers(1, 4)]]
    given = random.integers(0, count, sizes[source])
    taken = tuple((g, random.integers(0, count, sizes[g])) for g in sinks)
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b and random.random() < 0.8]
    alike = random.random() < 0.3
    arc_s = random.choice([0.0, 1e-4, 2e-4], len(pairs)) if alike else random.uniform(0, 5e-4, len(pairs))
    ends = [end for end in ((source, given), *taken) if random.random() < 0.5]
    keepers = tuple((g, np.where(random.random(len(at)) < 0.7, at, -1)) for g, at in ends)
    kept = random.integers(1, 9, count) * 1e6
    layouts = tuple(Layout.of(1, {"tp": R}, MESHES[0]) for _ in range(count))
    arcs = np.array(pairs, dtype=int).reshape(-1, 2)
    nothing_again = np.full(len(arcs), np.inf)
    return Tensor(0, "t", layouts, source, given, taken, arcs, arc_s, keepers, kept, nothing_again)


def random_model(seed: int) -> Model:
    """One block, two, or one that follows itself between two others: additions, activations and products over square
    tensors, any of which may read an earlier value, and several one parameter; then a mean."""
    random = np.random.default_rng(seed)
    x = f32(8, int(random.choice([4, 6, 8])))
    parts = int(random.choice([1, 1, 2, 3]))
    blocks = [random_block(random, x, first=i == 0, last=i == parts - 1) for i in range(parts)]
    order = (0, 1, 1, 2) if parts == 3 else tuple(range(parts))
    tied = {f"{len(order) - 1}.w": "0.w"} if parts > 1 and random.random() < 0.5 else None
    return chain("Small", (Typed("data", x),), tuple(blocks), order, tied=tied)


def random_block(random: np.random.Generator, x: TensorType, *, first: bool, last: bool) -> Block:
    values, nodes = ["x"], []
    read: dict[str, int] = {}
    if first:
        nodes.append(node("x", "aten.mul.Tensor", x, "%data", "%scale"))
    for i in range(int(random.integers(1, 4 if first and last else 2))):
        one, other = (pick(random, values, read) for _ in range(2))
        nodes.append(random_node(random, f"n{i}", x, one, other))
        values.append(f"n{i}")
    if not any("w" in n.operands for n in nodes):
        nodes.append(node("last", "aten.linear.default", x, f"%{values[-1]}", "%w"))
        values.append("last")
    if last:
        nodes.append(node("loss", "aten.mean.dim", f32(), f"%{values[-1]}", (0, 1), False))
    weights = (Typed("w", f32(x.shape[1], x.shape[1])), *((Typed("scale", f32(x.shape[1])),) if first else ()))
    inputs, externals = ((), (Typed("data", x),)) if first else ((Typed("x", x),), ())
    return Block(f"Small{first}{last}", inputs, externals, weights, (), tuple(nodes), (nodes[-1].name,))


def pick(random: np.random.Generator, values: list[str], read: dict[str, int]) -> str:
    """A value that fewer than two read yet, so that with what comes after them none has more than three readers."""
    left = [v for v in values if read.get(v, 0) < 2]
    name = str(random.choice(left)) if left else values[-1]
    read[name] = read.get(name, 0) + 1
    return name


def random_node(random: np.random.Generator, name: str, x: TensorType, one: str, other: str) -> Node:
    kind = str(random.choice(["linear", "linear", "add", "relu", "mul"]))
    if kind == "linear":
        return node(name, "aten.linear.default", x, f"%{one}", "%w")
    if kind == "relu":
        return node(name, "aten.relu.default", x, f"%{one}")
    return node(name, f"aten.{kind}.Tensor", x, f"%{one}", f"%{other}")


def real_problem(seed: int) -> Problem:
    """The problem of a random model on a random mesh, of whose options as many are left as can be tried."""
    random = np.random.default_rng(seed)
    mesh = MESHES[random.integers(0, len(MESHES))]
    topology = ClusterSpec.parse(str(random.choice(["1x4 cpu", "1x8 h100-sxm", "2x2 h100-sxm"]))).topology()
    prices = Prices(mesh, topology, True, True, mesh.size("mb"), 7.0, direct=len(mesh.operator_axes) > 1)
    prepared = prepare(random_model(seed), (), fuses=True, training=True)
    return thinned(build(formulate(prepared, mesh, prices, split_weights=False)), random)


def thinned(problem: Problem, random: np.random.Generator) -> Problem:
    """The problem with options of its largest groups ruled out, one after another, until all of it can be tried, and
    nothing gathered again (``test_gathered_again``)."""
    tensors = tuple(replace(t, again_s=np.full(len(t.arcs), np.inf)) for t in problem.tensors)
    problem = Problem(problem.groups, tensors)
    kept = [list(range(len(g.options))) for g in problem.groups]
    while math.prod(map(len, kept)) > MOST:
        largest = max(kept, key=len)
        largest.pop(int(random.integers(0, len(largest))))
    return problem.with_options([np.array(keep) for keep in kept])


def prices_of(known: Everything) -> list[Weights]:
    """Nothing; then bytes that cost about as much as all the time; then far more."""
    scale = float(known.time_s.min()) / max(known.bytes_of(best=True), 1.0)
    return [Weights(), Weights(scale, scale), Weights(0.0, 3 * scale), Weights(30 * scale, 10 * scale)]


def check(problem: Problem) -> bool:
    """At every price of bytes and under every wall; gives whether there is anything to choose."""
    known, solver = everything(problem), Solver(problem)
    if not np.isfinite(known.time_s).any():
        with pytest.raises(Infeasible):
            solve(problem)
        return False
    for weights in prices_of(known):
        best, found = known.least(weights), solver.solve(weights)
        assert found.objective == pytest.approx(best, rel=SAME, abs=1e-18)
        assert found.bound <= best * (1 + SAME)
        picked = found.options
        assert known.time_s[picked] == pytest.approx(found.time_s, rel=SAME, abs=1e-18)
        assert known.state_bytes[picked] == pytest.approx(found.state_bytes, rel=SAME)
        assert known.kept_bytes[picked] == pytest.approx(found.kept_bytes, rel=SAME)
    check_walls(known, solver)
    return True


def check_walls(known: Everything, solver: Solver) -> None:
    """What prices on bytes give is the fastest of all that need as few bytes as it does; and under any wall, what is
    proven at a price is undercut by nothing."""
    low, high = known.bytes_of(best=False), known.bytes_of(best=True)
    span_s = max(known.fastest_under(low) - known.fastest_under(high), 0.0)
    fair = span_s / (high - low) if high > low else 0.0
    walls = [low + share * (high - low) for share in (0.0, 0.1, 0.5, 1.0)]
    for factor in (0.0, 0.3, 1.0, 3.0, 100.0):
        dual = factor * fair
        found = solver.solve(Weights(dual, dual))
        held = found.state_bytes + found.kept_bytes
        if dual > 0:
            assert known.fastest_under(held) == pytest.approx(found.time_s, rel=1e-8, abs=1e-18)
        for wall in walls:
            fastest_s = known.fastest_under(wall)
            assert found.bound - dual * wall <= fastest_s + SAME * (abs(found.bound) + dual * wall)
            assert found.time_s >= fastest_s * (1 - SAME) or held > wall


def compared(problem_of: Callable[[int], Problem], part: int, count: int) -> int:
    """How many problems with something to choose were compared, of twice as many at most."""
    found = 0
    for seed in range(part, part + 10 * count, 5):
        found += found < count and check(problem_of(seed))
    return found


@pytest.mark.parametrize("part", sampled(range(5), [0]))
def test_random_arrays_are_solved_as_by_trying_everything(part: int) -> None:
    assert compared(random_problem, part, ARRAYS // 5) == ARRAYS // 5


@pytest.mark.parametrize("part", sampled(range(5), [0]))
def test_real_operators_are_solved_as_by_trying_everything(part: int) -> None:
    assert compared(real_problem, part, REAL // 5) == REAL // 5


@pytest.mark.parametrize("seeds", [12, slow(30)])
def test_bounds_along_the_price_of_kept_bytes_are_those_at_each_price(
    seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Weights] = []
    relaxed = Solver.relaxed
    monkeypatch.setattr(Solver, "relaxed", lambda self, weights: (asked.append(weights), relaxed(self, weights))[1])
    prices, problems = np.append(0.0, np.geomspace(1e-13, 1e-9, 15)), 0
    for seed in range(seeds):
        problem, state = real_problem(seed), 1e-12 * (seed % 3)
        try:
            found = Solver(problem).bounds(state, prices)
        except Infeasible:
            continue
        problems += 1
        each = [relaxed(Solver(problem), Weights(state, float(price)))[0] for price in prices]
        assert found == pytest.approx(each, rel=1e-5) and (found <= np.array(each) * (1 + 1e-9)).all()
    assert problems > seeds // 3 and len(asked) < 0.7 * problems * len(prices)


def test_trees_of_every_subset_of_arcs_are_those_of_every_place_to_branch() -> None:
    """The two ways in which ``everything`` finds redistributions."""
    for seed in range(40):
        for tensor in random_problem(seed).tensors:
            for ends in (1, 2, 3):
                np.testing.assert_allclose(
                    trees_by_subsets(tensor, ends), trees_by_branches(tensor, ends), rtol=1e-12, atol=1e-18
                )


def test_the_random_problems_hold_what_they_should() -> None:
    """Branches, consumers that share a redistribution, parameters that several read, walls that bind."""
    problems = [random_problem(seed) for seed in range(40)] + [real_problem(seed) for seed in range(20)]
    assert sum(any(len(t.sinks) > 1 and len(t.arcs) for t in p.tensors) for p in problems) > 30
    assert sum(len({t.source for t in p.tensors}) < len(p.tensors) for p in problems) > 10
    known = [everything(p) for p in problems]
    bound = [k for k in known if math.isfinite(k.time_s.min()) and k.bytes_of(best=False) < k.bytes_of(best=True)]
    assert len(bound) > 40


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_more(part: int) -> None:
    for seed in range(1000 + part, 2000, 10):
        check(random_problem(seed))
        check(real_problem(seed))
