"""Plans that are sought beside the best of the plain candidates: each starts from that one, and must be quicker.

Order: `factoring` (tensor axes factored into several), `host_memory` (what lies in the host's memory), `context` (an
axis for long rows), `expert_axis` (an axis for a mixture's experts).
"""
