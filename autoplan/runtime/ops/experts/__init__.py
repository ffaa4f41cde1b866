"""A mixture's experts on the ranks that have them, and the all-to-all of their tokens.

Order: `capacity` (the choices that experts take), `own_experts` (all experts, or a rank's own), `dispatch` (tokens
sent and returned), `routed` (experts over ranks),
`beside_shared` (the same in three calls, between which others are computed).
"""
