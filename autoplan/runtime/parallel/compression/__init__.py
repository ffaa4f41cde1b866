"""Compressed sums of gradients over the data axis: PowerSGD, int8, top-k, 1-bit Adam.

Order: `compressor` (what all kinds have in common), `powersgd` (two factors of low rank), `block_codes` (elements of a
block in few bits), `quantised` (sums of what goes in few bits: int8), `topk` (each rank's largest elements), `onebit`
(Adam's momentum in one bit an element), `kinds` (each by its name).
"""
