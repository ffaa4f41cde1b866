"""A schedule's timeline as plain text, one line a rank."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

from cost_models.pipeline.timeline import Run

LETTERS = {"F": "0123456789", "B": ascii_lowercase[:10], "I": ascii_lowercase[:10], "W": "w"}
LEGEND = "0-9 forward of a microbatch, a-j its backward (of the inputs), w the weights' gradients, · idle"


def draw(timelines: Sequence[Sequence[Run]], width: int = 100) -> str:
    """What ``runs`` returns as text: ``width`` characters from the first action's start to the last's end.

    A column shows what its rank does at the column's middle; of two microbatches ten apart the signs are alike.
    """
    end_s = max(run.end_s for order in timelines for run in order)
    lines = []
    for rank, order in enumerate(timelines):
        line = ["·"] * width
        for run in order:
            signs = LETTERS[run.action.kind]
            for column in range(width):
                if run.start_s <= (column + 0.5) * end_s / width < run.end_s:
                    line[column] = signs[run.action.microbatch % len(signs)]
        lines.append(f"rank {rank:>2} {''.join(line)}")
    return "\n".join([*lines, LEGEND])
