"""How operators may be split.

`notation` states one rule as an einsum does; `registry` holds the rules by operator; `builtin` registers those of
`tensor/` and `nn/`; `strategies` turns a rule and a mesh into ways to run one operator; `check/` proves a rule, or
suggests one; `faults` tells what is wrong with one; `extensions` are the modules that define users' rules.
"""
