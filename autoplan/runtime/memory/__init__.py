"""Memory for time: selective recomputation, activations and optimizer state in the host's memory."""
