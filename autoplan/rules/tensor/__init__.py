"""Rules of tensor operators: element-wise, products, reductions, views, indexing.

Modules, each importing only those before it:

    constant     tensors from sizes
    buffers      buffers that forward changes
    elementwise  elementwise operators, with broadcasting
    matmul       linear, matmul, einsum
    reduction    sums, means, maxima
    view         reshapes and permutes
    slicing      parts and concatenations
    indexing     reads by index
    scatter      writes by index
    sorting      sorts
    scan         running sums, linear recurrences
    spectral     Fourier transforms, complex numbers
    linalg       decompositions and solutions
"""
