"""Rule × mesh -> the ways to run one operator.

An operator's strategies on a mesh are products of its strategies on the single axes: the local tensors of one axis
are the whole tensors of the next. What ties the axes together is only that a factor's size must divide by the product
of all the axes that split it.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.ir.graph import Argument, Node, TensorType
from autoplan.ir.layout import PMAX, I, Layout, P, R, S, State
from autoplan.ir.mesh import CONTEXT, INNER_CONTEXT, Mesh
from autoplan.rules.registry import AxisStrategy, Rule, Term, factor_sizes

ANY_ROWS: Mapping[str, slice] = {"placed_lookups": slice(1), "routed_experts": slice(3, None)}
"""Bodies that don't mind which rows of the batch a rank has, so that other axes may split them too, and the operands
that they split for themselves: tables, or experts' weights."""

GO_ROUND = ("ring_attention",)
"""Bodies on one axis alone, or on both factors of the context's as on one."""
SYNC_BATCH_NORM = "sync_batch_norm"


@dataclass(frozen=True)
class Strategy:
    """One way to run an operator on a whole mesh: one AxisStrategy for each axis, in the mesh's order."""

    axes: tuple[tuple[str, AxisStrategy], ...]

    def on(self, axis: str) -> AxisStrategy:
        for name, strategy in self.axes:
            if name == axis:
                return strategy
        raise KeyError(axis)

    def input(self, operand: int, rank: int, mesh: Mesh) -> Layout:
        """The layout in which the operand must come; ``rank`` is its number of dims."""
        return Layout.of(rank, {name: strategy.inputs[operand] for name, strategy in self.axes}, mesh)

    def output(self, rank: int, mesh: Mesh) -> Layout:
        return Layout.of(rank, {name: strategy.output for name, strategy in self.axes}, mesh)


def axis_strategies(rule: Rule, operands: Sequence[TensorType], carries: Sequence[bool]) -> tuple[AxisStrategy, ...]:
    """Every way to run an operator on one axis, whatever the axis' size.

    operands  types of the tensors it reads
    carries   for each, whether it may carry a gradient; one that doesn't is neutral and its I is written R
    """
    found = replicated(carries)
    found += [s for f in rule.factors if f not in rule.whole_factors for s in split_factor(rule, f)]
    for group in rule.linear:
        if any(operands[i].dtype == "bool" for i in group):
            continue  # truth values don't add up
        found.append(AxisStrategy(tuple(P if i in group else R for i in range(len(operands))), P))
    found += rule.extra
    if any(carries):  # a rank can't know whether its operand of max won, so no gradient could pass
        found = [s for s in found if s.output != PMAX]
    return tuple(dict.fromkeys(found))


def replicated(carries: Sequence[bool]) -> list[AxisStrategy]:
    """What any operator can do, one without a rule too: everything whole."""
    found = [AxisStrategy(tuple(R for _ in carries), R)]
    return [*found, AxisStrategy(tuple(I if c else R for c in carries), I)] if any(carries) else found


def split_factor(rule: Rule, factor: str) -> tuple[AxisStrategy, ...]:
    """The strategy that splits one factor; none where it is not the outermost of a compound dim, or stands twice."""
    places = [place(terms, factor) for terms in (*rule.operands, rule.result)]
    if any(p == "blocked" for p in places):
        return ()
    states = tuple(S(p) if isinstance(p, int) else R for p in places[:-1])
    out = places[-1]
    if isinstance(out, int):
        return (AxisStrategy(states, S(out), factor),)
    partial = PMAX if rule.reduce == "max" else P
    return (AxisStrategy(states, partial, factor, scaled=rule.reduce == "mean"),)


def apart_strategies(found: Iterable[AxisStrategy]) -> tuple[AxisStrategy, ...]:
    """The strategies on the microbatches' axis where each microbatch has its own statistics.

    What is summed up over its rows is whole in it, R and never P, and a mean is its own. Bodies exchange nothing there:
    batch norm's, on the ranks' axes, joins the rows of one microbatch.
    """
    ways = []
    for s in found:
        if not s.body or s.body == SYNC_BATCH_NORM:
            inputs = tuple(R if state.kind == "P" else state for state in s.inputs)
            ways.append(replace(s, inputs=inputs, output=R if s.output.kind == "P" else s.output, scaled=False))
    return tuple(dict.fromkeys(ways))


def place(terms: Sequence[Term], factor: str) -> int | str | None:
    """The dim in which the factor is outermost; "blocked" where it can't be split; None where it isn't."""
    dims = [i for i, term in enumerate(terms) if factor in term]
    if not dims:
        return None
    if len(dims) > 1 or terms[dims[0]][0] != factor:
        return "blocked"
    return dims[0]


def fits(
    rule: Rule, chosen: Iterable[tuple[str, AxisStrategy]], operands: Sequence[TensorType], result: TensorType,
    mesh: Mesh, sizes: Mapping[str, int] | None = None,
) -> bool:  # fmt: skip
    """Whether the strategies of the axes go together: the sizes divide, each factor by the product of the axes that
    split it, each split dim likewise; and a body, which stands for the operator on all its axes, is the only one and
    has the dims that it splits for itself.

    sizes  of the rule's factors, where they are known
    """
    sizes = factor_sizes(rule, operands, result) if sizes is None else sizes
    chosen = tuple(chosen)
    if not bodies_agree(once_round(chosen)):
        return False
    for factor in {s.factor for _, s in chosen if s.factor in sizes}:
        ways = 1
        for axis, strategy in chosen:
            ways *= mesh.size(axis) if strategy.factor == factor else 1
        if sizes[factor] % ways:
            return False
    tensors = [(t, tuple((a, s.inputs[i]) for a, s in chosen)) for i, t in enumerate(operands)]
    tensors.append((result, tuple((a, s.output) for a, s in chosen)))
    return all(divides(t, states, mesh) for t, states in tensors)


def alike(strategy: AxisStrategy, given: Iterable[AxisStrategy]) -> AxisStrategy | None:
    """Of these the one that computes the same, whatever its rule calls the factor that is split: names follow the
    sizes of dims, and one of size 1 has none. None where none does."""
    nameless = replace(strategy, factor="")
    found = [way for way in given if way == strategy] or [w for w in given if replace(w, factor="") == nameless]
    return found[0] if found else None


def once_round(chosen: Sequence[tuple[str, AxisStrategy]]) -> list[AxisStrategy]:
    """The strategies of the axes; that of the context's two factors once where one ring goes round both."""
    outer = [s for axis, s in chosen if axis == CONTEXT and s.body in GO_ROUND]
    return [s for axis, s in chosen if axis != INNER_CONTEXT or s not in outer]


def bodies_agree(chosen: Sequence[AxisStrategy]) -> bool:
    """Whether at most one body is used, on as many axes as it may be, and no other strategy splits a dim that it
    splits. One that doesn't mind which rows it has may have them by other dims on each axis."""
    distinct = set(chosen)
    bodies = [s for s in distinct if s.body]
    alike = len({s.body for s in bodies}) == 1 and bodies[0].body in ANY_ROWS
    if (len(bodies) > 1 and not alike) or any(body.single and chosen.count(body) > 1 for body in bodies):
        return False
    if not bodies:
        return True
    taken = split_dims(bodies[0])
    own = ANY_ROWS.get(bodies[0].body)
    if own is not None:
        operands = range(len(bodies[0].inputs))[own]
        taken = {(tensor, dim) for tensor, dim in taken if tensor in operands}
    return all(not taken & split_dims(s) for s in distinct if not s.body)


def split_dims(strategy: AxisStrategy) -> set[tuple[int, int]]:
    """(tensor, dim) of everything the strategy splits; the result counts as tensor -1."""
    states = [*enumerate(strategy.inputs), (-1, strategy.output)]
    return {(tensor, state.dim) for tensor, state in states if state.kind == "S"}


def divides(tensor: TensorType, states: Iterable[tuple[str, State]], mesh: Mesh) -> bool:
    """Whether each dim's size is a multiple of the product of the axes that split it."""
    left = list(tensor.shape)
    for axis, state in states:
        if state.kind == "S":
            if left[state.dim] % mesh.size(axis):
                return False
            left[state.dim] //= mesh.size(axis)
    return True


def strategies(
    rule: Rule, operands: Sequence[TensorType], result: TensorType, carries: Sequence[bool], mesh: Mesh,
    pinned: Mapping[str, AxisStrategy] | None = None,
) -> tuple[Strategy, ...]:  # fmt: skip
    """Every strategy on a mesh whose sizes divide; ``pinned`` fixes the strategy on some axes (the batch's)."""
    pinned = pinned or {}
    single = axis_strategies(rule, operands, carries)
    choices = []
    for axis in mesh.axes:
        if axis.name in pinned:
            choices.append([(axis.name, pinned[axis.name])])
        elif axis.size == 1:
            choices.append([(axis.name, single[0])])
        else:
            choices.append([(axis.name, s) for s in single if not (s.body and axis.virtual)])
    combos, sizes = itertools.product(*choices), factor_sizes(rule, operands, result)
    return tuple(Strategy(c) for c in combos if fits(rule, c, operands, result, mesh, sizes))


def local_arguments(
    rule: Rule, node: Node, local_shape: tuple[int, ...]
) -> tuple[tuple[Argument, ...], tuple[tuple[str, Argument], ...]]:
    """The node's args and kwargs for one rank: sizes that follow the result's (``shape_arg``, ``factor_args``) become
    local, all else stays; ``local_shape`` is the shape of one rank's part of the result."""
    args, kwargs = list(node.args), dict(node.kwargs)
    if isinstance(rule.shape_arg, int):
        args[rule.shape_arg] = tuple(local_shape)
    elif rule.shape_arg is not None:
        kwargs[rule.shape_arg] = tuple(local_shape)
    for position, factor in rule.factor_args:
        dim, inner = next((d, t[1:]) for d, t in enumerate(rule.result) if t and t[0] == factor)
        args[position] = local_shape[dim] // math.prod(rule.sizes[f] for f in inner)
    return tuple(args), tuple(kwargs.items())
