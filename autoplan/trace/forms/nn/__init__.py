"""Canonical forms of layers and losses.

Order: `attention` (one operator with all arguments), `bags` (embedding bags), `convolution` (convolutions), `pooling`
(pooling), `norm` (normalisations), `penalties` (losses of elements), `loss` (cross-entropy and others), `experts`
(mixtures), `resize` (interpolation), `idioms` (operators that models spell out).
"""
