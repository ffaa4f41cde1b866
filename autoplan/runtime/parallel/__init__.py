"""A rank's share of the model: its stages, sharded parameters, ZeRO, and gradient sums.

Modules, each importing only those before it:

    own_box            which box of a tensor a rank keeps
    sharded_parameter  a parameter on one rank
    parameters         parameters(name) of program.py: the rank's slice
    flat_param_views   a user's matrices in a flat parameter
    meshes             torch's meshes in another order of axes
    whole_tensors      whole tensors from parts
    compression        compressed gradients
    bucket_sums        sums on a tree and over two levels
    servers            gradients pushed, weights pulled
    gradient_order     when a backward is done with a parameter
    gradient_buckets   gradient sums once a step
    zero               ZeRO by fully_shard
    seeding            random states of ranks
    compiled           segments under torch.compile
    stages             the stages of one rank
    loss_denominators  denominators before a step, the loss after it
"""
