"""Whether forward does nothing else for an expert that has tokens than add what it computes, nor for one without.

A loop is traced as if each expert had tokens. A counter in it, another branch or ``break`` would then be another model
wherever an expert has none. So forward is traced twice more without any sums: once where all experts have tokens, once
where none has. Both have to ask about the same experts, and to be the same graph.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from torch.export import ExportedProgram

from autoplan.errors import AutoplanError, TraceError
from autoplan.ir.graph import Node
from autoplan.trace.blocks import renamed
from autoplan.trace.convert import Names, convert
from autoplan.trace.passes.clean import used

Followed = Mapping[tuple, TraceError]


def check_without_tokens(
    followed: Followed, names: Names, traced: Callable[[bool], tuple[ExportedProgram, Followed]]
) -> None:
    """TraceError, one of those in ``followed``, where a loop over experts does anything else.

    traced  the program without sums where experts have tokens, or have none; and what its forward asked
    """
    if not followed:
        return
    error = next(iter(followed.values()))
    try:
        (filled, asked), (empty, asked_then) = traced(True), traced(False)
        alike = code_of(filled, names) == code_of(empty, names)
    except AutoplanError as cause:
        raise error from cause
    if not alike or experts_in(asked) != experts_in(asked_then):
        raise error


def experts_in(followed: Followed) -> Counter[int]:
    return Counter(expert for _, expert in followed)


def code_of(program: ExportedProgram, names: Names) -> list[Node]:
    """What its result is computed by, and buffers; nodes are named by their order."""
    converted = convert(program, names, lines=lambda: program)
    nodes = used(converted.builder.nodes.values(), converted.output)
    order = {node.name: f"node_{i}" for i, node in enumerate(nodes)}
    return [replace(renamed(node, order), module="") for node in nodes]
