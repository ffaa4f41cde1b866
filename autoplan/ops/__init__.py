"""Torch operators of our own, which `torch.compile` doesn't look into.

Order: `torch_private` (names of torch that have no public alias), `experts` (a mixture's experts), `recurrence` (linear
recurrences, as in state-space models), `dropout` (by each element's place), `ctc` (losses of sequences),
`decompositions` (of matrices).
"""
