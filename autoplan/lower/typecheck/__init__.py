"""The type checker of lowered programs: it proves every layout, and so that gradients are right.

It shows, axis by axis, that operators run as their rules allow and that redistributions lead where they say. A segment
hands on what the next one takes. A parameter's gradient is reduced exactly where ranks hold summands. Nothing crosses
microbatches. The loss is whole (I) or a summand (P), so a gradient of one on every rank is the loss's gradient.

Order: `body` (the statements of one block).
"""

from collections.abc import Iterator, Mapping

from autoplan.errors import LayoutError
from autoplan.ir.choice import tensor_mesh
from autoplan.ir.graph import Segment
from autoplan.ir.layout import I, Layout, P, R, State
from autoplan.ir.mesh import MICROBATCH, Mesh
from autoplan.ir.typed_program import Lowered, LoweredBlock, LoweredStage, StoredParameter, TypedValue
from autoplan.lower.typecheck.body import PLAN_AGAIN, Scope, check_statement, check_value
from autoplan.redistribution import simplify, sized

__all__ = ["typecheck"]


def typecheck(lowered: Lowered, apart: bool = False) -> None:
    """LayoutError, naming the block, the value, the operator and its module, at the first that doesn't follow.

    apart  each microbatch has its own statistics: what it sums up, and its loss, are whole in it
    """
    mesh = tensor_mesh(lowered.mesh)
    given = check_constants(lowered, mesh, apart)
    frozen = {(s.block, name) for s in lowered.segments for name in frozen_of(lowered, s)}
    for index, block in enumerate(lowered.blocks):
        check_block(block, mesh, apart, frozenset(name for of, name in frozen if of == index))
    check_chain(lowered, mesh)
    check_externals(lowered, given, mesh)
    for stage in lowered.stages:
        check_stage(lowered, stage, mesh)
    check_parameters(lowered, mesh)
    check_result(lowered, mesh, apart)


def check_constants(lowered: Lowered, mesh: Mesh, apart: bool) -> Mapping[str, TypedValue]:
    """The constants' statements; returns what blocks may read, in the layout in which they find it."""
    scope = Scope("constants", mesh, apart)
    for value in (*lowered.batch, *lowered.buffers):
        scope.enter(value, live=False)
    for statement in lowered.constants:
        check_statement(scope, statement)
        if statement.value.name in lowered.counts:
            scope.values[statement.value.name] = counted(lowered, statement.value, mesh, apart)
    return scope.values


def counted(lowered: Lowered, value: TypedValue, mesh: Mesh, apart: bool) -> TypedValue:
    """A count as it is read: it is summed over microbatches and batch axes, so on these it must be a summand."""
    summed = (*([] if apart else [MICROBATCH]), *lowered.batch_axes)
    for axis in sized(mesh):
        wanted = P if axis.name in summed else R
        state = value.layout.state(axis.name)
        if state != wanted:
            cause = f"a count that is summed over {', '.join(summed)} is {state} on axis {axis.name}, not {wanted}"
            raise LayoutError(f"constants: {value.name}", cause, "split what is counted as the batch is split")
    return TypedValue(value.name, value.type, Layout.of(len(value.type.shape), {}, mesh), value.local_shape)


def frozen_of(lowered: Lowered, segment: Segment) -> Iterator[str]:
    """A segment's parameters that aren't trained, by its block's names."""
    frozen = {stored.name for stored in lowered.parameters if not stored.trainable}
    own = zip(lowered.blocks[segment.block].parameters, segment.parameters, strict=True)
    return (value.name for value, name in own if name in frozen)


def check_block(block: LoweredBlock, mesh: Mesh, apart: bool, frozen: frozenset[str] = frozenset()) -> None:
    """``frozen``: of its parameters those that no gradient goes back to."""
    scope = Scope(block.name, mesh, apart)
    for value in (*block.inputs, *block.parameters):
        scope.enter(value, live=value.name not in frozen)
    for value in (*block.externals, *block.buffers):
        scope.enter(value, live=False)
    for statement in block.body:
        check_statement(scope, statement)
    for value in block.outputs:
        label = f"{block.name}: output {value.name}"
        inside = scope.read(value.name, label)
        if not same(scope, inside, value, value.name in scope.live):
            raise LayoutError(label, f"it leaves as {describe(value)}, but is {describe(inside)}", PLAN_AGAIN)


def same(scope: Scope, one: TypedValue, other: TypedValue, live: bool) -> bool:
    """Whether two values, whatever their names, are one type in one layout."""
    return one.type == other.type and scope.same(one.layout, other.layout, live)


def describe(value: TypedValue) -> str:
    return f"{value.type.dtype}{list(value.type.shape)} in {value.layout}"


def check_pairs(label: str, given: tuple[TypedValue, ...], taken: tuple[TypedValue, ...], mesh: Mesh) -> None:
    """What is given is what is taken, one by one."""
    if len(given) != len(taken):
        raise LayoutError(label, f"{len(given)} values are given where {len(taken)} are taken", PLAN_AGAIN)
    for one, other in zip(given, taken, strict=True):
        check_value(f"{label}: {one.name}", one, mesh)
        if not same(Scope(label, mesh), one, other, live=one.type.floating):
            cause = f"{one.name} is given as {describe(one)} and taken as {other.name}, {describe(other)}"
            raise LayoutError(label, cause, "redistribute it before it leaves")


def check_chain(lowered: Lowered, mesh: Mesh) -> None:
    """Each segment gives what the next one takes, in the same layouts; the first takes nothing."""
    given: tuple[TypedValue, ...] = ()
    for index, segment in enumerate(lowered.segments):
        block = lowered.blocks[segment.block]
        check_pairs(f"segment {index} ({segment.path or block.name})", given, block.inputs, mesh)
        given = block.outputs


def check_externals(lowered: Lowered, given: Mapping[str, TypedValue], mesh: Mesh) -> None:
    """Each constant, batch input and buffer is found in the layout in which a block reads it."""
    for index, segment in enumerate(lowered.segments):
        block = lowered.blocks[segment.block]
        read = zip((*segment.externals, *segment.buffers), (*block.externals, *block.buffers), strict=True)
        for name, value in read:
            label = f"segment {index} ({segment.path or block.name}): {value.name}"
            if name not in given:
                raise LayoutError(label, f"it reads {name!r}, which is no constant, buffer or batch input", PLAN_AGAIN)
            if not same(Scope(label, mesh), given[name], value, live=False):
                cause = f"it reads {name} as {describe(value)}, but finds {describe(given[name])}"
                raise LayoutError(label, cause, PLAN_AGAIN)


def check_stage(lowered: Lowered, stage: LoweredStage, mesh: Mesh) -> None:
    """A stage follows the one before it, takes and gives what its segments do, and has the constants they read."""
    index = lowered.stages.index(stage)
    label = f"stage {index}"
    begin = lowered.stages[index - 1].last if index else 0
    end = len(lowered.segments) if index == len(lowered.stages) - 1 else stage.last
    if not (stage.first == begin < stage.last == end):
        raise LayoutError(label, f"it holds segments [{stage.first}, {stage.last}), not [{begin}, {end})", PLAN_AGAIN)
    blocks = [lowered.blocks[segment.block] for segment in lowered.segments[stage.first : stage.last]]
    check_pairs(f"{label}, inputs", stage.inputs, blocks[0].inputs, mesh)
    check_pairs(f"{label}, outputs", blocks[-1].outputs, stage.outputs, mesh)
    check_stage_constants(lowered, stage, label)


def check_stage_constants(lowered: Lowered, stage: LoweredStage, label: str) -> None:
    """The constants that a stage recomputes: each after those it reads, and all that its segments read."""
    statements = {s.value.name: s for s in lowered.constants}
    found = {v.name for v in (*lowered.batch, *lowered.buffers)} | set(lowered.counts)
    for name in stage.constants:
        missing = [n for n in statements[name].reads if n not in found] if name in statements else [name]
        if missing:
            raise LayoutError(f"{label}: {name}", f"{', '.join(missing)} is not there when it is computed", PLAN_AGAIN)
        found.add(name)
    for segment in lowered.segments[stage.first : stage.last]:
        for name in segment.externals:
            if name not in found:
                raise LayoutError(
                    f"{label}: {name}", "a segment reads it, but the stage doesn't compute it", PLAN_AGAIN
                )


def uses(lowered: Lowered) -> Iterator[tuple[int, Segment, str, TypedValue]]:
    """(stage, segment, the parameter's name, the value as it is used) for every use of a parameter."""
    for index, stage in enumerate(lowered.stages):
        for segment in lowered.segments[stage.first : stage.last]:
            block = lowered.blocks[segment.block]
            for name, value in zip(segment.parameters, block.parameters, strict=True):
                yield index, segment, name, value


def check_parameters(lowered: Lowered, mesh: Mesh) -> None:
    stored = {parameter.name: parameter for parameter in lowered.parameters}
    holders: dict[str, set[int]] = {name: set() for name in stored}
    for p in lowered.parameters:
        check_value(f"parameter {p.name}", TypedValue(p.name, p.type, p.layout, p.local_shape), mesh)
    for stage, segment, name, value in uses(lowered):
        label = f"{segment.path or lowered.blocks[segment.block].name}: {value.name}, parameter {name}"
        if name not in stored:
            raise LayoutError(label, "it is used, but not stored", PLAN_AGAIN)
        holders[name].add(stage)
        check_use(label, stored[name], value, mesh)
    for name, parameter in stored.items():
        if tuple(sorted(holders[name])) != parameter.stages:
            cause = f"stages {parameter.stages} hold it, stages {tuple(sorted(holders[name]))} use it"
            raise LayoutError(f"parameter {name}", cause, PLAN_AGAIN)


def check_use(label: str, stored: StoredParameter, used: TypedValue, mesh: Mesh) -> None:
    """A parameter is stored as it is used: S as the same S, I as I, R as I with its gradient summed over the axis."""
    if stored.type != used.type:
        raise LayoutError(label, f"it is stored as {stored.type} and used as {used.type}", PLAN_AGAIN)
    here, there = (simplify(layout, mesh, True) for layout in (stored.layout, used.layout))
    if here.dims != there.dims:
        raise LayoutError(label, f"it is split as {used.layout}, but stored as {stored.layout}", PLAN_AGAIN)
    for axis in sized(mesh):
        state = there.state(axis.name)
        if axis.virtual:
            check_over_microbatches(label, state)
            continue
        if state.kind == "P" or (state in (I, R) and here.state(axis.name) != I):
            cause = f"on axis {axis.name} it is used as {state} and stored as {here.state(axis.name)}, not I"
            raise LayoutError(label, cause, PLAN_AGAIN)
        reduced = axis.name in stored.reduce_axes
        if stored.trainable and state == R and not reduced:
            cause = f"used as R on axis {axis.name}, each rank has a summand of its gradient, which is never summed"
            raise LayoutError(label, cause, f"add {axis.name} to its reduce_axes")
        if reduced and state != R:
            cause = f"used as {state} on axis {axis.name}, its gradient is whole, yet is summed over the axis"
            raise LayoutError(label, cause, f"drop {axis.name} from its reduce_axes")


def check_over_microbatches(label: str, state: State) -> None:
    if state != R:
        cause = f"it is used as {state} over the microbatches, whose gradients are accumulated"
        raise LayoutError(label, cause, "use it as R on axis mb")


def check_result(lowered: Lowered, mesh: Mesh, apart: bool) -> None:
    """A loss is I or P on each axis, P on those that split the batch; any other result is no summand. That of a
    microbatch with its own statistics is whole in it."""
    for value in lowered.stages[-1].outputs:
        label = f"{lowered.blocks[lowered.segments[-1].block].name}: result {value.name}"
        for axis in sized(mesh):
            state = value.layout.state(axis.name)
            if apart and axis.virtual and value.type.shape == () and state == R:
                continue
            if value.type.shape == () and (axis.virtual or axis.name in lowered.batch_axes) and state != P:
                cause = f"the loss is {state} on axis {axis.name}, whose ranks hold summands of it"
                raise LayoutError(label, cause, "leave it P: losses and gradients are summed by the step")
            if value.type.shape == () and state not in (I, P):
                cause = f"the loss is {state} on axis {axis.name}, so its gradient would be counted on every rank"
                raise LayoutError(label, cause, "let it end as I or P: all_reduce where it is reduced")
            if value.type.shape != () and state.kind == "P":
                cause = f"the result is {state} on axis {axis.name}: a summand, not the result"
                raise LayoutError(label, cause, f"insert all_reduce over axis {axis.name}")
