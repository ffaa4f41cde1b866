"""The plan's prices against what the rehearsed program does: every call that is priced is made, every call made priced.

Order: `priced_plan` (a plan priced again, and the rank's share of it), `priced_call` (one of its calls),
`parameter_calls` (those for parameters and their gradients), `calls` (all collectives and messages that the plan prices
on a rank, and those that it leaves out), `balance` (these against a trace's), `priced_operators` (the lines
of program.py and their statements: kernels and FLOPs against the statements' prices), `seconds` (a price for each call
of a trace).
"""
