"""A user's module becomes a canonical graph; the only reader of torch.export and torch.fx.

`pipeline` runs the passes. What no program could hold is refused (`checks`). A weightless copy keeps two repeats of
each run of layers (`repeats`). torch.export traces it (`capture`). Every node is written in canonical form (`convert`,
by the table in `forms`). Passes clean and shorten the graph (`passes`). Then `blocks` cuts it into a chain of segments.

Modules, each importing only those before it:

    blocks           the chain of repeated blocks
    rescale          the graph at another size
    builder          makes nodes
    initialise       how the model's values come about
    passes           passes over the graph
    canonical_forms  the table's type: torch's operators to canonical ones
    forms            the table's entries
    outputs          the loss among the model's outputs
    batch_binding    binds batch and loss
    branches         Python branches on values, taken without reading them
    detached         what `.data` hides from autograd
    caches           functions that cache their results
    capture          runs torch.export
    direct           programs that the user exported
    mixtures         transformers' experts as one operator
    huggingface      transformers in a form that shards
    expert_loops     loops over the experts that were hit
    repeats          two layers in place of eighty
    checks           refuses what a graph would lose
    masked           boolean indexing as masks
    convert          torch.fx nodes to canonical nodes
    modules          the user's modules by name
    pipeline         the passes in order
"""
