"""A choice becomes a typed program: every value gets a layout, and every redistribution is written out.

`typecheck` then proves the program without knowing how it was made.

Modules, each importing only those before it:

    joined             products that run as one
    lowering           choice to typed program: each collective gets its place
    typecheck          proves the typed program
    replicas           replicas that step alone, for local SGD
    microbatch_losses  statistics="microbatch": microbatches with losses of their own
    after_search       all of these, in order
    one_seed           whether compiled segments can draw by rank
    resized            the same choice at other sizes of the batch
"""
