"""The vocabulary that every pass shares; frozen dataclasses, free of torch.fx.

Order: `mesh` (named axes of devices), `layout` (how a tensor lies on them), `graph` (the traced model),
`choice` (what the search decides), `typed` (the lowered program, a layout on every value), `record` (all of a plan, as
plan.json holds it), `codec` (dataclasses to JSON and back).
"""
