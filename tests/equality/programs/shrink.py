"""A program that fails, with everything left out that it fails without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.equality.programs.program import Module, Program, Step, batch_of

MOST_TRIALS = 60


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The smallest that still fails, of those that are tried."""
    trials = 0
    progress = True
    while progress:
        progress = False
        for smaller in smaller_programs(program):
            if trials == MOST_TRIALS:
                return program
            trials += 1
            if runs(smaller) and fails(smaller):
                program, progress = smaller, True
                break
    return program


def smaller_programs(program: Program) -> Iterator[Program]:
    """Without a run of steps, the longest first, what reads them reading what they read; with one join; once."""
    count = len(program.steps)
    length = count // 2
    while length:
        for first in range(count - length, -1, -1):
            yield without(program, range(first, first + length))
        length //= 2
    if program.layers > 2:
        yield replace(program, layers=program.layers // 2)
    for join in dict.fromkeys(program.joins) if len(set(program.joins)) > 1 else ():
        yield replace(program, joins=(join,))


def without(program: Program, gone: range) -> Program:
    """The program without these steps: who reads one reads its first operand in its place."""
    place, steps = {0: 0}, []
    for i, step in enumerate(program.steps):
        operands = tuple(place[o] for o in step.operands)
        if i in gone:
            place[i + 1] = operands[0]
            continue
        steps.append(Step(step.op, operands, step.args, step.parameters))
        place[i + 1] = len(steps)
    return replace(program, steps=tuple(steps))


def runs(program: Program) -> bool:
    """Whether it is a program at all: its shapes go together, and it has something to learn."""
    module, batch = Module(program), batch_of(program)
    try:
        loss = module(**batch)
    except (RuntimeError, IndexError, ValueError):
        return False
    return bool(list(module.parameters())) and loss.requires_grad and bool(loss.isfinite())
