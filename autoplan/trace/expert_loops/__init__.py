"""Loops over experts, read while forward runs: ``for e in hit: y.index_add_(0, at, expert(x[at]) * score[at])``.

How many tokens an expert gets follows from values, so no graph holds the loop. What it computes needs none of that: it
is the sum over all experts that ``autoplan::experts`` computes, for an expert without tokens adds nothing.

Order: `forward_calls` (what forward called, and what came of it), `loop_numbers` (the numbers that a loop goes by),
`expert_index` (which expert each choice names), `expert_parts` (what one expert adds), `read_mixture` (all of them as
one operator), `sorted_choices` (experts whose rows are sorted, cut and joined), `loop_recorder` (watches forward, and
puts the operator in the loop's place), `without_tokens` (refuses loops that do more than add).
"""
