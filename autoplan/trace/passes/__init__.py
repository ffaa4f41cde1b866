"""Passes over canonical nodes, each a function from nodes to nodes; `trace.pipeline` gives their order.

Modules, each importing only those before it:

    compositions     operators that torch doesn't compose, or by looking at values, of others
    decompose        operators without form or rule
    forward_substitution  loops over a triangular matrix's rows as one solve
    literals         tensors written as numbers
    buffer_updates   what forward makes of buffers
    vectorize        equal computations on all parts as one
    recurrence       loops over a sequence as one operator
    views            chains of views, shortened
    clean            unused nodes, duplicates, fused projections
    assigned_parts   what a loop assigns part by part, joined once
    dense_experts    experts written as products of all tokens, of those that chose them
    stacked_weights  weights that each expert has by itself as one parameter
    precision        mixed precision, float64
"""
