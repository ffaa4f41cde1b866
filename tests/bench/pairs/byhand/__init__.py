"""What an experienced author writes with PyTorch's own parts: one way a file.

Each makes a ``Step`` of the model on this rank: forward and backward of all microbatches, gradient sums, AdamW.
"""
