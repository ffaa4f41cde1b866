"""Gradients that go over the data axis compressed: what each rank sends of its own, and what all make of it.

Order: `compressor` (what all kinds have in common), `powersgd` (two factors of low rank), `block_codes` (elements of a
block in few bits), `quantised` (sums of what goes in few bits: int8), `topk` (each rank's largest elements), `onebit`
(Adam's momentum in one bit an element), `kinds` (each by its name).
"""
