"""Collectives of a program.

`mesh_axes` are this rank's process groups; `raw` the calls without gradients; `typed` each call with its backward;
`exchange` and `redistribution` execute what the planner wrote; `raising` raises one rank's error on all.
"""
