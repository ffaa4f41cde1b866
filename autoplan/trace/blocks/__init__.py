"""The repeated parts of a program: a flat list of nodes becomes a chain of segments, equal ones sharing a block.

Three steps: cut (where the chain may be cut), fold (segments alike become one block), expand (what was traced twice
stands as often as the model has it).
"""

from autoplan.trace.blocks.expand import Run, expand
from autoplan.trace.blocks.flat import Flat, Tree
from autoplan.trace.blocks.fold import constant_nodes, fold, renamed

__all__ = ["Flat", "Run", "Tree", "constant_nodes", "expand", "fold", "renamed"]
