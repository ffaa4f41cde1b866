"""Convolutions and pooling with a dim of space split: windows over a part and its halo."""
