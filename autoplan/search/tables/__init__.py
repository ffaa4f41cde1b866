"""Embedding tables placed on devices before the search: whole, by rows or by columns, in one flat parameter.

Order: `table_groups` (where a model looks tables up, and the model with them in one parameter), `ungrouped` (the way
back), `place` (which device has which table, an ILP), `cached_tables` (caches of those that lie off the devices),
`placed_search` (the search with tables placed where that is asked for, or quicker).
"""
