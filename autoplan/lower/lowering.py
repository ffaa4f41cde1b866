"""Choice -> typed program: every value gets its layout, every redistribution is inserted.

Nothing is decided here. Each operator runs as the search chose; where an operand isn't in the layout that its strategy
asks for, the hops that the search priced are emitted, each once, just before the first operator that needs it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from autoplan.errors import LayoutError
from autoplan.ir.choice import BlockChoice, Chosen, Hop, StageChoice, tensor_mesh
from autoplan.ir.graph import Argument, Block, Model, Node, Ref, Segment, TensorType, free_name, map_refs
from autoplan.ir.layout import I, Layout, R
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import (
    Collective,
    Compute,
    Lowered,
    LoweredBlock,
    LoweredStage,
    Move,
    StoredParameter,
    TokenFlight,
    TypedValue,
    needed,
)
from autoplan.lower.joined import joined_products
from autoplan.option_values import cuts
from autoplan.redistribution import follow, redistribute, simplify
from autoplan.redistribution.chunks import check_cut
from autoplan.redistribution.hidden import hidden_hops
from autoplan.redistribution.shared_experts import in_order, overlapped
from autoplan.rules.nn.expert_capacity import limit_of_rows, travels
from autoplan.rules.registry import rule_of
from autoplan.rules.strategies import Strategy, local_arguments

SUFFIX = {
    "all_reduce": "reduced", "all_reduce_to_replicate": "reduced", "all_reduce_max": "reduced",
    "all_gather": "gathered", "all_gather_invariant": "gathered", "reduce_scatter": "scattered",
    "all_to_all": "exchanged", "exchange": "exchanged",
    "exchange_invariant": "exchanged", "exchange_sum": "scattered", "reduce_scatter_max": "scattered",
    "permute": "permuted", "shard": "part", "shard_invariant": "part", "to_replicate": "replicated",
}  # fmt: skip


def lower(model: Model, chosen: Chosen) -> Lowered:
    """The typed program of one choice."""
    mesh = tensor_mesh(chosen.mesh)
    batch = tuple(typed_value(t.name, t.type, x, mesh) for t, x in zip(model.batch, chosen.batch, strict=True))
    buffers = tuple(whole_value(b.name, b.type, mesh) for b in model.buffers)
    constants = lower_constants(model, chosen, (*batch, *buffers), mesh)
    hides, selects = not chosen.parallelism.splits_backward, any(stage.selective for stage in chosen.stages)
    blocks = tuple(lower_block(b, c, mesh, hides, selects) for b, c in zip(model.blocks, chosen.blocks, strict=True))
    hosts = chosen.parallelism.offload == "activations"
    stages = tuple(lower_stage(model, blocks, stage, constants, hosts) for stage in chosen.stages)
    return Lowered(
        name=model.name,
        mesh=chosen.mesh,
        batch=batch,
        constants=constants,
        counts=model.counts,
        blocks=blocks,
        segments=model.segments,
        stages=stages,
        parameters=stored_parameters(model, chosen, mesh),
        buffers=buffers,
    )


def typed_value(name: str, kind: TensorType, layout: Layout, mesh: Mesh) -> TypedValue:
    return TypedValue(name, kind, layout, layout.local_shape(kind.shape, mesh))


def whole_value(name: str, kind: TensorType, mesh: Mesh) -> TypedValue:
    return typed_value(name, kind, Layout.of(len(kind.shape), {}, mesh), mesh)


class Body:
    """The statements of one block as they grow: which value stands in which layout under which name."""

    def __init__(
        self, entering: Iterable[TypedValue], hops: Sequence[Hop], carries: frozenset[str], taken: Iterable[str],
        mesh: Mesh,
    ) -> None:  # fmt: skip
        self.mesh, self.carries = mesh, carries
        self.hops = {(hop.value, hop.target): hop for hop in hops}
        self.found: dict[str, dict[Layout, TypedValue]] = {}
        self.statements: list[Compute | Move] = []
        self.taken = set(taken)
        for value in entering:
            self.found[value.name] = {value.layout: value}

    def in_layout(self, name: str, layout: Layout) -> TypedValue:
        """The value in that layout, moved there first where it isn't."""
        places = self.found[name]
        if layout in places:
            return places[layout]
        hop = self.hops.get((name, layout))
        given = self.in_layout(name, hop.source) if hop is not None else next(iter(places.values()))
        steps = self.steps(given, layout, hop, name in self.carries)
        moved = typed_value(self.fresh(name, steps), given.type, layout, self.mesh)
        self.statements.append(Move(moved, given.name, steps))
        places[layout] = moved
        return moved

    def steps(self, given: TypedValue, layout: Layout, hop: Hop | None, carries: bool) -> tuple[Collective, ...]:
        """The steps that were priced, at this program's sizes; found anew where none were."""
        if hop is None or hop.steps is None:
            return redistribute(given.layout, layout, given.type, self.mesh, carries_gradient=carries)
        here, written = simplify(given.layout, self.mesh, carries, given.type.shape), []
        # as on one device, where no axis has two members
        if here == simplify(layout, self.mesh, carries, given.type.shape):
            return ()
        for step in hop.steps:
            try:
                here, one = follow(here, step, given.type, self.mesh, carries_gradient=carries)
            except ValueError as error:
                raise LayoutError(f"{given.name} redistributed", str(error), "plan again, or undo the edit") from None
            written.append(one)
        return tuple(written)

    def fresh(self, name: str, steps: Sequence[Collective]) -> str:
        base = f"{name.replace('.', '_')}_{SUFFIX.get(steps[-1].op, 'moved') if steps else 'same'}"
        found = free_name(base, self.taken, first=2)
        self.taken.add(found)
        return found

    def operands(self, node: Node, strategy: Strategy, types: Mapping[str, TensorType]) -> list[str]:
        """Its operands in the layouts that its strategy asks for, moved there first where they aren't."""
        layouts = [strategy.input(i, len(types[name].shape), self.mesh) for i, name in enumerate(node.operands)]
        return [self.in_layout(name, layout).name for name, layout in zip(node.operands, layouts, strict=True)]

    def compute(
        self, node: Node, strategy: Strategy, types: Mapping[str, TensorType],
        further: Sequence[tuple[str, Argument]] = (),
    ) -> TypedValue:  # fmt: skip
        """Adds one operator, its operands brought into the layouts that its strategy asks for.

        further  what its body takes beside its own arguments
        """
        names = self.operands(node, strategy, types)
        value = typed_value(node.name, node.type, strategy.output(len(node.type.shape), self.mesh), self.mesh)
        args, kwargs = local_arguments(rule_of(node, types), node, value.local_shape)
        moved = iter(names)

        def renamed(argument: Argument) -> Argument:
            return map_refs(argument, lambda _: Ref(next(moved)))

        self.statements.append(
            Compute(
                value,
                node.op,
                tuple(map(renamed, args)),
                (*((k, renamed(v)) for k, v in kwargs), *further),
                tuple((axis, s if self.mesh.size(axis) > 1 else replace(s, body="")) for axis, s in strategy.axes),
                node.module,
                math.prod(self.mesh.size(axis) for axis, s in strategy.axes if s.scaled),
            )
        )
        self.found[node.name] = {value.layout: value}
        return value


def lower_block(
    block: Block, choice: BlockChoice, mesh: Mesh, hides: bool = True, selects: bool = False
) -> LoweredBlock:
    """hides    a product's backward may give its input's gradient before its weight's, and that of several products at
                once; no autograd that is asked for either alone may
    selects  some stage recomputes selectively
    """
    types, beside = block.types(), overlapped(block, choice, mesh)
    block = in_order(block, beside)
    inputs = tuple(typed_value(t.name, t.type, x, mesh) for t, x in zip(block.inputs, choice.inputs, strict=True))
    externals = tuple(typed_value(n, types[n], x, mesh) for n, x in choice.externals)
    parameters = tuple(typed_value(n, types[n], x, mesh) for n, x in choice.parameters)
    buffers = tuple(whole_value(b.name, b.type, mesh) for b in block.buffers)
    body = Body((*inputs, *externals, *parameters, *buffers), choice.hops, block.carries_gradient(), types, mesh)
    strategies, exchanges = dict(choice.strategies), dict(choice.exchanges)
    starts = {(*each.first, *each.last)[0]: name for name, each in beside.items()}
    runs = {(*each.last, name)[0]: name for name, each in beside.items()}
    nodes, begun, ran, experts = {node.name: node for node in block.nodes}, *(dict[str, int]() for _ in range(3))
    for node in block.nodes:
        if node.name in starts:
            mixture = nodes[starts[node.name]]
            body.operands(mixture, strategies[mixture.name], types)
            begun[mixture.name] = len(body.statements)
            kind, chosen = types[mixture.operands[3]], strategies[mixture.name]
            experts[mixture.name] = chosen.input(3, len(kind.shape), mesh).local_shape(kind.shape, mesh)[0]
        if node.name in runs:
            ran[runs[node.name]] = len(body.statements)
        strategy, how = strategies[node.name], exchanges.get(node.name, 1)
        limit = limit_of_rows(block, node, strategy, mesh)
        further: list[tuple[str, Argument]] = [] if limit is None else [("capacity", limit)]
        further += [("chunks", how)] if cuts(how) and travels(strategy, mesh) else []
        body.compute(node, strategy, types, further)
    outputs = tuple(body.in_layout(n, x) for n, x in zip(block.outputs, choice.outputs, strict=True))
    again = tuple(body.found[name][layout].name for name, layout in choice.again)
    hidden = hidden_hops(block, choice, mesh) if hides else {}
    moved = tuple(
        (body.found[hop.value][hop.target].name, tuple(node.name for node in hidden[number]))
        for number, hop in enumerate(choice.hops) if number in hidden
    )  # fmt: skip
    statements = tuple(body.statements)
    computed = frozenset(again if selects else ())
    apart = {name: part for each in beside.values() for part, names in enumerate(vars(each).values()) for name in names}
    joined = joined_products(block, statements, parameters, computed, moved, apart) if hides else ()
    flights = tuple(
        TokenFlight(name, statements[begun[name]].value.name, statements[ran[name]].value.name, experts[name])
        for name in beside
    )
    found = LoweredBlock(
        block.name, inputs, externals, parameters, buffers, statements, outputs, again, moved, joined, flights
    )
    check_cut(found)
    return found


def lower_constants(
    model: Model, chosen: Chosen, entering: Sequence[TypedValue], mesh: Mesh
) -> tuple[Compute | Move, ...]:
    types = model.types()
    body = Body(entering, (), frozenset(), types, mesh)
    strategies = dict(chosen.constants)
    for node in model.constants:
        body.compute(node, strategies[node.name], types)
    return tuple(body.statements)


def lower_stage(
    model: Model, blocks: Sequence[LoweredBlock], stage: StageChoice, constants: Sequence[Compute | Move],
    hosts: bool = False,
) -> LoweredStage:  # fmt: skip
    """``hosts``: activations are offloaded."""
    segments = model.segments[stage.first : stage.last]
    read = (name for segment in segments for name in segment.externals)
    return LoweredStage(
        first=stage.first,
        last=stage.last,
        inputs=blocks[segments[0].block].inputs,
        outputs=blocks[segments[-1].block].outputs,
        constants=tuple(s.value.name for s in needed(constants, read, model.counts)),
        recompute=stage.recompute,
        selective=0 if hosts else stage.selective,
        offloaded=stage.selective if hosts else 0,
    )


def stored_parameters(model: Model, chosen: Chosen, mesh: Mesh) -> tuple[StoredParameter, ...]:
    """Each parameter as it is stored: an R use is stored I and its gradient summed over the axis once a step."""
    used = used_layouts(model, chosen)
    stored = []
    for parameter in model.parameters:
        layout = used.get(parameter.name)
        if layout is None:
            continue
        states = layout.states()
        summed = mesh.device_axes if parameter.trainable else ()
        reduce_axes = tuple(a.name for a in summed if states[a.name] == R and a.size > 1)
        keep = {axis: I if state == R else state for axis, state in states.items()}
        kept = Layout.of(len(parameter.type.shape), keep, mesh)
        stored.append(
            StoredParameter(
                 **vars(parameter),
                layout=kept,
                local_shape=kept.local_shape(parameter.type.shape, mesh),
                reduce_axes=reduce_axes,
                stages=holders(parameter.name, model.segments, chosen),
            )
        )
    return tuple(stored)


def used_layouts(model: Model, chosen: Chosen) -> dict[str, Layout]:
    """The layout in which each parameter is met; every block that reads one meets it in the same layout."""
    used: dict[str, Layout] = {}
    for segment in model.segments:
        for name, (_, layout) in zip(segment.parameters, chosen.blocks[segment.block].parameters, strict=True):
            assert used.setdefault(name, layout) == layout, f"{name} is met as {used[name]} and as {layout}"
    return used


def holders(name: str, segments: Sequence[Segment], chosen: Chosen) -> tuple[int, ...]:
    """The pipeline stages whose segments read a parameter."""
    return tuple(
        index
        for index, stage in enumerate(chosen.stages)
        if any(name in segment.parameters for segment in segments[stage.first : stage.last])
    )
