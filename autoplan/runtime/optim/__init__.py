"""The optimizer and what stands around its step: clipping, loss scale, learning rate, averaging."""
