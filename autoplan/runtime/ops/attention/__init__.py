"""Attention whose code differs from rank to rank.

Order: `heads` (shared heads, causality over split rows), `blocks` (attention block by block), `ring` (keys and values
that go round the ranks).
"""
