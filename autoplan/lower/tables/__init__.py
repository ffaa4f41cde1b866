"""Embedding tables placed on devices: whole, by rows or by columns, in one flat parameter.

Order: `grouping` (finds the tables of a traced model and joins their look-ups), `place` (assigns them by ILP).
"""
