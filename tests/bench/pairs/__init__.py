"""The emitted program beside what is written by hand with PyTorch's own parts: ``python -m tests.bench.pairs``.

Order: `models` (what is trained), `measured` (one side's calls, collectives, saved bytes), `byhand/` (the other side),
`cases` (which pairs there are), `contest` (both sides on their ranks, alternating), `table`.
"""
