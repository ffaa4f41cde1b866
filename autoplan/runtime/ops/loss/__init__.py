"""Cross-entropy, over whole classes and over classes split between ranks.

Order: `cross_entropy` (whole classes and denominators), `vocab_parallel` (split classes).
"""
