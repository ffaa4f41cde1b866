"""The bound by segments on stages in any order: against every division, and what the search saves by it."""

from __future__ import annotations

import numpy as np
import pytest

from autoplan.search.bounds.assignment import AssignmentProgram, assignment_bound_s
from autoplan.search.budget import FULL
from autoplan.search.evaluate import Evaluator
from autoplan.search.inter_op.chain_costs import Division
from autoplan.search.inter_op.interleaved import DivisionSearch
from autoplan.search.inter_op.interleaved_milp import PartitionMilp, SegmentRuns
from tests.support.random_chains import chain, divisions, walled

CASES = [
    ("interleaved", "none", 1.1), ("zero-bubble", "none", 1.1), ("interleaved", "full", 1.05),
    ("interleaved", "selective", 1.05), ("interleaved", "auto", 0.85), ("zero-bubble", "auto", 0.9),
]  # fmt: skip


@pytest.mark.parametrize("kinds", [(), (0, 1)])
@pytest.mark.parametrize(("schedule", "recompute", "share"), CASES)
def test_no_division_undercuts_it(schedule: str, recompute: str, share: float, kinds: tuple[int, ...]) -> None:
    """With the paths of many divisions, so that the bound is as high as it gets; and with all moments."""
    virtual = 2 if schedule == "interleaved" else 1
    segments = 5 if recompute == "auto" else 6
    costs = walled(chain(len(kinds), schedule, virtual, recompute, segments, 4, by_turns=kinds), share)
    fitting = [d for d in divisions(costs) if costs.over(d) <= 0]
    least_s = min((costs.step_s(d) for d in fitting), default=np.inf)
    paths = [*costs.interleaved.paths, *(costs.path(d).counts for d in fitting[:: len(fitting) // 20 + 1])]
    program = AssignmentProgram(costs, 1.0, SegmentRuns.of(costs, turns=True))
    for path in paths:
        program.add_path(path)
    program.hold(100)
    assert program.lp.solve(relaxed=True).bound <= least_s * (1 + 1e-9)
    assert assignment_bound_s(costs, paths, 3.0) <= least_s * (1 + 1e-9)


def test_it_says_nearly_what_the_whole_program_says() -> None:
    """In fractions, with a fraction of its rows."""
    for seed in range(4):
        costs = walled(chain(seed, "interleaved", 2, "auto", 20, 8), 0.8)
        whole, lean = PartitionMilp(costs, 1.0), AssignmentProgram(costs, 1.0, SegmentRuns.of(costs, turns=True))
        for program in (whole, lean):
            for path in costs.interleaved.paths:
                program.add_path(path)
            program.hold(2)
        found, least = (program.lp.solve(relaxed=True).bound for program in (lean, whole))
        assert least * 0.97 <= found <= least * (1 + 1e-9)
        assert lean.lp.rows < whole.lp.rows / 2


def test_where_nothing_fits_it_is_infinite() -> None:
    costs = walled(chain(0, "interleaved", 2, "auto", 8, 4), 0.2)
    assert assignment_bound_s(costs, costs.interleaved.paths, 1.0) == np.inf


def test_what_it_rules_out_has_no_program_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a limit that no division keeps none is searched; under one that some keep the answer is the search's."""
    costs = walled(chain(1, "interleaved", 2, "auto", 14, 8), 0.8)
    at_once = DivisionSearch(costs).run()
    assert at_once is not None
    bound_s = assignment_bound_s(costs, DivisionSearch(costs).first_paths, 1.0)
    low_s = bound_s * 0.999
    assert not DivisionSearch(costs, low_s).hopeless(searches=True), "even stages alone don't say it"
    built: list[DivisionSearch] = []
    build = DivisionSearch.program

    def program(of: DivisionSearch, even: Division) -> PartitionMilp:
        built.append(of)
        return build(of, even)

    monkeypatch.setattr(DivisionSearch, "program", program)
    evaluator = Evaluator(None, None, FULL)  # type: ignore[arg-type]
    assert evaluator.chunks(costs, low_s, None) is None and not built
    assert evaluator.chunks(costs, np.inf, None) == at_once and len(built) == 1
