"""What a report says beside the plan: alternatives, the price of a pin, what would make a plan fit.

Order: `dp_axis_check` (whether the batch belongs on the data axis), `pins` (the price of a pin), `alternatives` (named
systems and other meshes), `remedies` (changes that make a plan fit), `does_not_fit` (the error when nothing fits).
"""
