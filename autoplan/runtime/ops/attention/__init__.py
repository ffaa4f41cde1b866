"""Attention where ranks differ: shared heads, split rows, keys and values round a ring."""
