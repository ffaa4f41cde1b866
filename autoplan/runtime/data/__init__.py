"""Batches: their source, their number on every rank, and this rank's microbatches of each.

Order: `microbatches` (a batch to this rank's microbatches), `batch_sizes` (what runs a shorter one), `loader` (a loader
that ends on all ranks at once), `samples` (the batch that begins at a sample), `sources` (batches for trying a
program), `metrics` (a JSON line for each step).
"""
