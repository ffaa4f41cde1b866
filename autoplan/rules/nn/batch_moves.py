"""Rules of the operators that gather the batch's rows or sum over them (``search.space.batch_moves``).

Where the batch is split over ranks, ``batch_move`` takes a value from one state to another by a collective; on any
other axis, and on one rank, it gives back what it gets.
"""

from autoplan.ir.graph import TensorType
from autoplan.ir.layout import State
from autoplan.rules.registry import AxisStrategy, Rule, letters, rule


@rule("autoplan.batch_move")
def batch_move(x: TensorType, before: str, after: str) -> Rule:
    """before, after: states as they are written, "S(0)" and "R". Over several axes an all-to-all would mix up whose
    part comes first."""
    source, target = State.parse(before), State.parse(after)
    single = source.kind == target.kind == "S"
    moved = AxisStrategy((source,), target, body="batch_move", communicates=True, single=single)
    return Rule(f"{letters(x)} -> {letters(x)}", extra=(moved,))
