"""The search space: what a plan may be, before anything is priced.

Modules, each importing only those before it:

    batch_axes         axes that split the batch's rows (data parallelism, microbatches): every operator's part follows
    batch_moves        gathers rows of the batch, and sums over them, where an operator needs them whole
    tensor_axes        axes over which operators are split, and what named systems ask of several (2d, 2.5d, 3d)
    row_systems        and of one, along which rows are split: sequence, vocabulary, experts, tables
    axis_systems       what a candidate asks of its operator axes, each axis for itself
    candidates         every combination of mesh, microbatch, schedule, ZeRO level, recomputation and offload
    gradient_checks    what compressed gradients, and parameter servers, can't go with
    pinned_checks      the errors for what a user pins and can't be
    one_line, systems  a parallelism as a user writes it, and the named systems as sets of pinned fields
    heterogeneous      clusters of several kinds of device: which kind each pipeline rank is on
    coverage           what of all this a search tried, and what it left out
    sizes              bytes of a whole model that bound what any candidate holds
"""
