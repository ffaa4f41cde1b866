"""Canonical forms of tensor operators.

Modules, each importing only those before it:

    arithmetic  scalars and sums
    factory     tensors from sizes
    matmul      linear and matmul
    products    vector products, einsum
    reduction   sums and means
    view        reshapes and permutes
    indexing    reads by index
    scatter     writes to parts
    sorting     sorts
    random      random numbers by element
    linalg      decompositions and solutions
"""
