"""Numbers in a graph that follow from the rows of the batch that was traced: ``x.sum() / len(x)``, ``arange(len(x))``.

A microbatch's own graph has others. Shapes may follow from the rows; they are told by the tensors that are read.
"""

from collections.abc import Iterator

from autoplan.ir.graph import Argument, Model, Node, Ref


def number_of_rows(model: Model, of_others: Model) -> str:
    """Where a graph has another number than that of the same module with other rows, or other operators; "" if
    nowhere."""
    mine, theirs = [*nodes_of(model)], [*nodes_of(of_others)]
    if [node.op for node in mine] != [node.op for node in theirs]:
        return "it runs other operators"
    for one, other in zip(mine, theirs, strict=True):
        if numbers(one) != numbers(other):
            return f"{one.op} of {one.module or 'the root'}"
    return ""


def nodes_of(model: Model) -> Iterator[Node]:
    yield from model.constants
    for segment in model.segments:
        yield from model.blocks[segment.block].nodes


def numbers(node: Node) -> list[Argument]:
    """An operator's arguments, shapes and what it reads aside."""
    given = (*node.args, *(value for _, value in node.kwargs))
    return [a for a in given if not isinstance(a, tuple | Ref)]
