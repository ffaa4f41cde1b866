"""The cheapest tree of redistributions: equal to trying every set of arcs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.redistribution.steiner_tree import Arc, cheapest_tree
from tests.support.sampling import examples


def reaches(root: int, chosen: tuple[Arc, ...]) -> set[int]:
    reached = {root}
    for _ in chosen:
        reached |= {b for a, b in chosen if a in reached}
    return reached


@examples(60)
@given(
    st.dictionaries(st.sampled_from(list(itertools.permutations(range(4), 2))), st.integers(0, 9), max_size=8),
    st.sets(st.integers(0, 3), max_size=3),
)
def test_no_set_of_arcs_is_cheaper(arcs: dict[Arc, int], wanted: set[int]) -> None:
    sets = [c for n in range(len(arcs) + 1) for c in itertools.combinations(arcs, n) if wanted <= reaches(0, c) | {0}]
    best = min((sum(arcs[a] for a in c) for c in sets), default=None)
    tree = cheapest_tree(0, wanted, arcs)
    assert (tree is None) == (best is None)
    if tree is not None:
        assert sum(arcs[a] for a in tree) == pytest.approx(best)
        assert all(arc[0] == 0 or any(arc[0] == before[1] for before in tree[:i]) for i, arc in enumerate(tree))


def test_what_two_want_is_paid_once() -> None:
    arcs = {(0, 1): 5.0, (1, 2): 1.0, (1, 3): 1.0, (0, 2): 5.5, (0, 3): 5.5}
    assert cheapest_tree(0, {2, 3}, arcs) == ((0, 1), (1, 2), (1, 3))
