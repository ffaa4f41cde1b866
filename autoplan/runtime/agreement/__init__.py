"""Before a step, all ranks agree on the call and on the batch; what differs is an error on all of them.

Order: `fingerprint` (a hash of tensors' values), `disagreement` (the error that names the ranks), `agreement` (the
all-reduce that compares).
"""
