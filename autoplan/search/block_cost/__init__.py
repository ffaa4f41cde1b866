"""What one microbatch of one block costs: seconds, bytes kept for the backward, bytes held while it runs."""
