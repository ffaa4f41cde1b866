"""How operators may be split over one mesh axis.

A rule names an operator's factors, as an einsum does: ``"b k, n k -> b n"``. A factor of the result splits freely. One
that only operands have leaves partial sums. `strategies` reads the ways to run an operator off its rule.

Order: `operator_names` (operators by name), `notation` (one rule), `registry` (the rules by operator), `faults` (what
is wrong with a rule), `kept_values` (what the backward reads), `strategies` (a rule on a mesh), `constraints` (what a
user rules out), `tensor` (rules of tensor operators), `nn` (rules of layers), `builtin` (registers both), `extensions`
(users' operators and rules), `check` (proves a rule, or suggests one).
"""
