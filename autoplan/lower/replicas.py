"""A typed program whose replicas along the data axis step by themselves: each one's loss is the mean over its own rows.

A synchronous program's ranks hold summands of the whole batch's loss, so a mean that an operator takes over its own
rows is divided by the number of ranks. A replica's isn't; the runtime counts its valid tokens over its own microbatches
likewise. What a replica would have to ask the others for in every step has no such form, and is refused.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from autoplan.errors import ParallelismError
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Compute, Lowered, Move

DATA = "dp"
REMEDY = "leave it out, or replicate over tp or pp instead"


def on_their_own(program: Lowered, asked: str) -> Lowered:
    """The program with each replica on its own; ParallelismError where an operator joins the ranks' rows.

    asked  what was, for the error
    """
    blocks = tuple(
        replace(block, body=tuple(alone(block.body, program.mesh, block.name, asked))) for block in program.blocks
    )
    constants = tuple(alone(program.constants, program.mesh, "a constant", asked, frozenset(program.counts)))
    return replace(program, blocks=blocks, constants=constants)


def alone(
    statements: Iterable[Compute | Move], mesh: Mesh, where: str, asked: str, counts: frozenset[str] = frozenset()
) -> Iterator[Compute | Move]:
    """The statements, less what belongs to the mean over the data axis.

    counts  constants that the runtime sums up, over the microbatches alone
    """
    for statement in statements:
        if isinstance(statement, Move):
            if any(DATA in parts(step.axes) for step in statement.collectives):
                raise refusal(statement.value.name, where, asked)
            yield statement
        elif DATA in statement.body_axes and mesh.size(DATA) > 1 and statement.value.name not in counts:
            raise refusal(statement.value.name, where, asked)
        else:
            ways = [mesh.size(axis) for axis, s in statement.strategies if s.scaled and axis == DATA]
            yield replace(statement, divisor=statement.divisor // ways[0]) if ways else statement


def parts(axes: Iterable[str]) -> set[str]:
    """The axes that these are, or are prime factors of ("dp.0")."""
    return {axis.split(".")[0] for axis in axes}


def refusal(value: str, where: str, asked: str) -> ParallelismError:
    return ParallelismError(
        asked, f"{value} of {where} joins the rows of all replicas in every step", REMEDY
    )
