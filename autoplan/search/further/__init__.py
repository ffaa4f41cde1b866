"""Plans that are sought beside the best of the plain candidates: each starts from that one, and must be quicker.

Order: `factoring` (tensor axes factored into several), `host_memory` (what lies in the host's memory), `axes` (axes of
their own for long rows and for a mixture's experts), `rounds` (other numbers of stages on a rank).
"""
