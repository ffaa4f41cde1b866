"""A transformer's training step in closed form, from the cost functions that price plans: time, bytes, throughput.

Modules, each importing only those before it:

    states    model states under a precision and a ZeRO level
    losses    what the cross-entropy makes of its logits
    model     a transformer and its recipe, as numbers
    elementwise  elementwise operators in a row
    layer     the operators of one layer with their times
    parts     the parameters that one rank holds, and over which ranks their gradients are summed
    saved     what operators save for their backward
    elements  a stage's parameters, their states, and the copies made for use
    moments   the moments of a step at which a stage may hold most
    memory    a step's bytes on each stage
    step      a step's time
"""
