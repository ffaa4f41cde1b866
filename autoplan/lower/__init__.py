"""A choice becomes a typed program.

`lowering` gives every value its layout and inserts the redistributions; `typecheck` proves the result; `replicas` lets
data-parallel replicas step alone; `tables` places a recommender's embedding tables.
"""
