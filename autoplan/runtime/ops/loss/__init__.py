"""Cross-entropy, over whole classes and over classes split between ranks."""
