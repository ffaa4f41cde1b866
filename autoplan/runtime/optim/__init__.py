"""The optimizer and what surrounds its step: accumulation, clipping, loss scale, learning rate, averaging.

Modules, each importing only those before it:

    accumulation        gradients of several batches before one update
    clip                the global norm
    parameter_group     parameter groups
    lamb                LAMB
    frozen_lamb         1-bit LAMB
    gathered_optimizer  optimizers of whole matrices, and several that update element by element
    rowwise_adagrad     row-wise Adagrad
    optimizer_options   which optimizers there are, and what each takes
    lr_scheduler        torch's schedulers
    masters             float32 masters; the update on the host (ZeRO-Offload)
    streamed_optimizer  the update from disks, ZeRO-Infinity
    optimizer           the optimizer over this rank's parameters
    loss_scaling        float16's loss scale
    updates             checks and scales around each update
    asynchronous        local SGD, gossip, DiLoCo, stale gradients, gradients applied as they arrive
"""
