"""A traced model at another batch or sequence length, without tracing it again.

A model's shapes follow from two sizes, the rows of the batch and the length of a row, and from sizes of its own. What
follows from which is read from the operators' rules: the dims of all values fall into classes (``relate``), a class
whose size is asked for gives its new size to others (``solve``), and every node's shape and size arguments are
rewritten (``rewrite``). Where sizes can't be told apart the answer is an error, never a guess.
"""

from autoplan.trace.rescale.model import rescale

__all__ = ["rescale"]
