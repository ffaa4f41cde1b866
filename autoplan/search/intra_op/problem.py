"""The operator problem of one model on one mesh, as arrays: what may be chosen, what each choice costs.

Every distinct block stands in it once, weighted by the number of its segments. A *group* is a decision with exactly
one of its options taken: an operator's strategy, a boundary's layout, the layout in which a parameter is stored. A
*tensor* flows from the group that gives it to the groups that take it, along *arcs*, each a redistribution.

With x[g,o] = 1 where group g takes option o, f[t,c,a] the flow of tensor t to its consumer c along arc a, y[t,a] = 1
where arc a is paid, and z[t,l] = 1 where t is kept for the backward in layout l:

    minimise   Σ x (time + w_state·state + w_act·kept)  +  Σ y·arc  +  w_act Σ z·kept        program.cost
    Σ_o x[g,o] = 1                                            for each group g               program.choose_one
    given(t,l) + Σ_{a into l} f[t,c,a] = taken(t,c,l) + Σ_{a from l} f[t,c,a]                program.conserve
    f[t,c,a] ≤ y[t,a]        where t has several consumers; else f is y                      program.share
    z[t,l] ≥ Σ_{o keeps t in l} x[g,o]                        for each keeper g of t         program.keep

given(t,l) = Σ x[g,o] over the options of t's producer that give it in l; taken likewise. The arcs that one tensor pays
for form a tree over its layouts (shared flow), so a redistribution that two consumers need is paid once.

One to three axes are searched. An operator's strategies are products of those on the single axes, and a tensor's
layouts mixtures of the states met on them (``flows.between``); an arc changes one axis, or several alike, and costs
its single step (``Prices.direct``), or over one axis the cheapest way (``flows.Flows``). What a named system asks
narrows the options (``tensor.as_asked``) and the boundary's and the stored layouts; ``prune.prune`` drops options and
arcs that no optimum needs.

The output of a segment and the input of the next are one tensor in one layout: both are the same boundary group, also
where a block follows itself. A parameter that several blocks or segments share has one group for how it is stored.
Collectives from a parameter other than I -> R are left out: a parameter is not gathered inside a microbatch, but over
the axis over which a named system gathers it (``TensorSystem.gathered``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from autoplan.cost import Operator
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.rules.strategies import Strategy
from autoplan.search.intra_op.classes import GroupKey
from autoplan.search.intra_op.flows import Flow, Flows, Ways, local_bytes, local_elements, ways
from autoplan.search.intra_op.inputs import Formulation, Prices
from autoplan.search.intra_op.template import Decision, Outline, Value, outline_of


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


@dataclass(frozen=True)
class Problem:
    groups: tuple[Group, ...]
    tensors: tuple[Tensor, ...]

    def index(self, key: GroupKey) -> int:
        for i, group in enumerate(self.groups):
            if group.key == key:
                return i
        raise KeyError(key)


Seconds = Mapping[tuple[int, str], np.ndarray]
"""Of every operator, by (block, name): seconds of each of its options in one microbatch."""


def build(form: Formulation, outline: Outline | None = None, seconds: Seconds | None = None) -> Problem:
    """The arrays.

    outline  of a formulation that differs in sizes alone; None: the form's own
    seconds  of the operators, where they are known
    """
    outline = outline_of(form) if outline is None else outline
    seconds = operators_s(form, form.prices) if seconds is None else seconds
    flows = Flows(form.mesh, form.searched, form.prices.move_s)
    priced = [flows.priced(*found) for found in outline.ways]
    tensors = (tensor(form, value, outline.ways[value.ways][0], priced[value.ways]) for value in outline.values)
    return Problem(tuple(group(form, decision, seconds) for decision in outline.decisions), tuple(tensors))


def operators_s(form: Formulation, prices: Prices) -> Seconds:
    """Operators that are alike, and may do the same, are priced once."""
    found: dict[tuple[int, str], np.ndarray] = {}
    for index, operators in enumerate(form.operators):
        for name, operator in operators.items():
            here = (index, name)
            first, options = form.alike.get(here, here), form.options[here]
            known = found[first] if first in found and form.options[first] == options else None
            found[here] = prices.operators_s(operator, options) if known is None else known
    return found


def group(form: Formulation, decision: Decision, seconds: Seconds) -> Group:
    """A decision with its prices."""
    kind, block, name = decision.key
    zeros = np.zeros(len(decision.options))
    if kind == "node":
        operator, count = form.operators[block][name], decision.count
        options = [option for option in decision.options if isinstance(option, Strategy)]
        kept = np.array([count * extra_bytes(operator, option, form.mesh) for option in options])
        return Group(decision.key, decision.options, count * seconds[block, name], zeros, kept)
    if decision.stored is None:
        return Group(decision.key, decision.options, zeros, zeros, zeros)
    layouts = [option for option in decision.options if isinstance(option, Layout)]
    time_s = np.array([form.prices.stored_s(decision.stored, layout, decision.count) for layout in layouts])
    state = [decision.count * local_bytes(decision.stored, layout, form.mesh) for layout in layouts]
    return Group(decision.key, decision.options, time_s, np.array(state, dtype=float), zeros)


def extra_bytes(operator: Operator, strategy: Strategy, mesh: Mesh) -> float:
    """What an operator keeps beside tensors."""
    if not operator.rule.saved_bytes_per_element or not operator.result_carries:
        return 0.0
    layout = strategy.output(len(operator.node.type.shape), mesh)
    return operator.rule.saved_bytes_per_element * local_elements(operator.node.type, layout, mesh)


def tensor(form: Formulation, value: Value, way: Ways, flow: Flow) -> Tensor:
    """A value with its prices."""
    beside = ways((a for axes in way.layouts[0].dims for a in axes if a not in form.searched), form.mesh)
    itemsize = value.kind.bytes // max(value.kind.elements, 1)
    parts = np.array([ways(split, form.mesh) for split in way.splits], dtype=int)
    kept = (value.count * itemsize * (value.kind.elements // (beside * parts))).astype(float)
    kept[value.whole] = 0.0
    return Tensor(
        value.block, value.name, flow.layouts, value.source, value.given, value.sinks, flow.arcs,
        value.count * flow.arc_s, value.keepers, kept,
    )  # fmt: skip


def alone(problem: Problem, block: int, shares: Mapping[GroupKey, float]) -> Problem:
    """The part of a problem that belongs to one block: its operators and the ways of its values. Borders cost nothing,
    nor does what a parameter costs once a step, however it is stored: a stage's gradients are summed together.

    shares  of each way to store parameters, how much of what is stored so is the block's
    """
    tensors = [t for t in problem.tensors if t.block == block]
    mine = {t.source for t in tensors} | {g for t in tensors for g, _ in t.sinks}
    mine |= {i for i, group in enumerate(problem.groups) if group.key[:2] == ("node", block)}
    place = {old: new for new, old in enumerate(sorted(mine))}
    groups = [problem.groups[old] for old in sorted(mine)]
    groups = [
        replace(g, time_s=0 * g.time_s, state_bytes=g.state_bytes * shares[g.key]) if g.key[0] == "stored" else g
        for g in groups
    ]
    return Problem(tuple(groups), tuple(moved(t, place) for t in tensors))


def moved(tensor: Tensor, place: dict[int, int]) -> Tensor:
    return replace(
        tensor,
        source=place[tensor.source],
        sinks=tuple((place[g], taken) for g, taken in tensor.sinks),
        keepers=tuple((place[g], kept) for g, kept in tensor.keepers),
    )
