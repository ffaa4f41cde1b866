"""Variants of the best plan, each kept only if it is quicker.

Order: `factoring` (tensor axes factored into several), `host_memory` (what lies in the host's memory), `axes` (axes of
their own for long rows and for a mixture's experts), `virtual_stages` (other numbers of stages on a rank).
"""
