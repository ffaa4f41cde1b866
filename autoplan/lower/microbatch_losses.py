"""A typed program whose microbatches have losses of their own: a step's is their mean.

Each microbatch computes what the module computes of its rows alone, on whichever ranks they are: sums, means and batch
norm's statistics are its own, and the runtime counts its valid tokens alone. So its loss is whole in it. The step adds
losses up, so each is divided by the number of microbatches where it is made, and is a summand from there.
"""

from dataclasses import replace

from autoplan.errors import ParallelismError
from autoplan.ir.layout import Layout, P
from autoplan.ir.mesh import MICROBATCH
from autoplan.ir.typed_program import Compute, Lowered, LoweredBlock, Move, Statement, TypedValue


def each_apart(program: Lowered) -> Lowered:
    """The program with each microbatch's loss divided; ParallelismError where no operator of the last part makes it."""
    count, last = program.mesh.size(MICROBATCH), program.segments[-1].block
    block = program.blocks[last]
    if count == 1 or block.outputs[0].type.shape != ():
        return program
    names = made_of(block)
    made = any(isinstance(s, Compute) and s.value.name == names[-1] for s in block.body)
    if not made or [segment.block for segment in program.segments].count(last) > 1:
        cause = f"the loss {names[-1]} isn't the result of an operator that the last part of the model alone has"
        remedy = "use statistics='batch', or one microbatch"
        raise ParallelismError(f"statistics='microbatch' with {count} microbatches", cause, remedy)
    body = tuple(divided(s, names, count) for s in block.body)
    block = replace(block, body=body, outputs=(summand(block.outputs[0]),))
    stage = replace(program.stages[-1], outputs=block.outputs)
    blocks = (*program.blocks[:last], block, *program.blocks[last + 1 :])
    return replace(program, blocks=blocks, stages=(*program.stages[:-1], stage))


def made_of(block: LoweredBlock) -> list[str]:
    """Names of a block's result, from that which leaves it to that which an operator made."""
    sources = {s.value.name: s.source for s in block.body if isinstance(s, Move)}
    names = [block.outputs[0].name]
    while names[-1] in sources:
        names.append(sources[names[-1]])
    return names


def divided(statement: Statement, names: list[str], count: int) -> Statement:
    if statement.value.name not in names:
        return statement
    statement = replace(statement, value=summand(statement.value))
    return replace(statement, divisor=statement.divisor * count) if isinstance(statement, Compute) else statement


def summand(value: TypedValue) -> TypedValue:
    rest = tuple((axis, P if axis == MICROBATCH else state) for axis, state in value.layout.rest)
    return replace(value, layout=Layout(value.layout.dims, rest))
