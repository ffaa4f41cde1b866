"""Collectives of a program: typed pairs of a forward and its backward, over this rank's groups.

Order: `mesh_axes` (this rank's process groups), `result` (what a forward may return), `raw` (calls without gradients),
`point_to_point` (permutes and exchanges of boxes), `typed` (each call with its backward), `objects` (what ranks say in
Python).
"""
