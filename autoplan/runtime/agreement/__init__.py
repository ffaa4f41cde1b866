"""Whether all ranks are about to do the same: the same call, and batches that belong together."""
