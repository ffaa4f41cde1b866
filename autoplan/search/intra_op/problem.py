"""The operator problem of one model on one mesh, as arrays: what may be chosen, what each choice costs.

Every distinct block stands in it once, weighted by the number of its segments. A *group* is a decision with exactly
one of its options taken: an operator's strategy, a boundary's layout, the layout in which a parameter is stored. A
*tensor* flows from the group that gives it to the groups that take it, along *arcs*, each a redistribution.

With x[g,o] = 1 where group g takes option o, f[t,c,a] the flow of tensor t to its consumer c along arc a, y[t,a] = 1
where arc a is paid, and z[t,l] = 1 where t is kept for the backward in layout l:

    minimise   Σ x (time + w_state·state + w_act·kept)  +  Σ y·arc  +  w_act Σ z·kept  +  Σ r (again + w_act·part)
    Σ_o x[g,o] = 1                                            for each group g               milp.choose_one
    given(t,l) + Σ_{a into l} f[t,c,a] = taken(t,c,l) + Σ_{a from l} f[t,c,a]                milp.conserve
    f[t,c,a] ≤ y[t,a]        where t has several consumers; else f is y                      milp.share
                             (where arcs are many, flows to sets of consumers instead        milp.together)
    z[t,l] + r[t,a] ≥ Σ_{o keeps t in l} x[g,o] (- given(t,l) of a view)   for each keeper g of t    milp.keep
    r[t,a] ≤ y[t,a], Σ_c f[t,c,a]     where a gathers t into l for products (``HiddenSums``)    milp.gather_again
    Σ_{a into l} y[t,a] + given(t,l) ≤ 1                      for each such l

given(t,l) = Σ x[g,o] over the options of t's producer that give it in l; taken likewise. The arcs that one tensor pays
for form a tree over its layouts (shared flow), so a redistribution that two consumers need is paid once.

One to three axes are searched. An operator's strategies are products of those on the single axes, and a tensor's
layouts mixtures of the states met on them (``flows.mixtures``); an arc changes one axis, or several alike, and costs
its single step (``Prices.direct``), or over one axis the cheapest way, less what weights' gradients hide of its
backward (``hidden``) and what chunks save (``chunked``). What a named system asks
narrows the options (``System.ways``) and the boundary's and the stored layouts. Options and arcs that no optimum needs
stay: they are 3 to 15% of the variables, and to find them takes longer than to solve the problem with them.

The output of a segment and the input of the next are one tensor in one layout: both are the same boundary group, also
where a block follows itself. A parameter that several blocks or segments share has one group for how it is stored.
Collectives from a parameter other than I -> R are left out: a parameter is not gathered inside a microbatch, but over
the axis over which a named system gathers it (``System.gathered``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autoplan.cost import Prices
from autoplan.cost.operators.kept_beside import bytes_beside
from autoplan.cost.operators.lookups import traffic_of
from autoplan.cost.prices import layout_bytes
from autoplan.ir.graph import TensorType
from autoplan.ir.layout import Layout
from autoplan.rules.strategies import Strategy
from autoplan.search.intra_op.chunked import ChunkedArcs
from autoplan.search.intra_op.flows import ArcPrices, LayoutPaths, ways
from autoplan.search.intra_op.hidden import HiddenSums
from autoplan.search.intra_op.problem_inputs import OperatorInputs
from autoplan.search.intra_op.shared_decisions import GroupKey
from autoplan.search.intra_op.template import Decision, Template, Value, template_of


@dataclass(frozen=True)
class Group:
    """One decision.

    options      Strategies of an operator, or Layouts
    time_s       seconds of each option in one microbatch, over all segments of the block
    state_bytes  bytes of parameter on one device
    kept_bytes   bytes kept for the backward beside tensors (a dropout's mask)
    """

    key: GroupKey
    options: tuple[Strategy | Layout, ...]
    time_s: np.ndarray
    state_bytes: np.ndarray
    kept_bytes: np.ndarray


@dataclass(frozen=True)
class Tensor:
    """One value and its ways from the group that gives it to those that take it.

    layouts   all in which it may be
    source    the producing group; ``given[o]`` is the index of the layout that its option o gives
    sinks     (consuming group, index of the layout that each of its options takes)
    arcs      [arcs, 2] indices of layouts, from and to; ``arc_s`` their prices over all segments
    keepers   (group, index of the layout kept for the backward by each option, -1 for none)
    kept_bytes  of each layout, over all segments
    again_s   of each arc, seconds of a second gather in the backward, over all segments, after which the layout from
              which it goes is kept in place of the other; infinite where it is none
    stands    of a view of what is kept, the layout in which it is given by each option of its source: nothing more is
              kept of it in that; None of any other
    """

    block: int
    name: str
    layouts: tuple[Layout, ...]
    source: int
    given: np.ndarray
    sinks: tuple[tuple[int, np.ndarray], ...]
    arcs: np.ndarray
    arc_s: np.ndarray
    keepers: tuple[tuple[int, np.ndarray], ...]
    kept_bytes: np.ndarray
    again_s: np.ndarray
    stands: np.ndarray | None = None

    def gathered(self, layout: int) -> list[int]:
        """The arcs by which what is kept in a layout may have been gathered, so that less may be kept."""
        return self.gathers.get(layout, [])

    @cached_property
    def gathers(self) -> Mapping[int, list[int]]:
        """The same by layout."""
        found: dict[int, list[int]] = {}
        for arc in np.flatnonzero(np.isfinite(self.again_s)).tolist():
            found.setdefault(int(self.arcs[arc, 1]), []).append(arc)
        return found

    @cached_property
    def arc_prices(self) -> Mapping[tuple[int, int], float]:
        """Seconds of each arc, by its ends."""
        return {(a, b): price for (a, b), price in zip(self.arcs.tolist(), self.arc_s.tolist(), strict=True)}


@dataclass(frozen=True)
class Problem:
    """The operator problem with prices: groups of options, and tensors that flow between them."""

    groups: tuple[Group, ...]
    tensors: tuple[Tensor, ...]

    @property
    def variables(self) -> int:
        """About as many as the integer program will have."""
        flows = sum(len(t.arcs) * (len(t.sinks) + (len(t.sinks) > 1)) for t in self.tensors)
        return flows + sum(len(g.options) for g in self.groups)

    def of_block(self, block: int, shares: Mapping[GroupKey, float]) -> Problem:
        """The part that belongs to one block: its operators and the ways of its values. Boundaries cost nothing, nor
        does what a parameter costs once a step, however it is stored: a stage's gradients are summed together.

        shares  of each way to store parameters, how much of what is stored so is the block's
        """
        tensors = [t for t in self.tensors if t.block == block]
        mine = {t.source for t in tensors} | {g for t in tensors for g, _ in t.sinks}
        mine |= {i for i, group in enumerate(self.groups) if group.key[:2] == ("node", block)}
        place = {old: new for new, old in enumerate(sorted(mine))}
        groups = [
            replace(g, time_s=0 * g.time_s, state_bytes=g.state_bytes * shares[g.key]) if g.key[0] == "stored" else g
            for g in (self.groups[old] for old in place)
        ]
        moved = (
            replace(
                t,
                source=place[t.source],
                sinks=tuple((place[g], taken) for g, taken in t.sinks),
                keepers=tuple((place[g], kept) for g, kept in t.keepers),
            )
            for t in tensors
        )
        return Problem(tuple(groups), tuple(moved))


FROZEN = 1 / 8
"""Bytes that a parameter takes that isn't trained, for each byte of one that is: under mixed precision it lies there
alone, in two bytes, and with a gradient, a master and Adam's moments in eighteen."""
Seconds = Mapping[tuple[int, str], np.ndarray]
"""Of every operator, by (block, name): seconds of each of its options in one microbatch."""


def build(form: OperatorInputs, template: Template | None = None, seconds: Seconds | None = None) -> Problem:
    """A template with its prices.

    template  of a formulation that differs in sizes alone; None: the form's own
    seconds   of the operators, where they are known
    """
    template = template_of(form) if template is None else template
    seconds = operators_s(form, form.prices) if seconds is None else seconds
    prices = ArcPrices(form.mesh, form.searched, form.prices.move_s)
    arcs_s, hidden = [prices.arcs_s(ways) for ways in template.ways], HiddenSums(form)
    chunked = ChunkedArcs(form, hidden)

    def arc_s(value: Value, ways: LayoutPaths) -> np.ndarray:
        return arcs_s[value.ways] - hidden.arcs_s(value, ways) - chunked.saved_s(value, ways)

    tensors = (
        tensor(form, value, ways, arc_s(value, ways), hidden.again_s(value, ways))
        for value in template.values
        for ways in (template.ways[value.ways],)
    )
    return Problem(tuple(group(form, decision, seconds) for decision in template.decisions), tuple(tensors))


def updated_together(problem: Problem, form: OperatorInputs, template: Template, microbatches: int) -> Problem:
    """The same in a step of so many microbatches, what parameters cost once a step as if it were done for all of them
    together (``candidate_costs.UpdatedTogether``)."""
    groups = (
        stored(form, decision, microbatches) if decision.stored is not None else group
        for decision, group in zip(template.decisions, problem.groups, strict=True)
    )
    return replace(problem, groups=tuple(groups))


def operators_s(form: OperatorInputs, prices: Prices) -> Seconds:
    """Operators that are alike, and may do the same, are priced once."""
    found: dict[tuple[int, str], np.ndarray] = {}
    for index, operators in enumerate(form.operators):
        for name, operator in operators.items():
            here = (index, name)
            first, options = form.prepared.alike.get(here, here), form.options[here]
            known = found[first] if first in found and form.options[first] == options else None
            found[here] = prices.operators_s(operator, options) if known is None else known
    return found


def group(form: OperatorInputs, decision: Decision, seconds: Seconds) -> Group:
    """A decision with its prices."""
    if decision.stored is not None:
        return stored(form, decision)
    kind, block, name = decision.key
    zeros = np.zeros(len(decision.options))
    if kind != "node":
        return Group(decision.key, decision.options, zeros, zeros, zeros)
    operator, count = form.operators[block][name], decision.count
    kept = [count * bytes_beside(operator, o, form.mesh) for o in decision.options if isinstance(o, Strategy)]
    return Group(decision.key, decision.options, count * seconds[block, name], zeros, np.array(kept))


def stored(form: OperatorInputs, decision: Decision, microbatches: int = 0) -> Group:
    """How a parameter is stored, with its prices.

    microbatches  of a step in which all parameters are updated together; 0: each by itself
    """
    kind, count = decision.stored, decision.count
    assert kind is not None
    layouts = [option for option in decision.options if isinstance(option, Layout)]
    state = np.array([float(count * layout_bytes(kind, layout, form.mesh)) for layout in layouts])
    if decision.frozen:
        nothing = np.zeros(len(layouts))
        return Group(decision.key, decision.options, nothing, FROZEN * state, nothing)
    if microbatches:
        time_s = [count * form.prices.stored_at_least_s(kind, layout, microbatches) for layout in layouts]
    else:
        time_s = [form.prices.stored_s(kind, layout, count) for layout in layouts]
    touched = [touched_share(form, kind, layout) for layout in layouts]
    return Group(decision.key, decision.options, np.array(time_s) * touched, state, np.zeros(len(layouts)))


def touched_share(form: OperatorInputs, kind: TensorType, layout: Layout) -> float:
    """Of a parameter's bytes those that a step updates: all, but of tables that are split those of looked-up rows."""
    ways = math.prod(form.mesh.size(axis) for axes in layout.dims for axis in axes)
    for operator in form.prepared.by_rows:
        if operator.operands[0] == kind and ways > 1:
            rows = operator.node.type.shape[0] // ways
            found = traffic_of(operator.node, kind, ways, rows, sparse=True)
            return min(1.0, found.gradient_bytes() * ways / kind.bytes)
    return 1.0


def working_bytes(form: OperatorInputs, problem: Problem) -> list[np.ndarray]:
    """Of each group, bytes of an operator's result and of its gradient, where it is written: of what stands while a
    block runs, what its operators' own choices say."""
    found = []
    for group in problem.groups:
        kind, block, name = group.key
        sizes = []
        if kind == "node" and form.operators[block][name].writes:
            result = form.operators[block][name].node.type
            layouts = [o.output(len(result.shape), form.mesh) for o in group.options if isinstance(o, Strategy)]
            sizes = [2.0 * layout_bytes(result, layout, form.mesh) for layout in layouts]
        found.append(np.array(sizes))
    return found


def tensor(
    form: OperatorInputs, value: Value, way: LayoutPaths, arc_s: np.ndarray, again_s: np.ndarray
) -> Tensor:
    """A value with its prices; without the arcs on which there is no way."""
    beside = ways((a for axes in way.layouts[0].dims for a in axes if a not in form.searched), form.mesh)
    itemsize = value.kind.bytes // max(value.kind.elements, 1)
    parts = np.array([ways(split, form.mesh) for split in way.splits], dtype=int)
    kept = (value.count * itemsize * (value.kind.elements // (beside * parts))).astype(float)
    kept[value.whole] = 0.0
    there = np.isfinite(arc_s)
    return Tensor(
        value.block, value.name, way.layouts, value.source, value.given, value.sinks, way.arcs[there],
        value.count * arc_s[there], value.keepers, kept, value.count * again_s[there], value.stands,
    )  # fmt: skip
