"""Torch operators of our own, opaque to torch.compile: mixtures of experts and linear recurrences."""
