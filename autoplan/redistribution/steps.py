"""The steps that one or several axes can take from one state to another, each with the backward that its types force.

The gradient of S is S, of R it is P, of I it is I, of P it is R (``layout.State.gradient``), so a step's backward is
the step between the duals, read from right to left: P -> R, say, has backward P -> R, an all-reduce each way.

R -> I, R -> P, I -> P and S -> P move nothing and yet are never free of thought: of the group's members the first keeps
what it has, the others hold zeros (R -> I: in the backward, so that the summands of the gradient count it once).
"""

from dataclasses import dataclass

from autoplan.ir.layout import I, R, State


@dataclass(frozen=True)
class Step:
    """One change of state, the same on every axis of a group.

    op        function of autoplan.runtime.collectives.typed
    forward, backward   what crosses the links, "" where nothing does
    """

    op: str
    forward: str = ""
    backward: str = ""


STEPS = {
    ("S", "R"): Step("all_gather", "all-gather", "reduce-scatter"),
    ("S", "I"): Step("all_gather_invariant", "all-gather", ""),
    ("R", "S"): Step("shard"),
    ("I", "S"): Step("shard_invariant", "", "all-gather"),
    ("S", "S"): Step("all_to_all", "all-to-all", "all-to-all"),
    ("I", "R"): Step("to_replicate", "", "all-reduce"),
    ("P", "I"): Step("all_reduce", "all-reduce", ""),
    ("P", "R"): Step("all_reduce_to_replicate", "all-reduce", "all-reduce"),
    ("P", "S"): Step("reduce_scatter", "reduce-scatter", "all-gather"),
    ("R", "I"): Step("to_invariant"),
    ("R", "P"): Step("replicate_to_partial"),
    ("I", "P"): Step("invariant_to_partial"),
    ("S", "P"): Step("shard_to_partial"),
}
"""(source, target) -> the step, for a tensor that carries a gradient."""

NEUTRAL_STEPS = {
    ("S", "R"): Step("all_gather", "all-gather"),
    ("R", "S"): Step("shard"),
    ("S", "S"): Step("all_to_all", "all-to-all"),
    ("P", "R"): Step("all_reduce", "all-reduce"),
    ("P", "S"): Step("reduce_scatter", "reduce-scatter"),
    ("R", "P"): Step("replicate_to_partial"),
    ("S", "P"): Step("shard_to_partial"),
    ("P(max)", "R"): Step("all_reduce_max", "all-reduce"),
    ("P(max)", "S"): Step("reduce_scatter_max", "reduce-scatter"),
    ("R", "P(max)"): Step("replicate_to_max"),
}
"""The same for one that carries none: R and I are one, and nothing comes back."""

EXCHANGES = {
    "permute": Step("permute", "permute", "permute"),
    "exchange": Step("exchange", "all-to-all-v", "all-to-all-v"),
    "exchange_invariant": Step("exchange_invariant", "all-to-all-v", "all-to-all-v"),
    "exchange_sum": Step("exchange_sum", "all-to-all-v", "all-to-all-v"),
}
"""Steps that take several axes at once from where they are to where they shall be, described by a spec."""


def letter(state: State) -> str:
    """The key of a state in the tables: its text, without the dim."""
    return "S" if state.kind == "S" else str(state)


def find_step(source: State, target: State, carries_gradient: bool) -> Step | None:
    """The step between two different states, None where there is none."""
    return (STEPS if carries_gradient else NEUTRAL_STEPS).get((letter(source), letter(target)))


def neutral(state: State, carries_gradient: bool) -> State:
    """R in place of I for a tensor that carries no gradient."""
    return R if state == I and not carries_gradient else state


def transition(source: State, target: State, carries_gradient: bool) -> str | None:
    """The function of autoplan.runtime.collectives.typed that takes an axis from one state to another.

    "" where there is nothing to do, None where no single step leads there: a P(max) that carries a gradient can't be
    reduced (which operand won is not known to the others).
    """
    source, target = neutral(source, carries_gradient), neutral(target, carries_gradient)
    if source == target:
        return ""
    step = find_step(source, target, carries_gradient)
    return None if step is None else step.op
