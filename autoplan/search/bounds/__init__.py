"""Lower bounds on a candidate's step time and memory, by which most candidates are never evaluated.

Order: `block_bounds` (least seconds and bytes of each block), `floors` (bounds in closed form), `knapsack` (a bound
under the memory limit), `lower_bounds` (a candidate's bounds).
"""
