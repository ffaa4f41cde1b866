"""The search: a traced model and a cluster in, a complete choice out."""

from autoplan.search.entry import search

__all__ = ["search"]
