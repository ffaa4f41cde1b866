"""Laws of the search over many models and clusters: ``make bench-laws``.

Order: cells, pins, laws, then ``__main__``.
"""
