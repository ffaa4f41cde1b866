"""A device that isn't there: what a program launches on it is written down, and the memory that it would take.

Torch's private interfaces that this needs are used here alone.

Order: `streams` (what torch asks of a device), `accelerator` (tensors without values), `kernels` (those that the real
device would take), `process_groups` (a rank of any world), `storages` (lives of storages), `flops` (of an operator),
`call_recorder` (what a rank issues), `repeated` (a graph's later runs), `fused_graph` (a graph as the kernels that
inductor makes of it), `compiled` (what a compiled segment keeps).
"""
