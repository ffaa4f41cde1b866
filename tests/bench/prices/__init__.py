"""The printed parts of docs/appendix/prices.md: what the cost functions say when they are given symbols.

``python -m tests.bench.prices`` prints them, and writes them with ``--write``. Modules, each importing only those
before it:

    formulas  the cost functions' own formulas
    examples  a worked example: two recipes, their slopes, where one overtakes the other
    document  the parts of the page
"""
