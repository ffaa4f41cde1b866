"""Canonical forms of layers and losses.

Modules, each importing only those before it:

    attention    attention as one operator
    bags         embedding bags
    convolution  convolutions
    pooling      pooling
    norm         normalisations
    penalties    losses of elements (mse, huber, …)
    loss         cross-entropy and others
    experts      mixtures of experts
    resize       interpolation
    idioms       operators that models spell out
"""
