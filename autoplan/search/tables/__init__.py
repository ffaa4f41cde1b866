"""Embedding tables placed on devices before the search: whole, by rows or by columns, in one flat parameter.

Order: `grouping` (where a model looks tables up, and the model with them in one parameter), `place` (which device has
which table, an ILP), `driver` (the search with tables placed where that is asked for, or quicker).
"""
