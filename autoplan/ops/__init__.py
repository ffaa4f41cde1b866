"""Torch operators of our own, which `torch.compile` doesn't look into.

Order: `experts` (a mixture's experts), `recurrence` (linear recurrences, as in state-space models), `dropout` (by each
element's place), `ctc` (losses of sequences), `decompositions` (of matrices).
"""
