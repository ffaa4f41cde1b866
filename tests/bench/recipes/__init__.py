"""Recipes that others ran, each planned as they pinned it and freely: ``python -m tests.bench.recipes``.

shapes    what a row's model is: a name that autoplan knows, with settings
clusters  what a row's devices are
row       a line of the file, and the pins that it says
price     both plans of one job
document  the table
"""
