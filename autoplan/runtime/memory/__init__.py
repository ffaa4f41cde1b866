"""Memory for time: selective recomputation, activations in the host's memory, tensors on disks.

Order: `selective` (recomputes what is cheap), `restored_buffers` (buffers change once), `activation_offload`
(activations on the host), `disk_memory` (tensors on disks).
"""
