"""A device that isn't there: what a program launches on it is written down, and the memory that it would take.

Torch's private interfaces that this needs are used here alone.

Modules, each importing only those before it:

    streams         streams and events of the fake device
    accelerator     the fake device: tensors without values
    kernels         the kernels that the real device would take
    process_groups  collectives of any rank of any world
    storages        lives of storages: memory
    flops           FLOPs of an operator
    call_recorder   what a rank issues
    graph_replay    later runs of a graph, replayed
    fused_graph     a graph as the kernels that inductor makes of it
    compiled        what a compiled segment keeps for its backward
"""
