"""Losses: cross-entropy, over whole classes and over classes split between ranks, and losses of sequences.

Order: `cross_entropy` (whole classes and denominators), `vocab_parallel` (split classes), `ctc` (labels without times).
"""
