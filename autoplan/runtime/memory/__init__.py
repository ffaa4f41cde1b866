"""Memory for time: selective recomputation, and activations in the host's memory.

Order: `selective` (recomputes what is cheap), `restored_buffers` (buffers change once), `activation_offload`
(activations on the host).
"""
