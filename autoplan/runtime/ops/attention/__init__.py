"""Attention whose code differs from rank to rank.

Order: `blocks` (attention block by block), `last_rows` (causality over split rows), `heads` (shared heads, dropout),
`ring` (keys and values that go round the ranks).
"""
