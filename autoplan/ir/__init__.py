"""The vocabulary that all passes share: frozen dataclasses, free of torch.fx.

*Axis* means a mesh axis, *dim* a tensor dim.

Modules, each importing only those before it:

    mesh              named axes of devices
    folding           experts' ranks beside those of dense layers
    layout            how a tensor lies on them
    graph             the traced model
    tables            embedding tables in one flat parameter
    parameter_groups  parameters with optimizer options of their own
    buckets           gradients joined into buckets, and their sizes; compressed ones; parameter servers
    checksums         checksums against damage
    start             where training starts from
    typed_program     the lowered program, with a layout on every value
    randomness        which operators draw
    choice            what the search decides
    record            a whole plan, as plan.json holds it
    codec             dataclasses to JSON and back
"""
