"""How operators may be split over one mesh axis.

A rule names an operator's factors, as an einsum does: ``"b k, n k -> b n"``. A factor of the result splits freely. One
that only operands have leaves partial sums. `strategies` reads the ways to run an operator off its rule.

Modules, each importing only those before it:

    operator_names  operators by name
    notation        one rule
    registry        the rules by operator
    faults          errors of a rule
    kept_values     what the backward reads
    strategies      the strategies of a rule on a mesh
    constraints     what a user rules out
    tensor          rules of tensor operators
    nn              rules of layers
    builtin         registers both
    extensions      users' operators and rules
    check           proves a rule, or suggests one
"""
