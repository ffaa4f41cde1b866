"""Collectives of a program.

`mesh_axes` are this rank's process groups; `raw` the calls without gradients; `typed` each call with its backward;
`exchange` moves what the planner's exchanges name; `raising` raises one rank's error on all.
"""
