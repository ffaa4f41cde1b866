"""A model traced with two repeats of each run, at its full depth."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from autoplan.ir.graph import Block, Model, Segment


@dataclass(frozen=True)
class Run:
    """Children ``start`` to ``start + period * count`` of a list: ``count`` repeats of ``period`` children."""

    path: str
    start: int
    period: int
    count: int


def expand(model: Model, runs: Iterable[Run]) -> Model | None:
    """The chain with every repeat of every run; None where the two that were traced aren't alike after all."""
    full: Model | None = model
    for run in runs:
        full = expand_run(full, run) if full is not None else None
    return full


def expand_run(model: Model, run: Run) -> Model | None:
    first = segments_of(model, run, 0)
    second = segments_of(model, run, 1)
    if first is None or second is None or first.stop != second.start:
        return None
    ends = not alike(model, run, first, second)
    if ends and not alike_but_last(model, run, first, second):
        return None
    template = model.segments[second.start : second.stop]
    inner, last = (model.segments[first.start : first.stop], run.count - 2) if ends else (template, 0)
    copies = [move_segment(s, mover(run, times)) for times in range(1, run.count - 1) for s in inner]
    moved = [move_segment(segment, mover(run, last)) for segment in template]
    around = [*copies, *moved] if ends else [*moved, *copies]
    segments = (*model.segments[: second.start], *around, *model.segments[second.stop :])
    blocks = list(model.blocks)
    if ends:  # the last repeat's own block, which names its modules
        blocks[template[-1].block] = move_block(blocks[template[-1].block], mover(run, last))
    return with_state(replace(model, segments=segments, blocks=tuple(blocks)), run, template)


def with_state(model: Model, run: Run, template: tuple[Segment, ...]) -> Model:
    """Lists the repeats' parameters and buffers beside those that were traced."""
    owned = {name for segment in template for name in (*segment.parameters, *segment.buffers, *segment.externals)}
    parameters, buffers = list(model.parameters), list(model.buffers)
    for times in range(1, run.count - 1):
        move = mover(run, times)
        parameters += [
            replace(p, name=move(p.name), source=move(p.source), aliases=tuple(map(move, p.aliases)))
            for p in model.parameters
            if p.name in owned and move(p.name) != p.name
        ]
        buffers += [replace(b, name=move(b.name)) for b in model.buffers if b.name in owned and move(b.name) != b.name]
    return replace(model, parameters=tuple(parameters), buffers=tuple(buffers))


def segments_of(model: Model, run: Run, repeat: int) -> range | None:
    """The segments that one repeat stands in; None where they hold something else too, or don't follow each other."""
    wanted = range(run.start + repeat * run.period, run.start + (repeat + 1) * run.period)
    found = []
    for index, segment in enumerate(model.segments):
        children = children_of(segment, run.path)
        if any(child in wanted for child in children):
            if not all(child in wanted for child in children):
                return None
            found.append(index)
    if not found or found != list(range(found[0], found[-1] + 1)):
        return None
    return range(found[0], found[-1] + 1)


def children_of(segment: Segment, path: str) -> frozenset[int]:
    """Which of a list's children a segment holds parameters of."""
    pattern = re.compile(rf"{re.escape(path)}{'[.]' if path else ''}(\d+)[.]")
    matches = (pattern.match(name) for name in (*segment.parameters, *segment.buffers))
    return frozenset(int(match[1]) for match in matches if match)


def alike(model: Model, run: Run, first: range, second: range) -> bool:
    """Whether the second repeat is the first one moved by a period."""
    before, after = (model.segments[r.start : r.stop] for r in (first, second))
    return tuple(move_segment(segment, mover(run, 1)) for segment in before) == after


def alike_but_last(model: Model, run: Run, first: range, second: range) -> bool:
    """Whether the second repeat, which is the model's last one, is the first moved by a period, but for values that it
    takes and doesn't hand on: nobody reads them after it."""
    if len(first) != len(second):
        return False
    before, after = (model.segments[r.start : r.stop] for r in (first, second))
    move = mover(run, 1)
    moved = [move_segment(segment, move) for segment in before]
    one, other = move_block(model.blocks[moved[-1].block], move), model.blocks[after[-1].block]
    dropped = set(one.outputs) - set(other.outputs)
    passed = {value.name for value in one.inputs}
    moved[-1] = replace(moved[-1], block=after[-1].block)
    same_code = replace(other, name=one.name, outputs=one.outputs) == one
    kept = tuple(name for name in one.outputs if name not in dropped)
    return tuple(moved) == after and same_code and dropped <= passed and kept == other.outputs


def mover(run: Run, times: int) -> Callable[[str], str]:
    """Renames what belongs to the run's children to what lies ``times`` periods further."""
    pattern = re.compile(rf"({re.escape(run.path)}{'[.]' if run.path else ''})(\d+)(?=[.]|$)")
    children = range(run.start, run.start + 2 * run.period)

    def move(name: str) -> str:
        match = pattern.match(name)
        if match is None or int(match[2]) not in children:
            return name
        return f"{match[1]}{int(match[2]) + times * run.period}{name[match.end() :]}"

    return move


def move_block(block: Block, move: Callable[[str], str]) -> Block:
    """The same operators, as of another repeat's modules."""
    return replace(block, nodes=tuple(replace(node, module=move(node.module)) for node in block.nodes))


def move_segment(segment: Segment, move: Callable[[str], str]) -> Segment:
    return Segment(
        segment.block,
        move(segment.path),
        tuple(map(move, segment.parameters)),
        tuple(map(move, segment.buffers)),
        tuple(map(move, segment.externals)),
    )
