"""Convolutions and pooling with a spatial dim split: windows over a part and its halo.

Order: `halo` (the neighbours' edges), `windows` (windows over a part), `pooling` (pooling in any number of dims).
"""
