"""What an exported program calls: one rank's share of the model, trained step by step.

`Program` (in `program`) is what train.py and users' scripts are written against. Everything else is a part of it.

Modules, each importing only those before it:

    host          what the host reads of the device
    not_a_module  errors for what people call on an nn.Module
    broken_off    what follows an exception
    program_spec  what a program is built from, read off plan.json
    collectives   typed collectives and groups
    elastic       start, hang, restart
    looked_up     gradients of looked-up rows of tables
    row_cache     tables off the device, and a cache of their rows there
    parallel      stages, ZeRO, gradient sums
    memory        recomputation and offload
    optim         the optimizer
    ops           operators that differ by rank
    data          batches
    agreement     ranks agree before a step
    checkpoint    sharded checkpoints
    weights       weights from and to safetensors
    rank_model    what programs of training and of the forward alone have in common
    inference     the forward alone
    pipeline      actions and messages of a pipeline's ranks
    engine        forward and backward of all microbatches
    continuous    a pipeline without a flush between steps
    own_state     state dicts
    sized_steps   steps of a shorter batch
    program       the interface
"""
