"""Whether leaving the batch on the data axis is best for every operator of a plan.

The search pins the data axis to the batch, so that operators' problems are small and shared. Of the plan that was
chosen the problem is solved once more with the data axis searched like a tensor axis, on the plan's own mesh: a
parameter that is R on it costs its gradient's sum, one that is split there does not, and activations may move on it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from autoplan.cost import Prices
from autoplan.ir.choice import tensor_mesh
from autoplan.rules.strategies import Strategy
from autoplan.search.intra_op.operator_options import formulate
from autoplan.search.intra_op.problem import Problem, build
from autoplan.search.intra_op.problem_inputs import OperatorInputs
from autoplan.search.intra_op.solve import Infeasible, Solution, Solver
from autoplan.search.operator_problems import OperatorProblems
from autoplan.search.space.candidates import Candidate

DATA = "dp"
SHARE = 0.1  # of the search's time, that the check may take
LIMIT_S = 2.0  # of one solve
SLOWER = 60  # times as long as the pinned problem, whose outline and prices are known already
PAIRED = 64  # members of a group over both axes, beyond which an exchange's price, found pair by pair, takes longest
SAME = 1e-6  # relative, below which nothing is cheaper
NAMED = 3  # operators that the text names


@dataclass(frozen=True)
class DataCheck:
    """What came of it.

    pinned_s, free_s  of a microbatch with its share of the step; free_s is the best that was found
    bound_s           that nothing undercuts with the axis free
    leaving           operators that leave the batch's axis where free_s is less
    """

    pinned_s: float
    free_s: float
    bound_s: float
    leaving: tuple[str, ...]

    def __str__(self) -> str:
        if self.bound_s >= self.pinned_s * (1 - SAME):
            return "with the data axis free: nothing cheaper, the batch stays on dp in every operator"
        if self.free_s >= self.pinned_s * (1 - SAME):
            open_share = 1 - self.bound_s / self.pinned_s
            return f"with the data axis free: nothing cheaper found, {open_share:.1%} left unproven in {LIMIT_S:g} s"
        names = ", ".join(self.leaving[:NAMED]) + (", …" if len(self.leaving) > NAMED else "")
        saved = 1 - self.free_s / self.pinned_s
        return f"with the data axis free: {saved:.1%} less in the operators of a microbatch, with {names} off the batch"


def check_data_axis(operators: OperatorProblems, candidate: Candidate, spent_s: float) -> str:
    """The check in a sentence; "" where there is no data axis, or the batch can't be on it.

    spent_s  by the search until here: where the check would take more than a tenth of it, it is left out
    """
    beside = candidate.tensor_system or candidate.folding.axes or candidate.cp > 1
    if candidate.dp == 1 or beside or operators.prepared.batch[DATA].reason:
        return ""
    start = time.perf_counter()
    pinned_form, shared = operators.form(single_steps(operators, candidate), operators.split_weights)
    problem = build(pinned_form, shared.of(pinned_form))
    pinned = Solver(problem, time_limit_s=LIMIT_S).solve()
    each_s, members = time.perf_counter() - start, candidate.stage_devices
    if each_s * (1 + SLOWER * max(1.0, members / PAIRED) ** 2) > SHARE * spent_s:
        return "not searched: plans whose operators leave the batch's axis dp (over a tenth of the search's time)"
    return str(checked(pinned_form, pinned, freed(operators, candidate)))


def freed(operators: OperatorProblems, candidate: Candidate) -> OperatorInputs:
    """The plan's problem on its own mesh with the data axis free."""
    prices, split = single_steps(operators, candidate), operators.split_weights
    return formulate(
        operators.prepared, prices.mesh, prices, split_weights=split, sequence=operators.sequence, free=DATA
    )


def single_steps(operators: OperatorProblems, candidate: Candidate) -> Prices:
    """The price list of the plan's own mesh, by single steps."""
    return replace(operators.prices(tensor_mesh(candidate.mesh), candidate.schedule), direct=True)


def checked(pinned_form: OperatorInputs, pinned: Solution, form: OperatorInputs) -> DataCheck:
    problem = build(form)
    try:
        free = Solver(problem, time_limit_s=LIMIT_S).solve()
    except Infeasible:  # nothing found within the limit
        return DataCheck(pinned.time_s, pinned.time_s, 0.0, ())
    return DataCheck(pinned.time_s, free.time_s, free.bound, tuple(leaving(pinned_form, problem, free)))


def leaving(pinned: OperatorInputs, problem: Problem, solution: Solution) -> list[str]:
    """Names of the operators that run otherwise on the data axis than the batch has it."""
    found = []
    for group, option in zip(problem.groups, solution.options, strict=True):
        taken = group.options[option]
        kind, block, name = group.key
        if kind == "node" and isinstance(taken, Strategy):
            usual = pinned.options[block, name][0].on(DATA)
            if taken.on(DATA) != usual:
                found.append(name)
    return found
