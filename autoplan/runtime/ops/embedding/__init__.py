"""Look-ups in tables of which a rank has some rows or columns.

Order: `ranges` (checks indices), `vocab_parallel` (rows split, also pooled), `lookups` (many tables in one flat
parameter).
"""
