"""What is gathered again in the backward, in the operator problem: its answers are those of trying everything."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from autoplan.ir.layout import I, Layout, R
from autoplan.ir.mesh import Mesh
from autoplan.search.intra_op import milp as milp_module
from autoplan.search.intra_op import solve as solve_module
from autoplan.search.intra_op.problem import Group, Problem, Tensor
from autoplan.search.intra_op.solve import Infeasible, Weights, solve
from tests.support.sampling import sampled

MESH = Mesh.of(dp=1, tp=2, mb=1)
LAYOUTS = 3


def random_problem(seed: int) -> Problem:
    """A group that gives a tensor, and two that take it and may keep it; half of the arcs may be gathers."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 4, 3)
    groups = tuple(
        Group(("node", 0, str(i)), (Layout.of(1, {"tp": I}, MESH),) * int(n), random.uniform(0, 1e-4, n), np.zeros(n),
              np.zeros(n))
        for i, n in enumerate(sizes)
    )  # fmt: skip
    arcs = np.array([(a, b) for a in range(LAYOUTS) for b in range(LAYOUTS) if a != b and random.random() < 0.8])
    arcs = arcs.reshape(-1, 2).astype(int)
    again_s = np.where(random.random(len(arcs)) < 0.5, random.uniform(0, 3e-4, len(arcs)), np.inf)
    taken = tuple((g, random.integers(0, LAYOUTS, sizes[g])) for g in (1, 2))
    keepers = tuple((g, np.where(random.random(len(at)) < 0.8, at, -1)) for g, at in taken)
    tensor = Tensor(
        0, "t", (Layout.of(1, {"tp": R}, MESH),) * LAYOUTS, 0, random.integers(0, LAYOUTS, sizes[0]), taken, arcs,
        random.uniform(0, 3e-4, len(arcs)), keepers, random.integers(1, 9, LAYOUTS) * 1e6, again_s,
    )  # fmt: skip
    return Problem(groups, (tensor,))


def kept_whole(problem: Problem) -> Problem:
    """The same where nothing can be gathered again."""
    (tensor,) = problem.tensors
    return replace(problem, tensors=(replace(tensor, again_s=np.full(len(tensor.arcs), np.inf)),))


def least(problem: Problem, byte_s: float) -> float:
    """Over every assignment, every tree of arcs that brings the tensor where it is wanted, and every set of those that
    gather again."""
    (tensor,) = problem.tensors
    found = math.inf
    for picked in itertools.product(*(range(len(g.options)) for g in problem.groups)):
        time_s = sum(g.time_s[o] for g, o in zip(problem.groups, picked, strict=True))
        root = int(tensor.given[picked[0]])
        wanted = {int(taken[picked[g]]) for g, taken in tensor.sinks}
        kept = {int(taken[picked[g]]) for g, taken in tensor.keepers} - {-1}
        for arcs in subsets(range(len(tensor.arcs))):
            there = reached(root, tensor.arcs[list(arcs)])
            chosen = tensor.arcs[list(arcs)]
            ends = [root, *chosen[:, 1].tolist()]
            if wanted <= there and set(chosen[:, 0].tolist()) <= there and len(set(ends)) == len(ends):
                moved_s = time_s + tensor.arc_s[list(arcs)].sum()
                found = min(found, moved_s + kept_s(tensor, arcs, kept, root, byte_s))
    return found


def kept_s(tensor: Tensor, arcs: tuple[int, ...], kept: set[int], root: int, byte_s: float) -> float:
    """What is there as it was made isn't gathered."""
    ways = []
    for layout in kept:
        whole = byte_s * tensor.kept_bytes[layout]
        again = (byte_s * tensor.kept_bytes[tensor.arcs[a, 0]] + tensor.again_s[a] for a in arcs
                 if tensor.arcs[a, 1] == layout != root)  # fmt: skip
        ways.append(min([whole, *again]))
    return float(sum(ways))


def subsets(items: range) -> itertools.chain[tuple[int, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(items, n) for n in range(len(items) + 1))


def reached(root: int, arcs: np.ndarray) -> set[int]:
    found = {root}
    for _ in range(LAYOUTS):
        found |= {int(b) for a, b in arcs if a in found}
    return found


@pytest.mark.parametrize("many_arcs", (milp_module.MANY_ARCS, 0))
@pytest.mark.parametrize("part", sampled(range(16), [0]))
def test_it_is_gathered_again_where_that_is_worth_the_bytes(
    part: int, many_arcs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever nothing kept whole is as quick, and nowhere else; its consumers served each for itself, or together."""
    monkeypatch.setattr(milp_module, "MANY_ARCS", many_arcs)
    again = worth = 0
    for seed in range(part, 400, 16):
        problem = random_problem(seed)
        for byte_s in (0.0, 1e-11, 1e-10, 1e-9):
            best = least(problem, byte_s)
            if not math.isfinite(best):
                with pytest.raises(Infeasible):
                    solve(problem, Weights(0.0, byte_s))
                continue
            found = solve(problem, Weights(0.0, byte_s))
            assert found.objective == pytest.approx(best, rel=1e-6, abs=1e-12)
            assert found.bound <= best * (1 + 1e-6) + 1e-12
            again += found.objective > found.time_s + byte_s * found.kept_bytes + 1e-12
            worth += best < least(kept_whole(problem), byte_s) - 1e-12
    assert again == worth > 0


def test_of_dozens_of_gathers_few_ways_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over three axes one layout may be gathered from a dozen others, and several may be kept."""
    count = 12
    arcs = np.array([(a, b) for a in range(count) for b in range(count) if a != b])
    wanted = np.arange(1, 7)
    taken = tuple((g, np.array([layout])) for g, layout in enumerate(wanted.tolist(), start=1))
    random = np.random.default_rng(0)
    tensor = Tensor(
        0, "t", (Layout.of(1, {"tp": R}, MESH),) * count, 0, np.array([0]), taken, arcs,
        random.uniform(0, 1e-4, len(arcs)), taken, random.integers(1, 9, count) * 1e6,
        random.uniform(0, 1e-4, len(arcs)),
    )  # fmt: skip
    ways, known = [], solve_module.way_of
    monkeypatch.setattr(solve_module, "way_of", lambda *given: ways.append(given) or known(*given))
    found = solve_module.cheapest_way(tensor, [0] * 7, 1e-9)
    assert found is not None and found.again_s > 0
    assert 1 < len(ways) <= solve_module.MOST_WAYS
