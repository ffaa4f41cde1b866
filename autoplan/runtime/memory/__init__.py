"""Memory for time: selective recomputation, and activations in the host's memory.

Order: `selective` (recomputes what is cheap), `activation_offload` (activations on the host).
"""
