"""A rank's share of the model: its stages, sharded parameters, and gradient sums."""
