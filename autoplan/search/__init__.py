"""The search: a traced model and a cluster in, a complete choice out.

It lists the candidates, bounds them, and evaluates the most promising first. A candidate's operators are chosen by an
integer program, then its stages are cut. docs/search_method.md explains the method.

Order: `budget` (what a search may spend), `space` (the candidates), `block_cost` (what a block costs), `intra_op`
(operators), `inter_op` (pipeline stages), `operator_problems` (each operator problem once), `candidate_costs` (costs
before the chain is cut), `bounds` (lower bounds), `step_seconds` (of a chain that is cut), `evaluate` (one candidate
priced), `predict` (what a choice costs),
`state` (one search in progress), `repriced` (a plan priced again from its record), `breakdown` (what its step is made
of), `further` (plans with axes of their own for experts and long rows, factored axes, or offload, beside the best),
`driver` (best-first search), `chosen` (the winner as a choice), `explain` (what stands beside it), `entry` (what others
call), `tables` (embedding tables placed first).
"""
