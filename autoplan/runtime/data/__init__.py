"""Batches: where they come from, how many every rank has, and this rank's microbatches of one."""
