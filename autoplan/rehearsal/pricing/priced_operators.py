"""The operators that a rehearsed rank launched against the statements of the plan's blocks, which have the prices.

A line of a block's class in program.py is a statement of the typed block, or a step of one: the emitter writes them in
their order. Of a segment that is rehearsed as a compiled one no lines are known, but which segment it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoplan.emit.calls.column_products import Lines
from autoplan.emit.naming import with_class_names
from autoplan.emit.program_text import RESERVED
from autoplan.emit.stage_classes import runs_of
from autoplan.errors import RehearsalError
from autoplan.ir.typed_program import Lowered, LoweredBlock, Move
from autoplan.rehearsal.records import Call, RankTrace

LINE = re.compile(r"program\.py:(\d+)( \(backward\))?$")
FORWARD, BACKWARD, AGAIN = "forward", "backward", "again"
LAUNCHED = ("operator", "copy")


@dataclass(frozen=True)
class Place:
    """Where in the plan a line of program.py stands.

    block      its number; None: of a stage, which computes constants of the batch anew
    statement  the name of its value, "" where a whole segment is called
    """

    block: int | None
    statement: str = ""


@dataclass(frozen=True)
class Launched:
    """A call of a trace, placed.

    phase  FORWARD, BACKWARD, or AGAIN: a forward that runs again in the backward
    """

    call: Call
    place: Place
    phase: str


def places_of(program: str, lowered: Lowered) -> Mapping[int, Place]:
    """The place of each line of a program's classes, by its number; RehearsalError where the text isn't that of the
    typed program."""
    named = with_class_names(lowered, RESERVED)
    numbers = {block.name: index for index, block in enumerate(named.blocks)}
    stages = {f"Stage{number}": number for number in range(len(lowered.stages))}
    found: dict[int, Place] = {}
    for node in ast.parse(program).body:
        if isinstance(node, ast.ClassDef) and node.name in numbers:
            index = numbers[node.name]
            found |= block_lines(forward_of(node), index, lowered.blocks[index])
        elif isinstance(node, ast.ClassDef) and node.name in stages:
            found |= stage_lines(forward_of(node), lowered, stages[node.name])
    return found


def forward_of(node: ast.ClassDef) -> ast.FunctionDef:
    return next(each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "forward")


def block_lines(forward: ast.FunctionDef, index: int, block: LoweredBlock) -> dict[int, Place]:
    lines = [each for each in forward.body if isinstance(each, ast.Assign) and not reads_sizes(each)]
    names = list(emitted_names(block))
    if len(lines) != len(names):
        raise RehearsalError(
            "program.py",
            f"{block.name} has {len(lines)} statements there, {len(names)} in the plan: edited, or of another release",
            "plan and export again; what the lines cost is known of the plan's own alone",
        )  # fmt: skip
    return {
        line: Place(index, name)
        for each, name in zip(lines, names, strict=True)
        for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
    }


def reads_sizes(line: ast.Assign) -> bool:
    """``b, s = x.shape[:2]``: it launches nothing."""
    read = line.value.value if isinstance(line.value, ast.Subscript) else None
    return isinstance(read, ast.Attribute) and read.attr == "shape"


def emitted_names(block: LoweredBlock) -> Iterator[str]:
    """The value that each line of a block's forward is a step of."""
    shared = Lines.of(block)
    for statement in block.body:
        name = statement.value.name
        yield from (each.mixture for each in shared.flights.get(name, ()))
        if name in shared.same:
            continue
        if name in shared.column:
            yield shared.column[name].results[0]
        elif name in shared.elsewhere:
            continue
        elif isinstance(statement, Move):
            yield from [name] * max(1, len(statement.collectives))
        else:
            yield name


def stage_lines(forward: ast.FunctionDef, lowered: Lowered, number: int) -> dict[int, Place]:
    """Constants, and the calls of segments."""
    blocks = {run.attribute: lowered.segments[run.first].block for run in runs_of(lowered, lowered.stages[number])}
    found: dict[int, Place] = {}
    for node in forward.body:
        called = re.findall(r"self\.(\w+)", ast.unparse(node.iter if isinstance(node, ast.For) else node))
        block = next((blocks[name] for name in called if name in blocks), None)
        found |= dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), Place(block))
    return found


def launched(trace: RankTrace, places: Mapping[int, Place]) -> list[Launched]:
    """Operators and copies of a trace's forwards and backwards. Those without a line of the program, as a function's
    own backward has them, belong to the segment that ran before, or comes next."""
    found: list[Launched] = []
    waiting: list[tuple[int, Call]] = []
    last: dict[str, int] = {}
    for call in trace.calls:
        phase = call.during.split(" ")[0]
        if call.kind not in LAUNCHED or phase not in (FORWARD, BACKWARD):
            continue
        match = LINE.match(call.line)
        place = places.get(int(match[1])) if match else None
        if match and not match[2] and phase == BACKWARD:
            phase = AGAIN
        if place is not None and place.block is not None:
            last[call.during] = place.block
            for at, other in waiting:
                if other.during == call.during:
                    found[at] = Launched(other, Place(place.block), found[at].phase)
            waiting = [each for each in waiting if each[1].during != call.during]
        elif place is None:
            place = Place(last.get(call.during))
            if place.block is None:
                waiting.append((len(found), call))
        found.append(Launched(call, place, phase))
    return found
