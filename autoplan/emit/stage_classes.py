"""Pipeline stages -> the classes that hold their segments, one class for each distinct kind of stage.

A stage recomputes the constants it reads from the batch, then runs its segments in order. A run of segments of one
block is a ModuleList; stages that differ only in where they begin share a class.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from autoplan.emit.block import Scope, axes_used, emit_body, keywords_of, local_names
from autoplan.emit.naming import REST, keyword_arguments
from autoplan.emit.size_names import Names, Sized
from autoplan.emit.source import commented, identifier, live_axes, shape_comment, snake_case
from autoplan.emit.unmoved_values import also_named, unmoved
from autoplan.ir.graph import Segment, free_name
from autoplan.ir.typed_program import Compute, Lowered, LoweredBlock, LoweredStage, Statement, needed


@dataclass(frozen=True)
class Run:
    """Consecutive segments of one block that read the same constants: segments [first, last) of the chain."""

    attribute: str
    first: int
    last: int
    externals: tuple[str, ...]

    @property
    def repeated(self) -> bool:
        return self.last - self.first > 1


def runs_of(lowered: Lowered, stage: LoweredStage) -> tuple[Run, ...]:
    """The stage's segments as runs, each with an attribute name of its own."""
    runs: list[Run] = []
    taken: set[str] = set()
    position = stage.first
    while position < stage.last:
        segment = lowered.segments[position]
        end = position + 1
        while end < stage.last and same_call(lowered.segments[end], segment):
            end += 1
        attribute = free_name(run_name(lowered, position, end), taken, first=2)
        taken.add(attribute)
        runs.append(Run(attribute, position, end, segment.externals))
        position = end
    return tuple(runs)


def same_call(one: Segment, other: Segment) -> bool:
    return one.block == other.block and one.externals == other.externals


def run_name(lowered: Lowered, first: int, last: int) -> str:
    """"layers" for model.layers.0 …; the block's own name for a single segment, with an underscore where a module has
    a method of that name ("double_")."""
    words = [w for w in lowered.segments[first].path.split(".") if w and not w.isdigit()]
    several = last - first > 1 and words
    name = identifier(words[-1] if several else snake_case(lowered.blocks[lowered.segments[first].block].name))
    return f"{name}_" if hasattr(nn.Module, name) else name


def stage_key(lowered: Lowered, stage: LoweredStage) -> tuple:
    """What makes two stages the same class: all but where in the chain they begin."""
    shape = tuple((lowered.segments[i].block, lowered.segments[i].externals) for i in range(stage.first, stage.last))
    return shape, stage.recompute, stage.selective, stage.offloaded, stage.constants


def names_read(lowered: Lowered, stage: LoweredStage) -> set[str]:
    """What the stage's segments and its constants read."""
    wanted = {n for s in lowered.segments[stage.first : stage.last] for n in s.externals}
    return wanted.union(*(statement.reads for statement in stage_statements(lowered, stage)))


def stage_reads(lowered: Lowered, stage: LoweredStage) -> tuple[str, ...]:
    """Batch inputs and counts that the stage takes as keywords, in the program's order."""
    wanted = names_read(lowered, stage)
    return tuple(v.name for v in lowered.batch if v.name in wanted) + tuple(n for n in lowered.counts if n in wanted)


def emit_stage(
    lowered: Lowered, stage: LoweredStage, name: str, where: str, reserved: frozenset[str],
    programs: Sequence[Sized] = (),
) -> list[str]:  # fmt: skip
    """The class of a kind of stage; ``first`` is the segment that it begins with."""
    scope = stage_scope(lowered, stage, reserved, programs)
    runs = runs_of(lowered, stage)
    lines = [f"class {name}(nn.Module):", f'    """{where}."""', ""]
    lines += stage_init(lowered, stage, runs)
    lines += ["", *stage_forward(lowered, stage, runs, scope)]
    return lines


def stage_statements(lowered: Lowered, stage: LoweredStage) -> tuple[Statement, ...]:
    return tuple(s for s in lowered.constants if s.value.name in stage.constants)


def stage_scope(
    lowered: Lowered, stage: LoweredStage, reserved: frozenset[str], programs: Sequence[Sized]
) -> Scope:
    names = {b.name: f"self.{identifier(b.name)}" for b in lowered.buffers}
    produced, same = [*lowered.batch, *(s.value for s in lowered.constants)], unmoved(lowered.constants)
    made, taken = [v.name for v in produced if v.name not in same], set(activation_names(lowered, stage))
    words = local_names(made, reserved | {"device"} | taken)
    ranks = {v.name: len(v.local_shape) for v in (*produced, *lowered.buffers)}
    entering = list(zip(activation_names(lowered, stage), stage.inputs, strict=False))
    entering += [(words[v.name], v) for v in lowered.batch if v.name in stage_reads(lowered, stage)]
    sizes = Names(programs, [(name, value.local_shape) for name, value in entering])
    return Scope(also_named({**words, **names}, same), ranks, live_axes(lowered.mesh), sizes=sizes)


def buffers_read(lowered: Lowered, stage: LoweredStage) -> tuple[str, ...]:
    wanted = names_read(lowered, stage)
    return tuple(b.name for b in lowered.buffers if b.name in wanted)


def stage_init(lowered: Lowered, stage: LoweredStage, runs: Sequence[Run]) -> list[str]:
    lines = ["    def __init__(self, parameters: Parameters, mesh: dict[str, MeshAxis], first: int) -> None:"]
    lines.append("        super().__init__()")
    lines += [f'        self.{axis} = mesh["{axis}"]' for axis in axes_used(stage_statements(lowered, stage))]
    for name in buffers_read(lowered, stage):
        register = f'self.register_buffer("{identifier(name)}", parameters.buffer("{name}"), persistent=False)'
        lines.append(f"        {register}")
    for run in runs:
        block = lowered.blocks[lowered.segments[run.first].block].name
        start, end = run.first - stage.first, run.last - stage.first
        if run.repeated:
            lines.append(f"        self.{run.attribute} = nn.ModuleList(")
            lines.append(f"            {block}(parameters.segment(first + i), mesh) for i in range({start}, {end})")
            lines.append("        )")
        else:
            offset = f"first + {start}" if start else "first"
            lines.append(f"        self.{run.attribute} = {block}(parameters.segment({offset}), mesh)")
    for run, (full, selective, offloaded) in zip(runs, recomputed(lowered, stage, runs), strict=True):
        if selective:
            lines.append(f"        recompute_selectively({chosen_of(run, full, full + selective)})")
        if offloaded:
            chosen = chosen_of(run, full + selective, full + selective + offloaded)
            lines.append(f"        offload_activations({chosen})  # their activations")
    return lines


def chosen_of(run: Run, first: int, last: int) -> str:
    """Some of a run's segments as a list: ``self.layers[2:]``."""
    if not run.repeated:
        return f"[self.{run.attribute}]"
    if (first, last) == (0, run.last - run.first):
        return f"self.{run.attribute}"
    return f"self.{run.attribute}[{first or ''}:{last if last < run.last - run.first else ''}]"


def recomputed(lowered: Lowered, stage: LoweredStage, runs: Sequence[Run]) -> list[tuple[int, int, int]]:
    """Of each run the first segments that run again whole in the backward, how many after them selectively, and how
    many after those keep their activations on the host."""
    uses = Counter(segment.block for segment in lowered.segments)
    counts = []
    left = [stage.recompute, stage.selective, stage.offloaded]
    for run in runs:
        size = run.last - run.first if uses[lowered.segments[run.first].block] > 1 else 0
        taken: list[int] = []
        for kind, count in enumerate(left):
            taken.append(min(count, size - sum(taken)))
            left[kind] -= taken[-1]
        counts.append((taken[0], taken[1], taken[2]))
    return counts


def activation_names(lowered: Lowered, stage: LoweredStage) -> tuple[str, ...]:
    return chained(lowered, max(len(stage.inputs), 1))


def chained(lowered: Lowered, count: int) -> tuple[str, ...]:
    """Names of the activations between segments: "x", "x_" where the batch has an input of that name."""
    taken = {v.name for v in lowered.batch} | set(lowered.counts)
    base = "x"
    while taken & set(numbered(base, count)):
        base = f"{base}_"
    return numbered(base, count)


def numbered(base: str, count: int) -> tuple[str, ...]:
    return (base,) if count == 1 else tuple(f"{base}{i}" for i in range(count))


def stage_forward(lowered: Lowered, stage: LoweredStage, runs: Sequence[Run], scope: Scope) -> list[str]:
    entering = activation_names(lowered, stage) if stage.inputs else ()
    read = stage_reads(lowered, stage)
    keywords, renamed = keyword_arguments(read, scope.names, 8)
    blocks = [lowered.blocks[s.block] for s in lowered.segments[stage.first : stage.last]]
    keywords += dict.fromkeys(word for block in blocks for word in keywords_of(lowered, block))
    arguments = ", ".join(["self", *entering, *(["*", *keywords] if keywords else []), f"**{REST}"])
    lines = [f"    def forward({arguments}):"]
    lines += [f"        # {n} {shape_comment(v, scope.live)}" for n, v in zip(entering, stage.inputs, strict=False)]
    lines += renamed
    statements = stage_statements(lowered, stage)
    if any(isinstance(s, Compute) and not s.reads for s in statements):
        source = (*entering, *map(scope, read), "next(self.parameters())")[0]
        lines.append(f"        device = {source}.device")
    body = emit_body(statements, scope, 8)
    lines += [*scope.sizes.lines(8), *body]
    current = entering
    for run, (again, _, _) in zip(runs, recomputed(lowered, stage, runs), strict=True):
        step, current = emit_run(lowered, run, scope, current, again)
        lines += step
    lines.append(f"        return {', '.join(current)}")
    return lines


def emit_run(
    lowered: Lowered, run: Run, scope: Scope, current: tuple[str, ...], again: int
) -> tuple[list[str], tuple[str, ...]]:
    """The lines that run a run of segments, the first ``again`` of which run again in the backward; what they give."""
    block = lowered.blocks[lowered.segments[run.first].block]
    arguments = ", ".join([*current, *(scope(n) for n in run.externals), *keywords_of(lowered, block)])
    after = chained(lowered, len(block.outputs))
    target = ", ".join(after)
    comment = shape_comment(block.outputs[0], scope.live) if len(block.outputs) == 1 else ""
    if not run.repeated:
        module = f"self.{run.attribute}"
        code = f"{target} = {checkpointed(module, arguments, block) if again else f'{module}({arguments})'}"
        return [commented(code, comment, 8)], after
    if again == 0:
        lines = [f"        for layer in self.{run.attribute}:"]
        lines.append(commented(f"{target} = layer({arguments})", comment, 12))
    elif again == run.last - run.first:
        lines = [f"        for layer in self.{run.attribute}:"]
        lines.append(commented(f"{target} = {checkpointed('layer', arguments, block)}", comment, 12))
    else:
        lines = [f"        for i, layer in enumerate(self.{run.attribute}):"]
        lines += [f"            if i < {again}:  # activations recomputed in the backward"]
        lines += [f"                {target} = {checkpointed('layer', arguments, block)}", "            else:"]
        lines.append(commented(f"{target} = layer({arguments})", comment, 16))
    return lines, after


def checkpointed(module: str, arguments: str, block: LoweredBlock) -> str:
    once = f", context_fn=restores_buffers({module})" if block.buffers else ""
    return f"checkpoint({module}, {arguments}, use_reentrant=False{once})"


def emit_counts(lowered: Lowered, reserved: frozenset[str], programs: Sequence[Sized] = ()) -> list[str]:
    """The function that counts what denominators need, for one microbatch on one rank."""
    counting = needed(lowered.constants, lowered.counts)
    wanted = set(lowered.counts).union(*(statement.reads for statement in counting))
    assert not axes_used(counting), "what is counted once a step is counted on each rank's own rows"
    read = [v.name for v in lowered.batch if v.name in wanted]
    made = [s.value.name for s in counting if s.value.name not in unmoved(counting)]
    names = also_named(local_names([*read, *made], reserved | {"device"}), unmoved(counting))
    keywords, renamed = keyword_arguments(read, names, 4)
    values = [*lowered.batch, *(s.value for s in counting)]
    sizes = Names(programs, [(names[v.name], v.local_shape) for v in lowered.batch if v.name in wanted])
    scope = Scope(names, {v.name: len(v.local_shape) for v in values}, live_axes(lowered.mesh), sizes=sizes)
    arguments = ", ".join([*(["*", *keywords] if keywords else []), f"**{REST}"])
    lines = [f"def counts({arguments}):"]
    lines.append('    """This rank\'s share of each denominator, of one microbatch; the program sums them up."""')
    lines += renamed
    if any(isinstance(s, Compute) and not s.reads for s in counting):
        source = scope(read[0]) if read else f"next(iter({REST}.values()))"  # targets may be made of no input
        lines.append(f"    device = {source}.device")
    body = emit_body(counting, scope, 4)
    lines += [*sizes.lines(4), *body]
    result = ", ".join(f'"{n}": {scope(n)}' for n in lowered.counts)
    lines.append(f"    return {{{result}}}")
    return lines
