"""Passes over canonical nodes, each a function from nodes to nodes; `trace.pipeline` gives their order."""
