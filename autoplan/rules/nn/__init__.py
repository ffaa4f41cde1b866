"""Rules of layers: attention, convolutions, normalisations, look-ups, losses, experts.

Modules, each importing only those before it:

    attention        scaled dot-product attention
    embedding        look-ups, also pooled and in placed tables
    windows          windows over a split dim and its halo
    convolution      convolutions, resizing
    pooling          pooling
    norm             normalisations
    loss             losses and their denominators
    batch_moves      gathers of the batch's rows, sums over them
    experts          mixtures of experts
    expert_capacity  choices that these leave out
"""
