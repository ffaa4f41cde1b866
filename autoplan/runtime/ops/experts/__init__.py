"""A mixture's experts on the ranks that have them, and the all-to-all of their tokens.

Order: `own_experts` (all experts, or a rank's own), `routing` (tokens sent and returned), `routed` (experts over
ranks).
"""
