"""Memory for time: selective recomputation, and activations or optimizer state in the host's memory.

Order: `selective` (recomputes what is cheap), `activation_offload` (activations on the host), `optimizer_offload`
(optimizer state and update on the host, ZeRO-Offload).
"""
