"""Seconds and bytes of one operator on one device, its inner collectives included.

A compiled block runs memory-bound operators over the same elements as one kernel. Eager mode runs the kernels that
ATen and autograd call, each with its dispatch.

Modules, each importing only those before it:

    cost               seconds forward and backward
    eager              kernels in eager mode
    eager_temporaries  what they hold for a moment
    fusion             kernels of a compiled block
    experts            a mixture's experts
    lookups            placed tables
    sparse_rows        whether gradients are of looked-up rows alone
    ring               ring attention
    operator_seconds   any operator under one strategy
    collective_ops     collectives inside operators
    token_exchange     messages of a mixture's tokens beside what is computed
    kept_beside        bytes kept beside operands and results
"""
