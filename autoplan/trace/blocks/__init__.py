"""The repeated parts of a program: a flat list of nodes becomes a chain of segments that share blocks.

Order: `flat` (the list of nodes), `cut` (where the chain may be cut), `value_names` (names of values and blocks),
`beside` (sums over layers, run beside them), `fold` (equal segments share a block), `expand` (two traced repeats at
full depth).
"""

from autoplan.trace.blocks.expand import Run, expand
from autoplan.trace.blocks.flat import Flat, Tree
from autoplan.trace.blocks.fold import constant_nodes, fold, renamed

__all__ = ["Flat", "Run", "Tree", "constant_nodes", "expand", "fold", "renamed"]
